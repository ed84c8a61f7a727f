package translate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/shellword"
)

// A dialect is how one scheduler has the options of a job written.
type dialect struct {
	target  job.Target
	name    string // for people
	prefix  string // of a directive's line
	command string // that hands scripts in

	anywhere bool // directives count in the whole file, not only before the first command
	glued    bool // -n8 is -n 8
	options  []option
	index    map[string]*option
	abbrev   bool // long options may be cut short (getopt_long(3))

	defaults func(r *reader) // what the scheduler does when nothing is said
	finish   func(r *reader) // what several options together mean
}

// An option is one that a scheduler knows.
type option struct {
	names string // by which it goes, with blanks between them
	args  int    // words that follow; optional: --name=VALUE or nothing
	set   func(r *reader, value string) error
}

const optional = -1

// look finds an option by its name; a name that could be several is none.
func (d *dialect) look(name string) *option {
	if d.index == nil {
		return nil
	}
	if o := d.index[name]; o != nil || !d.abbrev || !strings.HasPrefix(name, "--") || len(name) < 4 {
		return o
	}
	var found *option
	for full, o := range d.index {
		if strings.HasPrefix(full, name) {
			if found != nil && found != o {
				return nil
			}
			found = o
		}
	}
	return found
}

// made fills the index of a dialect.
func (d dialect) made() *dialect {
	d.index = map[string]*option{}
	for i := range d.options {
		for _, n := range strings.Fields(d.options[i].names) {
			d.index[n] = &d.options[i]
		}
	}
	return &d
}

// marks says whether a line is a directive of the dialect, wherever it stands.
// Grid Engine's prefix begins many a comment, so there an option has to follow.
func (d *dialect) marks(line string) bool {
	rest, ok := strings.CutPrefix(line, d.prefix)
	if !ok || rest == "" {
		return false
	}
	return strings.HasPrefix(strings.TrimLeft(rest, " \t"), "-") || (d.prefix != "#$" && (rest[0] == ' ' || rest[0] == '\t'))
}

// A found is a directive line: what stands behind the prefix. late is the line
// of the first command when the directive stands behind it and does not count.
type found struct {
	line int
	text string
	late int
}

// find lists the directives by the dialect's rule.
func (d *dialect) find(lines []string) []found {
	var out []found
	command := 0
	for i, l := range lines {
		l = strings.TrimSuffix(l, "\r")
		if d.marks(l) {
			late := command
			if d.anywhere {
				late = 0
			}
			out = append(out, found{i + 1, strings.TrimPrefix(l, d.prefix), late})
			continue
		}
		if t := strings.TrimSpace(l); command == 0 && t != "" && t[0] != '#' {
			command = i + 1
		}
	}
	return out
}

// A reader makes a job of options.
type reader struct {
	dialect *dialect
	source  Source
	t       *Translation
	job     *job.Job
	row     *Row // of the option that is being read

	n                   numbers
	perCPU              bool     // slots are processors of one process
	allMemory           bool     // of the nodes is asked for
	scatter             bool     // each chunk on a node of its own
	join                bool     // standard error goes with the output
	wrap                string   // a command in the place of a script
	limit               int      // of an array, said apart
	shell               []string // that an option names
	outputSet, errorSet bool
}

// numbers are amounts that mean something only together with others.
type numbers struct {
	slots, perHost, gpusInAll, gpusPerTask, gpusPerSlot int
	limitPerProcess, perTask, perJob                    int64
	chunks, chunkCPUs, chunkProcesses                   int
	soft                                                int64 // seconds
}

// add begins a row.
func (r *reader) add(line int, text string) *Row {
	r.row = &Row{Line: line, Text: text}
	r.t.Rows = append(r.t.Rows, r.row)
	return r.row
}

func (r *reader) changed(format string, a ...any) { r.row.become(Changed, fmt.Sprintf(format, a...)) }
func (r *reader) fills(f ...field)                { r.row.fields = append(r.row.fields, f...) }

// native keeps an option that only this scheduler has where it is the target,
// too; elsewhere it is refused.
func (r *reader) native(text string) error {
	if r.t.To != r.dialect.target {
		return fmt.Errorf("only %s has it", r.dialect.name)
	}
	r.job.Native = append(r.job.Native, text)
	r.fills(fNative)
	return nil
}

// directive reads the options of one line. Words that are no option are refused.
func (r *reader) directive(f found) {
	words, err := shellword.Split(f.text, false)
	switch {
	case f.late > 0:
		r.add(f.line, r.dialect.prefix+" "+strings.TrimSpace(f.text)).become(Refused,
			fmt.Sprintf("%s does not read it: it stands behind the first command, which is in line %d", r.dialect.name, f.late))
		return
	case err != nil:
		r.add(f.line, r.dialect.prefix+" "+strings.TrimSpace(f.text)).become(Refused, err.Error())
		return
	}
	rest := r.read(f.line, f.text, words)
	for _, w := range rest {
		r.add(f.line, w.Text).become(Refused, "it is no option")
	}
}

// read takes options from the front of words and returns the rest, which begins
// at the first word that is none.
func (r *reader) read(line int, text string, words []shellword.Word) []shellword.Word {
	for len(words) > 0 {
		w := words[0]
		if !strings.HasPrefix(w.Text, "-") || w.Text == "-" || w.Text == "--" {
			return words
		}
		o, _, value, glued := r.dialect.split(w.Text)
		if o == nil {
			r.add(line, w.Text).become(Refused, "hpcc does not know this option of "+r.dialect.name)
			words = words[1:]
			for len(words) > 0 && !strings.HasPrefix(words[0].Text, "-") && line > 0 { // its values, in a directive
				r.row.Text += " " + words[0].Text
				words = words[1:]
			}
			continue
		}
		n := 1
		if !glued && o.args > 0 {
			n += min(o.args, len(words)-1)
			var values []string
			for _, v := range words[1:n] {
				values = append(values, v.Text)
			}
			value = strings.Join(values, " ")
		}
		r.add(line, strings.TrimSpace(text[w.Start:words[n-1].End]))
		r.option(o, value, words[:n])
		words = words[n:]
	}
	return nil
}

// option reads one option; what its function refuses is the row's fate.
func (r *reader) option(o *option, value string, words []shellword.Word) {
	before := *r.job
	var err error
	switch {
	case o.args > 0 && value == "":
		err = errNoValue
	case len(value) > 4096:
		err = errors.New("its value has more than 4096 bytes")
	case o.set == nil:
		err = r.native(r.row.Text)
	default:
		err = o.set(r, value)
	}
	if r.row.Line == 0 && slices.ContainsFunc(words, func(w shellword.Word) bool { return w.Live }) {
		err = errors.New("the shell would have put a value in here, which hpcc does not know: write it out")
	}
	if err != nil {
		*r.job = before
		r.row.meant, r.row.fields, r.row.Fate, r.row.How = r.row.fields, nil, "", ""
		r.row.become(Refused, err.Error())
	}
	if r.row.Line == 0 {
		r.supersede()
	}
}

// scalars are fields of which the last word counts.
var scalars = []field{fName, fArray, fNodes, fTasks, fTasksPerNode, fCPUs, fMemory, fGPUs, fTime, fQueue, fAccount, fOutput, fError, fMail, fDir, fSignal, fRequeue, fMailOn, fBegin, fQoS}

// supersede notes in the rows of the script that an option of the command line
// says the same.
func (r *reader) supersede() {
	for _, row := range r.t.Rows {
		if row.Line > 0 && row.Fate != Refused && slices.ContainsFunc(r.row.fields, func(f field) bool { return slices.Contains(scalars, f) && slices.Contains(row.fields, f) }) {
			row.become(Changed, r.row.Text+" of the command line overrules it")
			row.fields = nil
		}
	}
}

// split finds the option that a word names: as it is, with =VALUE, or with the
// value glued to a single letter.
func (d *dialect) split(w string) (o *option, name, value string, glued bool) {
	if o := d.look(w); o != nil {
		return o, w, "", false
	}
	if name, value, ok := strings.Cut(w, "="); ok && strings.HasPrefix(w, "--") {
		if o := d.look(name); o != nil && (o.args != 0) {
			return o, name, value, true
		}
	}
	if d.glued && len(w) > 2 && w[1] != '-' {
		if o := d.look(w[:2]); o != nil && o.args != 0 {
			return o, w[:2], strings.TrimPrefix(w[2:], "="), true
		}
	}
	return nil, w, "", false
}

// crlf notes line ends of another system.
func (r *reader) crlf(text string) {
	if strings.Contains(text, "\r\n") {
		r.add(0, "(line ends)").become(Changed, "CRLF became LF, with which alone the shell reads the script")
	}
}

// body keeps the script, or makes one of a command.
func (r *reader) body(lines []string) {
	s := r.job.Script
	if r.wrap != "" || (len(lines) == 1 && lines[0] == "") {
		s.Body = r.wrap + "\n"
	} else {
		s.Body = strings.ReplaceAll(strings.Join(lines, "\n"), "\r\n", "\n")
		if !strings.HasSuffix(s.Body, "\n") {
			s.Body += "\n"
		}
	}
	first, _, _ := strings.Cut(s.Body, "\n")
	if words, ok := strings.CutPrefix(first, "#!"); ok {
		s.Shell = strings.Fields(words)
	}
}

// finish does what needs all options, then names what nobody said.
func (r *reader) finish() {
	r.dialect.finish(r)
	r.name()
	if !r.job.Interactive {
		r.dialect.defaults(r)
		return
	}
	if r.job.Script, r.job.OnHost = nil, true; len(r.job.Args) == 0 {
		r.job.Args = []string{"bash"}
	}
}

// name gives the job a name that all targets take.
func (r *reader) name() {
	if r.job.Name == "" {
		r.job.Name = job.CleanName(job.BaseName(r.source.Name))
		return
	}
	if clean := job.CleanName(r.job.Name); clean != r.job.Name {
		for _, row := range r.t.Rows {
			if slices.Contains(row.fields, fName) {
				row.become(Changed, fmt.Sprintf("%s, which every scheduler takes", clean))
			}
		}
		r.job.Name = clean
	}
}
