package translate

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"

	"hpcc/front"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/text"
)

// In a pod, the script runs in the image, on one node, without the host's files, launchers and container programs.
// podBody removes the container programs from the script and reports everything else that the pod lacks.

// needsVolume is the fate of a path of the host in a script for pods; the row names the flag.
const needsVolume field.Fate = "needs a volume"

// A podBody is the text of a script for pods.
type podBody struct {
	t        *Translation
	text     string
	file     *syntax.File
	lines    []logicalLine
	edits    []edit
	ignored  []edit              // ranges that do not name files of the host
	assigned map[string][]string // values that the script assigns to a variable; "" for those that hpcc does not know
	reported map[string]bool     // rows that a script needs once
	bound    []string            // directories of the host that container lines bind
	chosen   bool                // the pod's image is one of the script
	rows     []*field.Row
}

// An edit replaces a range of the text.
type edit struct {
	start, end int
	text       string
}

// newPodBody parses a script.
func (t *Translation) newPodBody() (*podBody, error) {
	s := t.Job.Script
	f, err := syntax.NewParser(syntax.KeepComments(true)).Parse(strings.NewReader(s.Body), "")
	if err != nil {
		return nil, err
	}
	b := &podBody{t: t, text: s.Body, file: f, lines: logicalLines(s.Body), assigned: map[string][]string{}, reported: map[string]bool{}}
	syntax.Walk(f, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Comment:
			b.ignored = append(b.ignored, edit{start: int(n.Pos().Offset()), end: int(n.End().Offset())})
		case *syntax.Assign:
			b.assign(n)
		case *syntax.WordIter:
			b.assigned[n.Name.Value] = append(b.assigned[n.Name.Value], "")
		case *syntax.CallExpr:
			b.readVariables(b.arguments(n.Args))
		}
		return true
	})
	return b, nil
}

// assign records the value of a variable.
func (b *podBody) assign(a *syntax.Assign) {
	if a.Name == nil || a.Naked {
		return
	}
	value := ""
	if a.Value != nil && a.Array == nil && a.Index == nil && !a.Append {
		if w := b.argument(a.Value); !w.Live {
			value = w.Text
		}
	}
	b.assigned[a.Name.Value] = append(b.assigned[a.Name.Value], value)
}

// readVariables records the variables that a builtin command sets.
func (b *podBody) readVariables(args []front.Word) {
	if len(args) > 0 && slices.Contains([]string{"read", "mapfile", "readarray", "getopts", "printf"}, args[0].Text) {
		for _, a := range args[1:] {
			b.assigned[a.Text] = append(b.assigned[a.Text], "")
		}
	}
}

// argument returns a word of the script.
func (b *podBody) argument(w *syntax.Word) front.Word {
	a := front.Word{Start: int(w.Pos().Offset()), End: int(w.End().Offset())}
	a.Source = b.text[a.Start:a.End]
	a.Text = a.Source
	if split, err := text.Words(a.Source, false); err == nil && len(split) == 1 {
		a.Text = split[0].Text
	}
	for _, p := range w.Parts {
		switch p := p.(type) {
		case *syntax.Lit, *syntax.SglQuoted:
		case *syntax.DblQuoted:
			a.Live = a.Live || slices.ContainsFunc(p.Parts, func(q syntax.WordPart) bool { _, lit := q.(*syntax.Lit); return !lit })
		default:
			a.Live = true
		}
	}
	return a
}

func (b *podBody) arguments(list []*syntax.Word) []front.Word {
	out := make([]front.Word, len(list))
	for i, w := range list {
		out[i] = b.argument(w)
	}
	return out
}

// run reports what the script needs, and changes the text of the job.
func (b *podBody) run() {
	t := b.t
	if t.Job.Image == "" {
		t.Job.Image = b.findImage()
	} else {
		b.chosen = t.own == t.Job.Image
	}
	at := 0
	for _, l := range b.lines {
		if l.plain {
			if text, row := t.prepares(l.text, false); row != nil && complete(l.text) {
				e := edit{at, at + len(l.text), text}
				b.edits, b.ignored = append(b.edits, e), append(b.ignored, e)
				b.add(row, at, l.text)
			}
		}
		at += len(l.text)
	}
	b.scriptMounts()
	b.calls(b.call)
	b.variables()
	b.hostPaths()
	b.finish()
	slices.SortStableFunc(b.edits, func(x, y edit) int { return x.start - y.start })
	var out strings.Builder
	at = 0
	for _, e := range b.edits {
		out.WriteString(b.text[at:e.start] + e.text)
		at = e.end
	}
	t.Job.Script.Body = out.String() + b.text[at:]
}

// finish adds the rows to the translation, in the order of the lines.
func (b *podBody) finish() {
	slices.SortStableFunc(b.rows, func(x, y *field.Row) int { return x.Line - y.Line })
	b.t.Rows = append(b.t.Rows, b.rows...)
}

// report reports launchers and container programs in the values of variables, which hpcc does not change.
func (b *podBody) report(a *syntax.Assign) {
	value := a.Value
	if a.Array != nil && len(a.Array.Elems) > 0 {
		value = a.Array.Elems[0].Value
	}
	if value == nil {
		return
	}
	w := b.argument(value)
	f := strings.Fields(w.Text)
	if len(f) == 0 || !b.known(path.Base(f[0])) || (len(f) == 1 && strings.Contains(f[0], "/")) {
		return
	}
	row := &field.Row{Fate: field.Refused, How: "hpcc does not change commands in variables, and pods do not have " +
		path.Base(f[0]) + ": set " + a.Name.Value + " to the command for the pod, or to nothing"}
	if name := path.Base(f[0]); slices.Contains(mpiNames, name) {
		row = &field.Row{Fate: field.Kept, How: "it starts all processes in this pod; the image must have it"}
	}
	b.add(row, int(a.Pos().Offset()), b.text[a.Pos().Offset():a.End().Offset()])
}

// complete reports whether a line ends all substitutions that it begins.
func complete(line string) bool {
	_, err := syntax.NewParser().Parse(strings.NewReader(line), "")
	return err == nil
}

// calls calls f for each simple command outside of here-documents.
func (b *podBody) calls(f func(*syntax.CallExpr)) {
	syntax.Walk(b.file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CallExpr:
			f(n)
		case *syntax.Redirect:
			return n.Hdoc == nil
		}
		return true
	})
}

// add appends a row for the text at an offset.
func (b *podBody) add(row *field.Row, at int, text string) {
	row.Line = strings.Count(b.text[:at], "\n") + 1
	row.Text = strings.TrimSpace(strings.ReplaceAll(text, "\\\n", ""))
	b.rows = append(b.rows, row)
}

// once appends a row that is the same for all lines of the script.
func (b *podBody) once(row *field.Row, at int, text string) {
	if key := text + "\n" + row.How; !b.reported[key] {
		b.reported[key] = true
		b.add(row, at, text)
	}
}

// within reports whether an offset is in one of the ranges.
func within(ranges []edit, at int) bool {
	return slices.ContainsFunc(ranges, func(e edit) bool { return e.start <= at && at < e.end })
}

// wrappers are commands that run their arguments as a command, on the same node.
var wrappers = []string{"exec", "nohup", "command", "env", "nice", "ionice", "timeout", "numactl", "taskset", "setsid",
	"stdbuf", "xargs", "parallel", "sudo", "time", "strace", "unbuffer"}

// monitors report the resource usage of the node.
var monitors = []string{"sar", "sadc", "mpstat", "iostat", "vmstat", "pidstat", "dstat", "nmon", "collectl", "dcgmi"}

// siteLaunchers start processes on the nodes of some sites.
var siteLaunchers = []string{"aprun", "ibrun", "lrun", "ccc_mprun", "mpprun", "poe", "prun", "mpirun_rsh", "mpiexec_mpt"}

// pinners place the processes of a program on the processors of a node.
var pinners = []string{"dplace", "omplace", "likwid-pin"}

// mpiNames are the other names of mpirun in images.
var mpiNames = []string{"mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra", "mpiexec.openmpi", "mpirun.openmpi",
	"mpiexec.mpich", "mpirun.mpich"}

// batchCommand reports whether a command belongs to a batch system.
func (ds Translator) batchCommand(name string) bool {
	return slices.ContainsFunc(ds, func(d *dialect.Dialect) bool {
		return (d.Prefix != "" && d.Command == name) || slices.Contains(d.Commands, name)
	})
}

// remoteShells run commands on other hosts.
var remoteShells = []string{"ssh", "rsh", "pdsh", "clush", "dsh", "pssh"}

// replaced reports whether pods do without a command that starts a program.
func (b *podBody) replaced(name string) bool {
	_, only := b.t.known.launcher(name)
	return only != nil || front.Programs()[name] != nil
}

// known reports whether a command is in one of the lists, or starts a program.
func (b *podBody) known(name string) bool {
	return b.replaced(name) || slices.Contains(mpiNames, name) || slices.Contains(monitors, name) || slices.Contains(siteLaunchers, name) ||
		slices.Contains(pinners, name) || b.t.known.batchCommand(name) || slices.Contains(remoteShells, name)
}

// first returns the arguments from the first known command on.
func (b *podBody) first(args []front.Word) []front.Word {
	for i, a := range args {
		if !a.Live && b.known(path.Base(a.Text)) {
			return args[i:]
		}
	}
	return nil
}

// call reports on one simple command, and removes container programs from it.
func (b *podBody) call(c *syntax.CallExpr) {
	args := b.arguments(c.Args)
	if len(args) == 0 || within(b.edits, args[0].Start) {
		return
	}
	text := b.text[args[0].Start:args[len(args)-1].End]
	if why := b.command(args); why != "" {
		b.add(&field.Row{Fate: field.Refused, How: why}, args[0].Start, text)
	}
}

// command reports on a command, and on those that it starts. If it refuses the command, why is the reason.
func (b *podBody) command(args []front.Word) (why string) {
	if len(args) == 0 {
		return ""
	}
	at, name := args[0].Start, path.Base(args[0].Text)
	l, only := b.t.known.launcher(name)
	switch {
	case args[0].Live:
		if f := b.first(args[1:]); f != nil && b.replaced(path.Base(f[0].Text)) {
			return "hpcc does not know what " + args[0].Source + " starts: write the command without it"
		}
	case only != nil:
		rest, why := b.step(l, args)
		if options := launchedImage(l, args[1:]); why == "" && len(options) > 0 {
			return b.launched(name, l, options, rest, args)
		}
		if why != "" {
			return fmt.Sprintf("only %s has %s, and %s", only.Title, name, why)
		}
		b.cut(at, rest[0].Start, "")
		b.add(&field.Row{Fate: field.Changed, How: "without " + name + ", because it starts one process"},
			at, b.text[at:rest[len(rest)-1].End])
		return b.command(rest)
	case front.Programs()[name] != nil:
		return b.unwrap(name, args)
	case slices.Contains(wrappers, name):
		return b.command(b.first(args[1:]))
	case slices.Contains(mpiNames, name):
		b.once(&field.Row{Fate: field.Kept, How: "it starts all processes in this pod; the image must have it"}, at, name)
		if f := b.first(args[1:]); f != nil && b.replaced(path.Base(f[0].Text)) {
			return b.command(f)
		}
	case slices.Contains(monitors, name):
		b.once(&field.Row{Fate: field.Changed, How: "it reports on the node with all its pods, if the image has it: " +
			"--measure records what the job itself uses"}, at, name)
	case slices.Contains(siteLaunchers, name):
		return "images do not have " + name + ", a launcher of clusters: start the processes with mpirun"
	case slices.Contains(pinners, name):
		return "images do not have " + name + ", which binds processes to processors: leave it out"
	case b.t.known.batchCommand(name):
		return "images do not have " + name + ", a command of batch systems: leave it out, or submit the other job with \"hpcc submit\""
	case slices.Contains(remoteShells, name):
		return "the job has no other hosts, and the pod does not have your keys: leave it out; \"hpcc forward\" reaches ports of the job"
	case name == "whoami" || name == "logname":
		b.once(&field.Row{Fate: field.Changed, How: "the user of a pod is not you, and may have no name: write the name itself"}, at, name)
	}
	return ""
}

// cut replaces a range of a command. It keeps the number of lines, for the line numbers of error messages.
func (b *podBody) cut(start, end int, text string) {
	e := edit{start, end, text}
	e.text += strings.Repeat("\\\n", max(0, strings.Count(b.text[start:end], "\n")-strings.Count(text, "\n")))
	b.edits, b.ignored = append(b.edits, e), append(b.ignored, e)
}

// reserved are the words with a meaning for the shell at the start of a command.
var reserved = strings.Fields("! { } [[ ]] case coproc do done elif else esac fi for function if in select then until while")

// isProgram reports whether the shell runs a word at the start of a command as a program.
func isProgram(a front.Word) bool {
	word := strings.ReplaceAll(a.Source, "\\\n", "")
	return !slices.Contains(reserved, word) && !assignmentWord().MatchString(word)
}

var assignmentWord = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_]\w*(\[|\+?=)`) })

// step returns the program of a launcher that starts a single process, or the reason why it is more than that with
// the next action.
func (b *podBody) step(l dialect.Launcher, args []front.Word) (rest []front.Word, why string) {
	if l.Placement == "" {
		return nil, "it starts programs on other hosts: start the processes with mpirun"
	}
	one := b.t.Job.Processes() == 1
	argv := make([]string, len(args))
	for i, a := range args {
		argv[i] = a.Text
	}
	for args, argv = args[1:], argv[1:]; len(args) > 0 && front.IsOption(args[0]); {
		option, v, n := l.Next(argv)
		has := func(names string) bool { return strings.Contains(" "+names+" ", " "+option+" ") }
		allProcesses := one && l.TaskCount != "" && strings.Trim(v, "${}\"") == l.TaskCount
		switch {
		case n == 0:
			return nil, "hpcc does not know its option " + option + ": write the program alone"
		case (has(l.Total) || has(l.Counts)) && v != "1" && !allProcesses:
			return nil, "it starts several processes: start them with mpirun"
		case l.Roles[option] != front.Unknown: // see launched
		case !has(l.Total) && !has(l.Counts) && !has(l.Placement):
			return nil, "pods do not have its option " + option + ": write the program alone"
		}
		one = one || has(l.Total)
		args, argv = args[n:], argv[n:]
	}
	switch {
	case !one:
		return nil, "the job has several processes: start them with mpirun"
	case len(args) == 0:
		return nil, "it does not name a program: write the program alone"
	case (args[0].Live && !strings.ContainsAny(args[0].Source, "/\"")) || !isProgram(args[0]):
		return nil, "hpcc does not know which argument is its program: write the program alone"
	}
	return args, ""
}
