package dispatch

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// sitesOf reads texts as files, in their order.
func sitesOf(t *testing.T, texts ...string) (*Sites, error) {
	t.Helper()
	var files []string
	for i, text := range texts {
		f := filepath.Join(t.TempDir(), itoa(i)+".toml")
		testenv.Check(t, os.WriteFile(f, []byte(text), 0o644))
		files = append(files, f)
	}
	return ReadSites(files)
}

// The user's file adds to the machine's and overrules it, key by key.
func TestSitesOverrule(t *testing.T) {
	s, err := sitesOf(t, `
		default = "a"
		[site.a]
		scheduler = "slurm"
		queue = "batch"
		options = ["--x"]
		env = { SLURM_CONF = "/a", B = "1" }
		[site.b]
		scheduler = "pbs"`, `
		default = "b"
		[site.a]
		queue = "mine"
		options = ["--y"]
		env.B = "2"
		[site.c]
		ssh = "me@c"`)
	testenv.Check(t, err)
	a, err := s.Find("a")
	testenv.Check(t, err)
	want := Site{Name: "a", File: s.Files[1], Scheduler: "slurm", Queue: "mine", Options: []string{"--y"}, Env: map[string]string{"SLURM_CONF": "/a", "B": "2"}}
	if !reflect.DeepEqual(*a, want) {
		t.Errorf("site a = %+v; want %+v", *a, want)
	}
	if len(s.All()) != 3 || s.Default != "b" || len(s.Remote()) != 1 || s.Remote()[0].Name != "c" {
		t.Errorf("%d sites, default %q, by ssh %v; want 3, b, c", len(s.All()), s.Default, s.Remote())
	}
}

func TestSitesThatAreNotThere(t *testing.T) {
	s, err := ReadSites([]string{filepath.Join(t.TempDir(), "none")})
	if err != nil || len(s.All()) != 0 || len(s.Files) != 0 {
		t.Errorf("ReadSites of no file = %+v, %v; want no sites", s, err)
	}
}

// Mistakes are reported with their line and a similar key.
func TestSitesRefused(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"defalt = \"a\"", `0.toml:1: unknown key "defalt" (did you mean "default"?)`},
		{"[sites.a]\nqueue = \"x\"", `0.toml:1: unknown key "sites" (did you mean "site"?)`},
		{"[site.a]\n\n# words\nquue = \"x\"", `0.toml:4: unknown key "quue" (did you mean "queue"?)`},
		{"[site.a]\nenv = {}\nxyzzyxyzzy = 1", `0.toml:3: unknown key "xyzzyxyzzy"; known keys: scheduler, env, ssh, `},
		{"[site]\na = { scheduler = \"slurm\", modul = [] }", `0.toml:2: unknown key "modul" (did you mean "modules"?)`},
		{"[site.a.pe]\nsmp = \"x\"", `unknown key "pe"`},
		{"[site.a]\nqueue = 7", `0.toml:2: site.a.queue: `},
		{"[site.a]\noptions = \"-x\"", `0.toml:2: site.a.options: `},
		{"[site]\na = 3", `0.toml:2: `},
		{"[site.a]\nqueue = \"x", `0.toml:2: `},
		{"[site.a]\nqueue = \"a b\"", `0.toml:2: site a: queue: "a b": contains characters`},
		{"[site.a]\nscheduler = \"quantum\"", `0.toml:2: site a: scheduler: "quantum": not a scheduler; known are argo, gridengine, kubernetes, local, lsf, openshift, pbs, slurm`},
		{"[site.a]\nssh = \"-oProxyCommand=sh\"", `0.toml:2: site a: ssh: `},
		{"[site.a]\nssh = \"a b\"", `0.toml:2: site a: ssh: `},
		{"[site.a]\nstore = \"/x\"", `0.toml:2: site a: store: only valid for a site with ssh`},
		{"[site.a]\nmodules = [\"a; rm\"]", `0.toml:2: site a: modules: "a; rm"`},
		{"[site.a]\nmodules = [\"\"]", `0.toml:2: site a: modules: ""`},
		{"[site.a]\nqueues = { x = \"a\\nb\" }", `0.toml:2: site a: queues: `},
		{"[site.a]\noptions = [\"a\\nb\"]", `0.toml:2: site a: options: `},
		{"[site.a]\nenv = { \"A-B\" = \"\" }", `0.toml:2: site a: env: "A-B"`},
		{"[site.a]\nmemory_per = \"node\"", `0.toml:2: site a: memory_per: "node": known are slot, job, host`},
		{"[site.\"../a\"]\nqueue = \"x\"", `a site name starts with a letter`},
		{"default = \"b\"\n[site.a]\nqueue = \"x\"", `default: no site "b"; known sites: a`},
	} {
		_, err := sitesOf(t, test.text)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("ReadSites(%q) = %v; want %q", test.text, err, test.want)
		}
	}
}

// A job takes of its site what it does not say itself.
func TestApply(t *testing.T) {
	site := &Site{Name: "a", Queue: "normal", Account: "proj", Options: []string{"--x", "--y"}, Queues: map[string]string{"gpu": "sched_gpu", "normal": "batch"},
		Modules: []string{"m"}, Rules: job.Rules{GPU: "ngpus"}}
	j := jobtest.With(func(j *job.Job) { j.Account, j.Native = "mine", []string{"--y", "--z"} })
	notes := site.Apply(j)
	if j.Queue != "batch" || j.Account != "mine" || !slices.Equal(j.Native, []string{"--x", "--y", "--z"}) || !slices.Equal(j.Modules, []string{"m"}) || j.Rules.GPU != "ngpus" {
		t.Errorf("Apply: %+v", j)
	}
	if len(notes) != 1 || notes[0] != "queue normal is batch at site a" {
		t.Errorf("Apply: notes %q", notes)
	}
	again := *j
	if site.Apply(&again); !reflect.DeepEqual(again, *j) {
		t.Errorf("Apply twice: %+v; want %+v", again, *j)
	}
	plainJob := jobtest.Plain()
	if (&Site{}).Apply(plainJob); !reflect.DeepEqual(plainJob, jobtest.Plain()) {
		t.Errorf("Apply of no site: %+v", plainJob)
	}
}

// Settings that schedulers leave to the site are in the scripts.
func TestRules(t *testing.T) {
	for _, test := range []struct {
		to    job.Target
		rules job.Rules
		want  []string
	}{
		{"gridengine", job.Rules{}, []string{"-pe smp 4", "-l mem_free=1024M", "-l gpu=1"}},
		{"gridengine", job.Rules{OneHost: "threaded", Memory: []string{"h_vmem"}, MemoryPer: "job", GPU: "ngpus", GPUPer: "job"}, []string{"-pe threaded 4", "-l h_vmem=4096M", "-l ngpus=4"}},
		{"pbs", job.Rules{GPU: "gpus"}, []string{":gpus=4"}},
		{"lsf", job.Rules{}, []string{"rusage[mem=4096MB]", "-M 4096MB"}},
		{"lsf", job.Rules{MemoryPer: "slot"}, []string{"rusage[mem=1024MB]", "-M 4096MB"}},
	} {
		script, _, err := Render(jobtest.With(func(j *job.Job) { j.CPUs, j.Memory, j.GPUs, j.Rules = 4, 4<<30, 4, test.rules }), test.to)
		for _, want := range test.want {
			if err != nil || !strings.Contains(script, want) {
				t.Errorf("Render(%+v, %s) = %v, %s; want %q", test.rules, test.to, err, script, want)
			}
		}
	}
	script, _, err := Render(jobtest.With(func(j *job.Job) { j.Tasks, j.Rules = 4, job.Rules{ManyHosts: "orte"} }), "gridengine")
	if err != nil || !strings.Contains(script, "-pe orte 4") {
		t.Errorf("Render of 4 tasks = %v, %s; want -pe orte 4", err, script)
	}
}

// If a site does not answer, its last answer is reported, and a job that is in
// both places is the site's.
func TestLastStatuses(t *testing.T) {
	dir := t.TempDir()
	site := &Site{Name: "far", SSH: "nowhere"}
	for _, id := range []string{"one", "two"} {
		s := &Submission{ID: id, Native: "7-" + id, Cluster: Cluster{Target: "slurm"}, Submitted: time.Unix(int64(len(id)), 0), Job: jobtest.Plain()}
		testenv.Check(t, site.Sent(dir, s))
	}
	list, known := site.cachedStatuses(dir)
	if len(list) != 2 || known.IsZero() || list[0].ID != "two" || list[0].Site != "far" || list[0].State() != "waiting" || list[0].AsOf.IsZero() {
		t.Fatalf("cachedStatuses = %+v, %v", list, known)
	}
	if st, err := pick(list, "tw"); err != nil || st.id() != "two" || st.at([]*Site{site}) != site {
		t.Errorf("pick(tw) = %v, %v", st, err)
	}
	if st, err := pick(list, "nothing"); err != nil || st != nil {
		t.Errorf("pick(nothing) = %v, %v", st, err)
	}
	mine := []*Status{
		{Submission: &Submission{ID: "one", Native: "7-one", Job: jobtest.Plain(), Submitted: time.Unix(9, 0)}},
		{Submission: &Submission{ID: "one", Native: "8", Job: jobtest.Plain(), Submitted: time.Unix(9, 0)}},
	}
	merged, err := merge("", mine, list, nil)
	if err != nil || len(merged) != 3 || merged[0].Native != "8" {
		t.Errorf("merge = %+v, %v; want three, the newest first", merged, err)
	}
	if _, err := merge("", nil, list, []string{"nothing"}); err == nil {
		t.Error("merge: an unknown ID is not an error")
	}
	os.WriteFile(site.cacheFile(dir), []byte("{}"), 0o644)
	if list, _ := site.cachedStatuses(dir); len(list) != 0 {
		t.Errorf("cachedStatuses of a broken file = %+v", list)
	}
}

func FuzzSites(f *testing.F) {
	f.Add("default = \"a\"\n[site.a]\nscheduler = \"slurm\"\nqueues = { a = \"b\" }\nenv.X = \"y\"\nmodules = [\"m\"]")
	f.Add("[site.a]\nssh = \"u@h\"\n[site.a.env]\nA = \"b\"\nunknown = 1")
	f.Add("[[site]]\n[site.\"\"]\n\"\" = 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		s := &Sites{list: map[string]*Site{}}
		if err := s.parse("f", text); err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("parse(%q) = %v; want the file's name first", text, err)
			}
			return
		}
		for _, site := range s.All() { // what was taken can be written into any script
			j := jobtest.Plain()
			site.Apply(j)
			for _, to := range targets() {
				if _, _, err := Render(j, to); err != nil && to != job.Local && !strings.Contains(err.Error(), "shared out") {
					t.Errorf("parse(%q): %s: %v", text, to, err)
				}
			}
		}
	})
}
