package job

import (
	"fmt"
	"strconv"
	"strings"

	"hpcc/job/shellword"
)

// Render writes the job as a script of the target. Notes say what the target
// does not do of what was asked; what would change the job's meaning is an
// error instead. The script's size does not depend on the number of tasks.
func Render(j *Job, t Target) (script string, notes []string, err error) {
	if err := j.check(); err != nil {
		return "", nil, err
	}
	to := schedulers[t]
	if to == nil {
		return "", nil, fmt.Errorf("target %q: known are %s", t, known())
	}
	if t != Argo && (len(j.Steps) > 0 || j.Workflow != nil || len(j.Artifacts) > 0) {
		return "", nil, fmt.Errorf("target %s has no workflows; --to argo has", t)
	}
	return to.render(j)
}

// known lists the targets for people.
func known() string {
	var names []string
	for _, t := range targets() {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
}

// A text is a script being written.
type text struct{ strings.Builder }

func (t *text) line(format string, a ...any) { fmt.Fprintf(t, format+"\n", a...) }

// common writes what every script does before it runs something: the exports,
// and a change of directory that fails rather than running elsewhere (Slurm
// would run in /tmp).
func (t *text) common(j *Job) {
	t.line("export HPCC_STORE=%s", shellword.Quote(j.Store))
	t.WriteString(shellword.Exports(j.Env))
	if j.EnvFile != "" {
		t.line(". %s || exit 97 # the variables of --env, in a file that only you can read", shellword.Quote(j.EnvFile))
	}
	if len(j.Modules) > 0 { // shells of jobs do not always know the command
		t.line(`type module >/dev/null 2>&1 || for f in /etc/profile.d/{modules,lmod,z00_lmod,z01_lmod}.sh; do [ ! -r "$f" ] || . "$f"; done`)
		t.line("module load %s || exit 97", shellword.Join(j.Modules))
	}
	t.line("cd %s || exit 97", shellword.Quote(j.Dir))
}

// An interactive job's script runs where it is handed in. id makes its id, its
// argument, known there.
func (t *text) interactive(j *Job) {
	t.line("# hpcc: %s, interactive", j.what())
	t.line("id=${1:-interactive-$(date +%%y%%m%%d-%%H%%M%%S)}")
}

// interactiveWords run the job's words at a terminal; id is the word of the
// shell that is the job's id.
func (j *Job) interactiveWords(to Target, id string) string {
	return strings.Join(j.taskWords(taskCall{to: to, id: id, limit: true}), " ") + " -- " + shellword.Join(j.words())
}

// line is the job as one line of a shell, for schedulers that join the words of
// an interactive job to one.
func (j *Job) line(to Target) string {
	t := &text{}
	t.common(j)
	t.line("exec %s", j.interactiveWords(to, `"$HPCC_SUBMISSION"`))
	return "exec /bin/bash -c " + shellword.Quote(strings.TrimSuffix(t.String(), "\n"))
}

// inQuotes quotes a word with blanks in a directive of LSF or Grid Engine.
func inQuotes(s string) string {
	if strings.ContainsAny(s, " \t") {
		return `"` + s + `"`
	}
	return s
}

// A taskCall is how a script calls "hpcc task", which runs the program and
// records it, with what the target leaves to it.
type taskCall struct {
	to       Target
	id       string // the word of the shell that is the job's id
	nth      string // and the one that is the task's place in the array; "": it is the index, or there is none
	parallel int    // hpcc runs all tasks, so many at once; 0: it runs one
	files    bool   // hpcc opens the output files
	limit    bool   // hpcc ends the task at its time limit
	needs    bool   // hpcc looks whether the jobs before have succeeded
	nodes    int    // hpcc looks whether it was given so many; 0: the target keeps to them
}

// task ends the script: it runs the job's words, by way of launch where the
// task has several processes.
func (t *text) task(j *Job, c taskCall, launch ...string) {
	t.command(j, c.to, j.taskWords(c), launch...)
}

// taskWords are those of "hpcc task", quoted.
func (j *Job) taskWords(c taskCall) []string {
	w := []string{shellword.Quote(j.Program), "task", "--job", c.id}
	add := func(words ...string) {
		for _, x := range words {
			w = append(w, shellword.Quote(x))
		}
	}
	switch {
	case c.nth != "":
		add("--array="+j.Array.String(), "--nth")
		w = append(w, c.nth)
	case c.parallel > 0:
		add("--array="+j.Array.String(), "--parallel="+strconv.Itoa(c.parallel))
	}
	if j.Interactive {
		add("--interactive")
	}
	if j.Whole > 0 {
		add("--of=" + strconv.Itoa(j.Whole))
	}
	if c.needs && len(j.After) > 0 {
		add("--needs=" + strings.Join(j.After, ","))
	}
	if c.nodes > 0 {
		add("--nodes=" + strconv.Itoa(c.nodes))
	}
	if c.limit && j.Time > 0 {
		add("--limit=" + j.Time.String())
		if w := j.Warning; w.Signal != "" && c.to != Slurm && c.to != LSF { // who send it themselves
			add("--signal=" + w.Signal + "@" + w.Lead.String())
		}
	}
	add(j.Params.words()...)
	if j.Retry.Times > 0 {
		add("--retry=" + strconv.Itoa(j.Retry.Times))
		if len(j.Retry.Endings) > 0 {
			add("--retry-on=" + strings.Join(j.Retry.Endings, ","))
		}
	}
	add(j.measureWords()...)
	add(j.besideWords()...)
	if c.files {
		add("--name="+j.Name, "--output="+j.OutputPattern())
		if j.Error != "" {
			add("--error=" + j.Error)
		}
	}
	return w
}

// mpirun starts the processes of a task where the scheduler has no launcher of
// its own; the MPI of the host has to know the scheduler.
func mpirun(j *Job) []string { return []string{"mpirun", "-np", strconv.Itoa(j.Processes())} }

// what names what runs, for a comment of one line.
func (j *Job) what() string {
	s := j.Image
	switch {
	case j.Script != nil && j.Image != "":
		s = j.Script.Name + " in " + j.Image
	case j.Script != nil:
		s = j.Script.Name
	case j.Image == "":
		s = strings.Join(j.Args, " ")
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
}

// command ends a script: the words of "hpcc task", the launcher, and the program
// or, as a here-document, the translated script.
func (t *text) command(j *Job, to Target, task []string, launch ...string) {
	if j.Script != nil {
		task = append(task, "--stdin")
	}
	t.line(`exec %s -- \`, strings.Join(task, " "))
	if j.Ray {
		launch = j.rayWords(to)
	}
	if j.multi() || j.Ray {
		t.line(`  %s \`, shellword.Join(launch))
	}
	if j.Script == nil {
		t.line("  %s", shellword.Join(j.words()))
		return
	}
	end := shellword.Delimiter("HPCC_TASK", j.Script.Body)
	t.line("  %s <<'%s'", shellword.Join(j.words()), end)
	t.WriteString(j.Script.render(j, to))
	t.line("%s", end)
}
