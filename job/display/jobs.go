// Package display formats what hpcc knows of jobs and clusters as text for people, and shows the output of tasks.
//
//	Status, Usage, NodeRow, Fit, Use ─► a table or a line
//	records and files of tasks, logs of pods ─► the output of a job
//
// Names, hosts, parameters and reasons come from other users and programs: the text has no control characters.
package display

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/text"
	"hpcc/text/terminal"
)

// Jobs writes a line for each job. With detail, it also writes the tasks that failed and the steps of workflows.
func Jobs(out io.Writer, list []*dispatch.Status, detail bool) error {
	now := time.Now()
	t := terminal.NewTable("JOB", "SITE", "USER", "TARGET", "STATE", "TASKS", "DONE", "FAIL", "RUN", "WAIT", "START", "ELAPSED", "WHY")
	for _, st := range list {
		why := st.Reason
		if st.Lost > 0 && (st.Active() || why == "") {
			why = fmt.Sprintf("%s left no record", text.Count(st.Lost, "task", "tasks"))
		}
		if !st.AsOf.IsZero() {
			why = strings.TrimSpace("as of " + st.AsOf.Local().Format(time.DateTime) + " " + why)
		}
		start, took := "-", "-"
		if !st.Started.IsZero() {
			start, took = shortTime(st.Started.Local(), now), text.Elapsed(st.Elapsed(now))
		}
		t.Row(st.ID, cmp.Or(st.Site, "-"), cmp.Or(st.User, "-"), st.Target, st.State(), st.Total, st.Done, len(st.Failed),
			st.Running, st.Waiting, start, took, why)
	}
	t.DropEqual("SITE", "USER")
	if err := t.Write(out); err != nil || !detail {
		return err
	}
	for _, st := range list {
		details(out, st)
	}
	return nil
}

// Explain writes for each job the facts about its tasks, and the state that follows from them (docs/jobs.md).
func Explain(out io.Writer, list []*dispatch.Status) error {
	t := terminal.NewTable("JOB", "TASKS", "STATE", "RECORD", "SCHEDULER", "ACCOUNTING", "ASKED")
	for _, st := range list {
		for _, v := range st.Explain() {
			t.Row(st.ID, job.Array{}.Of(v.Tasks), v.State, v.Record, v.Queue, cmp.Or(v.Accounting, "-"), cmp.Or(v.Asked, "-"))
		}
	}
	return t.Write(out)
}

// maxFailed limits the failed tasks of a job that details shows.
const maxFailed = 200

// details writes the steps of a workflow, or the image and the failed tasks of another job.
func details(out io.Writer, st *dispatch.Status) {
	if st.Job.Workflow != nil || len(st.Job.Steps) > 0 {
		steps(out, st.Tasks)
		return
	}
	image(out, st)
	shown, failed := 0, st.Unsuccessful()
	for _, t := range st.Tasks {
		if _, ok := slices.BinarySearch(failed, t.Index); ok && shown < maxFailed {
			shown++
			where := ""
			if t.Host != "" {
				where = " on " + t.Host
			}
			terminal.Rowf(out, "task %d%s%s: %s  %s\n", t.Index, params(t.Params), where, t.Ending(), t.Output)
		}
	}
	if n := len(failed) - shown; n > 0 {
		terminal.Rowf(out, "%d more failed; \"hpcc logs --failed %s\" shows the output of all\n", n, st.ID)
	}
	for _, line := range st.Lessons() {
		terminal.Rowf(out, "%s\n", line)
	}
}

// image writes the image of a job, and how many of its tasks ran in another version of it.
func image(out io.Writer, st *dispatch.Status) {
	j := st.Imaged()
	if j.Image == "" {
		return
	}
	line := "image " + j.ExactImage()
	if j.ImageFile != "" {
		line += ": " + j.ImageFile
	}
	terminal.Rowf(out, "%s\n", line)
	if st.Target.Pods() || j.Packed() { // nodes may report a part of an index; successful tasks are not listed
		return
	}
	others := map[string]int{}
	for _, t := range st.Tasks {
		if v := cmp.Or(t.ImageDigest, t.ImageFile); t.ImageVersion != j.ImageVersion && v != "" {
			others[v]++
		}
	}
	for _, v := range slices.Sorted(maps.Keys(others)) {
		terminal.Rowf(out, "%s in %s\n", text.Count(others[v], "task ran", "tasks ran"), v)
	}
}

// steps writes every step of a workflow.
func steps(out io.Writer, list []job.Task) {
	for _, t := range list {
		took := ""
		if t.Ended() && !t.Start.IsZero() {
			took = "  " + t.End.Sub(t.Start).Round(time.Second).String()
		}
		again := ""
		if t.Attempt > 0 {
			again = fmt.Sprintf("  (attempt %d)", t.Attempt+1)
		}
		terminal.Rowf(out, "step %d%s: %s%s%s\n", t.Index, stepOf(&t), progressOf(&t), took, again)
	}
}

// Counts returns the state of a job, the numbers of its tasks and why tasks wait, as one line.
func Counts(st *dispatch.Status) string {
	line := counts(st.State(), st.Done, st.Total, len(st.Failed), st.Running, st.Waiting)
	if st.Reason != "" {
		line += ": " + st.Reason
	}
	return line
}

func counts(state string, done, total, failed, running, waiting int) string {
	return fmt.Sprintf("%s: %d of %d done, %d failed, %d running, %d waiting", state, done, total, failed, running, waiting)
}

// Name returns the ID of a job, with its site unless that is "".
func Name(id, site string) string {
	if site != "" {
		return id + " at " + site
	}
	return id
}

// shortTime formats t without spaces: the time of day if it is today, the month and day if it is this year, or else the
// date.
func shortTime(t, now time.Time) string {
	switch {
	case t.Format(time.DateOnly) == now.Format(time.DateOnly):
		return t.Format("15:04")
	case t.Year() == now.Year():
		return t.Format("01-02")
	}
	return t.Format(time.DateOnly)
}

// params formats a task's parameters in parentheses.
func params(p map[string]string) string {
	var list []string
	for _, n := range slices.Sorted(maps.Keys(p)) {
		list = append(list, n+"="+p[n])
	}
	return inParentheses(strings.Join(list, ", "))
}

// stepOf returns the task's step in parentheses; "" if the job has no steps.
func stepOf(t *job.Task) string { return inParentheses(t.Step) }

func inParentheses(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// progressOf describes the state of a task.
func progressOf(t *job.Task) string {
	switch {
	case !t.Ended():
		return "running on " + t.Host
	case t.OK():
		return "done"
	}
	return t.Ending()
}
