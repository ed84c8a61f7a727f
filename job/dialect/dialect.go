// Package dialect describes how batch systems write jobs, and reads their options.
//
//	package of a batch system ─► Dialect ─► translate (reads scripts), jobscript (writes them)
//
// A batch system gives its tables and functions as one [Dialect] value. The option readers
// fill in a Job by way of a [Reader], which keeps a row for each option. The package knows
// no batch system itself.
package dialect

import (
	"strings"

	"hpcc/job"
	"hpcc/job/field"
	"hpcc/job/quantity"
)

// A Dialect is how one batch system has jobs written. A system whose scripts hpcc does not
// read leaves the first part empty.
type Dialect struct {
	Target job.Target
	Title  string // name in text

	// What translate needs to read its scripts and submit commands.
	Prefix       string // of the line of a directive; "" if hpcc reads none
	Command      string // that submits
	Anywhere     bool   // directives count in the whole file, not only before the first command
	OptionsOnly  bool   // a line is a directive only if an option follows the prefix
	TakesProgram bool   // Command takes a program; a script comes on its standard input
	ExactArgv    bool   // Command takes "--" and an argv that no shell reads
	Options      Options
	Resources    map[string]Setter // of the option -l, by name
	Launchers    map[string]Launcher
	StepLauncher string          // the launcher whose processes get a job's warning signal; "" if the script does
	Defaults     func(r *Reader) // applies what the batch system does without options
	Finish       func(r *Reader) // combines options that mean something only together

	// What jobscript needs so that its scripts find their variables elsewhere.
	Variables    []job.Variable
	VariableText string // regular expression of the names of variables that it sets

	// What translate needs to write for it.
	Verdicts   map[field.Field]field.Verdict
	Shape      func(j *job.Job, rows field.Rows) // counts as the batch system does; nil: [NodeMemory] per node
	ExportsAll bool                              // jobs get the environment of the submitting shell
	NoExports  bool                              // jobs get none of it

	// What jobscript needs to write for it.
	JobID       string   // bash word for the native ID of the running job
	Hosts       string   // bash that fills hpcc_hosts and hpcc_tasks; "": one host
	Hides       []string // prefixes that it reads as directives also in an embedded script
	Signals     bool     // it sends the warning signal itself
	OwnsIndices bool     // the array of a script keeps its indices
}

// A Setter reads the value of an option into the job. An error refuses the option.
type Setter func(r *Reader, value string) error

// Options are the options of a command, each under its names with blanks between them. An
// option with a nil Setter exists only in this batch system.
type Options struct {
	Values   map[string]Setter // with one argument
	Pairs    map[string]Setter // with two arguments
	Flags    map[string]Setter // without an argument
	Optional map[string]Setter // --name=VALUE or nothing
	Glued    bool              // -n8 is -n 8
	Abbrev   bool              // long options may be shortened (getopt_long(3))
}

// A Launcher starts the processes of a job within a script.
type Launcher struct {
	Options
	HostFirst []string // the first argument is a host, unless it is one of these options
}

// An option is an entry of [Options].
type option struct {
	names string
	args  int // number of arguments; optional
	set   Setter
}

const optional = -1

// all lists the options by their number of arguments.
func (o Options) all(yield func(option) bool) {
	for args, table := range map[int]map[string]Setter{1: o.Values, 2: o.Pairs, 0: o.Flags, optional: o.Optional} {
		for names, set := range table {
			if !yield(option{names, args, set}) {
				return
			}
		}
	}
}

// look finds an option by its name. An abbreviation of several options is unknown.
func (o Options) look(name string) *option {
	var found *option
	ambiguous := false
	for x := range o.all {
		for full := range strings.FieldsSeq(x.names) {
			switch {
			case full == name:
				return &x
			case !o.Abbrev || len(name) < 4 || !strings.HasPrefix(name, "--") || !strings.HasPrefix(full, name):
			case found != nil && found.names != x.names:
				ambiguous = true
			default:
				found = &x
			}
		}
	}
	if ambiguous {
		return nil
	}
	return found
}

// split finds the option that an argument names: as it is, with =VALUE, or with the value
// glued to a single letter.
func (o Options) split(arg string) (x *option, name, value string, glued bool) {
	if x := o.look(arg); x != nil {
		return x, arg, "", false
	}
	if name, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "--") {
		if x := o.look(name); x != nil && x.args != 0 {
			return x, name, value, true
		}
	}
	if o.Glued && len(arg) > 2 && arg[1] != '-' {
		if x := o.look(arg[:2]); x != nil && x.args != 0 {
			return x, arg[:2], strings.TrimPrefix(arg[2:], "="), true
		}
	}
	return nil, arg, "", false
}

// Knows reports whether there is an option of exactly this name.
func (o Options) Knows(name string) bool {
	o.Abbrev = false
	return o.look(name) != nil
}

// Next reads the option at the head of an argv. It returns its name, its first argument and
// the number of elements that it takes, which is 0 if the option is unknown.
func (o Options) Next(argv []string) (name, value string, n int) {
	x, name, value, glued := o.split(argv[0])
	if x == nil {
		return name, "", 0
	}
	n = 1
	if !glued && x.args > 0 {
		if n += min(x.args, len(argv)-1); n > 1 {
			value = argv[1]
		}
	}
	return name, value, n
}

// Marks reports whether a line is a directive, wherever it stands.
func (d *Dialect) Marks(line string) bool {
	rest, ok := strings.CutPrefix(line, d.Prefix)
	if !ok || rest == "" {
		return false
	}
	return strings.HasPrefix(strings.TrimLeft(rest, " \t"), "-") || (!d.OptionsOnly && (rest[0] == ' ' || rest[0] == '\t'))
}

// A directive is the text behind the prefix of a line. late is the line of the first command
// if the directive stands behind it and does not count.
type directive struct {
	line int
	text string
	late int
}

// find lists the directives of a script.
func (d *Dialect) find(lines []string) []directive {
	var out []directive
	command := 0
	for i, l := range lines {
		l = strings.TrimSuffix(l, "\r")
		if d.Marks(l) {
			late := command
			if d.Anywhere {
				late = 0
			}
			out = append(out, directive{i + 1, strings.TrimPrefix(l, d.Prefix), late})
			continue
		}
		if t := strings.TrimSpace(l); command == 0 && t != "" && t[0] != '#' {
			command = i + 1
		}
	}
	return out
}

// NodeMemory turns memory of each processor into memory of each node.
func NodeMemory(j *job.Job, rows field.Rows) {
	SumMemory(j, rows, j.ProcessesPerNode(), "on each node")
}

// SumMemory turns memory of each processor into memory of a number of processes.
func SumMemory(j *job.Job, rows field.Rows, processes int, where string) {
	if j.MemoryPerCPU == 0 {
		return
	}
	n := j.MemoryPerCPU * int64(max(j.CPUs, 1)*processes)
	rows.Say(field.Changed, quantity.FormatMemory(n)+" "+where, field.Memory)
	j.Memory, j.MemoryPerCPU = n, 0
}
