// Package translate reads job scripts and submit commands of batch systems.
//
//	script ─► dialect ─► Job and rows ─► Overrule, Fit ─► Job for the target
//
// Every directive becomes a field of the Job and a [Row] with its fate: kept, changed,
// emulated or refused. None is dropped silently, and the body of the script stays as it
// is. The package writes no scripts, and it does not check what the body does.
package translate

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/message"
)

// A Fate is what becomes of a directive in a translation.
type Fate string

// The fates. Kept: the target has the same. Changed: it has something near,
// and How says what differs. Emulated: hpcc does it in the scheduler's place. Refused: the
// translation goes without it, and How says why.
const (
	Kept     Fate = "kept"
	Changed  Fate = "changed"
	Emulated Fate = "emulated"
	Refused  Fate = "refused"
)

var severity = map[Fate]int{Kept: 0, Emulated: 1, Changed: 2, Refused: 3}

// A Row says what became of one option or line.
type Row struct {
	Line int    `json:"line,omitempty"` // of the script; 0 for the submit command and for what nothing was said of
	Text string `json:"text"`
	Fate Fate   `json:"fate"`
	How  string `json:"how,omitempty"`

	fields []field // of the job that it filled in
	meant  []field // that it would have filled in, were it not refused
}

// become gives the row a fate, unless it has a worse one; what is said is kept,
// but of what is refused only that counts.
func (r *Row) become(f Fate, how string) {
	if r.Fate == Refused && f != Refused {
		return
	}
	if r.Fate != Refused && f == Refused {
		r.How = ""
	}
	if severity[f] > severity[r.Fate] || r.Fate == "" {
		r.Fate = f
	}
	if how != "" && !strings.Contains(r.How, how) {
		if r.How != "" {
			how = r.How + "; " + how
		}
		r.How = how
	}
}

// refuse ends a field of the row; of several, the others go on.
func (r *Row) refuse(f field, how string) {
	if len(r.fields) < 2 {
		r.become(Refused, how)
		return
	}
	before := r.How
	r.become(Refused, string(f)+": "+how)
	if before != "" && before != r.How && !strings.HasPrefix(r.How, before) {
		r.How = before + "; " + r.How
	}
}

// A Source is a job in the words of some scheduler: a script, or a submit
// command that may name one.
type Source struct {
	Name    string     // of the file, for messages
	Text    []byte     // the script, or a file with a submit command
	Command string     // the submit command itself, in the place of Text
	Dialect job.Target // "": found out from the directives
	Dir     string     // absolute: where the job would be handed in from
	Home    string     // of the user, where Grid Engine and PBS start jobs
	User    string     // its name, which files may have in theirs
	// Open reads the script that a submit command names.
	Open func(name string) ([]byte, error)
}

// A Translation is a job read from a Source for a target. Its rows are final
// after Fit.
type Translation struct {
	Job     *job.Job
	Dialect job.Target // of the source
	To      job.Target
	Rows    []*Row

	overruled []field // by the command line
	among     []string
}

// dialects are those that hpcc reads.
var dialects = []*dialect{slurmDialect, lsfDialect, gridEngineDialect, pbsDialect}

func dialectOf(t job.Target) *dialect {
	for _, d := range dialects {
		if d.target == t {
			return d
		}
	}
	return nil
}

// Translate reads a source for a target. What cannot be read as a job at all is
// an error; a directive that the target cannot follow is a row.
func Translate(s Source, to job.Target) (*Translation, error) {
	text, command, err := s.parts()
	if err != nil {
		return nil, err
	}
	d := dialectOf(s.Dialect)
	if s.Dialect != "" && d == nil {
		return nil, fmt.Errorf("dialect %q: known are slurm, lsf, gridengine and pbs", s.Dialect)
	}
	lines := strings.Split(text, "\n")
	if d == nil {
		if d, err = findDialect(s.Name, lines, command); err != nil {
			return nil, err
		}
	}
	if command != nil && command.name != d.command {
		return nil, fmt.Errorf("%s is no command of %s, which has %s", command.name, d.name, d.command)
	}
	r := &reader{dialect: d, source: s, t: &Translation{Dialect: d.target, To: to}}
	r.job = &job.Job{Dir: s.Dir, Script: &job.Script{Name: s.Name, From: d.target, Dir: s.Dir}}
	r.t.Job = r.job
	r.crlf(text)
	for _, dir := range d.find(lines) {
		r.directive(dir)
	}
	if command != nil {
		r.command(command)
	}
	r.body(lines)
	r.finish()
	return r.t, nil
}

// parts gives the script and the submit command of a source, one of them empty
// where there is none.
func (s *Source) parts() (script string, command *submitCommand, err error) {
	line := s.Command
	if line == "" {
		if line = loneCommand(string(s.Text)); line == "" {
			err = checkScript(s.Name, s.Text)
			return string(s.Text), nil, err
		}
	}
	if command, err = parseSubmit(line); err != nil {
		return "", nil, fmt.Errorf("reading the command line %q: %w", message.Short(line), err)
	}
	if command.input == "" {
		command.input = s.named(command)
	}
	if command.input == "" {
		return "", command, nil
	}
	if s.Open == nil {
		return "", nil, fmt.Errorf("the command line names script %q, which cannot be read here", command.input)
	}
	text, err := s.Open(command.input)
	if err != nil {
		return "", nil, fmt.Errorf("reading the script of %q: %w", message.Short(line), err)
	}
	s.Name = command.input
	return string(text), command, checkScript(s.Name, text)
}

// named is the script that a command names. Of a qsub of which it is not known
// whose it is, both readings are tried.
func (s *Source) named(c *submitCommand) string {
	d := s.Dialect
	if d == "" {
		d, _ = c.guess()
	}
	if d != "" {
		return c.script(dialectOf(d))
	}
	name := c.script(gridEngineDialect)
	if s.Open != nil {
		if _, err := s.Open(name); err != nil {
			name = c.script(pbsDialect)
		}
	}
	return name
}

// checkScript refuses what is no script.
func checkScript(name string, text []byte) error {
	switch {
	case len(text) > job.MaxScript:
		return fmt.Errorf("%s has %d bytes; a job script has at most %d", name, len(text), job.MaxScript)
	case bytes.IndexByte(text, 0) >= 0:
		return fmt.Errorf("%s is no script: it holds a NUL byte", name)
	case len(bytes.TrimSpace(text)) == 0:
		return fmt.Errorf("%s is empty", name)
	}
	return nil
}

// findDialect tells a file's dialect from its directives, or from its submit command.
func findDialect(name string, lines []string, command *submitCommand) (*dialect, error) {
	if command != nil && command.name != "qsub" {
		return dialectOf(submitNames[command.name]), nil
	}
	var found []*dialect
	var where []string
	for _, d := range dialects {
		if n := slices.IndexFunc(lines, d.marks); n >= 0 {
			found, where = append(found, d), append(where, fmt.Sprintf("%s in line %d", d.prefix, n+1))
		}
	}
	switch {
	case command != nil:
		found = slices.DeleteFunc(found, func(d *dialect) bool { return d.command != "qsub" })
		if len(found) != 1 {
			t, err := command.guess()
			return dialectOf(t), err
		}
	case len(found) == 0:
		return nil, fmt.Errorf("%s has no directives (#SBATCH, #BSUB, #$, #PBS); say whose script it is with --dialect slurm, lsf, gridengine or pbs", name)
	case len(found) > 1:
		return nil, fmt.Errorf("%s has directives of several schedulers (%s); say which count with --dialect", name, strings.Join(where, ", "))
	}
	return found[0], nil
}

// Overrule notes that the command line of hpcc says a field, so that what the
// script says of it does not count.
func (t *Translation) Overrule(flag string) {
	t.overruled = append(t.overruled, field(flag))
	for _, r := range t.Rows {
		switch {
		case slices.Contains(r.fields, field(flag)):
			r.become(Changed, "--"+flag+" overrules it")
		case slices.Contains(r.meant, field(flag)):
			r.Fate, r.How, r.meant = Changed, "--"+flag+" overrules it", nil
		}
	}
}

// Among says which jobs, by name, are steps of one workflow with this one, so that it may wait for them.
func (t *Translation) Among(names []string) {
	for _, n := range names {
		t.among = append(t.among, job.Label(n))
	}
}

// Fit takes out of the job what its target cannot do and finishes the rows. It
// is called once, after the flags.
func (t *Translation) Fit() {
	t.apart(fOutput, &t.Job.Output)
	t.apart(fError, &t.Job.Error)
	shape(t)
	if t.To != t.Dialect && t.To != job.Local && !t.To.Pods() {
		for _, f := range []field{fQueue, fAccount} {
			t.note("where the target has one of that name", f)
		}
	}
	for _, f := range slices.Sorted(maps.Keys(verdicts[t.To])) {
		v := verdicts[t.To][f]
		if (v.when != nil && !v.when(t.Job)) || (t.To.Pods() && slices.Contains(t.overruled, f)) { // who says it for pods knows what it is there
			continue
		}
		said := false
		for _, r := range t.Rows {
			if slices.Contains(r.fields, f) {
				if said = true; v.fate == Refused {
					r.refuse(f, v.how)
				} else {
					r.become(v.fate, v.how)
				}
			}
		}
		if (v.fate == Refused || v.drop) && said && without[f] != nil {
			without[f](t.Job)
		}
	}
	t.variables()
	t.launchers()
	t.hostPaths()
	for _, r := range t.Rows {
		if r.Fate == "" {
			r.Fate = Kept
		}
	}
}

// apart gives each task of an array a file of its own.
func (t *Translation) apart(f field, file *string) {
	if s := *file; !t.Job.Array.IsZero() && s != "" && s != "/dev/null" && !strings.Contains(s, job.Placeholder) && !strings.Contains(s, "%") {
		*file = s + "." + job.Placeholder
		t.tell("tasks would write over each other: "+*file, f)
	}
}

// Lost counts the rows that are refused.
func (t *Translation) Lost() int {
	n := 0
	for _, r := range t.Rows {
		if r.Fate == Refused {
			n++
		}
	}
	return n
}

var errNoValue = errors.New("it lacks its value")
