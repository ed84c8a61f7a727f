package job

import (
	"fmt"
	"strings"
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
	return to.render(j)
}

// known lists the targets for people.
func known() string {
	var names []string
	for _, t := range Targets() {
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
	t.line("export HPCC_STORE=%s", quote(j.Store))
	for _, e := range j.Env {
		k, v, _ := strings.Cut(e, "=")
		t.line("export %s=%s", k, quote(v))
	}
	t.line("cd %s || exit 97", quote(j.Dir))
}
