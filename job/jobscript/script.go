// Package jobscript writes what the scripts of all batch systems have in common.
//
//	directives of the batch system
//	Writer.Common     exports, modules, the directory
//	Writer.Task       exec hpcc task … -- the program, or a translated script
//
// A translated script stands in a here-document, byte for byte. Before it [Prelude] sets
// the variables that its own batch system would have set. On the node hpcc task runs the
// program, so scripts do the same everywhere.
package jobscript

import (
	"fmt"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/shellword"
)

// A Writer is a script being written.
type Writer struct{ strings.Builder }

// Line writes a formatted line.
func (t *Writer) Line(format string, a ...any) { fmt.Fprintf(t, format+"\n", a...) }

// Common writes what every script does before it runs something: the exports,
// and a change of directory that fails rather than running elsewhere (a batch
// system may run in /tmp).
func (t *Writer) Common(j *job.Job) {
	t.Line("export HPCC_STORE=%s", shellword.Quote(j.Store))
	t.WriteString(shellword.Exports(j.Env))
	if j.EnvFile != "" {
		t.Line(". %s || exit 97 # the variables of --env, in a file that only you can read", shellword.Quote(j.EnvFile))
	}
	if len(j.Modules) > 0 { // shells of jobs do not always know the command
		t.Line(`type module >/dev/null 2>&1 || for f in /etc/profile.d/{modules,lmod,z00_lmod,z01_lmod}.sh; do [ ! -r "$f" ] || . "$f"; done`)
		t.Line("module load %s || exit 97", shellword.Join(j.Modules))
	}
	t.Line("cd %s || exit 97", shellword.Quote(j.Dir))
}

// An Interactive job's script runs where it is handed in. id makes its id, its
// argument, known there.
func (t *Writer) Interactive(j *job.Job) {
	t.Line("# hpcc: %s, interactive", j.Title())
	t.Line("id=${1:-interactive-$(date +%%y%%m%%d-%%H%%M%%S)}")
}

// InteractiveCommand run the job's words at a terminal; id is the word of the
// shell that is the job's id.
func InteractiveCommand(j *job.Job, to *dialect.Dialect, id string) string {
	return strings.Join(taskArgv(j, TaskCall{To: to, ID: id, Limit: true}), " ") + " -- " + shellword.Join(j.Argv())
}

// CommandLine is the job as one line of a shell, for schedulers that join the words of
// an interactive job to one.
func CommandLine(j *job.Job, to *dialect.Dialect) string {
	t := &Writer{}
	t.Common(j)
	t.Line("exec %s", InteractiveCommand(j, to, `"$HPCC_SUBMISSION"`))
	return "exec /bin/bash -c " + shellword.Quote(strings.TrimSuffix(t.String(), "\n"))
}

// Quoted quotes a word with blanks in a directive.
func Quoted(s string) string {
	if strings.ContainsAny(s, " \t") {
		return `"` + s + `"`
	}
	return s
}

// A TaskCall is how a script calls "hpcc task", which runs the program and
// records it, with what the target leaves to it.
type TaskCall struct {
	To       *dialect.Dialect
	ID       string // the word of the shell that is the job's id
	Nth      string // and the one that is the task's place in the array; "": it is the index, or there is none
	Parallel int    // hpcc runs all tasks, so many at once; 0: it runs one
	Files    bool   // hpcc opens the output files
	Limit    bool   // hpcc ends the task at its time limit
	Needs    bool   // hpcc looks whether the jobs before have succeeded
	Nodes    int    // hpcc looks whether it was given so many; 0: the target keeps to them
}

// Task ends the script: it runs the job's words, by way of launch where the
// task has several processes.
func (t *Writer) Task(j *job.Job, c TaskCall, launch ...string) {
	t.command(j, c.To, taskArgv(j, c), launch...)
}

// taskArgv are those of "hpcc task", quoted.
func taskArgv(j *job.Job, c TaskCall) []string {
	w := []string{shellword.Quote(j.Program), "task", "--job", c.ID}
	add := func(words ...string) {
		for _, x := range words {
			w = append(w, shellword.Quote(x))
		}
	}
	switch {
	case c.Nth != "":
		add("--array="+j.Array.String(), "--nth")
		w = append(w, c.Nth)
	case c.Parallel > 0:
		add("--array="+j.Array.String(), "--parallel="+strconv.Itoa(c.Parallel))
	}
	if j.Interactive {
		add("--interactive")
	}
	if j.Whole > 0 {
		add("--of=" + strconv.Itoa(j.Whole))
	}
	if c.Needs && len(j.After) > 0 {
		add("--needs=" + strings.Join(j.After, ","))
	}
	if c.Nodes > 0 {
		add("--nodes=" + strconv.Itoa(c.Nodes))
	}
	if c.Limit && j.Time > 0 {
		add("--limit=" + j.Time.String())
		if w := j.Warning; w.Signal != "" && !c.To.Signals {
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
	add(j.MeasureArgs()...)
	add(j.CompanionArgs()...)
	if c.Files {
		add("--name="+j.Name, "--output="+j.OutputPattern())
		if j.Error != "" {
			add("--error=" + j.Error)
		}
	}
	return w
}

// Mpirun starts the processes of a task where the scheduler has no launcher of
// its own; the MPI of the host has to know the scheduler.
func Mpirun(j *job.Job) []string { return []string{"mpirun", "-np", strconv.Itoa(j.Processes())} }

// command ends a script: the words of "hpcc task", the launcher, and the program
// or, as a here-document, the translated script.
func (t *Writer) command(j *job.Job, to *dialect.Dialect, task []string, launch ...string) {
	if j.Script != nil {
		task = append(task, "--stdin")
	}
	t.Line(`exec %s -- \`, strings.Join(task, " "))
	if j.Ray {
		launch = j.RayArgs(to.Target)
	}
	if j.StartsProcesses() || j.Ray {
		t.Line(`  %s \`, shellword.Join(launch))
	}
	if j.Script == nil {
		t.Line("  %s", shellword.Join(j.Argv()))
		return
	}
	end := shellword.Delimiter("HPCC_TASK", j.Script.Body)
	t.Line("  %s <<'%s'", shellword.Join(j.Argv()), end)
	t.WriteString(Body(j.Script, j, to))
	t.Line("%s", end)
}
