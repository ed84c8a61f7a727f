package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hpcc/runtime/explain"
	"hpcc/testdata/helpers/testenv"
	"hpcc/text"
)

// A way runs the program of an image. effects has a column for each.
type way struct {
	name, title string
	takes       string   // flags that a cell without text has: "run", "job" (those of run too), or "" for none
	needs       []string // facilities besides busybox and userns
	// shell runs the program. It has the variables FLAGS, IMAGE and ARGS as quoted arguments, C for the
	// directory of the cell and FULL for that of the full program.
	shell   string
	edit    func(c *trial) error // prepares C before the shell runs; may be nil
	setUp   string               // shell commands before the first run; TESTDATA is the directory testdata
	end     string               // shell commands after the last run
	also    string               // facts that do not depend on options alone, such as the node's name
	explain string               // the command in shell that has --explain
}

var ways = []way{
	{name: "bare", title: "run", takes: "run", shell: `exec hpcc run FLAGS IMAGE -- ARGS`, explain: "hpcc run"},
	{name: "full", takes: "run", shell: `exec FULL/hpcc run FLAGS IMAGE -- ARGS`}, // without the start before the Go runtime
	{name: "docker", title: "docker run", shell: `exec docker run --rm FLAGS IMAGE ARGS`},
	{name: "apptainer", title: "apptainer exec", shell: `exec apptainer exec FLAGS IMAGE ARGS`, also: "Env.APPTAINER_BIND Env.SINGULARITY_BIND"},
	{name: "ch-run", title: "ch-run", shell: `exec ch-run FLAGS IMAGE -- ARGS`},
	{name: "wrap", title: "wrap", shell: `hpcc wrap FLAGS IMAGE C/w /bin/probe >&2; set -- ARGS; shift; exec C/w/bin/probe "$@"`},
	{name: "oci", title: "oci run", shell: `exec hpcc oci --root C/state run --bundle C/b probe`, edit: (*trial).writeBundle},
	{name: "local", title: "local", takes: "job", shell: `exec hpcc submit --to local --wait --output C/out.{task} FLAGS IMAGE -- ARGS`, explain: "hpcc submit"},
	{name: "script", title: "script, by hand", takes: "job", shell: `hpcc script --to local --output C/out.{task} FLAGS IMAGE -- ARGS >C/script; exec bash C/script`},
	{name: "slurm", title: "Slurm", takes: "job", needs: []string{"slurm"}, shell: `exec hpcc submit --to slurm --wait --output C/out.{task} FLAGS IMAGE -- ARGS >&2`,
		also: "Env.HOSTNAME Env.SLURMD_NODENAME Env.SLURM_JOB_NODELIST Env.SLURM_NODELIST Env.SLURM_TOPOLOGY_ADDR Host"},
	{name: "gridengine", title: "Grid Engine", takes: "job", needs: []string{"gridengine"}, shell: `exec hpcc submit --to gridengine --wait --output C/out.{task} FLAGS IMAGE -- ARGS >&2`,
		also: "Env.HOSTNAME Env.QUEUE Host Network NetworkSys Namespaces.net"},
	{name: "pod", title: "pod", takes: "job", needs: []string{"kube"}, shell: `exec hpcc submit --to kubernetes --wait --output C/out.{task} FLAGS IMAGE -- ARGS >&2`,
		setUp: `for i in img other; do hpcc push $i $KUBE_REGISTRY/effects/$i:1; done
			kubectl delete --ignore-not-found service/effects secret/effects
			kubectl create service clusterip effects --tcp=80; kubectl create secret generic effects --from-literal=SECRET=mine`,
		end: `kubectl delete service/effects secret/effects; TESTDATA/clusters/kube/clean.sh jobs,services restricted ocp`},
}

// An outcome is a cell of the table, written as FLAGS or as FLAGS | VERDICT: TEXT. Without FLAGS, the
// cell has those of the row. The verdicts are:
//
//	refused: MESSAGE   the command line is refused, and nothing runs
//	note: MESSAGE      the option has no effect, and a note says so
//	differs: FACTS     other facts than those of the row, such as those of the program that a front replaces
//	always: FACTS      the way always does what the option means
//	untested: REASON   the cell does not run
//
// A cell without text has the verdict "none" if the way has no such option; see TestEffectsPage.
type outcome struct{ flags, verdict, text string }

// column returns the name of the way whose cells this way has, too.
func (w *way) column() string {
	if w.name == "full" {
		return "bare"
	}
	return w.name
}

// cell returns the cell of a row for a way.
func (e *effect) cell(w *way) outcome {
	text, ok := e.ways[w.column()]
	if !ok && (e.want == "" || w.takes == "" || (w.takes == "run" && e.jobs)) {
		return outcome{verdict: "none"}
	}
	flags, verdict, _ := strings.Cut(text, "| ")
	c := outcome{flags: strings.TrimSpace(flags)}
	if c.flags == "" {
		c.flags = e.flags
	}
	c.verdict, c.text, _ = strings.Cut(verdict, ": ")
	return c
}

// A bench has what all cells of TestEffects share.
type bench struct {
	dir   string   // D in the table: home/job is the caller's directory
	env   []string // of the caller
	path  string   // PATH in env
	cells atomic.Int64
}

// A trial is one run of a row by a way.
type trial struct {
	*bench
	way   *way
	row   *effect
	cell  outcome
	dir   string // C in the table
	wants string // facts

	status      int
	errors      string            // standard error
	facts       map[string]string // of the probe, by path: "Env.A"
	unexplained []string          // differences to --explain
}

var defaultArgs = "/bin/probe x /etc/known"

// cluster returns the variables with which programs find the cluster of a way, for the PATH of the others.
func (w *way) cluster(path string) ([]string, error) {
	switch {
	case len(w.needs) == 0:
		return nil, nil
	case w.needs[0] != "kube":
		return testenv.Scheduler(path, w.needs...), nil
	}
	cluster := os.Getenv("HPCC_TEST_KUBE")
	list, err := kubeVariables(cluster)
	return append(list, "PATH="+path+":"+cluster+"/bin"), err
}

// replace replaces the directories in a text of the table.
func (c *trial) replace(text string) string {
	return strings.NewReplacer("D/", c.bench.dir+"/", "C/", c.dir+"/", "NTH", filepath.Base(c.dir), "UID", strconv.Itoa(os.Getuid()), "GID", strconv.Itoa(os.Getgid())).Replace(text)
}

// run runs the program and collects the reports of the probe.
func (c *trial) run() error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	if c.way.edit != nil {
		if err := c.way.edit(c); err != nil || c.status != 0 {
			c.facts = map[string]string{}
			return err
		}
	}
	quoted := func(line string) string {
		list, err := text.Words(c.replace(line), false)
		var argv []string
		for _, w := range list {
			argv = append(argv, w.Text)
		}
		if err != nil {
			panic(err)
		}
		return text.CommandLine(argv)
	}
	args, image := c.row.args, c.row.image
	if args == "" {
		args = defaultArgs
	}
	if image == "" {
		image = "img"
	}
	if strings.HasPrefix(image, "C/") { // a directory that the program may change
		if out, err := exec.Command("cp", "-a", c.bench.dir+"/tree", c.dir).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	script := strings.NewReplacer("FLAGS", quoted(c.cell.flags), "IMAGE", quoted(image), "ARGS", quoted(args), "FULL", full).Replace(c.replace(c.way.shell))
	before := c.row.before
	if before == "" || c.cell.verdict == "refused" {
		before = ":"
	}
	out, err := c.command("sh", "-ec", c.replace(before)+"\n"+script)
	if err == nil {
		err = c.collect(out)
	}
	if err != nil || c.way.explain == "" || c.cell.verdict == "refused" || c.row.want == "" {
		return err
	}
	explained, err := c.command("sh", "-ec", c.replace(before)+"\n"+strings.Replace(script, c.way.explain, c.way.explain+" --explain --json", 1))
	if err == nil {
		err = c.compareExplained(c.anonymous(explained))
	}
	return err
}

// command runs a program as the caller, and keeps its status and messages.
func (c *trial) command(argv ...string) (out []byte, err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = filepath.Join(c.bench.dir, "home", "job"), slices.Clip(c.env)
	if c.way != nil {
		more, err := c.way.cluster(c.path)
		if err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, more...)
	}
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	c.status, c.errors = cmd.ProcessState.ExitCode(), c.errors+e.String()
	return o.Bytes(), nil
}

// writeBundle writes the OCI bundle C/b. The flags of the cell are those of "hpcc unpack", or a JSON
// object that config.json is merged with; lists are appended.
func (c *trial) writeBundle() error {
	flags := c.cell.flags
	change, isChange := "", strings.HasPrefix(flags, "{")
	if isChange {
		change, flags = flags, ""
	}
	image := "img"
	if _, err := c.command("sh", "-ec", "hpcc unpack --bundle "+c.replace(flags)+" "+image+" "+c.dir+"/b"); err != nil || c.status != 0 {
		return err
	}
	file := filepath.Join(c.dir, "b", "config.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var config, more map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	argv := []any{}
	for _, a := range strings.Fields(c.replace("entry " + defaultArgs)) {
		argv = append(argv, a)
	}
	config["process"].(map[string]any)["args"] = append([]any{"/bin/probe"}, argv...)
	if isChange {
		if err := json.Unmarshal([]byte(c.replace(change)), &more); err != nil {
			return fmt.Errorf("%s: %w", change, err)
		}
	}
	if text, err = json.Marshal(merged(config, more)); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// merged returns a with the fields of b. Lists are appended; those of a field with a "=" at its end
// are replaced.
func merged(a, b map[string]any) map[string]any {
	for name, v := range b {
		name, set := strings.CutSuffix(name, "=")
		switch v := v.(type) {
		case map[string]any:
			old, _ := a[name].(map[string]any)
			if old == nil {
				old = map[string]any{}
			}
			a[name] = merged(old, v)
		case []any:
			old, _ := a[name].([]any)
			if set {
				old = nil
			}
			a[name] = append(old, v...)
		default:
			a[name] = v
		}
	}
	return a
}

// compareExplained compares the facts of --explain with those of the probe.
func (c *trial) compareExplained(text []byte) error {
	var x struct{ Facts []explain.Fact }
	if err := json.Unmarshal(text, &x); err != nil {
		return fmt.Errorf("--explain: %w: %s%s", err, text, c.errors)
	}
	n := 0
	for _, f := range x.Facts {
		key := map[string]string{"variable": "Env." + f.Name, "directory": "Dir", "hostname": "Host"}[f.Kind]
		got, ok := c.facts[key]
		if f.Kind == "mount" && f.Name != "/sys/fs/cgroup" { // which the probe leaves out
			key = "Mounts." + f.Name
			_, ok = c.facts[key]
			got = f.Value
		}
		if key != "" && !strings.HasPrefix(key, "Env.HPCC_TASK") && (ok == f.Unset || (ok && got != f.Value)) {
			c.unexplained = append(c.unexplained, fmt.Sprintf("%s is %q in the container, but %q (source %s, unset %v) for --explain", key, got, f.Value, f.Source, f.Unset))
		}
		if f.Kind == "variable" && !f.Unset {
			n++
		}
	}
	for key := range c.facts {
		if strings.HasPrefix(key, "Env.") {
			n--
		}
	}
	if n != 0 && c.way.takes == "run" {
		c.unexplained = append(c.unexplained, fmt.Sprintf("--explain has %d variables more than the container", n))
	}
	return nil
}

// anonymous replaces the directories of the test, and of a task's results.
func (c *trial) anonymous(out []byte) []byte {
	out = bytes.ReplaceAll(bytes.ReplaceAll(out, []byte(c.dir), []byte("C")), []byte(c.bench.dir), []byte("D"))
	return jobDirectory.ReplaceAll(out, []byte("D/store/jobs/ID/task"))
}

// jobDirectory is the directory of a task's results.
var jobDirectory = regexp.MustCompile(`D/store/jobs/[^/"]+/task\.[0-9]+`)

// collect reads the reports on standard output and in the files of C. The facts are those of the
// first report in the order of the tasks, and some of all.
func (c *trial) collect(out []byte) error {
	var reports []map[string]any
	files := []string{""}
	names, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range names {
		if files = append(files, e.Name()); !e.Type().IsRegular() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(c.dir, e.Name()))
		if err != nil {
			return err
		}
		out = append(append(out, '\n'), b...)
	}
	for line := range bytes.Lines(c.anonymous(out)) {
		if !bytes.HasPrefix(line, []byte(`{"Argv"`)) {
			continue
		}
		var r map[string]any
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		reports = append(reports, r)
	}
	task := func(r map[string]any) string {
		env := r["Env"].(map[string]any)
		return fmt.Sprint(env["HPCC_TASK_ID"], " ", env["SLURM_PROCID"], r["Argv"])
	}
	slices.SortFunc(reports, func(a, b map[string]any) int { return strings.Compare(task(a), task(b)) })
	c.facts = map[string]string{"Status": strconv.Itoa(c.status), "Tasks": strconv.Itoa(len(reports)), "Written": strings.Join(files[1:], " ")}
	if len(reports) == 0 {
		return nil
	}
	flatten(c.facts, "", reports[0])
	if c.facts["Process.session"] == c.facts["Process.pid"] {
		c.facts["Process.session"] = "own"
	}
	if c.way != nil && c.way.name == "pod" && c.facts["Process.pid"] != "1" { // threads of the entry program take numbers, too
		c.facts["Process.pid"] = "above 1"
	}
	users := map[any]bool{}
	for _, r := range reports {
		c.facts["Argvs"] += fmt.Sprintln(r["Argv"])
		users[r["Namespaces"].(map[string]any)["user"]] = true
	}
	for key, value := range c.facts { // the kernel may reuse the number of an ended one
		if name, of := strings.CutPrefix(key, "Namespaces."); of {
			host, err := os.Readlink("/proc/self/ns/" + name)
			if err != nil {
				return err
			}
			if c.facts[key] = "own"; value == host {
				c.facts[key] = "host"
			}
		}
	}
	c.facts["UserNamespaces"], c.facts["AtOnce"] = strconv.Itoa(len(users)), strconv.Itoa(mostAtOnce(reports))
	return nil
}

// mostAtOnce returns the largest number of tasks that ran simultaneously.
func mostAtOnce(reports []map[string]any) (most int) {
	start := func(r map[string]any) time.Time {
		t, _ := time.Parse(time.RFC3339Nano, r["Start"].(string))
		return t
	}
	for _, r := range reports {
		n := 0
		for _, other := range reports {
			if d := start(r).Sub(start(other)); d >= 0 && d <= time.Duration(other["Sleep"].(float64)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// flatten adds the fields of a JSON value to facts.
func flatten(facts map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			flatten(facts, strings.TrimPrefix(path+"."+name, "."), x)
		}
	case []any:
		var list []string
		for _, x := range v {
			list = append(list, fmt.Sprint(x))
		}
		facts[path] = strings.Join(list, " ")
	case nil:
		facts[path] = ""
	default:
		facts[path] = fmt.Sprint(v)
	}
}

// fieldOf returns the field of the report that a fact belongs to.
func fieldOf(fact string) string { f, _, _ := strings.Cut(fact, "."); return f }

// splitFact splits KEY, KEY=VALUE or KEY~REGEXP.
func splitFact(fact string) (key, op, value string) {
	if i := strings.IndexAny(fact, "=~"); i > 0 {
		return fact[:i], fact[i : i+1], fact[i+1:]
	}
	return fact, "", ""
}

// missing returns the wanted facts that do not hold: KEY (it exists), KEY=VALUE, KEY~REGEXP, these with "!" for
// the contrary, and *KEY (it differs from the run without the option).
func (c *trial) missing(facts, base map[string]string) (out []string) {
	for fact := range strings.SplitSeq(c.wants, "; ") {
		key, op, value := splitFact(strings.TrimLeft(fact, "!*"))
		got, ok := facts[key]
		switch op {
		case "=":
			ok = ok && got == value
		case "~":
			ok = ok && regexp.MustCompile(value).MatchString(got)
		}
		switch fact[0] {
		case '!':
			ok = !ok
		case '*':
			ok = got != base[key]
		}
		if !ok {
			out = append(out, fmt.Sprintf("want %s, but it is %q", fact, got))
		}
	}
	return out
}

// changes returns the facts that differ from a run without the option, except volatile ones.
func (c *trial) changes(base map[string]string, volatile map[string]bool) (out []string) {
	all := maps.Clone(base)
	maps.Copy(all, c.facts)
	for key := range all {
		if !volatile[key] && base[key] != c.facts[key] {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// check compares a run with the meaning of the row.
func (c *trial) check(t *testing.T, base map[string]string, volatile map[string]bool) {
	t.Helper()
	show := func(format string, a ...any) {
		t.Helper()
		t.Errorf("%s\n\tflags %s, status %d, messages:\n%s", fmt.Sprintf(format, a...), c.replace(c.cell.flags), c.status, c.errors)
	}
	message := c.replace(c.cell.text)
	if len(c.unexplained) > 0 {
		show("--explain differs from the run:\n%s", strings.Join(c.unexplained, "\n"))
	}
	switch changed := c.changes(base, volatile); c.cell.verdict {
	case "refused":
		if c.status == 0 || !strings.Contains(c.errors, message) {
			show("want a refusal with %q", message)
		}
		if c.facts["Tasks"] != "0" && c.facts["Tasks"] != "" {
			show("it is refused, but the program ran")
		}
	case "note":
		if c.status != 0 || !strings.Contains(c.errors, message) {
			show("want a note with %q", message)
		}
		if len(changed) > 0 {
			show("a note says that the option has no effect, but it changes %q", changed)
		}
	case "always":
		if missing := c.missing(c.facts, base); len(missing) > 0 || len(changed) > 0 {
			show("%s\nthe option changes %q", strings.Join(missing, "\n"), changed)
		}
	default:
		if missing := c.missing(c.facts, base); len(missing) > 0 {
			show("%s", strings.Join(missing, "\n"))
			return // the program may not have run
		}
		if len(changed) == 0 && len(c.missing(base, base)) == 0 && !c.row.same && (c.row.before == "" || c.cell.verdict == "") {
			show("it has no effect")
		}
		allowed := strings.Fields(c.row.also)
		for fact := range strings.SplitSeq(c.wants, "; ") {
			key, _, _ := splitFact(strings.TrimLeft(fact, "!*"))
			allowed = append(allowed, fieldOf(key))
		}
		for _, key := range changed {
			if c.row.want != "" && c.row.also != "*" && !slices.Contains(allowed, fieldOf(key)) && !slices.Contains(allowed, key) {
				show("it also changes %s from %q to %q", key, base[key], c.facts[key])
			}
		}
	}
}

// TestEffects runs each row of effects by each way. It compares what the program in the container
// sees with the meaning of the row, and with a run without the option: the option must change
// something, and nothing but the named fields.
func TestEffects(t *testing.T) {
	t.Parallel()
	needs(t, "busybox", "userns")
	b := newBench(t)
	for i := range ways {
		w := &ways[i]
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			if len(w.needs) > 0 {
				testenv.Slow(t)
				needs(t, w.needs...)
			}
			b.column(t, w)
		})
	}
}

// column runs all rows by one way, several at once.
func (b *bench) column(t *testing.T, w *way) {
	began, atOnce := time.Now(), goruntime.NumCPU()
	if len(w.needs) > 0 {
		atOnce = 8
	}
	b.prepare(t, w, w.setUp)
	t.Cleanup(func() { b.prepare(t, w, w.end) })
	runAll := func(trials []*trial) {
		errs, turn := make([]error, len(trials)), make(chan bool, atOnce)
		var wg sync.WaitGroup
		for i, c := range trials {
			c.bench, c.way, c.dir = b, w, filepath.Join(b.dir, "cells", fmt.Sprint(w.name, b.cells.Add(1)))
			wg.Go(func() {
				turn <- true
				errs[i] = c.run()
				<-turn
			})
		}
		wg.Wait()
		testenv.Check(t, errors.Join(errs...))
	}
	var rows []*trial
	without := map[string]*trial{}   // runs without options, by image
	same := make([]*trial, atOnce+1) // runs without options, on several nodes of a cluster
	for i := range same {
		same[i] = &trial{row: &effect{}}
	}
	without[""] = same[0]
	for i := range effects {
		e := &effects[i]
		c := e.cell(w)
		if c.verdict == "none" || c.verdict == "untested" {
			continue
		}
		r := &trial{row: e, cell: c, wants: e.want}
		if c.verdict == "differs" || c.verdict == "always" {
			r.wants = c.text
		}
		rows = append(rows, r)
		if c.verdict == "refused" { // perhaps without the option, too
			continue
		}
		if without[e.image] == nil && e.image != movingImage {
			without[e.image] = &trial{row: &effect{image: e.image}}
			same = append(same, without[e.image])
		}
	}
	without[movingImage] = same[0]
	runAll(same)
	volatile := map[string]bool{"Start": true}
	for _, key := range strings.Fields(w.also) {
		volatile[key] = true
	}
	for i, c := range same {
		if c.status != 0 || c.facts["Tasks"] != "1" {
			t.Fatalf("without options: status %d, %s tasks: %s", c.status, c.facts["Tasks"], c.errors)
		}
		if i <= atOnce { // they differ in the moment and the node only
			for _, key := range c.changes(same[0].facts, nil) {
				volatile[key] = true
			}
		}
	}
	runAll(rows)
	for _, c := range rows {
		t.Run(c.row.option, func(t *testing.T) {
			base := map[string]string{}
			if w := without[c.row.image]; w != nil {
				base = w.facts
			}
			c.check(t, base, volatile)
		})
	}
	t.Logf("%d cells in %v", len(rows), time.Since(began).Round(time.Millisecond))
}

// prepare runs commands for all cells of a way.
func (b *bench) prepare(t *testing.T, w *way, commands string) {
	testdata, err := filepath.Abs("../../testdata")
	testenv.Check(t, err)
	c := &trial{bench: b, way: w, dir: b.dir}
	out, err := c.command("sh", "-ec", strings.ReplaceAll(commands, "TESTDATA", testdata))
	testenv.Check(t, err)
	if c.status != 0 {
		t.Errorf("%s: status %d: %s%s", commands, c.status, out, c.errors)
	}
}

// newBench builds the images, and the files of the caller.
func newBench(t *testing.T) *bench {
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	dir, err := os.MkdirTemp("/var/tmp", "hpcc-effects-") // not below /tmp, which containers see
	testenv.Check(t, err)
	t.Cleanup(func() { shell(t, "/", `chmod -R u+rwX "$0"; rm -r "$0"`, dir) })
	b := &bench{dir: dir}
	b.path = dir + "/fronts:" + bin + ":" + os.Getenv("PATH")
	b.env = append(b.env, "HPCC_STORE="+dir+"/store", "HOME="+dir+"/home", "USER=me", "LOGNAME=me", "PATH="+b.path,
		"CALLER=caller", "B=caller", "HPCC_CDI_DIRS="+dir+"/cdi", "HPCC_SITE="+dir+"/site.toml")
	c := &trial{bench: b, dir: dir}
	for name, text := range effectFiles {
		testenv.Write(t, filepath.Join(dir, name), c.replace(text))
	}
	testenv.Check(t, os.MkdirAll(filepath.Join(dir, "home", "job"), 0o755))
	cmd := exec.Command("go", "build", "-tags", "probe", "-trimpath", "-ldflags", "-s -w -checklinkname=0", "-o", filepath.Join(dir, "root/bin/probe"), "../../testdata/helpers/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the probe: %v: %s", err, out)
	}
	out, err := c.command("sh", "-ec", `cd "$0"; chmod 755 .; mkdir -p home/other data root/opt root/mnt root/tmp root/var/tmp root/dev root/proc root/sys cells
		mkdir root/opt/probe; ln root/bin/probe root/opt/probe/probe
		cp "$1" root/bin/busybox; for n in sh cat; do ln -s busybox root/bin/$n; done
		chmod 755 root/bin/mpirun; hpcc build -t img . && hpcc build -t other -f other.Dockerfile . && hpcc unpack img tree && hpcc install-fronts fronts`, dir, busy)
	if err != nil || c.status != 0 {
		t.Fatalf("%v: %s%s", err, out, c.errors)
	}
	return b
}
