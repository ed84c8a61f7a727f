package job

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job/hostlist"
	"hpcc/job/message"
	"hpcc/job/quantity"
	"hpcc/job/shellword"
)

// slurm is Slurm, 22.05 or later.
type slurm struct{}

func (slurm) here(ctx context.Context) bool {
	out, err := call(ctx, "/", "sbatch", "--version")
	if err != nil || !strings.HasPrefix(string(out), "slurm") {
		return false
	}
	// One whose controller is down is here all the same: jobs are not to run on
	// the login node because of that.
	out, err = call(ctx, "/", "scontrol", "ping")
	return err == nil || strings.Contains(string(out), " is DOWN")
}

// slurmOptions are the job's options in the words of sbatch(1) and srun(1).
func slurmOptions(j *Job) []string {
	var o []string
	add := func(format string, a ...any) { o = append(o, fmt.Sprintf(format, a...)) }
	add("--job-name=%s", j.Name)
	add("--chdir=%s", j.Dir)
	if j.Nodes > 0 {
		add("--nodes=%d", j.Nodes)
	}
	if j.Tasks > 0 {
		add("--ntasks=%d", j.Tasks)
	}
	if j.TasksPerNode > 0 {
		add("--ntasks-per-node=%d", j.TasksPerNode)
	}
	if j.CPUs > 0 {
		add("--cpus-per-task=%d", j.CPUs)
	}
	switch {
	case j.GPUs > 0 && j.GPUType != "":
		add("--gpus-per-node=%s:%d", j.GPUType, j.GPUs)
	case j.GPUs > 0:
		add("--gpus-per-node=%d", j.GPUs)
	}
	switch {
	case j.Memory > 0:
		add("--mem=%dM", (j.Memory+1<<20-1)>>20)
	case j.Exclusive && j.MemoryPerCPU == 0: // a node of one's own does not come with its memory
		add("--mem=0")
	}
	if j.Time > 0 {
		add("--time=%s", quantity.FormatClock(j.Time))
	}
	if j.Queue != "" {
		add("--partition=%s", j.Queue)
	}
	if j.Account != "" {
		add("--account=%s", j.Account)
	}
	if j.Exclusive {
		add("--exclusive")
	}
	if d := slurmDependency(j); d != "" { // without the second, the job would wait for ever
		add("--dependency=%s", d)
		add("--kill-on-invalid-dep=yes")
	}
	return append(o, slurmWishes(j)...)
}

// slurmPattern writes a file pattern in Slurm's letters (sbatch(1), "filename pattern").
func slurmPattern(j *Job, p string) string {
	id := "%j"
	if j.Array.Count() > 0 {
		id = "%A"
	}
	return strings.NewReplacer("{name}", "%x", "{job}", id, Placeholder, "%a").Replace(p)
}

func (slurm) render(j *Job) (string, []string, error) {
	t := &text{}
	t.line("#!/bin/bash")
	if j.Interactive {
		words := append([]string{"srun", "--pty"}, slurmOptions(j)...)
		t.interactive(j)
		t.line("export SLURM_EXPORT_ENV=ALL")
		t.common(j)
		t.line("exec %s %s", strings.Join(append([]string{shellword.Join(words)}, j.Native...), " "), j.interactiveWords(Slurm, `"$id"`))
		return t.String(), nil, nil
	}
	options := slurmOptions(j)
	if !j.Array.IsZero() {
		options = append(options, "--array="+j.Array.String())
	}
	options = append(options, "--output="+slurmPattern(j, j.OutputPattern()))
	if j.Error != "" {
		options = append(options, "--error="+slurmPattern(j, j.Error))
	}
	for _, o := range options {
		t.line("#SBATCH %s", directive(o))
	}
	for _, n := range j.Native {
		t.line("#SBATCH %s", n)
	}
	t.line("# Made by hpcc, for %s; \"hpcc submit\" hands it in, sbatch does too.", j.what())
	t.line("# sbatch --export=NONE would leave srun without PATH:")
	t.line("export SLURM_EXPORT_ENV=ALL")
	t.line("export HPCC_TASK_ID=${SLURM_ARRAY_TASK_ID:-0} HPCC_TASK_COUNT=%d", j.whole())
	if j.multi() {
		t.line("# Where the site leaves it open, the MPI in the image finds srun by PMIx:")
		t.line(`if scontrol show config | grep -q '^MpiDefault *= none' && srun --mpi=list 2>&1 | grep -q pmix; then export SLURM_MPI_TYPE=pmix; fi`)
	}
	t.common(j)
	t.task(j, taskCall{to: Slurm, id: `"${1:-slurm-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}"`, limit: true}, srun(j)...)
	return t.String(), nil, nil
}

// srun starts the processes of a job of several. From 22.05 to 23.02 it does
// not take --cpus-per-task over from the job, so it is said again.
func srun(j *Job) []string {
	w := []string{"srun", "--kill-on-bad-exit=1"}
	if j.CPUs > 0 {
		w = append(w, "--cpus-per-task="+strconv.Itoa(j.CPUs))
	}
	return w
}

// directive quotes an option's value as sbatch wants it in a line of a script.
func directive(o string) string {
	if k, v, ok := strings.Cut(o, "="); ok && strings.ContainsAny(v, " \t'#") {
		return k + `="` + v + `"`
	}
	return o
}

// submit hands a script in, with the job's own id as its argument and as
// its comment, so that a submission whose answer was lost can be found again.
// sbatch is asked first whether it would take the job: some requests it
// accepts, and never runs.
func (s slurm) submit(ctx context.Context, r *request) error {
	_, err := slurmTest(ctx, r.Job, r.Script, r.ID)
	if err != nil && !(strings.Contains(err.Error(), slurmNoNodes) && s.startsLater(ctx, r.Job)) {
		return err
	}
	args := []string{"--parsable", "--comment=hpcc:" + r.ID, r.Script, r.ID}
	out, err := call(ctx, r.Job.Dir, "sbatch", args...)
	if err != nil {
		return fmt.Errorf("handing job %q to Slurm: %w", r.Job.Name, slurmWords(out, err))
	}
	id, _, _ := strings.Cut(strings.TrimSpace(string(out)), ";")
	if n, err := strconv.Atoi(id); err != nil || n <= 0 {
		return fmt.Errorf("handing job %q to Slurm: sbatch answered %q, which is no job id; \"squeue --me\" shows whether the job is there", r.Job.Name, message.Short(id))
	}
	r.Native = id
	return nil
}

// slurmNoNodes is what --test-only says of a job that no nodes can run, and also of
// one that has to wait for nodes that are drained or reserved: sbatch takes that.
const slurmNoNodes = "Requested node configuration is not available"

// slurmTest is what "sbatch --test-only" says of a script.
func slurmTest(ctx context.Context, j *Job, script, id string) (string, error) {
	silent := &SilentError{"sbatch --test-only", commandTime(ctx)}
	ctx, cancel := context.WithTimeoutCause(ctx, silent.After, silent)
	defer cancel()
	out, err := command(ctx, j.Dir, "sbatch", "--test-only", script, id).CombinedOutput()
	if err != nil && context.Cause(ctx) == error(silent) {
		return "", silent
	}
	switch {
	case err == nil:
		return string(out), nil
	case len(j.After) > 0 && strings.Contains(string(out), "presently disabled"):
		// What 22.05 says, with kill-on-invalid-dep, of a job that has failed already.
		return "", fmt.Errorf("handing job %q to Slurm: it would never start, because a job of --after (%s) did not succeed", j.Name, strings.Join(j.After, ", "))
	}
	return "", fmt.Errorf("asking Slurm whether it takes job %q: %w", j.Name, slurmWords(out, err))
}

func (slurm) estimate(ctx context.Context, j *Job, script string) (*estimate, error) {
	said, err := slurmTest(ctx, j, script, "fits")
	if err != nil && strings.Contains(err.Error(), slurmNoNodes) {
		err = &busyError{err}
	}
	if err != nil {
		return nil, err
	}
	return slurmStart(said, time.Now()), nil
}

// slurmStart reads the answer of --test-only: "sbatch: Job 62 to start at T using 16
// processors on nodes n[1-4] in partition cpu". It is nil when that stands nowhere.
func slurmStart(said string, now time.Time) *estimate {
	_, rest, ok := strings.Cut(said, " to start at ")
	f := strings.Fields(rest)
	if !ok || len(f) == 0 {
		return nil
	}
	e := &estimate{start: slurmWhen(f[0])}
	e.now = !e.start.IsZero() && e.start.Before(now.Add(slurmSoon))
	if i := slices.Index(f, "nodes"); i > 0 && i+1 < len(f) {
		e.nodes, _ = hostlist.Expand(f[i+1], hostlist.Max)
	}
	return e
}

// adjust rounds the time limit up to whole minutes, as Slurm does.
func (slurm) adjust(x *need, _ *Job) {
	x.limit = (x.limit + time.Minute - 1).Truncate(time.Minute)
}

// cutsTime: Slurm honours --time-min.
func (slurm) cutsTime() {}

// slurmSoon is how late a start may be that is one at once.
const slurmSoon = 5 * time.Second

// slurmWords makes an error of what Slurm said.
func slurmWords(out []byte, err error) error {
	return words([]byte(strings.NewReplacer("sbatch: error: ", "", "allocation failure: ", "").Replace(string(out))), err)
}

// ask reads the queue of this user.
func (slurm) ask(ctx context.Context, _ []string) (map[string]standing, error) {
	out, err := call(ctx, "/", "squeue", "--me", "-h", "-r", "-o", "%F|%T|%r")
	if err != nil {
		return nil, fmt.Errorf("asking Slurm for its jobs: %w", slurmWords(out, err))
	}
	jobs := map[string]standing{}
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSpace(line), "|", 3)
		if len(f) < 3 {
			continue
		}
		s := jobs[f[0]]
		switch f[1] {
		case "PENDING", "REQUEUED", "SUSPENDED":
			s.waiting++
			s.reason = f[2]
		default:
			s.running++
		}
		jobs[f[0]] = s
	}
	return jobs, nil
}

func (slurm) cancel(ctx context.Context, id string) error {
	if out, err := call(ctx, "/", "scancel", id); err != nil {
		return fmt.Errorf("ending job %s: %w", id, slurmWords(out, err))
	}
	return nil
}
