// Package dialect describes how batch systems write jobs, and reads their options.
//
//	package of a batch system ─► Dialect ─► translate (reads scripts), jobscript (writes them)
//
// Each batch system has one [Dialect] value with its tables and functions. Setters of
// options fill in a Job through a [Reader], which keeps a report row for each option. The
// package itself is independent of batch systems.
package dialect

import (
	"slices"
	"strings"

	"hpcc/front"
	"hpcc/job"
	"hpcc/job/field"
	"hpcc/job/quantity"
)

// A Dialect describes the scripts and commands of one batch system. The fields from Prefix
// to Finish are empty if hpcc does not read the system's scripts.
type Dialect struct {
	Target job.Target
	Title  string // name in messages

	// For translate, to read scripts and submit commands.
	Prefix       string // prefix of directives; "" if hpcc reads no scripts of this system
	Command      string // submit command
	Anywhere     bool   // directives count anywhere in the file, not only before the first command
	Indented     bool   // blanks may precede the prefix
	OptionsOnly  bool   // a line is a directive only if an option follows the prefix
	TakesProgram bool   // Command takes a program, and reads a script from standard input
	ExactArgv    bool   // Command takes "--" and an argv that no shell expands
	Options      Options
	Separators   []string          // directives that begin the next component of a heterogeneous job
	Resources    map[string]Setter // resources of the option -l, by name
	Launchers    map[string]Launcher
	StepLauncher string          // launcher whose processes get a job's warning signal; "": the script gets it
	FileName     bool            // a job without a name has the file name of its script, with its extension
	Commands     []string        // other commands of the batch system that job scripts call
	LocalDirs    []string        // variables with a directory on the disk of the node
	Defaults     func(r *Reader) // applies the batch system's defaults
	Finish       func(r *Reader) // evaluates combinations of options

	// For translate, to read manifests instead of scripts; nil if the batch system has none.
	IsManifest   func(text string) bool
	ReadManifest func(r *Reader, name, text string) error

	// For jobscript, to provide the variables of its scripts under other batch systems.
	Variables    []job.Variable
	VariableText string // regular expression for the names of variables that it sets

	// For translate, to write scripts.
	Verdicts   map[field.Field]field.Verdict
	Shape      func(j *job.Job, rows field.Rows) // converts counts to the batch system's units; nil: [NodeMemory]
	ExportsAll bool                              // jobs get the environment of the submitting shell
	NoExports  bool                              // jobs get none of the variables of the submitting shell
	OpensFiles func(j *job.Job) bool             // the batch system names the job's output files, with its own job ID; nil: hpcc names them

	// For jobscript, to write scripts.
	JobID       string                 // bash expression for the native ID of the running job
	Hosts       string                 // bash code that sets hpcc_hosts and hpcc_tasks; "": one host
	Hides       []string               // prefixes that the batch system reads as directives even in an embedded script
	Signals     bool                   // the batch system sends the warning signal itself
	OwnsIndices func(a job.Array) bool // the batch system keeps the indices of a script's array; nil: never
}

// A Setter parses the value of an option into the job. An error refuses the option.
type Setter func(r *Reader, value string) error

// Options are the options of a command. The keys are an option's names, separated by blanks.
// An option with a nil Setter exists only in this batch system.
type Options struct {
	Values   map[string]Setter // with one argument
	Pairs    map[string]Setter // with two arguments
	Flags    map[string]Setter // without an argument
	Optional map[string]Setter // --name or --name=VALUE
	Glued    bool              // -n8 is -n 8
	Abbrev   bool              // long options may be abbreviated (getopt_long(3))
}

// A Launcher starts the processes of a job within a script.
type Launcher struct {
	Options
	HostFirst []string // the first argument is a host, unless it is one of these options

	// For a single process, which a pod starts without the launcher; "" if the launcher starts programs on other hosts.
	Total     string // options with the number of all processes, separated by blanks
	Counts    string // other options that count processes or nodes
	TaskCount string // variable with the number of processes
	Placement string // options that a single process does without

	// For a launcher that also starts its program in an image; nil for others.
	Roles  map[string]front.Role                // options with the meaning of those of a container program
	Flags  map[string]string                    // flags of "hpcc run" for such options without a value; "" for its defaults
	Image  func(value string) (string, error)   // returns the name of an image, or the path of a file
	Mounts func(value string) ([]string, error) // returns flags of "hpcc run" for a list of mounts
}

// An option is an entry of [Options].
type option struct {
	names string
	args  int // number of arguments, or the constant optional
	set   Setter
}

// optional is the number of arguments of an option in [Options.Optional].
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

// lookUp finds an option by its name. It returns nil for an unknown name or an ambiguous
// abbreviation.
func (o Options) lookUp(name string) *option {
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

// split finds the option of an argument: the name alone, the name with =VALUE, or a single
// letter followed by the value. glued reports whether the argument includes the value.
func (o Options) split(arg string) (x *option, name, value string, glued bool) {
	if x := o.lookUp(arg); x != nil {
		return x, arg, "", false
	}
	if name, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "--") {
		if x := o.lookUp(name); x != nil && x.args != 0 {
			return x, name, value, true
		}
	}
	if o.Glued && len(arg) > 2 && arg[1] != '-' {
		if x := o.lookUp(arg[:2]); x != nil && x.args != 0 {
			return x, arg[:2], strings.TrimPrefix(arg[2:], "="), true
		}
	}
	return nil, arg, "", false
}

// Knows reports whether there is an option with exactly this name.
func (o Options) Knows(name string) bool {
	o.Abbrev = false
	return o.lookUp(name) != nil
}

// Next parses the first option of an argv. It returns its name, its first argument and the
// number of elements that it uses, which is 0 if the option is unknown.
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

// Marks reports whether a line is a directive, regardless of its position.
func (d *Dialect) Marks(line string) bool {
	rest, ok := strings.CutPrefix(d.unindented(line), d.Prefix)
	if !ok || rest == "" {
		return false
	}
	return strings.HasPrefix(strings.TrimLeft(rest, " \t"), "-") || (!d.OptionsOnly && (rest[0] == ' ' || rest[0] == '\t'))
}

// unindented returns a line without the blanks that may precede the prefix.
func (d *Dialect) unindented(line string) string {
	if d.Indented {
		return strings.TrimLeft(line, " \t")
	}
	return line
}

// A directive is the text after the prefix of a line. late is the line of the first command
// if the directive follows it and therefore does not count, otherwise 0.
type directive struct {
	line  int
	text  string
	late  int
	other bool // it belongs to another component of a heterogeneous job than the first
}

// directives lists the directives of a script.
func (d *Dialect) directives(lines []string) []directive {
	var out []directive
	command, other := 0, false
	for i, l := range lines {
		l = strings.TrimSuffix(l, "\r")
		if d.Marks(l) {
			late := command
			if d.Anywhere {
				late = 0
			}
			text := strings.TrimPrefix(d.unindented(l), d.Prefix)
			other = other || slices.Contains(d.Separators, strings.TrimSpace(text))
			out = append(out, directive{i + 1, text, late, other})
			continue
		}
		if t := strings.TrimSpace(l); command == 0 && t != "" && t[0] != '#' {
			command = i + 1
		}
	}
	return out
}

// NodeMemory converts memory per processor to memory per node.
func NodeMemory(j *job.Job, rows field.Rows) {
	sumMemory(j, rows, j.ProcessesPerNode(), "on each node")
}

// sumMemory converts memory per processor to the memory of a number of processes. where
// names these processes in the row, for example "on each node".
func sumMemory(j *job.Job, rows field.Rows, processes int, where string) {
	if j.MemoryPerCPU == 0 {
		return
	}
	n := j.MemoryPerCPU * int64(max(j.CPUs, 1)*processes)
	rows.SetFate(field.Changed, quantity.FormatMemory(n)+" "+where, field.Memory)
	j.Memory, j.MemoryPerCPU = n, 0
}
