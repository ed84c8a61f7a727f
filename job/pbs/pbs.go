// Package pbs drives OpenPBS and PBS Professional, 19 or later, through their commands.
package pbs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/jobscript"
	"hpcc/job/node"
	"hpcc/job/quantity"
	"hpcc/text"
)

// System is OpenPBS and PBS Professional, 19 or later. Its options are those of qsub(1B). Torque is not
// supported.
type System struct{}

// Detect queries the version, because other batch systems have a qsub too.
func (System) Detect(ctx context.Context) bool {
	out, err := invoke.Call(ctx, "/", "qsub", "--version")
	return err == nil && strings.Contains(string(out), "pbs_version")
}

// chunks returns the number of chunks of a job, the processes in each, and its memory. A chunk is a
// node, or a process that PBS places on any node, with its share of the memory of a node. GPUs are
// counted per node, so they keep the processes on one.
func chunks(j *job.Job) (n, processes int, mem int64) {
	switch {
	case anywhere(j) && j.GPUs > 0:
		return 1, j.Tasks, j.Memory
	case anywhere(j) && j.MemoryPerCPU > 0:
		return j.Tasks, 1, j.MemoryPerCPU * int64(max(j.CPUs, 1))
	case anywhere(j):
		return j.Tasks, 1, (j.Memory + int64(j.Tasks) - 1) / int64(j.Tasks)
	case j.Nodes == 0 && j.Tasks > 0 && j.TasksPerNode > 0:
		n = (j.Tasks + j.TasksPerNode - 1) / j.TasksPerNode
	}
	return max(n, j.Nodes, 1), max(j.ProcessesPerNode(), 1), j.Memory
}

// anywhere reports whether a job has several processes and leaves the nodes to PBS.
func anywhere(j *job.Job) bool { return j.Nodes == 0 && j.TasksPerNode == 0 && j.Tasks > 1 }

// options returns the job's options for qsub(1B).
func (System) options(j *job.Job) []string {
	o := jobscript.Options{"-N " + j.Name, "-S /bin/bash"}
	add := o.Add
	nodes, per, mem := chunks(j)
	chunk := fmt.Sprintf("select=%d:ncpus=%d", nodes, per*max(j.CPUs, 1))
	if j.MultiProcess() {
		chunk += fmt.Sprintf(":mpiprocs=%d", per)
	}
	if j.CPUs > 0 {
		chunk += fmt.Sprintf(":ompthreads=%d", j.CPUs)
	}
	if mem > 0 {
		chunk += fmt.Sprintf(":mem=%dmb", (mem+1<<20-1)>>20)
	}
	if j.GPUs > 0 {
		chunk += fmt.Sprintf(":%s=%d", cmp.Or(j.Rules.GPU, "ngpus"), j.GPUs)
	}
	add(true, "-l %s%s", chunk, chunkConstraints(j))
	var place []string
	if j.Nodes > 1 {
		place = append(place, "scatter")
	}
	if j.Exclusive {
		place = append(place, "excl")
	}
	add(len(place) > 0, "-l place=%s", strings.Join(place, ":"))
	limit := quantity.FormatClock(j.Time + node.Grace + node.Grace/2) // hpcc ends the task earlier
	// With a minimum, PBS chooses the limit in this range.
	add(j.TimeMin > 0, "-l min_walltime=%s,max_walltime=%s", quantity.FormatClock(j.TimeMin), limit)
	add(j.TimeMin == 0 && j.Time > 0, "-l walltime=%s", limit)
	add(j.Queue != "", "-q %s", j.Queue)
	add(j.Account != "", "-A %s", j.Account)
	return append(o, constraints(j)...)
}

// Render returns the job script; see [batch.System].
func (p System) Render(j *job.Job) (string, []string, error) {
	if j.Interactive {
		return "", nil, fmt.Errorf("an interactive PBS job is a shell and cannot run a program; run: qsub -I %s, and in "+
			"that shell: %s", strings.Join(append(p.options(j)[2:], j.Native...), " "), text.CommandLine(j.Argv()))
	}
	if j.Tasks > 1 && j.Nodes > 0 && j.Tasks%j.Nodes != 0 {
		return "", nil, fmt.Errorf("%s on %d nodes: PBS gives each node the same number; request a multiple of %d",
			text.Count(j.Tasks, "task", "tasks"), j.Nodes, j.Nodes)
	}
	t := &jobscript.Writer{}
	t.Line("#!/bin/bash")
	for _, o := range p.options(j) {
		t.Line("#PBS %s", o)
	}
	end := jobscript.TaskCall{To: &scripts, ID: `"$job"`, Limit: true, Files: true, Needs: slices.ContainsFunc(j.After, isArray)}
	n, r := j.Array.Count(), j.Array.Ranges
	limit := ""
	if j.Array.Limit > 0 {
		limit = "%" + strconv.Itoa(j.Array.Limit)
	}
	switch {
	case n == 1: // PBS has no array of one
		end.Nth = "1"
	case n > 1 && len(r) == 1:
		t.Line("#PBS -J %s%s", job.Array{Ranges: r}, limit)
	case n > 1:
		t.Line("#PBS -J 1-%d%s", n, limit)
		end.Nth = `"$PBS_ARRAY_INDEX"`
	}
	// PBS would copy the output after the end of the job; hpcc writes it immediately.
	t.Line("#PBS -o /dev/null")
	t.Line("#PBS -j oe")
	for _, n := range j.Native {
		t.Line("#PBS %s", n)
	}
	t.Line("# Written by hpcc for %s. Submit it with qsub.", j.Title())
	t.Caller(j)
	t.Line("job=${HPCC_SUBMISSION:-pbs-${PBS_JOBID%%%%[.[]*}}; unset HPCC_SUBMISSION")
	if n > 1 && end.Nth == "" {
		t.Line("export HPCC_TASK_ID=$PBS_ARRAY_INDEX HPCC_TASK_COUNT=%d", j.FullCount())
	}
	t.Common(j) // PBS starts scripts in the home directory
	if j.StartsProcesses() {
		t.Line("export %s", strings.Join(hostFiles, " "))
	}
	t.Task(j, end, jobscript.Mpirun(j)...)
	return t.String(), nil, nil
}

// hostFiles gives the allocation to Open MPI 4 and 5 and to MPICH. An mpirun without support for PBS,
// such as Debian's, would start all processes on the first node.
var hostFiles = []string{
	`OMPI_MCA_orte_default_hostfile="$PBS_NODEFILE"`, `PRTE_MCA_prte_default_hostfile="$PBS_NODEFILE"`, `HYDRA_HOST_FILE="$PBS_NODEFILE"`,
}

// Submit submits a script. PBS scripts do not take arguments, so a variable carries the job's ID.
func (System) Submit(ctx context.Context, r *batch.Request) error {
	variables := "HPCC_SUBMISSION=" + r.ID // -v on the command line overrides -v in the script
	for _, name := range r.Job.ExportedNames() {
		if _, set := os.LookupEnv(name); set { // PBS refuses others, which other schedulers ignore
			variables += "," + name
		}
	}
	r.Sent = true
	out, err := invoke.Call(ctx, r.Job.Dir, "qsub", "-v", variables, r.Script)
	if err != nil {
		return fmt.Errorf("submitting job %q to PBS: %w", r.Job.Name, invoke.Error(out, err))
	}
	id := strings.TrimSpace(string(out))
	if number, _, ok := strings.Cut(id, "."); !ok || strings.Trim(strings.TrimSuffix(number, "[]"), "0123456789") != "" {
		return fmt.Errorf("submitting job %q to PBS: qsub answered %q, not a job ID; check \"qstat\" for the job",
			r.Job.Name, text.Short(id))
	}
	r.Native = id
	return nil
}

// Find implements [batch.Finder].
func (System) Find(ctx context.Context, r *batch.Request, _ []string) (natives []string, err error) {
	out, err := invoke.Call(ctx, "/", "qstat", "-x", "-f")
	if err != nil {
		return nil, fmt.Errorf("looking for job %s in PBS: %w", r.ID, invoke.Error(out, err))
	}
	for id, e := range entries(string(out)) {
		owner, _, _ := strings.Cut(e["Job_Owner"], "@")
		if slices.Contains(strings.Split(e["Variable_List"], ","), "HPCC_SUBMISSION="+r.ID) &&
			strings.HasSuffix(e["Submit_arguments"], " "+r.Script) && owner == invoke.Getenv(ctx, "LOGNAME") {
			natives = append(natives, id)
		}
	}
	slices.Sort(natives)
	return natives, nil
}

// Query returns the queue state of all jobs that have not ended. It adds those of ids that PBS deleted
// because a dependency failed.
func (System) Query(ctx context.Context, ids []string) (map[string]batch.State, error) {
	out, err := invoke.Call(ctx, "/", "qstat", "-t", "-f", "-F", "json")
	if err != nil {
		return nil, fmt.Errorf("querying PBS for jobs: %w", invoke.Error(out, err))
	}
	jobs, err := parseQueue(bytes.NewReader(out))
	if err != nil {
		return nil, fmt.Errorf("reading the output of qstat: %w", err)
	}
	missing := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { _, ok := jobs[id]; return ok || id == "" })
	if len(missing) == 0 {
		return jobs, nil
	}
	known := entries(ended(ctx, missing[:min(len(missing), maxEnded)]))
	for _, id := range missing {
		// An entry without "stime" never started; a job that someone deleted has another substate.
		if e := known[id]; e["job_state"] == "F" && e["stime"] == "" && e["depend"] != "" && e["substate"] == finished {
			jobs[id] = batch.State{Reason: "dependency failed: " + e["depend"]}
		}
	}
	return jobs, nil
}

// maxEnded limits the number of ended jobs that Query asks about.
const maxEnded = 100

// finished is the substate of ended jobs that nobody deleted and that did not fail. A job that PBS
// deletes because of a dependency has it too.
const finished = "92"

// parseQueue parses the JSON of "qstat -t -f", which lists the tasks of an array after the array itself.
func parseQueue(r io.Reader) (map[string]batch.State, error) {
	var list struct {
		Jobs map[string]struct {
			State   string `json:"job_state"`
			Comment string `json:"comment"`
			Holds   string `json:"Hold_Types"` // n: none, u: by the user, o: by an operator, s: by the system
			Depend  string `json:"depend"`     // afterok:7.server@server
		}
	}
	err := json.NewDecoder(io.LimitReader(r, invoke.MaxListing)).Decode(&list)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	jobs, reasons := map[string]batch.State{}, map[string]string{}
	for id, j := range list.Jobs {
		id, index, isArray := arrayOf(id)
		if j.State == "H" && j.Depend != "" && j.Holds == "s" {
			reasons[id] = "waits for " + j.Depend
		} else if j.State == "H" {
			reasons[id] = "held"
		} else if reasons[id] == "" && !strings.HasPrefix(j.Comment, "Job ") { // "Job run at …", "Job Array Began at …"
			reasons[id] = strings.TrimPrefix(j.Comment, "Not Running: ")
		}
		s := jobs[id]
		switch {
		case isArray, strings.Contains("FXM", j.State): // ended, or moved to another server
			continue
		case j.State == "R":
			s.Add(index, job.QueueRunning)
		case j.State == "E":
			s.Add(index, job.QueueEnding)
		default: // Q, H, W, T, S, U
			s.Add(index, job.QueueWaiting)
		}
		jobs[id] = s
	}
	for id, s := range jobs {
		if s.Waiting > 0 {
			s.Reason = reasons[id]
			jobs[id] = s
		}
	}
	return jobs, nil
}

// arrayOf splits the ID of a task, such as 11[3].server, into the ID of its array, 11[].server,
// and its index. isArray reports that it is the ID of an array.
func arrayOf(id string) (array string, index int, isArray bool) {
	n, rest, ok := strings.Cut(id, "[")
	k, server, closed := strings.Cut(rest, "]")
	if !ok || !closed {
		return id, 0, false
	}
	index, err := strconv.Atoi(k)
	return n + "[]" + server, index, err != nil
}

// ownsIndices reports whether PBS itself can count the indices of an array: several, in one range.
func ownsIndices(a job.Array) bool { return len(a.Ranges) == 1 && a.Count() > 1 }

// Cancel ends the tasks of the job.
func (System) Cancel(ctx context.Context, id string) error {
	if out, err := invoke.Call(ctx, "/", "qdel", id); err != nil && !strings.Contains(string(out), "Job has finished") {
		return fmt.Errorf("cancelling job %s: %w", id, invoke.Error(out, err))
	}
	return nil
}

// chunkConstraints returns the constraints within a chunk of qsub(1B), other than amounts.
func chunkConstraints(j *job.Job) string {
	s := ""
	for _, f := range j.Features {
		if !strings.Contains(f, "=") {
			f += "=true"
		}
		s += ":" + f
	}
	if len(j.Hosts) == 1 {
		s += ":host=" + j.Hosts[0]
	}
	return s
}

// constraints returns the qsub(1B) options for [job.Constraints].
func constraints(j *job.Job) []string {
	var o jobscript.Options
	add := o.Add
	before := jobscript.Dependencies(j, "afterok", "afterany", "afternotok")
	add(before != "", "-W depend=%s", before)
	add(j.Requeueing() != "", "-r %.1s", j.Requeueing())
	when := j.MailLetters("fail", "a", "end", "e", "begin", "b")
	add(when != "", "-m %s", when)
	add(j.Mail != "", "-M %s", j.Mail)
	add(j.Begin != "", "-a %s", jobscript.DigitsOf(j.Begin))
	add(j.Hold, "-h")
	add(len(j.ExportedNames()) > 0, "-v %s", strings.Join(j.ExportedNames(), ","))
	return o
}
