package dialect

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/job"
	"hpcc/job/field"
	"hpcc/text"
)

// A Reader fills in a job from the options of a script or a submit command.
type Reader struct {
	*Dialect
	To              *Dialect                    // dialect of the target
	Dir, Home, User string                      // the submit directory, the user's home and name
	HasDir          func(name string) bool      // reports whether the host of the submission has a directory; nil: unknown
	Query           func(argv ...string) string // returns the output of a command of the batch system, "" after an error; nil: there is none

	Job  *job.Job
	Rows field.Rows
	Row  *field.Row // row of the current option

	N                   numbers  // amounts for Finish
	Join                bool     // standard error goes to the output file
	Wrap                string   // a command that replaces the script
	Binary              bool     // the submit command names a program, not a script
	Shell               []string // argv of the shell that an option names
	outputSet, errorSet bool
	given               map[string]*field.Row // last row of each option of the script
}

// IsDir reports whether a name, relative to the submit directory, is an existing directory.
func (r *Reader) IsDir(name string) bool {
	if r.HasDir == nil || name == "" {
		return false
	}
	if name[0] != '/' {
		name = strings.TrimSuffix(r.Dir, "/") + "/" + name
	}
	return r.HasDir(name)
}

// Ask returns the output of a command of the batch system of the script, or "".
func (r *Reader) Ask(argv ...string) string {
	if r.Query == nil {
		return ""
	}
	return r.Query(argv...)
}

// numbers holds amounts that Finish combines with others.
type numbers struct {
	Slots, PerHost, TotalGPUs, GPUsPerTask, GPUsPerSlot int
	LimitPerProcess, PerTask, PerJob                    int64 // memory in bytes
	Chunks, ChunkCPUs, ChunkProcesses                   int
	ArrayLimit                                          int
	Soft                                                int64 // soft time limit in seconds
	PerCPU                                              bool  // slots are processors of one process
	AllMemory                                           bool  // the nodes' full memory
	Scatter                                             bool  // each chunk on a separate node
	Preferred                                           bool  // the next resources are preferences
	Image, Container, Entrypoint                        bool  // the script names an image, names a container, or asks for the entry point
}

// errNoValue is the error for an option without its value.
var errNoValue = errors.New("its value is missing")

// Script parses the directives of a script.
func (r *Reader) Script(text string) {
	if strings.Contains(text, "\r\n") {
		r.Add(0, "(line ends)").Become(field.Changed, "CRLF became LF, because shells cannot read scripts with CRLF")
	}
	for _, d := range r.directives(strings.Split(text, "\n")) {
		r.directive(d)
	}
}

// Add appends a row and makes it the current one.
func (r *Reader) Add(line int, text string) *field.Row {
	r.Row = &field.Row{Line: line, Text: text}
	r.Rows = append(r.Rows, r.Row)
	return r.Row
}

// Changed marks the current option as changed and adds an explanation to its row.
func (r *Reader) Changed(format string, a ...any) {
	r.Row.Become(field.Changed, fmt.Sprintf(format, a...))
}

// Own reports whether the target is the batch system of the script.
func (r *Reader) Own() bool { return r.To.Target == r.Target }

// Native keeps an option that only this batch system has. It refuses the option if the
// target is another batch system.
func (r *Reader) Native(text string) error {
	if !r.Own() {
		return fmt.Errorf("only %s has this option", r.Title)
	}
	r.Job.Native = append(slices.Clip(r.Job.Native), text)
	r.Row.Fills(field.Native)
	return nil
}

// directive parses the options of one line. It refuses arguments that are not options.
func (r *Reader) directive(d directive) {
	args, err := text.Words(d.text, false)
	text := r.Prefix + " " + strings.TrimSpace(d.text)
	switch {
	case d.late > 0:
		r.Add(d.line, text).Become(field.Refused,
			fmt.Sprintf("%s ignores it, because it follows the first command, in line %d", r.Title, d.late))
		return
	case slices.Contains(r.Separators, strings.TrimSpace(d.text)):
		r.Add(d.line, text).Become(field.Refused, "hpcc requests only the first component of a heterogeneous job: submit "+
			"the others as separate jobs, or request equal nodes")
		return
	case d.other:
		r.Add(d.line, text).Become(field.Refused, "it belongs to another component of the heterogeneous job")
		return
	case err != nil:
		r.Add(d.line, text).Become(field.Refused, err.Error())
		return
	}
	if rest := r.Read(d.line, d.text, args); len(rest) > 0 {
		r.Add(d.line, d.text[rest[0].Start:rest[len(rest)-1].End]).Become(field.Refused,
			"it is not an option; a value with blanks needs quotation marks")
	}
}

// Read parses options from the start of args and returns the rest, which begins at the first
// argument that is not an option. line is 0 for a submit command.
func (r *Reader) Read(line int, text string, args []text.Word) []text.Word {
	for len(args) > 0 {
		w := args[0]
		if !strings.HasPrefix(w.Text, "-") || w.Text == "-" || w.Text == "--" {
			return args
		}
		o, _, value, glued := r.Options.split(w.Text)
		if o == nil {
			n := 1
			for n < len(args) && !strings.HasPrefix(args[n].Text, "-") && line > 0 { // in a directive, the rest are its values
				n++
			}
			r.Add(line, text[w.Start:args[n-1].End]).Become(field.Refused, "hpcc does not know this option of "+r.Title)
			args = args[n:]
			continue
		}
		n := 1
		if !glued && o.args > 0 {
			n += min(o.args, len(args)-1)
			var values []string
			for _, v := range args[1:n] {
				values = append(values, v.Text)
			}
			value = strings.Join(values, " ")
		}
		r.Add(line, strings.TrimSpace(text[w.Start:args[n-1].End]))
		r.option(o, value, args[:n])
		args = args[n:]
	}
	return nil
}

// option applies one option. An error of its Setter refuses the row.
func (r *Reader) option(o *option, value string, args []text.Word) {
	before := *r.Job
	var err error
	switch {
	case o.args > 0 && value == "":
		err = errNoValue
	case len(value) > 4096:
		err = errors.New("its value has more than 4096 bytes")
	case o.set == nil:
		err = r.Native(r.Row.Text)
	default:
		err = o.set(r, value)
	}
	switch {
	case r.Row.Line == 0 && slices.ContainsFunc(args, func(w text.Word) bool { return w.Live }):
		err = errors.New("the shell would have inserted a value that hpcc does not know: write the value itself")
	case r.Row.Line > 0 && expansion().MatchString(value) && (err != nil || !r.Row.Has(literal...)):
		err = fmt.Errorf("%s does not expand variables in directives: write the value itself", r.Title)
	case r.Row.Line > 0 && err != nil && placeholder().MatchString(value):
		err = fmt.Errorf("%s is a placeholder: write the value itself", text.Short(placeholder().FindString(value)))
	}
	if err != nil {
		*r.Job = before
		r.Row.Void(err.Error())
	}
	switch before := r.given[o.names]; {
	case r.Row.Line == 0:
		r.supersede()
	case err != nil || slices.Contains(repeatable, o.names):
	case before != nil && before.Fate != field.Refused &&
		slices.ContainsFunc(scalars, func(f field.Field) bool { return r.Row.Has(f) && before.Has(f) }):
		before.Supersede(fmt.Sprintf("line %d overrides it", r.Row.Line))
		fallthrough
	default:
		if r.given == nil {
			r.given = map[string]*field.Row{}
		}
		r.given[o.names] = r.Row
	}
}

// repeatable are the options of scripts that add to earlier ones instead of overriding them.
var repeatable = []string{"-l", "-R", "-v", "-W", "--mail-type"}

// literal are the fields whose text a batch system or the program of the job may expand, or that are only a name.
var literal = []field.Field{field.Name, field.Mail, field.Output, field.Error, field.Dir, field.Env, field.Export,
	field.Native, field.Image}

var (
	// expansion matches what a shell would expand.
	expansion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("\\$[A-Za-z_{(]|`") })
	// placeholder matches what the author of a template left to its readers.
	placeholder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`<[^<>]*>?`) })
)

// scalars are the fields for which only the last option counts.
var scalars = []field.Field{field.Name, field.Array, field.Nodes, field.Tasks, field.TasksPerNode, field.CPUs,
	field.Memory, field.GPUs, field.Time, field.Queue, field.Account,
	field.Output, field.Error, field.Mail, field.Dir, field.Signal, field.Requeue, field.MailOn, field.Begin, field.QoS}

// supersede marks the directives of the script that an option on the command line overrides.
func (r *Reader) supersede() {
	for _, row := range r.Rows {
		if row.Line > 0 && row.Fate != field.Refused &&
			slices.ContainsFunc(scalars, func(f field.Field) bool { return r.Row.Has(f) && row.Has(f) }) {
			row.Supersede(r.Row.Text + " on the command line overrides it")
		}
	}
}

// FinishRows calls finish for each row that fills in f and is not refused. An error of
// finish refuses the row.
func (r *Reader) FinishRows(f field.Field, finish func(row *field.Row) error) {
	for _, row := range r.Rows {
		if row.Fate == field.Refused || !row.Has(f) {
			continue
		}
		r.Row = row
		if err := finish(row); err != nil {
			row.Become(field.Refused, err.Error())
		}
	}
}

// A Pattern describes a batch system's placeholders in file names.
type Pattern struct {
	Sign    string   // the first byte of its placeholders
	Letters []string // its placeholders, each followed by hpcc's
}

// unknown lists the placeholders in a name that only the batch system of the script supports.
func (p Pattern) unknown(name string) []string {
	var out []string
	switch p.Sign {
	case "%":
		out = letterPercent().FindAllString(name, -1)
	case "$":
		out = letterDollar().FindAllString(name, -1)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var (
	letterPercent = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%[0-9]*[A-Za-z]`) })
	letterDollar  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$[A-Za-z_]+`) })
)

// Output parses the name of an output file. f is [field.Output] or [field.Error].
func (r *Reader) Output(v string, f field.Field, p Pattern) error {
	if strings.ContainsAny(v, "\n\r\x00\"{}") {
		return fmt.Errorf("file %q: contains characters that directives cannot hold", text.Short(v))
	}
	letters := slices.Clone(p.Letters)
	if user := map[string]string{"%": "%u", "$": "$USER"}[p.Sign]; user != "" && r.User != "" {
		letters = append(letters, user, r.User)
	}
	name := strings.NewReplacer(letters...).Replace(v)
	if lost := p.unknown(name); len(lost) > 0 && !r.Own() {
		var drop []string
		for _, l := range lost {
			drop = append(drop, l, "")
		}
		name = strings.NewReplacer(drop...).Replace(name)
		if name == "" || strings.HasSuffix(name, "/") {
			return fmt.Errorf("only %s replaces %s", r.Title, strings.Join(lost, " "))
		}
		r.Changed("only %s replaces %s; the file is %s", r.Title, strings.Join(lost, " "), name)
	}
	if p.Sign != "$" && strings.Contains(name, "$") {
		r.Row.Become("", r.Title+" does not expand variables in it")
	}
	r.SetFile(f, name)
	return nil
}

// SetFile sets the file of standard output or, if f is [field.Error], of standard error.
func (r *Reader) SetFile(f field.Field, name string) {
	if r.Row.Fills(f); f == field.Output {
		r.Job.Output, r.outputSet = name, true
	} else {
		r.Job.Error, r.errorSet = name, true
	}
}

// Body sets the body of the script to text, or to the command that replaces the script. It
// takes the shell from the first line.
func (r *Reader) Body(text string) {
	s := r.Job.Script
	if r.Wrap != "" || text == "" {
		s.Body = r.Wrap + "\n"
	} else {
		s.Body = strings.ReplaceAll(text, "\r\n", "\n")
		if !strings.HasSuffix(s.Body, "\n") {
			s.Body += "\n"
		}
	}
	first, _, _ := strings.Cut(s.Body, "\n")
	if args, ok := strings.CutPrefix(first, "#!"); ok {
		s.Shell = strings.Fields(args)
	}
}

// End evaluates combinations of options, and then applies the defaults.
func (r *Reader) End() {
	r.Finish(r)
	r.name()
	if !r.Job.Interactive {
		r.Defaults(r)
		return
	}
	if r.Job.Script, r.Job.OnHost = nil, true; len(r.Job.Args) == 0 {
		r.Job.Args = []string{"bash"}
	}
}

// name gives the job a name that all targets accept.
func (r *Reader) name() {
	if r.Job.Name == "" && r.FileName && !r.Job.Interactive {
		file := path.Base(r.Job.Script.Name)
		r.Job.Name = job.CleanName(file)
		r.Add(0, "(no -N)").Become("", r.Job.Name)
		if r.Row.Fills(field.Name); r.Job.Name != file {
			r.Changed("instead of %s, because every scheduler accepts it", file)
		}
		return
	}
	if r.Job.Name == "" {
		r.Job.Name = job.CleanName(job.BaseName(r.Job.Script.Name))
		return
	}
	if clean := job.CleanName(r.Job.Name); clean != r.Job.Name {
		for _, row := range r.Rows {
			if row.Has(field.Name) {
				row.Become(field.Changed, fmt.Sprintf("%s, which every scheduler accepts", clean))
			}
		}
		r.Job.Name = clean
	}
}

// OutputSet reports whether an option names the output file.
func (r *Reader) OutputSet() bool { return r.outputSet }

// DirSet reports whether an option that is not refused names the directory.
func (r *Reader) DirSet() bool {
	return slices.ContainsFunc(r.Rows, func(row *field.Row) bool { return row.Has(field.Dir) && row.Fate != field.Refused })
}

// ExportAll applies the default of a batch system that exports the environment to jobs. It
// drops the option ALL for a target with the same default.
func (r *Reader) ExportAll() {
	j := r.Job
	if len(j.Export) == 1 && j.Export[0] == "ALL" && r.To.ExportsAll {
		j.Export = nil
	}
}

// OutputDefaults sets the file names of qsub, with a separate file for standard error.
func (r *Reader) OutputDefaults() {
	j := r.Job
	out, errs := "{name}.o{job}", "{name}.e{job}"
	if !j.Array.IsZero() {
		out, errs = out+".{task}", errs+".{task}"
	}
	if !r.outputSet {
		j.Output = out
		r.Add(0, "(no -o)").Become("", out)
		r.Row.Fills(field.Output)
	}
	switch {
	case r.Join && r.errorSet:
		j.Error = ""
		r.Rows.SetFate(field.Changed, "-j sends standard error to the output file", field.Error)
	case !r.Join && !r.errorSet:
		j.Error = errs
		r.Add(0, "(no -e)").Become("", errs)
		r.Row.Fills(field.Error)
	}
}

// ExportNone applies the default of a batch system that exports no variables to jobs. flag
// is its option that exports the full environment.
func (r *Reader) ExportNone(flag string) {
	j := r.Job
	if len(j.Export) > 0 || r.To.NoExports || r.To.Target == job.Local {
		return
	}
	j.Export = []string{"NONE"}
	r.Add(0, "(no "+flag+")").Become("", "no variables of the submitting shell")
	r.Row.Fills(field.Export)
}
