// Package lsf drives IBM Spectrum LSF 10.1 through its commands.
package lsf

import (
	"bytes"
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
	"hpcc/job/invoke"
	"hpcc/job/jobscript"
	"hpcc/job/node"
	"hpcc/text"
)

// System is IBM Spectrum LSF 10.1. Its options are those of bsub(1).
type System struct{}

// Detect reports whether this host has LSF; see [batch.System].
func (System) Detect(ctx context.Context) bool {
	out, err := invoke.Call(ctx, "/", "lsid") // Slurm has an lsid too
	return err == nil && !strings.Contains(strings.ToLower(string(out)), "slurm")
}

// maxIndex is LSF's default limit for an array index (lsb.params(5), MAX_JOB_ARRAY_SIZE).
const maxIndex = 1000

// options returns the job's options for bsub(1). It writes units explicitly, because LSF's default
// differs from site to site (LSF_UNIT_FOR_LIMITS).
func (System) options(j *job.Job) []string {
	var o jobscript.Options
	add := o.Add
	if slots := j.Slots(); slots > 1 {
		add(true, "-n %d", slots)
		switch {
		case j.Nodes > 1 || (j.TasksPerNode > 0 && j.Nodes == 0):
			add(true, `-R "span[ptile=%d]"`, j.ProcessesPerNode()*max(j.CPUs, 1))
		case j.Nodes == 1 || !j.MultiProcess(): // keep the processors of a process on one host
			add(true, `-R "span[hosts=1]"`)
		case j.CPUs > 1:
			add(true, `-R "span[block=%d]"`, j.CPUs)
		}
	}
	if j.Memory > 0 { // many sites require a reservation and a limit
		mb := (j.Memory + 1<<20 - 1) >> 20
		reserve := mb
		if n := int64(j.ProcessesPerNode() * max(j.CPUs, 1)); j.Rules.MemoryPer == "slot" { // lsb.params(5), RESOURCE_RESERVE_PER_TASK
			reserve = (mb + n - 1) / n
		}
		add(true, `-R "rusage[mem=%dMB]"`, reserve)
		add(true, "-M %dMB", mb)
	}
	model := ""
	if j.GPUType != "" {
		model = ":gmodel=" + j.GPUType
	}
	add(j.GPUs > 0, `-gpu "num=%d:j_exclusive=yes%s"`, j.GPUs, model)
	m := int64((j.Time + node.Grace + time.Minute - 1) / time.Minute) // hpcc ends the task earlier
	add(j.Time > 0, "-W %d:%02d", m/60, m%60)
	add(j.Queue != "", "-q %s", j.Queue)
	add(j.Account != "", "-P %s", j.Account)
	add(j.Exclusive, "-x")
	return append(o, constraints(j)...)
}

// Render returns the job script; see [batch.System].
func (l System) Render(j *job.Job) (string, []string, error) {
	options := l.options(j)
	t := &jobscript.Writer{}
	t.Line("#!/bin/bash")
	if j.Interactive {
		t.Interactive(j)
		t.Line("export HPCC_SUBMISSION=$id BSUB_QUIET=y") // the output is only the program's
		t.Line("terminal=-I; [ ! -t 0 ] || terminal=-Is")
		// bsub joins its arguments to one line for a shell.
		t.Line("exec bsub $terminal -J %s %s %s", j.Name, strings.Join(joinResources(append(options, j.Native...)), " "),
			text.Quote(jobscript.CommandLine(j, &scripts)))
		return t.String(), nil, nil
	}
	end := jobscript.TaskCall{To: &scripts, ID: `"$job"`, Limit: true, Signal: true, Files: true, Needs: true}
	name := j.Name
	switch n := j.Array.Count(); {
	case n == 0:
	case ownsIndices(j.Array):
		name += "[" + job.Array{Ranges: j.Array.Ranges}.String() + "]"
	default:
		name += fmt.Sprintf("[1-%d]", n)
		end.Nth = `"$LSB_JOBINDEX"`
	}
	if j.Array.Limit > 0 {
		name += "%" + strconv.Itoa(j.Array.Limit)
	}
	t.Line(`#BSUB -J "%s"`, name)
	// LSF would hold back the output until the job ends and add a report; without -o it would mail it.
	options = append(append(options, "-o /dev/null"), j.Native...)
	for _, o := range joinResources(options) {
		t.Line("#BSUB %s", o)
	}
	t.Line("# Written by hpcc for %s. Submit it with \"bsub < FILE\".", j.Title())
	t.Line("job=${HPCC_SUBMISSION:-lsf-$LSB_JOBID}; unset HPCC_SUBMISSION")
	if !j.Array.IsZero() && end.Nth == "" {
		t.Line("export HPCC_TASK_ID=$LSB_JOBINDEX HPCC_TASK_COUNT=%d", j.FullCount())
	}
	t.Common(j)
	t.Task(j, end, jobscript.Mpirun(j)...)
	return t.String(), nil, nil
}

// Submit submits a script on standard input: "bsub FILE" would ignore its directives.
func (System) Submit(ctx context.Context, r *batch.Request) error {
	b, err := os.ReadFile(r.Script)
	if err != nil {
		return err
	}
	script, err := openLava(ctx, string(b))
	if err == nil && script != string(b) {
		err = r.Rewrite(script)
	}
	if err != nil {
		return fmt.Errorf("submitting job %q to LSF: %w", r.Job.Name, err)
	}
	r.Sent = true
	out, err := invoke.Feed(ctx, r.Job.Dir, strings.NewReader(script), []string{"HPCC_SUBMISSION=" + r.ID}, "bsub")
	if err != nil {
		return fmt.Errorf("submitting job %q to LSF: %w", r.Job.Name, refusal(out, err))
	}
	m := answer().FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("submitting job %q to LSF: bsub answered %q without a job ID; check \"bjobs\" for the job",
			r.Job.Name, text.Short(string(out)))
	}
	r.Native = string(m[1])
	return nil
}

// Find implements [batch.Finder]. LSF does not show hpcc's ID, so a job is found when a task has started.
func (System) Find(_ context.Context, _ *batch.Request, tasks []string) (natives []string, err error) {
	for _, t := range tasks {
		id, _, _ := strings.Cut(t, "[")
		natives = append(natives, id)
	}
	return natives, nil
}

var answer = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`Job <(\d+)> is submitted to `) })

// Query returns the queue state of this user's jobs, with the reasons why they wait.
func (System) Query(ctx context.Context, _ []string) (map[string]batch.State, error) {
	out, err := invoke.Call(ctx, "/", "bjobs", "-w")
	if err != nil && !strings.Contains(string(out), "No unfinished job") {
		return nil, fmt.Errorf("querying LSF for jobs: %w", refusal(out, err))
	}
	jobs := parseQueue(string(out))
	waiting := false
	for _, s := range jobs {
		waiting = waiting || s.Waiting > 0
	}
	if waiting {
		if out, err := invoke.Call(ctx, "/", "bjobs", "-p", "-w"); err == nil {
			batch.Explain(jobs, reasons(string(out)))
		}
	}
	return jobs, nil
}

// ownsIndices reports whether LSF itself counts the indices of an array.
func ownsIndices(a job.Array) bool { return a.Within(1, maxIndex) }

// parseQueue parses "bjobs -w": a line for each task. The first columns, ID, user and state, never contain
// blanks. The name of a task of an array ends with its index, as in main[3].
func parseQueue(list string) map[string]batch.State {
	jobs := map[string]batch.State{}
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		if len(f) < 3 || strings.Trim(f[0], "0123456789") != "" {
			continue
		}
		s, index := jobs[f[0]], indexIn(line)
		switch f[2] {
		case "PEND", "WAIT":
			s.Add(index, job.QueueWaiting)
		case "PSUSP", "USUSP", "SSUSP":
			s.Add(index, job.QueueWaiting)
			s.Reason = map[string]string{"PSUSP": "held", "USUSP": "suspended", "SSUSP": "suspended by LSF"}[f[2]]
		case "DONE", "EXIT":
		default: // RUN, PROV, UNKWN, ZOMBI: not ended
			s.Add(index, job.QueueRunning)
		}
		jobs[f[0]] = s
	}
	return jobs
}

// reasons parses "bjobs -p": the line of a job, followed by indented lines with its reasons.
func reasons(list string) map[string]string {
	why, id := map[string]string{}, ""
	for line := range strings.Lines(list) {
		switch f := strings.Fields(line); {
		case len(f) == 0:
		case line[0] != ' ':
			if id = f[0]; strings.Contains(line, " PSUSP ") {
				id = ""
			}
		case id != "" && why[id] == "":
			why[id] = strings.TrimRight(strings.Join(f, " "), ";")
		}
	}
	return why
}

// Cancel ends the tasks of the job. LSF ends the tasks of an array in the background, and bkill fails.
func (System) Cancel(ctx context.Context, id string) error {
	out, err := invoke.Call(ctx, "/", "bkill", id)
	ends := bytes.Contains(out, []byte("Operation is in progress")) || bytes.Contains(out, []byte("already finished"))
	if err != nil && !ends {
		return fmt.Errorf("cancelling job %s: %w", id, refusal(out, err))
	}
	return nil
}

// ExecOn runs a command as a separate small interactive job on the task's node, because blaunch only works
// within the job. It takes a slot, which may take long to become free.
func (System) ExecOn(t *job.Task, terminal bool) (wrap func([]string) []string, slow bool) {
	mode := "-I"
	if terminal {
		mode = "-Is"
	}
	return func(argv []string) []string {
		return []string{"env", "BSUB_QUIET=y", "LSF_INTERACTIVE_STDERR=y", "bsub", mode, "-J", "hpcc-exec", "-m", t.Host,
			"exec " + text.CommandLine(argv)}
	}, true
}

// isID reports whether a dependency is a job ID; scripts of LSF may have a job's name instead.
func isID(dependency string) bool { return strings.Trim(dependency, "0123456789") == "" }

// constraints returns the bsub(1) options for [job.Constraints].
func constraints(j *job.Job) []string {
	var o jobscript.Options
	add := o.Add
	var before []string
	for _, d := range []struct {
		format string
		ids    []string
	}{{"done(%s)", j.After}, {"ended(%s)", j.AfterAny}, {"exit(%s)", j.AfterFailed}, {"done(%s[*])", j.AfterEach}} {
		for _, id := range d.ids {
			format := d.format
			if format == "done(%s)" && isID(id) {
				format = "ended(%s)" // after a failure, done would wait forever; hpcc task checks the job
			}
			before = append(before, fmt.Sprintf(format, id))
		}
	}
	add(len(before) > 0, `-w "%s"`, strings.Join(before, " && "))
	add(j.Requeueing() == "yes", "-r")
	add(j.Requeueing() == "no", "-rn")
	add(j.MailsOn("end") || j.MailsOn("fail"), "-N")
	add(j.MailsOn("begin"), "-B")
	add(j.Mail != "", "-u %s", j.Mail)
	selected := slices.Clone(j.Features)
	for _, h := range j.NotHosts {
		selected = append(selected, "hname!='"+h+"'")
	}
	add(len(selected) > 0, `-R "select[%s]"`, strings.Join(selected, " && "))
	add(len(j.Hosts) > 0, `-m "%s"`, strings.Join(j.Hosts, " "))
	// With a limit, hpcc sends the warning, because -wa counts minutes from the later limit of -W.
	add(j.Warning.Signal != "" && j.Time == 0, "-wa %s -wt %d", j.Warning.Signal, int64((j.Warning.Lead+time.Minute-1)/time.Minute))
	add(j.Begin != "", "-b %s", strings.NewReplacer("-", ":", "T", ":").Replace(j.Begin))
	add(j.Hold, "-H")
	if len(j.Export) > 0 && !slices.Contains(j.Export, "ALL") {
		add(true, `-env "%s"`, strings.Join(append([]string{"none", "HPCC_SUBMISSION"}, j.ExportedNames()...), ", "))
	}
	return o
}
