package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pod is one of a job's, as the server tells of it: index, name, when it was made, and how its program ended; "" while it runs.
func podOf(index, name string, made int, ended string) kubePod {
	var p kubePod
	p.Metadata.Name = name
	p.Metadata.Annotations = map[string]string{"batch.kubernetes.io/job-completion-index": index}
	p.Metadata.CreationTimestamp = time.Unix(int64(made), 0)
	p.Spec.NodeName = "n1"
	c := kubeContainer{Name: mainContainer}
	if ended == "" {
		p.Status.Phase = "Running"
		c.State.Running = &struct{ StartedAt time.Time }{time.Unix(int64(made+1), 0)}
	} else {
		code := map[string]int{"ok": 0, "bad": 3}[ended]
		c.State.Terminated = &struct {
			ExitCode              int
			Reason, Message       string
			StartedAt, FinishedAt time.Time
		}{code, "Error", "", time.Unix(int64(made+1), 0), time.Unix(int64(made+2), 0)}
	}
	p.Status.ContainerStatuses = []kubeContainer{c}
	return p
}

// TestLearn follows a task with a retry, then a rerun with one, as the cluster tells of them look by look.
func TestLearn(t *testing.T) {
	dir := t.TempDir()
	s := &Submission{ID: "j", Native: "j", Cluster: Cluster{Target: Kubernetes}, Job: &Job{Name: "j", Array: array(t, "3,5")}}
	look := func(over bool, pods ...kubePod) string {
		t.Helper()
		known := map[string]standing{}
		for i, id := range s.natives() {
			var st standing
			var own []kubePod
			for _, p := range pods {
				if strings.HasPrefix(p.Metadata.Name, id+":") {
					own = append(own, p)
				}
			}
			st.learn(own, func(int) bool { return over || i < len(s.Reruns) })
			known[id] = st
		}
		if err := s.learn(dir, known); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, f := range files {
			r := &Task{}
			if !readRecord(dir, f.Name(), r) {
				t.Fatalf("%s cannot be read", f.Name())
			}
			word := "runs"
			if r.Ended() {
				word = r.Ending()
			}
			out = append(out, strings.TrimSuffix(strings.TrimPrefix(f.Name(), "task."), ".json")+" "+r.Native+" "+word)
		}
		return strings.Join(out, "; ")
	}
	a, b := podOf("0", "j:a", 10, "bad"), podOf("0", "j:b", 20, "bad")
	c, d := podOf("0", "j-r1:c", 30, "bad"), podOf("0", "j-r1:d", 40, "ok")
	other := podOf("1", "j:o", 11, "ok")
	for i, step := range []struct {
		over  bool
		pods  []kubePod
		rerun bool
		want  string
	}{
		{false, []kubePod{podOf("0", "j:a", 10, ""), other}, false, "3 j:a runs; 5 j:o status 0"},
		{false, []kubePod{a, other}, false, "3.0 j:a status 3; 5 j:o status 0"},
		{false, []kubePod{a, other, podOf("0", "j:b", 20, "")}, false, "3.0 j:a status 3; 3 j:b runs; 5 j:o status 0"},
		{false, []kubePod{b, other, a}, false, "3.0 j:a status 3; 3.1 j:b status 3; 5 j:o status 0"},
		{true, []kubePod{a, b, other}, false, "3.0 j:a status 3; 3 j:b status 3; 5 j:o status 0"},
		{true, nil, false, "3.0 j:a status 3; 3 j:b status 3; 5 j:o status 0"},
		{false, []kubePod{a, b, other}, true, "3.0 j:a status 3; 3.1 j:b status 3; 5 j:o status 0"},
		{false, []kubePod{a, b, c, other}, false, "3.0 j:a status 3; 3.1 j:b status 3; 3.2 j-r1:c status 3; 5 j:o status 0"},
		{true, []kubePod{a, b, d, c, other}, false, "3.0 j:a status 3; 3.1 j:b status 3; 3.2 j-r1:c status 3; 3 j-r1:d status 0; 5 j:o status 0"},
	} {
		if step.rerun {
			(&Task{Index: 3}).retire(dir)
			s.Reruns = []Rerun{{Native: "j-r1", Array: array(t, "3")}}
		}
		if got := look(step.over, step.pods...); got != step.want {
			t.Fatalf("look %d: %s; want %s", i, got, step.want)
		}
	}
}

// TestPodsOfNodes makes one record of a job of several nodes.
func TestPodsOfNodes(t *testing.T) {
	dir := t.TempDir()
	s := &Submission{ID: "j", Native: "j", Job: &Job{Name: "j", Nodes: 3}}
	var st standing
	st.learn([]kubePod{podOf("2", "c", 1, "ok"), podOf("0", "a", 1, "ok"), podOf("1", "b", 1, "bad")}, func(int) bool { return true })
	if err := s.learn(dir, map[string]standing{"j": st}); err != nil {
		t.Fatal(err)
	}
	got := &Task{}
	if !readRecord(dir, "task.0.json", got) || got.Native != "b" || got.Exit != 3 {
		t.Errorf("the record is %+v; want that of the node that failed", got)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 1 {
		t.Errorf("there are %v; want one record", files)
	}
}

// TestPodsOfNodesGoOn: what some nodes have done says nothing while others run, but that they failed.
func TestPodsOfNodesGoOn(t *testing.T) {
	a, b, c := podOf("0", "a", 1, "ok"), podOf("1", "b", 2, ""), podOf("2", "c", 3, "bad")
	for _, test := range []struct {
		name string
		ray  bool
		pods []kubePod
		over bool
		want string
	}{
		{"the first has ended, another runs", false, []kubePod{a, b}, false, "b running"},
		{"the first has ended, another has not begun", false, []kubePod{a}, false, ""},
		{"one has failed, another runs", false, []kubePod{a, b, c}, false, "c status 3"},
		{"all have ended", false, []kubePod{a, podOf("1", "b", 2, "ok")}, true, "a status 0"},
		{"Ray, whose program runs", true, []kubePod{podOf("0", "a", 1, ""), c}, false, "a running"},
		{"Ray, whose program has ended, and workers are told to", true, []kubePod{a, b, c}, false, "a status 0"},
		{"Ray, whose head has not begun", true, []kubePod{b}, false, ""},
	} {
		s := &Submission{ID: "j", Native: "j", Job: &Job{Name: "j", Nodes: 3, Ray: test.ray}}
		st := standing{waiting: 1}
		st.learn(test.pods, func(int) bool { return true })
		if test.over {
			st.waiting = 0
		}
		got := ""
		if list := s.ofNodes(st); len(list) == 1 {
			got = list[0].Native + " " + map[bool]string{true: list[0].Ending(), false: "running"}[list[0].Ended()]
		}
		if got != test.want {
			t.Errorf("%s: %q; want %q", test.name, got, test.want)
		}
	}
}

// TestTakenBack: of what kubectl says when it was refused, the objects that it had made.
func TestTakenBack(t *testing.T) {
	for line, want := range map[string]bool{
		"service/train-261122-034654": true, "job.batch/train": true, "rayjob.ray.io/x": true, "": false,
		`Error from server (AlreadyExists): jobs.batch "train" already exists`: false, "--all": false, "job.batch/x y": false,
	} {
		if got := madeObject().MatchString(line); got != want {
			t.Errorf("%q: %v; want %v", line, got, want)
		}
	}
}

// TestRerunsOfLongNames: the name of a rerun's object is the one that its pods have as a label.
func TestRerunsOfLongNames(t *testing.T) {
	for _, name := range []string{"a", "train-resnet50-imagenet-x", "train-resnet50-imagenet-largechunks-of-all"} {
		if l := Label(name + "-261122-003548-r1"); l != Label(l) || !strings.HasSuffix(l, "-261122-003548-r1") {
			t.Errorf("label of %s is %s, whose label is %s", name, l, Label(l))
		}
	}
}

// TestRelativeKubeconfig: kubectl is called elsewhere than where the user is.
func TestRelativeKubeconfig(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", "a:/b/c::./d")
	env := environ(t.Context())
	if got, want := env[len(env)-1], "KUBECONFIG="+here+"/a:/b/c::"+here+"/d"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

// TestPodWords holds why a pod waits or ended to what its user can do.
func TestPodWords(t *testing.T) {
	waits := func(reason, message string) string {
		p := podOf("0", "a", 1, "")
		p.Status.ContainerStatuses[0].State.Running = nil
		p.Status.ContainerStatuses[0].State.Waiting = &struct{ Reason, Message string }{reason, message}
		return p.waits()
	}
	ends := func(reason, message, podReason, podMessage string) string {
		p := podOf("0", "a", 1, "bad")
		p.Status.Reason, p.Status.Message = podReason, podMessage
		p.Status.ContainerStatuses[0].State.Terminated.Reason, p.Status.ContainerStatuses[0].State.Terminated.Message = reason, message
		task, _ := p.task()
		return task.Ending()
	}
	for _, c := range []struct{ got, want string }{
		{waits("ContainerCreating", ""), ""},
		{waits("ImagePullBackOff", "no such\nthing"), "no such thing; \"hpcc deploy\""},
		{waits("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"), "--uid NUMBER"},
		{waits("ErrImageNeverPull", ""), "--pull never"},
		{ends("Error", "", "", ""), "status 3"},
		{ends("OOMKilled", "", "", ""), "--mem gives it more"},
		{ends("StartError", "exec: \"x\": not found", "", ""), "could not be started: exec: \"x\": not found"},
		{ends("Error", "", "DeadlineExceeded", ""), "--time gives it more"},
		{ends("Error", "", "Evicted", "Pod ephemeral local storage usage exceeds"), "--scratch SIZE"},
	} {
		if !strings.Contains(c.got, c.want) || (c.want == "" && c.got != "") {
			t.Errorf("%q; want %q in it", c.got, c.want)
		}
	}
}

func TestQuantity(t *testing.T) {
	for in, want := range map[string]float64{"500m": 0.5, "2": 2, "64Gi": 64 << 30, "1k": 1000, "3Mi": 3 << 20, "1e3": 1000, "1.5Ki": 1536, "2E": 2e18} {
		if got, ok := parseQuantity(in); !ok || got != want {
			t.Errorf("parseQuantity(%q) = %v, %v; want %v", in, got, ok, want)
		}
	}
	for _, in := range []string{"", "x", "1Xi", "1mi", "Gi"} {
		if got, ok := parseQuantity(in); ok {
			t.Errorf("parseQuantity(%q) = %v", in, got)
		}
	}
	for in, want := range map[int64]string{1 << 30: "1Gi", 1536 << 20: "1536Mi", 1000: "1000", 2048: "2Ki", 3 << 40: "3Ti"} {
		if got := podQuantity(in); got != want {
			t.Errorf("podQuantity(%d) = %s; want %s", in, got, want)
		}
	}
}

func TestLabel(t *testing.T) {
	for in, want := range map[string]string{
		"Train_Big.x": "train-big-x", "-a-": "a", "9lives": "j9lives", "": "j",
		strings.Repeat("very", 20) + "-261122-003548": "veryveryveryveryveryveryveryv-261122-003548",
	} {
		got := Label(in)
		if (got != want && !(len(in) > 45 && strings.HasSuffix(got, "-261122-003548"))) || len(got) > 45 || !dnsLabel().MatchString(got) {
			t.Errorf("label(%q) = %q; want %q", in, got, want)
		}
	}
}

func TestParsePods(t *testing.T) {
	for _, in := range []string{"data", "/gpfs:/x", "data:x", "data:/", "data:/a/../b", "Data:/x", "a:/x:y"} {
		if v, err := ParseVolume(in); err == nil {
			t.Errorf("ParseVolume(%q) = %+v", in, v)
		}
	}
	if v, err := ParseVolume("data:/x/:ro"); err != nil || v != (Volume{"data", "/x", true}) {
		t.Errorf("ParseVolume = %+v, %v", v, err)
	}
	if v, err := ParseVolume("scratch:/x"); err != nil || v != (Volume{"", "/x", false}) {
		t.Errorf("ParseVolume = %+v, %v", v, err)
	}
	for _, in := range []string{"x", "x=0", "x=70000", "8000", "a--b=1", "Web=1", "123=4", "waytoolongaportname=1"} {
		if p, err := ParsePort(in); err == nil {
			t.Errorf("ParsePort(%q) = %+v", in, p)
		}
	}
	for _, in := range []string{"A", "a:", "a:b", "a:/", ""} {
		if s, err := ParseSecret(in); err == nil {
			t.Errorf("ParseSecret(%q) = %+v", in, s)
		}
	}
}

// unexpand is what Kubernetes makes of a word in which it finds none of its variables
// (k8s.io/kubernetes, third_party/forked/golang/expansion).
func unexpand(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		b.WriteByte(s[i])
		if s[i] == '$' && i+1 < len(s) && s[i+1] == '$' {
			i++
		}
	}
	return b.String()
}

func TestExpandable(t *testing.T) {
	for _, s := range []string{"", "$", "$$", "$$$", "$(A)", "$$(A)", "a$", "$a$(", "$($(x))", "100$$ $(date) ${x}"} {
		e := expandable(s)
		if got := unexpand(e); got != s {
			t.Errorf("expandable(%q) = %q, of which Kubernetes makes %q", s, e, got)
		}
		if strings.Contains(strings.ReplaceAll(e, "$$", ""), "$(") {
			t.Errorf("expandable(%q) = %q has a variable", s, e)
		}
	}
}
