package translate

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/text"
)

// A submitCommand is a command line that submits a script or a program with options.
type submitCommand struct {
	name  string
	text  string
	args  []text.Word // arguments
	input string      // name of the script after <, or as an argument
}

// loneCommand returns the submit command of a text if it is the only command, else "".
func (ds Translator) loneCommand(text string) string {
	var kept []string
	for _, l := range strings.Split(text, "\n") {
		if t := strings.TrimSpace(l); t != "" && t[0] != '#' {
			kept = append(kept, strings.TrimRight(l, "\r"))
		}
	}
	line := strings.Join(kept, "\n")
	first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	if len(ds.with(path.Base(first))) == 0 {
		return ""
	}
	for i, l := range kept {
		if i < len(kept)-1 && !strings.HasSuffix(l, "\\") && strings.Count(line, "'")%2 == 0 && strings.Count(line, `"`)%2 == 0 {
			return ""
		}
	}
	return line
}

// IsSubmitCommand reports whether a text starts like a submit command.
func (ds Translator) IsSubmitCommand(text string) bool {
	first, _, more := strings.Cut(strings.TrimSpace(text), " ")
	return more && len(ds.with(path.Base(first))) > 0
}

// parseSubmit splits a submit command. The only allowed redirection is a script on standard input.
func (ds Translator) parseSubmit(line string) (*submitCommand, error) {
	c := &submitCommand{text: line}
	args, err := text.Words(line, true)
	if errors.Is(err, text.ErrOperator) && len(args) > 0 {
		rest := strings.TrimSpace(line[args[len(args)-1].End:])
		file, ok := strings.CutPrefix(rest, "<")
		if !ok || strings.HasPrefix(file, "<") {
			return nil, fmt.Errorf("it has more than one command; give only the submit command")
		}
		in, ierr := text.Words(file, true)
		if ierr != nil || len(in) != 1 || in[0].Live {
			return nil, fmt.Errorf("expected one file name after <")
		}
		c.input, err = in[0].Text, nil
	}
	if err != nil {
		return nil, err
	}
	if len(args) == 0 {
		return nil, errors.New("it is empty")
	}
	c.name = path.Base(args[0].Text)
	if len(ds.with(c.name)) == 0 {
		return nil, fmt.Errorf("%q is not one of %s", c.name,
			ds.readable().list(func(d *dialect.Dialect) string { return d.Command }, " and "))
	}
	c.args = args[1:]
	return c, nil
}

// guess returns the dialect of a command. If several batch systems have the command, its options decide.
func (ds Translator) guess(c *submitCommand) (*dialect.Dialect, error) {
	all := ds.with(c.name)
	fit := slices.DeleteFunc(slices.Clone(all), func(d *dialect.Dialect) bool {
		return len(all) > 1 && !c.fits(d, slices.DeleteFunc(slices.Clone(all), func(o *dialect.Dialect) bool { return o == d }))
	})
	if len(fit) == 1 {
		return fit[0], nil
	}
	return nil, fmt.Errorf("%s is a command of %s, and neither its options nor the script decide which; choose one with --dialect %s", c.name,
		all.list(func(d *dialect.Dialect) string { return d.Title }, " and "), all.list(targetOf, " or --dialect "))
}

// fits reports whether a dialect knows all options of the command. If an option is ambiguous, its resources decide.
func (c *submitCommand) fits(d *dialect.Dialect, others Translator) bool {
	var argv []string
	for _, w := range c.args {
		argv = append(argv, w.Text)
	}
	for len(argv) > 0 {
		if argv[0] == "--" {
			return d.ExactArgv
		}
		if !strings.HasPrefix(argv[0], "-") || argv[0] == "-" {
			break // the script
		}
		name, value, n := d.Options.Next(argv)
		if n == 0 || slices.ContainsFunc(others, func(o *dialect.Dialect) bool {
			// a long option with one dash, not a short one with its value
			glued := d.Options.Glued && len(argv[0]) > 2 && o.Options.Knows(argv[0])
			return glued || (name == "-l" && knowsResource(value, o) && !knowsResource(value, d))
		}) {
			return false
		}
		argv = argv[n:]
	}
	return true
}

// knowsResource reports whether the dialect knows the first resource of a list. Sites define resources of their own.
func knowsResource(list string, d *dialect.Dialect) bool {
	first, _, _ := strings.Cut(list, ",")
	name, _, _ := strings.Cut(first, "=")
	return d.Resources[name] != nil
}

// script returns the name of the script in the command, or "" if the command has a program instead.
func (c *submitCommand) script(d *dialect.Dialect) string {
	if d == nil || d.TakesProgram {
		return ""
	}
	probe := &dialect.Reader{Dialect: d, To: d, Job: &job.Job{Script: &job.Script{}}}
	rest := probe.Read(0, c.text, c.args)
	if len(rest) == 0 || rest[0].Text == "--" || rest[0].Text == "-" || rest[0].Live || probe.Wrap != "" || probe.Binary {
		return ""
	}
	return rest[0].Text
}

// read applies the options of a submit command, which override those of the script. The script with its arguments, or a
// program, follows the options.
func (c *submitCommand) read(r *dialect.Reader) {
	rest := r.Read(0, c.text, c.args)
	var args []string
	live := false
	for _, w := range rest {
		args, live = append(args, w.Text), live || w.Live
	}
	switch {
	case live:
		r.Add(0, strings.Join(args, " ")).Become(field.Refused,
			"the shell would have inserted a value that hpcc does not know: write the value itself")
	case len(args) == 0:
	case c.input != "" && !r.TakesProgram:
		r.Job.Script.Args = args[1:]
	default:
		program(r, args)
	}
}

// program converts a program and its arguments to a script, or to an interactive job.
func program(r *dialect.Reader, argv []string) {
	exact := argv[0] == "--" // passed on without a shell
	if exact {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return
	}
	if r.Job.Interactive {
		r.Job.Args = argv
		return
	}
	r.Wrap = strings.Join(argv, " ") // like the schedulers
	if exact || (len(argv) > 1 && r.TakesProgram) {
		r.Wrap = text.CommandLine(argv)
	}
	if r.Job.Name == "" {
		r.Job.Name = job.CleanName(path.Base(argv[0]))
	}
}
