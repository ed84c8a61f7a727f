package job

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

	"hpcc/job/message"
	"hpcc/job/quantity"
	"hpcc/job/shellword"
)

// gridEngine is Grid Engine: Son of Grid Engine 8.1, Univa, Altair. Its options
// are those of qsub(1) and submit(1).
type gridEngine struct{}

// here asks for the queues: PBS and Slurm bring a qsub of their own.
func (gridEngine) here(ctx context.Context) bool {
	if getenv(ctx, "SGE_ROOT") == "" {
		return false
	}
	out, err := call(ctx, "/", "qconf", "-sql")
	return (err == nil && len(bytes.TrimSpace(out)) > 0) || bytes.Contains(out, []byte("commlib error")) // its master is down
}

// parallel are the parallel environments for slots of one host and of many:
// those that sites have most often, or the site's own.
func (r Rules) parallel() (oneHost, many string) {
	return cmp.Or(r.OneHost, "smp"), cmp.Or(r.ManyHosts, "mpi")
}

// memory are the resources that ask for memory.
func (r Rules) memory() []string {
	if len(r.Memory) == 0 {
		return []string{"mem_free"}
	}
	return r.Memory
}

// Slots are the processors that the job asks for in all.
func (j *Job) Slots() int {
	n := max(j.Tasks, 1)
	if j.Tasks == 0 {
		n = max(j.TasksPerNode, 1) * max(j.Nodes, 1)
	}
	return n * max(j.CPUs, 1)
}

// spread is over how many nodes the job's processes are to lie; 0 where that is
// left to the target.
func (j *Job) spread() int {
	switch {
	case j.Nodes > 1:
		return j.Nodes
	case j.Nodes == 0 && j.TasksPerNode > 0 && j.Tasks > j.TasksPerNode:
		return (j.Tasks + j.TasksPerNode - 1) / j.TasksPerNode
	}
	return 0
}

// share is a slot's part of what the whole job needs: Grid Engine multiplies
// requests by the slots.
func (j *Job) share(what string, n int64, slots int) (int64, error) {
	if n%int64(slots) != 0 {
		return 0, fmt.Errorf("%d %s for %d slots: Grid Engine gives each slot the same, and %d cannot be shared out; ask for a multiple", n, what, slots, n)
	}
	return n / int64(slots), nil
}

// options are the job's in the words of qsub(1), and what people should know of
// them.
func (gridEngine) options(j *Job) (o, notes []string, err error) {
	add := func(format string, a ...any) { o = append(o, fmt.Sprintf(format, a...)) }
	name := j.Name
	if slices.Contains([]string{"all", "none", "template"}, name) { // which it keeps for itself
		name += "_"
	}
	add("-N %s", name)
	add("-wd %s", inQuotes(j.Dir))
	slots, nodes := j.Slots(), j.spread()
	oneHost, many := j.Rules.parallel()
	if nodes > 1 {
		notes = append(notes, fmt.Sprintf("Grid Engine has no --nodes: its parallel environment %s has to spread %d slots over %d hosts; where it gives others the task ends and says so; name another of \"qconf -spl\" with --native \"-pe NAME %d\"", many, slots, nodes, slots))
	}
	switch {
	case slots == 1:
	case j.several() && j.Nodes != 1:
		add("-pe %s %d", many, slots)
	default:
		add("-pe %s %d", oneHost, slots)
	}
	if mem := j.Memory * int64(max(nodes, 1)); mem > 0 {
		per := int64(slots)
		if j.Rules.MemoryPer == "job" {
			per = 1
		}
		for _, name := range j.Rules.memory() {
			add("-l %s=%dM", name, ((mem+per-1)/per+1<<20-1)>>20)
		}
	}
	if j.Memory > 0 && len(j.Rules.Memory) == 0 {
		notes = append(notes, "--mem asks for hosts with that much free memory (mem_free) and sets no limit; where the site wants another resource, \"memory\" in its file says so (docs/jobs.md), or --native \"-l h_vmem=4G\"")
	}
	if j.GPUs > 0 {
		n := int64(j.GPUs * max(nodes, 1))
		if j.Rules.GPUPer != "job" {
			if n, err = j.share("GPUs", n, slots); err != nil {
				return nil, nil, err
			}
		}
		add("-l %s=%d", cmp.Or(j.Rules.GPU, "gpu"), n)
	}
	if j.Time > 0 { // hpcc ends the task itself before, with a warning
		add("-l h_rt=%s", quantity.FormatClock(j.Time+Grace+Grace/2))
	}
	if j.Queue != "" {
		add("-q %s", j.Queue)
	}
	if j.Account != "" {
		add("-P %s", j.Account)
	}
	if j.Exclusive {
		add("-l exclusive=true")
	}
	return append(o, gridEngineWishes(j)...), notes, nil
}

// counted says whether the array's indices are those that Grid Engine counts
// itself, 1 to N. It knows neither 0 nor gaps, and takes "-t 1,4,7" for 1-7:3.
func (j *Job) counted() bool {
	r := j.Array.ranges
	return len(r) == 1 && r[0].first == 1 && r[0].step == 1
}

func (g gridEngine) render(j *Job) (string, []string, error) {
	options, notes, err := g.options(j)
	if err != nil {
		return "", nil, err
	}
	t := &text{}
	t.line("#!/bin/bash")
	if j.Interactive {
		t.interactive(j)
		// qrsh joins its words to a line for the shell of the queue.
		// A terminal that is not there would end it by SIGHUP.
		t.line(`pty=no; [ ! -t 0 ] || pty=yes`)
		t.line(`exec qrsh -now no -pty $pty -v HPCC_SUBMISSION="$id" %s %s`, strings.Join(append(options, j.Native...), " "), shellword.Quote(j.line(GridEngine)))
		return t.String(), notes, nil
	}
	t.line("#$ -S /bin/bash")
	for _, o := range options {
		t.line("#$ %s", o)
	}
	end := taskCall{to: GridEngine, id: `"${1:-gridengine-$JOB_ID}"`, limit: true, needs: true, nodes: j.spread(), files: !j.Array.IsZero() && !j.counted()}
	if n := j.Array.Count(); n > 0 {
		t.line("#$ -t 1-%d", n)
		end.nth = `"$SGE_TASK_ID"`
	}
	if j.Array.Limit > 0 {
		t.line("#$ -tc %d", j.Array.Limit)
	}
	if end.files { // Grid Engine knows other indices
		t.line("#$ -o /dev/null")
	} else {
		t.line("#$ -o %s", inQuotes(gridEnginePattern(j, j.OutputPattern())))
	}
	if j.Error != "" && !end.files {
		t.line("#$ -e %s", inQuotes(gridEnginePattern(j, j.Error)))
	} else {
		t.line("#$ -j y")
	}
	for _, n := range j.Native {
		t.line("#$ %s", n)
	}
	t.line("# Made by hpcc, for %s; \"hpcc submit\" hands it in, qsub does too.", j.what())
	t.common(j)
	t.task(j, end, mpirun(j)...)
	return t.String(), notes, nil
}

// gridEnginePattern writes a file pattern with Grid Engine's variables (qsub(1), -o).
func gridEnginePattern(j *Job, p string) string {
	return strings.NewReplacer("{name}", "$JOB_NAME", "{job}", "$JOB_ID", Placeholder, "$TASK_ID").Replace(p)
}

// submit hands a script in, when some queue could run it if it were empty: Grid
// Engine itself takes what can never run.
func (g gridEngine) submit(ctx context.Context, r *request) error {
	if err := g.verify(ctx, r.Job, r.Script); err != nil {
		return err
	}
	out, err := call(ctx, r.Job.Dir, "qsub", "-terse", "-ac", "hpcc="+r.ID, r.Script, r.ID)
	if err != nil {
		return fmt.Errorf("handing job %q to Grid Engine: %w", r.Job.Name, gridEngineWords(out, err))
	}
	// 17, or 17.1-8:1 of an array; what sites' own checks say stands before.
	lines := strings.Fields(string(out))
	id := ""
	if len(lines) > 0 {
		id, _, _ = strings.Cut(lines[len(lines)-1], ".")
	}
	if n, err := strconv.Atoi(id); err != nil || n <= 0 {
		return fmt.Errorf("handing job %q to Grid Engine: qsub answered %q, which has no job id; \"qstat\" shows whether the job is there", r.Job.Name, message.Short(string(out)))
	}
	r.Native = id
	return nil
}

// verify has Grid Engine say whether a queue could run the script, but for free
// memory: that is no resource of an empty queue, but what its host reports.
func (gridEngine) verify(ctx context.Context, j *Job, script string) error {
	b, err := os.ReadFile(script)
	if err != nil {
		return err
	}
	check := script + ".check"
	defer os.Remove(check)
	if err := os.WriteFile(check, memFree().ReplaceAll(b, nil), 0o600); err != nil {
		return fmt.Errorf("writing the script of job %q: %w", j.Name, err)
	}
	if out, err := call(ctx, j.Dir, "qsub", "-w", "v", check); err != nil {
		return fmt.Errorf("handing job %q to Grid Engine: %w", j.Name, gridEngineWords(out, err))
	}
	return nil
}

var memFree = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^#\$ -l mem_free=.*\n`) })

// gridEngineWords makes an error of what Grid Engine said: its first reason.
func gridEngineWords(out []byte, err error) error {
	text := string(out)
	for _, noise := range []string{"Unable to run job:", "error:", "Exiting."} {
		text = strings.ReplaceAll(text, noise, "")
	}
	if first, _, ok := strings.Cut(text, "\n"); ok && strings.Contains(first, "cannot run ") {
		_, text, _ = strings.Cut(first, "cannot run ")
		text = "it cannot run " + text
	}
	if strings.Contains(text, "parallel environment") {
		text += " (\"qconf -spl\" lists those of this site; name one with --native \"-pe NAME SLOTS\")"
	}
	return words([]byte(text), err)
}

// maxListing bounds what a scheduler's listing may have, in bytes.
const maxListing = 256 << 20

// A gridEngineRow is a line of qstat: a running task, or all waiting tasks of a job.
type gridEngineRow struct {
	ID    string `xml:"JB_job_number"`
	State string `xml:"state"`
	Tasks string `xml:"tasks"` // "7", "7-20:1"; "" of no array
}

// ask reads the queue of this user, and why jobs are in error.
func (g gridEngine) ask(ctx context.Context, _ []string) (map[string]standing, error) {
	out, err := call(ctx, "/", "qstat", "-xml")
	if err != nil {
		return nil, fmt.Errorf("asking Grid Engine for its jobs: %w", gridEngineWords(out, err))
	}
	jobs, err := gridEngineQueue(bytes.NewReader(out))
	if err != nil {
		return nil, fmt.Errorf("reading what qstat said: %w", err)
	}
	var waiting []string
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		if s := jobs[id]; s.running == 0 && s.reason != gridEngineHeld && len(waiting) < maxReasons {
			waiting = append(waiting, id)
		}
	}
	if len(waiting) == 0 {
		return jobs, nil
	}
	// One that has ended meanwhile makes an error of the whole, which still tells of the others.
	out, _ = call(ctx, "/", "qstat", "-j", strings.Join(waiting, ","))
	for id, why := range gridEngineReasons(out) {
		if s, ok := jobs[id]; ok {
			s.reason = why
			jobs[id] = s
		}
	}
	return jobs, nil
}

// maxReasons is of how many jobs hpcc asks why they wait.
const maxReasons = 100

// gridEngineQueue reads the XML of qstat.
func gridEngineQueue(r io.Reader) (map[string]standing, error) {
	jobs := map[string]standing{}
	return jobs, eachElement(r, "job_list", func(row *gridEngineRow) {
		n := 1
		if a, err := ParseArray(row.Tasks); err == nil {
			n = max(1, a.Count())
		}
		s := jobs[row.ID]
		if reason := gridEngineWaits(row.State); reason != "" {
			s.waiting += n
			s.reason = reason
		} else {
			s.running += n
		}
		jobs[row.ID] = s
	})
}

// eachElement reads the elements of a name, wherever they stand, one at a time.
func eachElement[T any](r io.Reader, name string, do func(*T)) error {
	d := xml.NewDecoder(io.LimitReader(r, maxListing))
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

const gridEngineHeld = "held"

// gridEngineWaits is why a task waits, by its state (qstat(1)); "" when it runs.
func gridEngineWaits(state string) string {
	switch {
	case strings.Contains(state, "E"):
		return "error"
	case strings.Contains(state, "h"):
		return gridEngineHeld
	case strings.ContainsAny(state, "sST"):
		return "suspended"
	case strings.Contains(state, "q"):
		return "no free slots yet"
	}
	return ""
}

// gridEngineReasons reads from qstat -j why jobs wait: what went wrong, else what
// the scheduler says, where the site has it say so (schedd_job_info).
func gridEngineReasons(out []byte) map[string]string {
	why, id := map[string]string{}, ""
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(line, ":")
		switch key = strings.TrimSpace(key); {
		case key == "job_number":
			id = strings.TrimSpace(value)
		case strings.HasPrefix(key, "error reason") && why[id] == "":
			_, words, ok := strings.Cut(value, "error:") // behind time and process
			if !ok {
				words = value
			}
			why[id] = strings.TrimSpace(words) + "; \"qmod -cj " + id + "\" lets it try again"
		case key == "scheduling info" && why[id] == "":
			why[id] = strings.TrimSpace(value)
		}
	}
	return why
}

func (gridEngine) cancel(ctx context.Context, id string) error {
	if out, err := call(ctx, "/", "qdel", id); err != nil {
		return fmt.Errorf("ending job %s: %w", id, gridEngineWords(out, err))
	}
	return nil
}
