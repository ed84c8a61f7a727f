// Package slurm drives Slurm, 22.05 or later, through its commands.
package slurm

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/jobscript"
	"hpcc/job/quantity"
	"hpcc/store/ready"
	"hpcc/text"
)

// System is Slurm, 22.05 or later.
type System struct{}

// Detect reports whether this host has Slurm; see [batch.System].
func (System) Detect(ctx context.Context) bool {
	out, err := invoke.Call(ctx, "/", "sbatch", "--version")
	if err != nil || !strings.HasPrefix(string(out), "slurm") {
		return false
	}
	// A Slurm whose controller is down still counts: its jobs must not run on the login node.
	out, err = invoke.Call(ctx, "/", "scontrol", "ping")
	return err == nil || strings.Contains(string(out), " is DOWN")
}

// options returns the job's options for sbatch(1) and srun(1).
func options(j *job.Job) []string {
	var o jobscript.Options
	add := o.Add
	add(true, "--job-name=%s", j.Name)
	add(true, "--chdir=%s", j.Dir)
	add(j.Nodes > 0, "--nodes=%d", j.Nodes)
	add(j.Pack != nil && j.Nodes > 1, "--no-kill") // a node that fails loses only its own tasks
	add(j.Tasks > 0, "--ntasks=%d", j.Tasks)
	add(j.TasksPerNode > 0, "--ntasks-per-node=%d", j.TasksPerNode)
	add(j.CPUs > 0, "--cpus-per-task=%d", j.CPUs)
	kind := ""
	if j.GPUType != "" {
		kind = j.GPUType + ":"
	}
	add(j.GPUs > 0, "--gpus-per-node=%s%d", kind, j.GPUs)
	add(j.Memory > 0, "--mem=%dM", (j.Memory+1<<20-1)>>20)
	// --exclusive does not include the node's memory
	add(j.Exclusive && j.Memory == 0 && j.MemoryPerCPU == 0, "--mem=0")
	add(j.Time > 0, "--time=%s", quantity.FormatClock(j.Time))
	add(j.Queue != "", "--partition=%s", j.Queue)
	add(j.Account != "", "--account=%s", j.Account)
	add(j.Exclusive, "--exclusive")
	d := jobscript.Dependencies(j, "afterok", "afterany", "afternotok", "aftercorr")
	add(d != "", "--dependency=%s", d)
	add(d != "", "--kill-on-invalid-dep=yes") // without it the job would wait forever
	return append(o, constraints(j)...)
}

// pattern converts a file pattern to Slurm's notation (sbatch(1), "filename pattern").
func pattern(j *job.Job, p string) string {
	id, task := "%j", "0" // %a is 4294967294 in a job that is not an array
	if j.Array.Count() > 0 {
		id, task = "%A", "%a"
	}
	return strings.NewReplacer("{name}", "%x", "{job}", id, job.Placeholder, task).Replace(p)
}

// Render returns the job script; see [batch.System].
func (System) Render(j *job.Job) (string, []string, error) {
	t := &jobscript.Writer{}
	t.Line("#!/bin/bash")
	if j.Interactive {
		argv := append([]string{"srun", "--pty"}, options(j)...)
		t.Interactive(j)
		t.Line("export SLURM_EXPORT_ENV=ALL")
		t.Common(j)
		t.Line("exec %s %s", strings.Join(append([]string{text.CommandLine(argv)}, j.Native...), " "),
			jobscript.InteractiveCommand(j, &scripts, `"$id"`))
		return t.String(), nil, nil
	}
	options := options(j)
	end := jobscript.TaskCall{To: &scripts, ID: `"${1:-slurm-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}"`, Limit: true}
	switch {
	case j.Array.IsZero():
	case ownsIndices(j.Array):
		options = append(options, "--array="+j.Array.String())
	default:
		options = append(options, "--array="+counted(j.Array))
		end.Nth, end.Files = `"$SLURM_ARRAY_TASK_ID"`, true
	}
	if end.Files { // Slurm's indices differ
		options = append(options, "--output=/dev/null")
	} else {
		options = append(options, "--output="+pattern(j, j.OutputPattern()))
	}
	if j.Error != "" && !end.Files {
		options = append(options, "--error="+pattern(j, j.Error))
	}
	for _, o := range options {
		t.Line("#SBATCH %s", directive(o))
	}
	for _, n := range j.Native {
		t.Line("#SBATCH %s", n)
	}
	t.Line("# Written by hpcc for %s. Submit it with sbatch.", j.Title())
	t.Line("# sbatch --export=NONE would leave srun without PATH:")
	t.Line("export SLURM_EXPORT_ENV=ALL")
	if end.Nth == "" {
		t.Line("export HPCC_TASK_ID=${SLURM_ARRAY_TASK_ID:-0} HPCC_TASK_COUNT=%d", j.FullCount())
	}
	if j.StartsProcesses() {
		t.Line("# If the site sets no default, the MPI in the image finds srun by PMIx:")
		t.Line(`if scontrol show config | grep -q '^MpiDefault *= none' && srun --mpi=list 2>&1 | grep -q pmix; then ` +
			`export SLURM_MPI_TYPE=pmix; fi`)
	}
	t.Common(j)
	var notes []string
	if broadcasts(j) {
		broadcast(t, j)
		notes = append(notes, "--stage: the job sends the image to all its nodes with sbcast; nodes that have a copy keep it")
	}
	t.Task(j, end, srun(j)...)
	return t.String(), notes, nil
}

// broadcasts reports whether the job sends its image to the local storage of several nodes.
func broadcasts(j *job.Job) bool {
	if strings.HasPrefix(j.Image, "/") && !ready.IsImageFile(j.Image) {
		return false // a directory
	}
	return slices.Contains(j.Run, "--stage") && j.Image != "" && (j.StartsProcesses() || j.Pack != nil) &&
		j.MultiProcess() && j.Nodes != 1
}

// broadcast writes the lines that send the image. The step needs no MPI, and one process for each
// node also if the job has more.
func broadcast(t *jobscript.Writer, j *job.Job) {
	t.Line("# Send the image to all nodes at once. If that fails, each node copies it from the original:")
	t.Line(`hpcc_each="srun --mpi=none --nodes=$SLURM_JOB_NUM_NODES --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1"`)
	t.Line(`[ "$SLURM_JOB_NUM_NODES" = 1 ] || export HPCC_BROADCAST=$(%s stage --each="$hpcc_each" --send=sbcast %s)`,
		text.Quote(j.Program), text.Quote(j.ExactImage()))
}

// maxIndex is the largest index under Slurm's default limit (slurm.conf(5), MaxArraySize 1001).
const maxIndex = 1000

// ownsIndices reports whether Slurm itself counts the indices of an array. Otherwise it counts the
// tasks from 1, so that few tasks with large indices run on sites that keep the default limit. An
// array with more tasks than that needs a site with a larger limit in any case.
func ownsIndices(a job.Array) bool { return a.Within(0, maxIndex) || a.Count() > maxIndex }

// counted returns the argument of --array for an array whose tasks Slurm counts.
func counted(a job.Array) string {
	s := "1-" + strconv.Itoa(a.Count())
	if a.Limit > 0 {
		s += "%" + strconv.Itoa(a.Limit)
	}
	return s
}

// srun returns the launcher of a job with several processes. It repeats --cpus-per-task, which srun of
// 22.05 to 23.02 does not inherit from the job.
func srun(j *job.Job) []string {
	w := []string{"srun", "--kill-on-bad-exit=1"}
	if j.CPUs > 0 {
		w = append(w, "--cpus-per-task="+strconv.Itoa(j.CPUs))
	}
	return w
}

// directive quotes an option's value for an #SBATCH line.
func directive(o string) string {
	if k, v, ok := strings.Cut(o, "="); ok && strings.ContainsAny(v, " \t'#") {
		return k + `="` + v + `"`
	}
	return o
}

// Submit submits a script with the job's ID as its argument and comment, so that a submission whose
// answer is lost can be found again. It first runs --test-only, because sbatch accepts some requests
// that never start.
func (s System) Submit(ctx context.Context, r *batch.Request) error {
	if _, err := s.verify(ctx, r.Job, r.Script, r.ID); err != nil {
		return err
	}
	argv, err := sbatch(ctx, r.Job, r.Script)
	if err != nil {
		return err
	}
	argv = append(argv, "--parsable", "--comment="+comment(r.ID), r.Script, r.ID)
	r.Sent = true
	out, err := invoke.Call(ctx, r.Job.Dir, argv[0], argv[1:]...)
	if err != nil {
		return fmt.Errorf("submitting job %q to Slurm: %w", r.Job.Name, readError(out, err))
	}
	id, _, _ := strings.Cut(strings.TrimSpace(string(out)), ";")
	if n, err := strconv.Atoi(id); err != nil || n <= 0 {
		return fmt.Errorf("submitting job %q to Slurm: sbatch answered %q, not a job ID; check \"squeue --me\" for the job",
			r.Job.Name, text.Short(id))
	}
	r.Native = id
	return nil
}

// comment returns the comment of the job with an ID of hpcc.
func comment(id string) string { return "hpcc:" + id }

// Find implements [batch.Finder]. Slurm lists jobs for MinJobAge, usually five minutes, after their end.
func (System) Find(ctx context.Context, r *batch.Request, _ []string) (natives []string, err error) {
	out, err := invoke.Call(ctx, "/", "squeue", "--me", "-h", "-t", "all", "-o", "%F|%k|%o")
	if err != nil {
		return nil, fmt.Errorf("looking for job %s in Slurm: %w", r.ID, readError(out, err))
	}
	for line := range strings.Lines(string(out)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), "|")
		if rest == comment(r.ID)+"|"+r.Script+" "+r.ID && !slices.Contains(natives, id) {
			natives = append(natives, id)
		}
	}
	return natives, nil
}

// sbatch returns the argv of sbatch without the variables of the caller that would override options in the job's
// script (sbatch(1), INPUT ENVIRONMENT VARIABLES). A translated script keeps Slurm's rules.
func sbatch(ctx context.Context, j *job.Job, script string) ([]string, error) {
	text, err := os.ReadFile(script)
	if err != nil {
		return nil, err
	}
	argv := []string{"env"}
	for _, e := range invoke.Environ(ctx) {
		name, _, _ := strings.Cut(e, "=")
		variable, ok := strings.CutPrefix(name, "SBATCH_")
		if !ok || j.Script != nil {
			continue
		}
		option := strings.ReplaceAll(strings.ToLower(variable), "_", "-")
		option = cmp.Or(map[string]string{"timelimit": "time", "array-inx": "array", "mem-per-node": "mem",
			"mem-per-cpu": "mem", "requeue": "no-requeue", "no-requeue": "requeue"}[option], option)
		// These three change a job whose script lacks the option: several tasks with the index 0, a submission that
		// waits for the end, and standard error in a file that hpcc does not know.
		if slices.Contains([]string{"array", "wait", "error"}, option) || strings.Contains(string(text), "\n#SBATCH --"+option) {
			argv = append(argv, "-u", name)
		}
	}
	if len(argv) == 1 {
		return []string{"sbatch"}, nil
	}
	return append(argv, "sbatch"), nil
}

// noNodes is the message of --test-only for a job that no node can run. It also prints it for a job that
// waits for drained or reserved nodes, which sbatch accepts.
const noNodes = "Requested node configuration is not available"

// test returns the output of "sbatch --test-only" for a script.
func test(ctx context.Context, j *job.Job, script, id string) (string, error) {
	silent := &invoke.SilentError{Command: "sbatch --test-only", After: invoke.CommandTime(ctx)}
	ctx, cancel := context.WithTimeoutCause(ctx, silent.After, silent)
	defer cancel()
	argv, err := sbatch(ctx, j, script)
	if err != nil {
		return "", err
	}
	argv = append(argv, "--test-only", script, id)
	out, err := invoke.Command(ctx, j.Dir, argv[0], argv[1:]...).CombinedOutput()
	if err != nil && context.Cause(ctx) == error(silent) {
		return "", silent
	}
	switch {
	case err == nil:
		return string(out), nil
	case len(j.After) > 0 && strings.Contains(string(out), "presently disabled"):
		// Slurm 22.05 prints this for --kill-on-invalid-dep if a dependency has already failed.
		return "", fmt.Errorf("submitting job %q to Slurm: it would never start, because a job of --after (%s) did not "+
			"succeed", j.Name, strings.Join(j.After, ", "))
	}
	return "", fmt.Errorf("checking job %q with Slurm: %w", j.Name, readError(out, err))
}

// verify returns the output of [test]. It accepts a job that waits for nodes which are off or reserved, with
// empty output, and adds to another refusal for lack of nodes what the largest ones have.
func (s System) verify(ctx context.Context, j *job.Job, script, id string) (answer string, err error) {
	answer, err = test(ctx, j, script, id)
	if err == nil || !strings.Contains(err.Error(), noNodes) {
		return answer, err
	}
	c, cerr := s.Nodes(ctx, j.Queue)
	if cerr != nil {
		return "", err
	}
	c.Settle(time.Now())
	queue := partition(ctx, j, c)
	c.Keep(queue)
	x := capacity.NewNeed(j, c.Usual[queue], adjust)
	switch f := x.Fit(c, queue, time.Now()); {
	case f.When == capacity.Never:
		return "", fmt.Errorf("%s (%w)", f.Why, err)
	case f.When == capacity.Later && x.Complete:
		return "", nil
	}
	return "", err
}

// never reports a job that its partitions forbid. With EnforcePartLimits=NO, the default, sbatch accepts the
// job, and it waits forever.
func never(ctx context.Context, j *job.Job) (why string, sure bool) {
	out, err := invoke.Call(ctx, "/", listPartitions[0], listPartitions[1:]...)
	if err != nil {
		return "", false
	}
	c := &capacity.Snapshot{}
	readPartitions(c, string(out))
	queue := partition(ctx, j, c)
	if why = capacity.NewNeed(j, 0, adjust).OverLimit(c, queue); why == "" {
		return "", false
	}
	return why, !overrides(ctx)
}

// partition returns the partition, or the list of partitions, in which sbatch puts a job.
func partition(ctx context.Context, j *job.Job, c *capacity.Snapshot) string {
	return cmp.Or(j.Queue, invoke.Getenv(ctx, "SBATCH_PARTITION"), c.Queue)
}

// overrides reports whether something may change the limits of a job: a QOS (sacctmgr(1), flags), a plugin of
// the site, or a variable of sbatch.
func overrides(ctx context.Context) bool {
	for _, name := range []string{"SBATCH_QOS", "SBATCH_RESERVATION", "SBATCH_CLUSTERS"} {
		if invoke.Getenv(ctx, name) != "" {
			return true
		}
	}
	out, err := invoke.Call(ctx, "/", "scontrol", "show", "config")
	if err != nil || !noPlugins().Match(out) {
		return true
	}
	out, err = invoke.Call(ctx, "/", "sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=flags")
	if err != nil {
		return !strings.Contains(string(out), "accounting_storage") // without accounting there are no QOS
	}
	return qosFlags().Match(out)
}

var (
	noPlugins = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^JobSubmitPlugins\s*=\s*(\(null\))?$`) })
	qosFlags  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`PartitionTimeLimit|PartitionMaxNodes`) })
)

// Estimate returns the prediction of a dry run; see [batch.Estimator].
func (s System) Estimate(ctx context.Context, j *job.Job, script string) (*capacity.Estimate, error) {
	answer, err := s.verify(ctx, j, script, "fits")
	if err != nil {
		return nil, err
	}
	return start(answer, time.Now()), nil
}

// start parses the answer of --test-only: "sbatch: Job 62 to start at T using 16 processors on nodes
// n[1-4] in partition cpu". It returns nil if the answer has no start time.
func start(answer string, now time.Time) *capacity.Estimate {
	_, rest, ok := strings.Cut(answer, " to start at ")
	f := strings.Fields(rest)
	if !ok || len(f) == 0 {
		return nil
	}
	e := &capacity.Estimate{Start: parseTime(f[0])}
	e.Now = !e.Start.IsZero() && e.Start.Before(now.Add(soon))
	if i := slices.Index(f, "nodes"); i > 0 && i+1 < len(f) {
		e.Nodes, _ = expandHosts(f[i+1], maxHosts)
	}
	return e
}

// adjust gives the request Slurm's time limit.
func adjust(x *capacity.Need, _ *job.Job) { x.Limit = fullMinutes(x.Limit) }

// fullMinutes rounds a time limit up as Slurm does.
func fullMinutes(d time.Duration) time.Duration { return (d + time.Minute - 1).Truncate(time.Minute) }

// soon is the duration within which an estimated start counts as now.
const soon = 5 * time.Second

// readError converts Slurm's output to an error.
func readError(out []byte, err error) error {
	text := strings.NewReplacer("sbatch: error: ", "", "allocation failure: ", "").Replace(string(out))
	if strings.Contains(text, "Invalid job array specification") {
		text = strings.TrimSpace(text) + ": the array has more tasks than the site allows (\"scontrol show config\", " +
			"MaxArraySize); split it with --array, or use --pack"
	}
	return invoke.Error([]byte(text), err)
}

// Query returns the queue state of this user's jobs.
func (System) Query(ctx context.Context, _ []string) (map[string]batch.State, error) {
	out, err := invoke.Call(ctx, "/", "squeue", "--me", "-h", "-r", "-o", "%F|%K|%T|%r")
	if err != nil {
		return nil, fmt.Errorf("querying Slurm for jobs: %w", readError(out, err))
	}
	return parseQueue(string(out)), nil
}

// parseQueue parses the lines "JOB|INDEX|STATE|REASON" of squeue. The index of a job without an array is N/A.
func parseQueue(list string) map[string]batch.State {
	jobs := map[string]batch.State{}
	for f := range batch.Table(list, 4) {
		s := jobs[f[0]]
		index, _ := strconv.Atoi(f[1])
		switch f[2] {
		case "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "SUSPENDED", "STOPPED":
			s.Add(index, job.QueueWaiting)
			if why := strings.Join(f[3:], "|"); why != "None" && s.Reason == "" { // None: the scheduler has not looked at the task yet
				s.Reason = why
			}
		case "COMPLETING":
			s.Add(index, job.QueueEnding)
		case "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT":
		default: // RUNNING, CONFIGURING, RESIZING, SIGNALING, STAGE_OUT
			s.Add(index, job.QueueRunning)
		}
		jobs[f[0]] = s
	}
	return jobs
}

// Cancel ends the tasks of the job.
func (System) Cancel(ctx context.Context, id string) error {
	if out, err := invoke.Call(ctx, "/", "scancel", id); err != nil {
		return fmt.Errorf("cancelling job %s: %w", id, readError(out, err))
	}
	return nil
}

// ExecOn runs a command as a step of the task's job, on its node and with its resources. Without a
// terminal, --unbuffered makes srun pass on incomplete lines, and the bytes arrive unchanged.
func (System) ExecOn(t *job.Task, terminal bool) (wrap func([]string) []string, slow bool) {
	w := []string{"srun", "--jobid=" + t.Native, "--overlap", "--quiet", "--nodes=1", "--ntasks=1", "--nodelist=" + t.Host}
	if terminal {
		w = append(w, "--pty")
	} else {
		w = append(w, "--unbuffered")
	}
	return func(argv []string) []string { return slices.Concat(w, argv) }, false
}

// constraints returns the sbatch(1) options for [job.Constraints].
func constraints(j *job.Job) []string {
	var o jobscript.Options
	add := o.Add
	add(j.TimeMin > 0, "--time-min=%s", quantity.FormatClock(j.TimeMin))
	add(j.Requeueing() == "yes", "--requeue")
	add(j.Requeueing() == "no", "--no-requeue")
	add(len(j.Features) > 0, "--constraint=%s", strings.Join(j.Features, "&"))
	add(len(j.Hosts) > 0, "--nodelist=%s", strings.Join(j.Hosts, ","))
	add(len(j.NotHosts) > 0, "--exclude=%s", strings.Join(j.NotHosts, ","))
	add(j.MemoryPerCPU > 0, "--mem-per-cpu=%dM", (j.MemoryPerCPU+1<<20-1)>>20)
	to := "B:"
	if j.Warning.Steps {
		to = ""
	}
	lead := j.Warning.Lead
	if j.Script == nil { // hpcc ends the task before Slurm's limit
		lead += fullMinutes(j.Time) - j.Time
	}
	add(j.Warning.Signal != "", "--signal=%s%s@%d", to, j.Warning.Signal, int64((lead+time.Second-1)/time.Second))
	add(j.Begin != "", "--begin=%s", j.Begin)
	add(j.QoS != "", "--qos=%s", j.QoS)
	add(j.Hold, "--hold")
	add(j.Append || j.Retry.Requeue(), "--open-mode=append") // keep the output of a preempted attempt
	add(len(j.Export) > 0, "--export=%s", strings.Join(j.Export, ","))
	add(j.Mail != "", "--mail-user=%s", j.Mail)
	switch {
	case len(j.MailOn) > 0:
		add(true, "--mail-type=%s", strings.ToUpper(strings.Join(j.MailOn, ",")))
	case j.Mail != "":
		add(true, "--mail-type=END,FAIL")
	}
	return o
}
