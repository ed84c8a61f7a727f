package translate

import (
	"fmt"
	"strings"

	"hpcc/front"
	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/text"
)

// Some launchers also start their program in an image, by options of their own. On targets without pods, "hpcc run"
// replaces these options; in pods, they are those of a container line.

// imageOptions are the part of a launcher's line that "hpcc run" replaces.
type imageOptions struct {
	image   string // "" if hpcc does not know it
	flags   []string
	options []front.Option
	cuts    [][2]int // positions of the options in the line
}

// containerOption returns the option of a launcher's line at args[0] if it concerns an image. n is the number of
// arguments that it uses.
func containerOption(l dialect.Launcher, args []front.Word, n int) (front.Option, bool) {
	name, _, glued := strings.Cut(args[0].Text, "=")
	role, ok := l.Roles[name]
	if !ok {
		return front.Option{}, false
	}
	o := front.Option{Role: role, Name: name, Text: args[0].Source}
	switch {
	case glued:
		o.Value = args[0].After(len(name) + 1)
	case n > 1:
		o.Value, o.Text = args[1], args[0].Source+" "+args[1].Source
	}
	return o, true
}

// read converts the options to flags of "hpcc run", as words of the shell. It returns the reason if it cannot.
func (in *imageOptions) read(l dialect.Launcher) (why string) {
	entry := false
	for _, o := range in.options {
		switch o.Role {
		case front.Image:
			if image, err := l.Image(o.Value.Text); err == nil && !o.Value.Live {
				in.image = image
			}
		case front.Bind:
			if why := in.mounts(l, o); why != "" {
				return why
			}
		case front.Dir:
			in.flags = append(in.flags, "--cd="+o.Value.Source)
		case front.EnvList:
			for name := range strings.SplitSeq(o.Value.Text, ",") {
				if !job.EnvName().MatchString(name) {
					return fmt.Sprintf("%s is not a list of variables", o.Text)
				}
				in.flags = append(in.flags, "${"+name+"+--env="+name+"}") // the launcher ignores names of unset variables
			}
		case front.Refused, front.RefusedValue:
			if entry = strings.HasSuffix(o.Name, "entrypoint"); !entry {
				return "hpcc has no option like " + o.Name
			}
		case front.Flag:
			in.flags = append(in.flags, strings.Fields(l.Flags[o.Name])...)
		}
	}
	if len(in.options) > 0 && !entry {
		in.flags = append(in.flags, "--entrypoint=")
	}
	return ""
}

// mounts converts an option with mounts.
func (in *imageOptions) mounts(l dialect.Launcher, o front.Option) (why string) {
	if o.Value.Live && (variableName(o.Value.Source) != "" || strings.ContainsAny(o.Value.Text, "`\"\\(")) {
		return "hpcc does not know the mounts of " + o.Text
	}
	flags, err := l.Mounts(o.Value.Text)
	if err != nil {
		return err.Error()
	}
	for _, f := range flags {
		if o.Value.Live { // the names of variables
			f = `"` + f + `"`
		} else {
			f = text.Quote(f)
		}
		in.flags = append(in.flags, f)
	}
	return ""
}

// prefix returns the start of a command that runs a program as the options ask for, in image.
func (in *imageOptions) prefix(j *job.Job, image string) string {
	args := append([]string{text.CommandLine(append([]string{j.Program, "run"}, j.Run...))}, in.flags...)
	return strings.Join(append(args, text.Quote(image), "--"), " ")
}

// without returns the start of a line without the options.
func (in *imageOptions) without(line string) string {
	var out strings.Builder
	at := 0
	for _, c := range in.cuts {
		out.WriteString(line[at:c[0]])
		at = c[1] + len(line[c[1]:]) - len(strings.TrimLeft(line[c[1]:], " \t"))
	}
	return out.String() + line[at:]
}

// advice returns the command that starts the line's program in its image, for a row.
func (in *imageOptions) advice(l dialect.Launcher) string {
	if len(in.options) == 0 || in.read(l) != "" {
		return ""
	}
	image := in.image
	if image == "" {
		image = "IMAGE"
	}
	return fmt.Sprintf(", with %q before the program", in.prefix(&job.Job{Program: "hpcc"}, image))
}

// launcherOptions calls each for the options of a launcher's line, and returns the words from its program on. n is 0 for an option that
// the launcher does not have.
func launcherOptions(l dialect.Launcher, args []front.Word, each func(args []front.Word, n int) bool) (rest []front.Word) {
	argv := make([]string, len(args))
	for i, a := range args {
		argv[i] = a.Text
	}
	for len(args) > 0 && front.IsOption(args[0]) {
		_, _, n := l.Next(argv)
		if !each(args, n) {
			return nil
		}
		args, argv = args[max(n, 1):], argv[max(n, 1):]
	}
	return args
}

// launchedImage returns the options of a launcher's line that start its program in an image.
func launchedImage(l dialect.Launcher, args []front.Word) (found []front.Option) {
	launcherOptions(l, args, func(args []front.Word, n int) bool {
		if o, ok := containerOption(l, args, n); ok {
			found = append(found, o)
		}
		return true
	})
	return found
}

// forPods converts options to those of a container line.
func forPods(l dialect.Launcher, options []front.Option) (out []front.Option, why string) {
	for _, o := range options {
		switch {
		case o.Role == front.Image && !o.Value.Live:
			image, err := l.Image(o.Value.Text)
			if err != nil {
				return nil, err.Error()
			}
			o.Value.Text = image
		case o.Role == front.Bind && variableName(o.Value.Source) == "":
			flags, err := l.Mounts(o.Value.Text)
			if err != nil {
				return nil, err.Error()
			}
			for _, f := range flags {
				m := o
				if item, ok := strings.CutPrefix(f, "--mount="); ok {
					m.Role, m.Value.Text = front.Mount, item
				} else {
					m.Value.Text = strings.TrimPrefix(f, "--bind=")
				}
				out = append(out, m)
			}
			continue
		}
		out = append(out, o)
	}
	return out, ""
}

// scriptMounts turns the binds of the script's directives into rows of volumes.
func (b *podBody) scriptMounts() {
	t := b.t
	c := &plainCommand{body: b}
	for _, f := range t.Job.Run {
		if item, ok := strings.CutPrefix(f, "--bind="); ok {
			c.bind(item, item)
		} else if item, ok := strings.CutPrefix(f, "--mount="); ok {
			c.mount(item, item)
		}
	}
	line := 0
	for _, r := range t.Rows {
		if r.Has(field.Run) {
			r.Become(field.Changed, "part of the pod")
			line = r.Line
		}
	}
	for _, r := range c.rows {
		r.Line = line
		b.rows = append(b.rows, r)
	}
	t.Job.Run = nil
}

// image completes the rows of the script's own image: hpcc runs the script in it, or in the IMAGE that replaces it.
func (t *Translation) image() {
	for _, r := range t.Rows {
		switch {
		case t.Job.Image == "" && !t.To.Pods() && r.Has(field.Run):
			r.Become(field.Refused, "hpcc runs the script without an image: name it as IMAGE")
		case t.own != "" && t.own == t.Job.Image:
			if r.Has(field.Image) {
				r.Become(field.Changed, "hpcc runs the script in "+t.own)
			}
		case t.Job.Image != "":
			r.Overrule(field.Image, t.Job.Image+" replaces it")
		}
	}
}
