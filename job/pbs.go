package job

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"hpcc/job/message"
	"hpcc/job/quantity"
	"hpcc/job/shellword"
)

// pbs is OpenPBS and PBS Professional, 19 or later. Its options are those of
// qsub(1B). Torque is another one.
type pbs struct{}

// here asks for the version: Grid Engine and Slurm bring a qsub of their own.
func (pbs) here(ctx context.Context) bool {
	out, err := call(ctx, "/", "qsub", "--version")
	return err == nil && strings.Contains(string(out), "pbs_version")
}

// options are the job's in the words of qsub(1B).
func (pbs) options(j *Job) []string {
	o := []string{"-N " + j.Name, "-S /bin/bash"}
	add := func(format string, a ...any) { o = append(o, fmt.Sprintf(format, a...)) }
	nodes := max(j.Nodes, 1)
	if j.Nodes == 0 && j.Tasks > 0 && j.TasksPerNode > 0 {
		nodes = (j.Tasks + j.TasksPerNode - 1) / j.TasksPerNode
	}
	per := max(j.ProcessesPerNode(), 1)
	if j.Nodes == 0 && j.TasksPerNode == 0 && j.Tasks > 1 { // anywhere: a chunk for each
		nodes, per = j.Tasks, 1
	}
	chunk := fmt.Sprintf("select=%d:ncpus=%d", nodes, per*max(j.CPUs, 1))
	if j.several() {
		chunk += fmt.Sprintf(":mpiprocs=%d", per)
	}
	if j.CPUs > 0 {
		chunk += fmt.Sprintf(":ompthreads=%d", j.CPUs)
	}
	if j.Memory > 0 {
		chunk += fmt.Sprintf(":mem=%dmb", (j.Memory+1<<20-1)>>20)
	}
	if j.GPUs > 0 {
		chunk += fmt.Sprintf(":%s=%d", cmp.Or(j.Rules.GPU, "ngpus"), j.GPUs)
	}
	add("-l %s%s", chunk, pbsChunkWishes(j))
	switch {
	case j.Nodes > 1 && j.Exclusive:
		add("-l place=scatter:excl")
	case j.Nodes > 1:
		add("-l place=scatter")
	case j.Exclusive:
		add("-l place=excl")
	}
	switch limit := quantity.FormatClock(j.Time + Grace + Grace/2); { // hpcc ends the task before
	case j.TimeMin > 0: // PBS chooses
		add("-l min_walltime=%s,max_walltime=%s", quantity.FormatClock(j.TimeMin), limit)
	case j.Time > 0:
		add("-l walltime=%s", limit)
	}
	if j.Queue != "" {
		add("-q %s", j.Queue)
	}
	if j.Account != "" {
		add("-A %s", j.Account)
	}
	return append(o, pbsWishes(j)...)
}

func (p pbs) render(j *Job) (string, []string, error) {
	if j.Interactive {
		return "", nil, fmt.Errorf("an interactive job of PBS is a shell and takes no program; say: qsub -I %s, and there: %s", strings.Join(append(p.options(j)[2:], j.Native...), " "), shellword.Join(j.words()))
	}
	if j.Tasks > 1 && j.Nodes > 0 && j.Tasks%j.Nodes != 0 {
		return "", nil, fmt.Errorf("%d tasks on %d nodes: PBS gives each node as many; ask for a multiple", j.Tasks, j.Nodes)
	}
	t := &text{}
	t.line("#!/bin/bash")
	for _, o := range p.options(j) {
		t.line("#PBS %s", o)
	}
	end := taskCall{to: PBS, id: `"$job"`, limit: true, files: true}
	n, r := j.Array.Count(), j.Array.ranges
	limit := ""
	if j.Array.Limit > 0 {
		limit = "%" + strconv.Itoa(j.Array.Limit)
	}
	switch {
	case n == 1: // PBS has no array of one
		end.nth = "1"
	case n > 1 && len(r) == 1:
		t.line("#PBS -J %s%s", Array{ranges: r}, limit)
	case n > 1:
		t.line("#PBS -J 1-%d%s", n, limit)
		end.nth = `"$PBS_ARRAY_INDEX"`
	}
	// PBS would bring the output when the job has ended; hpcc writes it at once.
	t.line("#PBS -o /dev/null")
	t.line("#PBS -j oe")
	for _, n := range j.Native {
		t.line("#PBS %s", n)
	}
	t.line("# Made by hpcc, for %s; \"hpcc submit\" hands it in, qsub does too.", j.what())
	t.line("job=${HPCC_SUBMISSION:-pbs-${PBS_JOBID%%%%[.[]*}}; unset HPCC_SUBMISSION")
	if n > 1 && end.nth == "" {
		t.line("export HPCC_TASK_ID=$PBS_ARRAY_INDEX HPCC_TASK_COUNT=%d", j.whole())
	}
	t.common(j) // PBS begins in the home directory
	t.task(j, end, mpirun(j)...)
	return t.String(), nil, nil
}

// cutsTime: PBS honours min_walltime.
func (pbs) cutsTime() {}

// submit hands a script in. Scripts have no arguments here: the job's id comes
// by a variable.
func (pbs) submit(ctx context.Context, r *request) error {
	variables := strings.Join(append([]string{"HPCC_SUBMISSION=" + r.ID}, r.Job.ExportedNames()...), ",") // it overrules the r.Script's own -v
	out, err := call(ctx, r.Job.Dir, "qsub", "-v", variables, r.Script)
	if err != nil {
		return fmt.Errorf("handing job %q to PBS: %w", r.Job.Name, words(out, err))
	}
	id := strings.TrimSpace(string(out))
	if number, _, ok := strings.Cut(id, "."); !ok || strings.Trim(strings.TrimSuffix(number, "[]"), "0123456789") != "" {
		return fmt.Errorf("handing job %q to PBS: qsub answered %q, which is no job id; \"qstat\" shows whether the job is there", r.Job.Name, message.Short(id))
	}
	r.Native = id
	return nil
}

// ask reads all jobs that have not ended.
func (pbs) ask(ctx context.Context, _ []string) (map[string]standing, error) {
	out, err := call(ctx, "/", "qstat", "-f", "-F", "json")
	if err != nil {
		return nil, fmt.Errorf("asking PBS for its jobs: %w", words(out, err))
	}
	jobs, err := pbsQueue(bytes.NewReader(out))
	if err != nil {
		return nil, fmt.Errorf("reading what qstat said: %w", err)
	}
	return jobs, nil
}

// pbsQueue reads the JSON of qstat -f.
func pbsQueue(r io.Reader) (map[string]standing, error) {
	var list struct {
		Jobs map[string]struct {
			State   string `json:"job_state"`
			Tasks   string `json:"array_state_count"` // Queued:3 Running:1 Exiting:0 Expired:0
			Comment string `json:"comment"`
		}
	}
	err := json.NewDecoder(io.LimitReader(r, maxListing)).Decode(&list)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	jobs := map[string]standing{}
	for id, j := range list.Jobs {
		s := standing{reason: strings.TrimPrefix(j.Comment, "Not Running: ")}
		switch j.State {
		case "B":
			for f := range strings.FieldsSeq(j.Tasks) {
				what, count, _ := strings.Cut(f, ":")
				n, _ := strconv.Atoi(count)
				switch what {
				case "Queued":
					s.waiting += n
				case "Running", "Exiting":
					s.running += n
				}
			}
		case "R", "E":
			s.running = 1
		case "F", "X", "M":
			continue // ended, or moved to another server
		case "H":
			s.waiting, s.reason = max(1, pbsQueued(j.Tasks)), "held"
		default: // Q, W, T, S, U
			s.waiting = max(1, pbsQueued(j.Tasks))
		}
		if s.waiting == 0 {
			s.reason = ""
		}
		jobs[id] = s
	}
	return jobs, nil
}

// pbsQueued is how many tasks of an array wait; 0 of no array.
func pbsQueued(tasks string) int {
	for f := range strings.FieldsSeq(tasks) {
		if n, ok := strings.CutPrefix(f, "Queued:"); ok {
			k, _ := strconv.Atoi(n)
			return k
		}
	}
	return 0
}

func (pbs) cancel(ctx context.Context, id string) error {
	if out, err := call(ctx, "/", "qdel", id); err != nil && !strings.Contains(string(out), "Job has finished") {
		return fmt.Errorf("ending job %s: %w", id, words(out, err))
	}
	return nil
}
