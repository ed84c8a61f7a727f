// Package gridengine drives Grid Engine through its commands.
package gridengine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/jobscript"
	"hpcc/job/node"
	"hpcc/job/quantity"
	"hpcc/text"
)

// System is Grid Engine: Son of Grid Engine 8.1, Univa, Altair. Its options are those of qsub(1) and
// submit(1).
type System struct{}

// Detect queries the queues, because other batch systems have a qsub too.
func (System) Detect(ctx context.Context) bool {
	if invoke.Getenv(ctx, "SGE_ROOT") == "" {
		return false
	}
	out, err := invoke.Call(ctx, "/", "qconf", "-sql")
	return (err == nil && len(bytes.TrimSpace(out)) > 0) || bytes.Contains(out, []byte("commlib error")) // the master is down
}

// parallelEnvironments returns the parallel environments for slots on one host and on several: those in the
// site's rules, or the most common names.
func parallelEnvironments(r job.Rules) (oneHost, many string) {
	return cmp.Or(r.OneHost, "smp"), cmp.Or(r.ManyHosts, "mpi")
}

// memoryResources returns the resources that request memory.
func memoryResources(r job.Rules) []string {
	if len(r.Memory) == 0 {
		return []string{"mem_free"}
	}
	return r.Memory
}

// share divides the amount for a job by its slots, because Grid Engine multiplies requests by the number of
// slots.
func share(j *job.Job, what string, n int64, slots int) (int64, error) {
	if n%int64(slots) != 0 {
		return 0, fmt.Errorf("%d %s for %d slots: Grid Engine gives each slot the same number; request a multiple of %d", n, what, slots, slots)
	}
	return n / int64(slots), nil
}

// options returns the job's options for qsub(1), and notes.
func (System) options(j *job.Job) (o jobscript.Options, notes []string, err error) {
	add := o.Add
	name := j.Name
	if slices.Contains([]string{"all", "none", "template"}, name) { // reserved names
		name += "_"
	}
	add(true, "-N %s", name)
	if strings.Contains(j.Dir, "$") {
		return nil, nil, fmt.Errorf("directory %q: Grid Engine expands variables in it; choose another with --chdir DIR", j.Dir)
	}
	add(true, "-wd %s", jobscript.Quoted(j.Dir))
	slots, nodes := j.Slots(), j.Spread()
	oneHost, many := parallelEnvironments(j.Rules)
	if nodes > 1 {
		notes = append(notes, fmt.Sprintf("Grid Engine has no --nodes: parallel environment %s must spread %d slots over "+
			"%d hosts, otherwise the task ends with an error; to use another one (\"qconf -spl\" lists them), add --native "+
			"\"-pe NAME %d\"", many, slots, nodes, slots))
	}
	switch {
	case slots == 1:
	case j.MultiProcess() && j.Nodes != 1:
		add(true, "-pe %s %d", many, slots)
	default:
		add(true, "-pe %s %d", oneHost, slots)
	}
	if mem := j.Memory * int64(max(nodes, 1)); mem > 0 {
		per := int64(slots)
		if j.Rules.MemoryPer == "job" {
			per = 1
		}
		for _, name := range memoryResources(j.Rules) {
			add(true, "-l %s=%dM", name, ((mem+per-1)/per+1<<20-1)>>20)
		}
	}
	if j.Memory > 0 && len(j.Rules.Memory) == 0 {
		notes = append(notes, "--mem requests hosts with that much free memory (mem_free) and sets no limit; for another "+
			"resource, set memory = [\"h_vmem\"] in site.toml, or use --native \"-l h_vmem=4G\"")
	}
	if j.GPUs > 0 {
		n := int64(j.GPUs * max(nodes, 1))
		if j.Rules.GPUPer != "job" {
			if n, err = share(j, "GPUs", n, slots); err != nil {
				return nil, nil, err
			}
		}
		add(true, "-l %s=%d", cmp.Or(j.Rules.GPU, "gpu"), n)
	}
	// hpcc ends the task earlier itself, with a warning
	add(j.Time > 0, "-l h_rt=%s", quantity.FormatClock(j.Time+node.Grace+node.Grace/2))
	add(j.Queue != "", "-q %s", j.Queue)
	add(j.Account != "", "-P %s", j.Account)
	add(j.Exclusive, "-l exclusive=true")
	return append(o, constraints(j)...), notes, nil
}

// Render returns the job script; see [batch.System].
func (g System) Render(j *job.Job) (string, []string, error) {
	options, notes, err := g.options(j)
	if err != nil {
		return "", nil, err
	}
	t := &jobscript.Writer{}
	t.Line("#!/bin/bash")
	if j.Interactive {
		t.Interactive(j)
		// qrsh joins its arguments to one line for the queue's shell. With -pty but no terminal it would end by SIGHUP.
		t.Line(`pty=no; [ ! -t 0 ] || pty=yes`)
		t.Line(`exec qrsh -now no -pty $pty -v HPCC_SUBMISSION="$id" %s %s`, strings.Join(append(options, j.Native...), " "),
			text.Quote(jobscript.CommandLine(j, &scripts)))
		return t.String(), notes, nil
	}
	t.Line("#$ -S /bin/bash")
	for _, o := range options {
		t.Line("#$ %s", o)
	}
	end := jobscript.TaskCall{To: &scripts, ID: `"${1:-gridengine-$JOB_ID}"`, Limit: true, Needs: true, Nodes: j.Spread(),
		Files: !opensFiles(j)}
	if n := j.Array.Count(); n > 0 {
		t.Line("#$ -t 1-%d", n)
		end.Nth = `"$SGE_TASK_ID"`
	}
	if j.Array.Limit > 0 {
		t.Line("#$ -tc %d", j.Array.Limit)
	}
	if end.Files { // Grid Engine's indices differ
		t.Line("#$ -o /dev/null")
	} else {
		t.Line("#$ -o %s", jobscript.Quoted(pattern(j, j.OutputPattern())))
	}
	if j.Error != "" && !end.Files {
		t.Line("#$ -e %s", jobscript.Quoted(pattern(j, j.Error)))
	} else {
		t.Line("#$ -j y")
	}
	for _, n := range j.Native {
		t.Line("#$ %s", n)
	}
	t.Line("# Written by hpcc for %s. Submit it with qsub.", j.Title())
	t.Caller(j)
	t.Common(j)
	t.Task(j, end, jobscript.Mpirun(j)...)
	return t.String(), notes, nil
}

// counted reports whether Grid Engine can count the indices of an array itself, from 1 to N. It supports
// neither 0 nor gaps, and reads "-t 1,4,7" as 1-7:3.
func counted(a job.Array) bool {
	return len(a.Ranges) == 1 && a.Ranges[0].First == 1 && a.Ranges[0].Step == 1
}

// opensFiles reports whether Grid Engine can name the output files itself.
func opensFiles(j *job.Job) bool { return j.Array.IsZero() || counted(j.Array) }

// pattern converts a file pattern to Grid Engine's variables (qsub(1), -o).
func pattern(j *job.Job, p string) string {
	return strings.NewReplacer("{name}", "$JOB_NAME", "{job}", "$JOB_ID", job.Placeholder, "$TASK_ID").Replace(p)
}

// Submit submits a script if some queue could run it when empty. Grid Engine itself accepts jobs that can
// never run.
func (g System) Submit(ctx context.Context, r *batch.Request) error {
	if err := g.verify(ctx, r.Job, r.Script); err != nil {
		return err
	}
	r.Sent = true
	out, err := invoke.Call(ctx, r.Job.Dir, "qsub", "-terse", "-ac", "hpcc="+r.ID, r.Script, r.ID)
	if err != nil {
		return fmt.Errorf("submitting job %q to Grid Engine: %w", r.Job.Name, readError(out, err))
	}
	// 17, or 17.1-8:1 for an array; the site's checks may print lines before it.
	lines := strings.Fields(string(out))
	id := ""
	if len(lines) > 0 {
		id, _, _ = strings.Cut(lines[len(lines)-1], ".")
	}
	if n, err := strconv.Atoi(id); err != nil || n <= 0 {
		return fmt.Errorf("submitting job %q to Grid Engine: qsub answered %q without a job ID; check \"qstat\" for the job",
			r.Job.Name, text.Short(string(out)))
	}
	r.Native = id
	return nil
}

// Find implements [batch.Finder]. Grid Engine does not list jobs that have ended.
func (System) Find(ctx context.Context, r *batch.Request, tasks []string) (natives []string, err error) {
	for _, t := range tasks {
		id, _, _ := strings.Cut(t, ".")
		natives = append(natives, id)
	}
	out, err := invoke.Call(ctx, "/", "qstat", "-j", "*")
	if err != nil && !strings.Contains(string(out), "do not exist") { // the queue is empty
		return nil, fmt.Errorf("looking for job %s in Grid Engine: %w", r.ID, readError(out, err))
	}
	of := map[string]string{} // what is known of a job, in the order: number, owner, script, context
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(line, ":")
		if key == "job_number" {
			clear(of)
		}
		of[key] = strings.TrimSpace(value)
		if key == "context" && slices.Contains(strings.Split(of[key], ","), "hpcc="+r.ID) && of["script_file"] == r.Script &&
			of["uid"] == strconv.Itoa(os.Getuid()) {
			natives = append(natives, of["job_number"])
		}
	}
	return natives, nil
}

// verify lets Grid Engine check whether a queue could run the script. It omits the request for free memory,
// which depends on the current load of the hosts.
func (System) verify(ctx context.Context, j *job.Job, script string) error {
	b, err := os.ReadFile(script)
	if err != nil {
		return err
	}
	check := script + ".check"
	defer os.Remove(check)
	if err := os.WriteFile(check, memFree().ReplaceAll(b, nil), 0o600); err != nil {
		return fmt.Errorf("writing the script of job %q: %w", j.Name, err)
	}
	if out, err := invoke.Call(ctx, j.Dir, "qsub", "-w", "v", check); err != nil {
		return fmt.Errorf("submitting job %q to Grid Engine: %w", j.Name, readError(out, err))
	}
	return nil
}

var memFree = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^#\$ -l mem_free=.*\n`) })

// readError converts Grid Engine's output to an error with the first reason in it.
func readError(out []byte, err error) error {
	text := string(out)
	for _, noise := range []string{"Unable to run job:", "error:", "Exiting."} {
		text = strings.ReplaceAll(text, noise, "")
	}
	if first, _, ok := strings.Cut(text, "\n"); ok && strings.Contains(first, "cannot run ") {
		_, text, _ = strings.Cut(first, "cannot run ")
		text = "cannot run " + text
	}
	if strings.Contains(text, "parallel environment") {
		text += " (\"qconf -spl\" lists those of this site; name one with --native \"-pe NAME SLOTS\")"
	}
	return invoke.Error([]byte(text), err)
}

// A row is a line of qstat: a running task, or all waiting tasks of a job.
type row struct {
	ID    string `xml:"JB_job_number"`
	State string `xml:"state"`
	Tasks string `xml:"tasks"` // "7", "7-20:1"; "" without an array
}

// Query returns the queue state of this user's jobs, and why they are in error.
func (g System) Query(ctx context.Context, _ []string) (map[string]batch.State, error) {
	out, err := invoke.Call(ctx, "/", "qstat", "-xml")
	if err != nil {
		return nil, fmt.Errorf("querying Grid Engine for jobs: %w", readError(out, err))
	}
	jobs, err := parseQueue(bytes.NewReader(out))
	if err != nil {
		return nil, fmt.Errorf("reading the output of qstat: %w", err)
	}
	var waiting []string
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		if s := jobs[id]; s.Running == 0 && s.Reason != held && len(waiting) < maxReasons {
			waiting = append(waiting, id)
		}
	}
	if len(waiting) == 0 {
		return jobs, nil
	}
	// An unknown job makes qstat fail, but it still prints the others.
	out, _ = invoke.Call(ctx, "/", "qstat", "-j", strings.Join(waiting, ","))
	batch.Explain(jobs, reasons(out))
	return jobs, nil
}

// maxReasons limits the number of jobs whose reason is queried.
const maxReasons = 100

// parseQueue parses the XML of qstat.
func parseQueue(r io.Reader) (map[string]batch.State, error) {
	jobs := map[string]batch.State{}
	return jobs, eachElement(r, "job_list", func(row *row) {
		s, state := jobs[row.ID], job.QueueRunning
		if strings.Contains(row.State, "d") { // qdel asked for its end
			state = job.QueueEnding
		} else if reason := waitReason(row.State); reason != "" {
			s.Reason, state = reason, job.QueueWaiting
		}
		tasks, err := job.ParseArray(row.Tasks)
		if err != nil || tasks.IsZero() {
			s.Add(0, state)
		}
		for k := range tasks.All() {
			s.Add(k, state)
		}
		jobs[row.ID] = s
	})
}

// eachElement reads all elements with a name, at any depth, one at a time.
func eachElement[T any](r io.Reader, name string, do func(*T)) error {
	d := xml.NewDecoder(io.LimitReader(r, invoke.MaxListing))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		start, ok := tok.(xml.StartElement)
		if !ok || start.Name.Local != name {
			continue
		}
		e := new(T)
		if err := d.DecodeElement(e, &start); err != nil {
			return err
		}
		do(e)
	}
}

const held = "held"

// waitReason returns why a task waits, by its state (qstat(1)), or "" if it runs. A hold does not stop a
// task that runs.
func waitReason(state string) string {
	switch {
	case strings.Contains(state, "E"):
		return "error"
	case strings.ContainsAny(state, "rt") && !strings.ContainsAny(state, "sST"):
		return ""
	case strings.Contains(state, "h"):
		return held
	case strings.ContainsAny(state, "sST"):
		return "suspended"
	case strings.Contains(state, "q"):
		return "no free slots yet"
	}
	return ""
}

// reasons parses "qstat -j" and returns, by job, its error or the scheduler's reason. The scheduler's reasons
// are present if the site enables schedd_job_info.
func reasons(out []byte) map[string]string {
	why, id := map[string]string{}, ""
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(line, ":")
		switch key = strings.TrimSpace(key); {
		case key == "job_number":
			id = strings.TrimSpace(value)
		case strings.HasPrefix(key, "error reason") && why[id] == "":
			_, text, ok := strings.Cut(value, "error:") // the message follows the time and the process
			if !ok {
				text = value
			}
			why[id] = strings.TrimSpace(text) + "; \"qmod -cj " + id + "\" clears the error"
		case key == "scheduling info" && why[id] == "":
			why[id] = strings.TrimSpace(value)
		}
	}
	return why
}

// Cancel ends the tasks of the job.
func (System) Cancel(ctx context.Context, id string) error {
	if out, err := invoke.Call(ctx, "/", "qdel", id); err != nil {
		return fmt.Errorf("cancelling job %s: %w", id, readError(out, err))
	}
	return nil
}

// ExecOn runs a command as a separate small job on the task's node, because "qrsh -inherit" only works
// within the job. It takes a slot, which may take long to become free.
func (System) ExecOn(t *job.Task, terminal bool) (wrap func([]string) []string, slow bool) {
	pty := "no"
	if terminal {
		pty = "yes"
	}
	return func(argv []string) []string {
		return []string{"qrsh", "-now", "no", "-pty", pty, "-N", "hpcc-exec", "-q", "*@" + t.Host, "exec " + text.CommandLine(argv)}
	}, true
}

// constraints returns the qsub(1) options for [job.Constraints].
func constraints(j *job.Job) []string {
	var o jobscript.Options
	add := o.Add
	before := append(slices.Clone(j.After), j.AfterAny...)
	add(len(before) > 0, "-hold_jid %s", strings.Join(before, ","))
	add(len(j.AfterEach) > 0, "-hold_jid_ad %s", strings.Join(j.AfterEach, ","))
	add(j.Requeueing() != "", "-r %.1s", j.Requeueing())
	when := j.MailLetters("end", "e", "fail", "a", "begin", "b")
	add(when != "", "-m %s", when)
	add(j.Mail != "", "-M %s", j.Mail)
	add(len(j.Hosts) == 1, "-l hostname=%s", strings.Join(j.Hosts, ""))
	add(len(j.NotHosts) > 0, "-l hostname=!(%s)", strings.Join(j.NotHosts, "|"))
	add(j.Begin != "", "-a %s", jobscript.DigitsOf(j.Begin))
	add(j.Hold, "-h")
	add(len(j.ExportedNames()) > 0, "-v %s", strings.Join(j.ExportedNames(), ","))
	return o
}
