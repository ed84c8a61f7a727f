// Package jobscript writes the parts that the job scripts of all batch systems have in common.
//
//	directives of the batch system
//	Writer.Common     exports, modules, the directory
//	Writer.Task       exec hpcc task … -- the program, or a translated script
//
// A translated script is embedded in a here-document, byte for byte. Before it runs,
// [Prelude] sets the variables that its own batch system would have set. On the node,
// "hpcc task" runs the program, so a script does the same on every target.
package jobscript

import (
	"fmt"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/text"
)

// A Writer is a script being written.
type Writer struct{ strings.Builder }

// Line writes a formatted line.
func (t *Writer) Line(format string, a ...any) { fmt.Fprintf(t, format+"\n", a...) }

// Common writes what every script does before it runs a program: the exports, the
// modules and the change of directory. If the directory is missing the script
// ends, because a batch system could run it elsewhere, for example in /tmp.
func (t *Writer) Common(j *job.Job) {
	t.Line("export HPCC_STORE=%s", text.Quote(j.Store))
	t.WriteString(text.Exports(j.Env))
	if j.EnvFile != "" {
		t.Line(". %s || exit 97 # variables, in a file that only you can read", text.Quote(j.EnvFile))
	}
	if len(j.Modules) > 0 { // the shells of jobs do not always define the command
		t.Line(`type module >/dev/null 2>&1 || for f in /etc/profile.d/{modules,lmod,z00_lmod,z01_lmod}.sh; do [ ! -r "$f" ] || . "$f"; done`)
		t.Line("module load %s || exit 97", text.Arguments(j.Modules))
	}
	t.Line("cd %s || exit 97", text.Quote(j.Dir))
}

// Caller writes the line that restores the variables and limits of the process that submitted the job.
func (t *Writer) Caller(j *job.Job) {
	if j.CallerFile != "" {
		t.Line(". %s || exit 97 # the variables, umask and limits of your shell, in a file that only you can read",
			text.Quote(j.CallerFile))
	}
}

// Interactive writes the head of the script of an interactive job, which runs on the submit host. The shell
// variable id is the job's ID: the argument of the script, or a new one.
func (t *Writer) Interactive(j *job.Job) {
	t.Line("# hpcc: %s, interactive", j.Title())
	t.Line("id=${1:-interactive-$(date +%%y%%m%%d-%%H%%M%%S)}")
}

// InteractiveCommand returns the command that runs the job's argv at a terminal; id is the shell word for the job's ID.
func InteractiveCommand(j *job.Job, to *dialect.Dialect, id string) string {
	return interactive(j, TaskCall{To: to, ID: id, Limit: true})
}

func interactive(j *job.Job, c TaskCall) string {
	return strings.Join(taskArgv(j, c), " ") + " -- " + text.Arguments(j.Argv())
}

// CommandLine returns the job as one shell line, for schedulers that join the arguments of an interactive job.
func CommandLine(j *job.Job, to *dialect.Dialect) string {
	t := &Writer{}
	t.Caller(j)
	t.Common(j)
	t.Line("exec %s", interactive(j, TaskCall{To: to, ID: `"$HPCC_SUBMISSION"`, Limit: true, Signal: true, Needs: true}))
	return "exec /bin/bash -c " + text.Quote(strings.TrimSuffix(t.String(), "\n"))
}

// Quoted returns s for a directive, in quotes if it contains blanks.
func Quoted(s string) string {
	if strings.ContainsAny(s, " \t") {
		return `"` + s + `"`
	}
	return s
}

// A TaskCall configures the "hpcc task" command of a script, which runs and records the program and provides what
// the target lacks.
type TaskCall struct {
	To       *dialect.Dialect
	ID       string // shell word for the job's ID
	Nth      string // shell word for the task's position in the array; empty if the target sets the index or the job is not an array
	Parallel int    // hpcc runs all tasks, at most this many simultaneously; 0: it runs one
	Files    bool   // hpcc opens the output files
	Limit    bool   // hpcc ends the task at its time limit
	Signal   bool   // hpcc sends the warning before that limit, even if the target could
	Needs    bool   // hpcc checks that the dependencies have succeeded
	Nodes    int    // required number of nodes; 0: the target guarantees it
}

// Task ends the script with the job's argv, started by launch if the task has several processes.
func (t *Writer) Task(j *job.Job, c TaskCall, launch ...string) {
	t.command(j, c.To, taskArgv(j, c), launch...)
}

// taskArgv returns the quoted argv of "hpcc task".
func taskArgv(j *job.Job, c TaskCall) []string {
	w := []string{text.Quote(j.Program), "task", "--job", c.ID}
	add := func(argv ...string) {
		for _, x := range argv {
			w = append(w, text.Quote(x))
		}
	}
	switch {
	case c.Nth != "":
		add("--array="+j.Array.String(), "--nth")
		w = append(w, c.Nth)
	case c.Parallel > 0:
		add("--array="+j.Array.String(), "--parallel="+strconv.Itoa(c.Parallel))
	}
	add(j.PackArgs(c.To.Target)...)
	if j.Interactive {
		add("--interactive")
	}
	if j.ArraySize > 0 {
		add("--of=" + strconv.Itoa(j.ArraySize))
	}
	if c.Needs && len(j.After) > 0 {
		add("--needs=" + strings.Join(j.After, ","))
	}
	if c.Nodes > 0 && j.Pack == nil {
		add("--nodes=" + strconv.Itoa(c.Nodes))
	}
	if c.Limit && j.Time > 0 {
		add("--limit=" + j.Time.String())
		if w := j.Warning; w.Signal != "" && (c.Signal || !c.To.Signals) {
			add("--signal=" + w.Signal + "@" + w.Lead.String())
		}
	}
	add(j.Params.Args()...)
	if j.Retry.Times > 0 {
		add("--retry=" + strconv.Itoa(j.Retry.Times))
		if len(j.Retry.Endings) > 0 {
			add("--retry-on=" + strings.Join(j.Retry.Endings, ","))
		}
	}
	if j.Retry.Grows() {
		add("--grow")
	}
	add(j.RecordArgs()...)
	add(j.CompanionArgs()...)
	if c.Files && j.Pack == nil {
		add("--name="+j.Name, "--output="+j.OutputPattern())
		if j.Error != "" {
			add("--error=" + j.Error)
		}
	}
	return w
}

// Mpirun returns the launcher for a scheduler without one; the host's MPI must support the scheduler.
func Mpirun(j *job.Job) []string { return []string{"mpirun", "-np", strconv.Itoa(j.Processes())} }

// command ends a script with the argv of "hpcc task", the launcher, and the program or, as a here-document, the translated
// script.
func (t *Writer) command(j *job.Job, to *dialect.Dialect, task []string, launch ...string) {
	if j.Script != nil {
		task = append(task, "--stdin")
	}
	t.Line(`exec %s -- \`, strings.Join(task, " "))
	if j.StartsProcesses() {
		t.Line(`  %s \`, text.CommandLine(launch))
	}
	if j.Script == nil {
		t.Line("  %s", text.Arguments(j.Argv()))
		return
	}
	end := text.Delimiter("HPCC_TASK", j.Script.Body)
	t.Line("  %s <<'%s'", text.Arguments(j.Argv()), end)
	t.WriteString(Body(j.Script, j, to))
	t.Line("%s", end)
}
