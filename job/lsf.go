package job

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"hpcc/job/message"
	"hpcc/job/shellword"
)

// lsf is IBM Spectrum LSF 10.1. Its options are those of bsub(1).
type lsf struct{}

func (lsf) here(ctx context.Context) bool {
	out, err := call(ctx, "/", "lsid") // Slurm has one of its own
	return err == nil && !strings.Contains(strings.ToLower(string(out)), "slurm")
}

// lsfMaxIndex is the largest index that LSF takes unless the site says otherwise
// (lsb.params(5), MAX_JOB_ARRAY_SIZE).
const lsfMaxIndex = 1000

// within says whether all indices lie between two bounds.
func (a Array) within(least, most int) bool {
	for _, r := range a.ranges {
		if r.first < least || r.last > most {
			return false
		}
	}
	return true
}

// options are the job's in the words of bsub(1). LSF's units differ from site
// to site (LSF_UNIT_FOR_LIMITS): they are written out.
func (lsf) options(j *Job) []string {
	o := []string{"-cwd " + inQuotes(j.Dir)}
	add := func(format string, a ...any) { o = append(o, fmt.Sprintf(format, a...)) }
	if slots := j.Slots(); slots > 1 {
		add("-n %d", slots)
		switch {
		case j.Nodes > 1 || (j.TasksPerNode > 0 && j.Nodes == 0):
			add(`-R "span[ptile=%d]"`, j.ProcessesPerNode()*max(j.CPUs, 1))
		case j.Nodes == 1 || !j.several(): // the processors of one process are on one host
			add(`-R "span[hosts=1]"`)
		case j.CPUs > 1:
			add(`-R "span[block=%d]"`, j.CPUs)
		}
	}
	if j.Memory > 0 { // many sites want both
		mb := (j.Memory + 1<<20 - 1) >> 20
		reserve := mb
		if n := int64(j.ProcessesPerNode() * max(j.CPUs, 1)); j.Rules.MemoryPer == "slot" { // lsb.params(5), RESOURCE_RESERVE_PER_TASK
			reserve = (mb + n - 1) / n
		}
		add(`-R "rusage[mem=%dMB]"`, reserve)
		add("-M %dMB", mb)
	}
	if j.GPUs > 0 {
		model := ""
		if j.GPUType != "" {
			model = ":gmodel=" + j.GPUType
		}
		add(`-gpu "num=%d:j_exclusive=yes%s"`, j.GPUs, model)
	}
	if j.Time > 0 { // hpcc ends the task before
		m := int64((j.Time + Grace + time.Minute - 1) / time.Minute)
		add("-W %d:%02d", m/60, m%60)
	}
	if j.Queue != "" {
		add("-q %s", j.Queue)
	}
	if j.Account != "" {
		add("-P %s", j.Account)
	}
	if j.Exclusive {
		add("-x")
	}
	return append(o, lsfWishes(j)...)
}

// ProcessesPerNode is how many processes a node has.
func (j *Job) ProcessesPerNode() int {
	if j.TasksPerNode > 0 {
		return j.TasksPerNode
	}
	nodes := max(j.Nodes, 1)
	return (max(j.Tasks, nodes) + nodes - 1) / nodes
}

func (l lsf) render(j *Job) (string, []string, error) {
	options := l.options(j)
	t := &text{}
	t.line("#!/bin/bash")
	if j.Interactive {
		t.interactive(j)
		t.line("export HPCC_SUBMISSION=$id")
		t.line("terminal=-I; [ ! -t 0 ] || terminal=-Is")
		// bsub joins its words to a line for a shell.
		t.line("exec bsub $terminal -J %s %s %s", j.Name, strings.Join(append(options, j.Native...), " "), shellword.Quote(j.line(LSF)))
		return t.String(), nil, nil
	}
	end := taskCall{to: LSF, id: `"$job"`, limit: true, files: true}
	name := j.Name
	switch n := j.Array.Count(); {
	case n == 0:
	case j.Array.within(1, lsfMaxIndex):
		name += "[" + Array{ranges: j.Array.ranges}.String() + "]"
	default:
		name += fmt.Sprintf("[1-%d]", n)
		end.nth = `"$LSB_JOBINDEX"`
	}
	if j.Array.Limit > 0 {
		name += "%" + strconv.Itoa(j.Array.Limit)
	}
	t.line(`#BSUB -J "%s"`, name)
	for _, o := range options {
		t.line("#BSUB %s", o)
	}
	// LSF would hold the output back until the job ends, and put a letter around
	// it; without -o it would send it by mail.
	t.line("#BSUB -o /dev/null")
	for _, n := range j.Native {
		t.line("#BSUB %s", n)
	}
	t.line("# Made by hpcc, for %s; \"hpcc submit\" hands it in, \"bsub < FILE\" does too.", j.what())
	t.line("job=${HPCC_SUBMISSION:-lsf-$LSB_JOBID}; unset HPCC_SUBMISSION")
	if !j.Array.IsZero() && end.nth == "" {
		t.line("export HPCC_TASK_ID=$LSB_JOBINDEX HPCC_TASK_COUNT=%d", j.whole())
	}
	t.common(j)
	t.task(j, end, mpirun(j)...)
	return t.String(), nil, nil
}

// submit hands a script in on standard input: "bsub FILE" would take no notice of
// its directives.
func (lsf) submit(ctx context.Context, r *request) error {
	f, err := os.Open(r.Script)
	if err != nil {
		return err
	}
	defer f.Close()
	out, err := feed(ctx, r.Job.Dir, f, []string{"HPCC_SUBMISSION=" + r.ID}, "bsub")
	if err != nil {
		return fmt.Errorf("handing job %q to LSF: %w", r.Job.Name, words(out, err))
	}
	m := lsfAnswer().FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("handing job %q to LSF: bsub answered %q, which has no job id; \"bjobs\" shows whether the job is there", r.Job.Name, message.Short(string(out)))
	}
	r.Native = string(m[1])
	return nil
}

var lsfAnswer = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`Job <(\d+)> is submitted to `) })

// ask reads the queue of this user, and why jobs wait.
func (lsf) ask(ctx context.Context, _ []string) (map[string]standing, error) {
	out, err := call(ctx, "/", "bjobs", "-w")
	if err != nil && !strings.Contains(string(out), "No unfinished job") {
		return nil, fmt.Errorf("asking LSF for its jobs: %w", words(out, err))
	}
	jobs := lsfQueue(string(out))
	waiting := false
	for _, s := range jobs {
		waiting = waiting || s.waiting > 0
	}
	if waiting {
		if out, err := call(ctx, "/", "bjobs", "-p", "-w"); err == nil {
			for id, why := range lsfReasons(string(out)) {
				if s, ok := jobs[id]; ok {
					s.reason = why
					jobs[id] = s
				}
			}
		}
	}
	return jobs, nil
}

// lsfQueue reads "bjobs -w": a line for each task, of which the first columns
// never have blanks: id, user, state.
func lsfQueue(list string) map[string]standing {
	jobs := map[string]standing{}
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		if len(f) < 3 || strings.Trim(f[0], "0123456789") != "" {
			continue
		}
		s := jobs[f[0]]
		switch f[2] {
		case "PEND", "WAIT":
			s.waiting++
		case "PSUSP", "USUSP", "SSUSP":
			s.waiting++
			s.reason = map[string]string{"PSUSP": "held", "USUSP": "suspended", "SSUSP": "suspended by LSF"}[f[2]]
		case "DONE", "EXIT":
		default: // RUN, PROV, UNKWN, ZOMBI: not ended
			s.running++
		}
		jobs[f[0]] = s
	}
	return jobs
}

// lsfReasons reads "bjobs -p": below a job's line, lines that begin with a blank.
func lsfReasons(list string) map[string]string {
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

func (lsf) cancel(ctx context.Context, id string) error {
	if out, err := call(ctx, "/", "bkill", id); err != nil {
		return fmt.Errorf("ending job %s: %w", id, words(out, err))
	}
	return nil
}
