package translate

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"

	"hpcc/front"
	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/text"
)

// A plain command replaces a container line in a pod.
type plainCommand struct {
	body    *podBody
	line    *front.Line
	at      int      // offset of the container line
	unset   []string // variables to remove
	set     []string // NAME=VALUE, as words of the shell
	dir     string   // the working directory, as a word of the shell
	program string   // what precedes the arguments, as words of the shell
	left    []string // options that the pod does without
	gpus    bool     // the line makes GPUs visible
	rows    []*field.Row
}

// unwrap removes a container program and its options before the program that it runs. It returns the reason if it
// cannot.
func (b *podBody) unwrap(name string, args []front.Word) (why string) {
	line, why := front.Parse(name, args)
	switch {
	case why != "":
		return why + ", so hpcc does not change the line: write the program alone, which the pod runs in its image"
	case line == nil:
		return "pods have no container program: leave the line out; the nodes pull the pod's image"
	}
	return b.plain(line, args)
}

// launched removes a launcher whose options start one process in an image.
func (b *podBody) launched(name string, l dialect.Launcher, options []front.Option, rest, args []front.Word) (why string) {
	if options, why = forPods(l, options); why != "" {
		return why
	}
	return b.plain(&front.Line{Name: name, Options: options, Rest: rest}, args)
}

// plain replaces a container line by the program that it runs. It returns the reason if it cannot.
func (b *podBody) plain(line *front.Line, args []front.Word) (why string) {
	c := &plainCommand{body: b, line: line, at: args[0].Start}
	for _, o := range line.Options {
		if why := c.option(o); why != "" {
			return why
		}
	}
	if why := c.entryPoint(); why != "" {
		return why
	}
	how, why := c.image()
	if why != "" {
		return why
	}
	if len(c.left) > 0 {
		how += "; without " + strings.Join(c.left, ", ")
	}
	if c.gpus && b.t.Job.GPUs == 0 {
		how += "; request GPUs with --gpus"
	}
	cut := args[len(args)-1].End
	end := cut
	if len(line.Rest) > 0 {
		cut, end = line.Rest[0].Start, line.Rest[0].End
	}
	b.cut(c.at, cut, c.prefix())
	b.add(&field.Row{Fate: field.Changed, How: how}, c.at, b.text[c.at:end])
	for _, r := range c.rows {
		b.once(r, c.at, r.Text)
	}
	return b.command(line.Rest)
}

// prefix returns what replaces the container program and its options.
func (c *plainCommand) prefix() string {
	var w []string
	if c.dir != "" { // env -C is missing in BusyBox
		w = append(w, `sh -c 'cd "$1" && shift && exec "$@"' sh`, c.dir)
	}
	if len(c.unset)+len(c.set) > 0 {
		w = append(w, "env")
	}
	for _, n := range c.unset {
		w = append(w, "-u", n)
	}
	w = append(w, c.set...)
	if c.program != "" {
		w = append(w, c.program)
	}
	if len(w) == 0 {
		return ""
	}
	if len(c.line.Rest) == 0 {
		return strings.Join(w, " ")
	}
	return strings.Join(w, " ") + " "
}

// option reads one option. It returns the reason if the line cannot be changed because of it.
func (c *plainCommand) option(o front.Option) (why string) {
	needs := func(text, how string) {
		c.rows = append(c.rows, &field.Row{Text: text, Fate: needsVolume, How: how})
	}
	v := o.Value
	switch o.Role {
	case front.Flag, front.Value, front.Optional:
		c.left = append(c.left, o.Text)
	case front.GPU, front.GPUValue:
		c.gpus, c.left = true, append(c.left, o.Text)
	case front.Bind:
		for _, item := range strings.FieldsFunc(v.Text, func(r rune) bool { return r == ',' || r == ';' }) {
			c.bind(o.Name+" "+item, item)
		}
	case front.Mount:
		c.mount(o.Name+" "+v.Text, v.Text)
	case front.Scratch:
		dir, _, _ := strings.Cut(v.Text, ":")
		if !c.body.mounted(dir) {
			needs(o.Text, "use --volume scratch:"+dir+", an empty directory for each pod")
		}
	case front.SetEnv, front.EnvFile:
		switch {
		case v.Text == "":
			c.left = append(c.left, o.Text)
		case o.Role == front.SetEnv && strings.Contains(v.Text, "=") && !strings.Contains(strings.SplitN(v.Text, "=", 2)[0], "/"):
			return c.variable(o, v)
		default:
			c.rows = append(c.rows, &field.Row{Text: o.Text, Fate: field.Refused,
				How: "pods cannot read the file: use --set-env=FILE of hpcc with a copy of it"})
		}
	case front.Env, front.EnvList:
		return c.variable(o, v)
	case front.Unset:
		if c.unset = append(c.unset, v.Text); v.Live || !job.EnvName().MatchString(v.Text) {
			return "hpcc does not know the variables of " + o.Text + ": write unset NAME before the line"
		}
	case front.Dir:
		c.dir = v.Source
	case front.Image:
		c.line.Image = v
	case front.Entry:
		if v.Text != "" {
			c.program = v.Source
		}
	default:
		return "pods do not have the option " + o.Name + ": write the program alone, which the pod runs in its image"
	}
	return ""
}

// variable reads an option that sets variables.
func (c *plainCommand) variable(o front.Option, v front.Word) (why string) {
	items := []front.Word{v}
	if o.Role == front.EnvList && strings.Contains(v.Text, ",") {
		if v.Live {
			return "hpcc cannot split the list of variables of " + o.Name + ": set the variables in the script"
		}
		items = nil
		for s := range strings.SplitSeq(v.Text, ",") {
			items = append(items, front.Word{Text: s, Source: text.Quote(s)})
		}
	}
	for _, v := range items {
		name, _, set := strings.Cut(v.Text, "=")
		switch {
		case !set: // the variable of the script
		case !job.EnvName().MatchString(name) || v.Source == "" || (o.Role == front.SetEnv && strings.Contains(v.Text, "$") && !v.Live):
			return "hpcc cannot read the variable of " + o.Text + ": set it in the script"
		default:
			c.set = append(c.set, v.Source)
		}
	}
	return ""
}

// bind reports on SRC[:DST[:MODE]].
func (c *plainCommand) bind(text, item string) {
	part := strings.SplitN(item, ":", 3)
	from, to := part[0], part[min(len(part)-1, 1)]
	if to == "" || to == "ro" || to == "rw" {
		to = from
	}
	c.needs(text, from, to, len(part) > 2 && slices.Contains(strings.Split(part[2], ","), "ro"))
}

// mount reports on type=bind,source=SRC,target=DST.
func (c *plainCommand) mount(text, item string) {
	keys := map[string]string{}
	for f := range strings.SplitSeq(item, ",") {
		k, v, _ := strings.Cut(f, "=")
		keys[k] = v
	}
	to := cmp.Or(keys["target"], keys["destination"], keys["dst"])
	if keys["type"] == "tmpfs" {
		c.rows = append(c.rows, &field.Row{Text: text, Fate: needsVolume,
			How: "use --volume scratch:" + to + ", an empty directory for each pod"})
		return
	}
	_, ro := keys["ro"]
	_, readOnly := keys["readonly"]
	c.needs(text, cmp.Or(keys["source"], keys["src"]), to, ro || readOnly)
}

// needs reports that a directory of the host must be a volume of the pod.
func (c *plainCommand) needs(text, from, to string, readOnly bool) {
	b := c.body
	if name := variableName(to); name != "" {
		if v := b.value(name); v != "" {
			to = v
		}
	}
	mode := ""
	if readOnly {
		mode = ":ro"
	}
	row := &field.Row{Text: text, Fate: needsVolume,
		How: fmt.Sprintf("use --volume CLAIM:%s%s, a claim with the files of %s", to, mode, from)}
	switch name := variableName(to); {
	case name == "PWD" || to == ".":
		row.Fate, row.How = field.Changed, "left out: the script starts in the pod's directory; --cd sets it"
	case name != "" || !path.IsAbs(to) || strings.ContainsAny(to, "$`"):
		row.How = "use --volume CLAIM:PATH, where PATH is " + to + ", a claim with the files of " + from
	case b.inVolume(to):
		row.Fate, row.How = field.Kept, "a volume of the pod"
	case from == to && inImage(to):
		row.Fate, row.How = field.Changed, "left out: the pod has its own"
	}
	if row.Fate == needsVolume && path.IsAbs(to) {
		b.bound = append(b.bound, strings.TrimRight(to, "/"))
	}
	c.rows = append(c.rows, row)
}

// entryPoint decides what precedes the arguments of the line.
func (c *plainCommand) entryPoint() (why string) {
	own := c.body.t.Job.Pod.Entrypoint
	p := front.Programs()[c.line.Name] // nil for a launcher
	hasEntry := p != nil && p.Entry
	switch {
	case c.program != "":
	case len(own) > 0 && (c.line.Own || hasEntry):
		c.program = text.CommandLine(own)
	case c.line.Own:
		return c.line.Name + " run starts the image's own program, which hpcc does not know: write that program, after " +
			c.line.Name + " exec IMAGE"
	case len(c.line.Rest) > 0 && !isProgram(c.line.Rest[0]):
		return "hpcc does not know which argument is the program of the line: write the program alone"
	case len(c.line.Rest) == 0:
		return "the line starts the image's own program, which hpcc does not know: write that program after the image"
	case hasEntry:
		c.left = append(c.left, "the image's ENTRYPOINT, if it has one")
	}
	return ""
}

// image returns the explanation of the row, or the reason if the pod cannot use the image.
func (c *plainCommand) image() (how, why string) {
	b, t := c.body, c.body.t
	given := c.line.Image
	switch {
	case given.Source == "" && front.Programs()[c.line.Name] == nil:
		return "the pod runs it, in " + t.Job.Image, "" // another line creates the container
	case given.Source == "":
		given.Source = "the image of the site's settings"
	}
	if why := b.ambiguous(c.line); why != "" {
		return "", why
	}
	ref := registryImage(c.line.Name, b.resolve(given))
	switch {
	case t.Job.Image == "":
		return "", "pods cannot pull " + given.Source + ": push that image to a registry, and give its name as IMAGE"
	case ref == t.Job.Image && b.chosen:
		return "the pod runs it: its image is " + ref, ""
	case b.chosen:
		return "", "a pod has one image, here " + t.Job.Image + ": give an IMAGE that replaces both, or split the script"
	}
	b.reported[path.Clean(b.resolve(given).Text)] = true // pods do not need the file
	return "the pod runs it, in " + t.Job.Image + " instead of " + given.Source, ""
}

// ambiguous returns a reason if the word of the image may be options.
func (b *podBody) ambiguous(c *front.Line) string {
	name := variableName(c.Image.Source)
	if name == "" || strings.HasPrefix(c.Image.Source, `"`) {
		return ""
	}
	values := b.assigned[name]
	plain := len(values) > 0 && !slices.ContainsFunc(values,
		func(v string) bool { return v == "" || strings.HasPrefix(v, "-") || strings.ContainsAny(v, " \t") })
	if plain || imageVariable().MatchString(name) {
		return ""
	}
	return "hpcc does not know whether " + c.Image.Source + " is the image or holds options: write it in double quotes if it is the image"
}

// imageVariable matches names of variables that hold an image.
var imageVariable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(IMG|IMAGE|SIF|CONTAINER|SANDBOX|ROOTFS)`)
})

// imageText matches the name of an image in a registry.
var imageText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?$`)
})

var fullVariable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^"?\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})"?$`)
})

// variableName returns the name of the variable that is the full word, or "".
func variableName(source string) string {
	m := fullVariable().FindStringSubmatch(source)
	if m == nil {
		return ""
	}
	return cmp.Or(m[1], m[2])
}

// registryImage returns the name of an image in a registry, for the nodes of a cluster. It returns "" for a file, a
// directory, a variable or a form of image that nodes cannot pull.
func registryImage(name string, a front.Word) string {
	ref := a.Text
	if a.Live || ref == "" {
		return ""
	}
	ref, tagged := strings.CutPrefix(ref, "docker://")
	if name == "shifter" {
		if ref, tagged = strings.CutPrefix(ref, "docker:"); !tagged {
			return ""
		}
	}
	p := front.Programs()[name]
	if (p != nil && p.Files && !tagged) || strings.Contains(ref, "://") || strings.HasPrefix(ref, "/") ||
		strings.HasPrefix(ref, ".") || strings.HasPrefix(ref, "localhost/") || !imageText().MatchString(ref) {
		return ""
	}
	host, rest, ok := strings.Cut(ref, "/")
	switch {
	case ok && (strings.ContainsAny(host, ".:") || host == "localhost"):
		return host + "/" + rest
	case ok:
		return "docker.io/" + ref
	}
	return "docker.io/library/" + ref
}

// value returns the value of a variable that the script sets once, or "".
func (b *podBody) value(name string) string {
	if v := b.assigned[name]; len(v) == 1 {
		return v[0]
	}
	return ""
}

// resolve replaces a variable by its value, if hpcc knows it.
func (b *podBody) resolve(a front.Word) front.Word {
	if v := b.value(variableName(a.Source)); v != "" {
		return front.Word{Text: v, Source: a.Source, Start: a.Start, End: a.End}
	}
	return a
}

// findImage returns the first image of the script's container lines that nodes can pull, or "".
func (b *podBody) findImage() (ref string) {
	b.calls(func(c *syntax.CallExpr) {
		args := b.first(b.arguments(c.Args))
		for len(args) > 0 && ref == "" {
			name := path.Base(args[0].Text)
			if l, _ := b.t.known.launcher(name); l.Image != nil {
				if ref = b.launchedRef(name, l, args[1:]); ref != "" {
					return
				}
			}
			if front.Programs()[name] != nil {
				if line, _ := front.Parse(name, args); line != nil {
					for _, o := range line.Options {
						if o.Role == front.Image {
							line.Image = o.Value
						}
					}
					ref = registryImage(name, b.resolve(line.Image))
				}
				return
			}
			args = b.first(args[1:])
		}
	})
	b.chosen = ref != ""
	return ref
}

// launchedRef returns the image that a launcher's line names if nodes can pull it, or "".
func (b *podBody) launchedRef(name string, l dialect.Launcher, args []front.Word) string {
	for _, o := range launchedImage(l, args) {
		if o.Role != front.Image {
			continue
		}
		v := b.resolve(o.Value)
		if image, err := l.Image(v.Text); err == nil {
			v.Text = image
			return registryImage(name, v)
		}
	}
	return ""
}

// insideNames matches variables that container programs set for the program.
var insideNames = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:SINGULARITYENV|APPTAINERENV)_([A-Za-z_]\w*)$`)
})

// variables processes the values of variables: settings of container programs, and commands.
func (b *podBody) variables() {
	syntax.Walk(b.file, func(n syntax.Node) bool {
		if r, ok := n.(*syntax.Redirect); ok && r.Hdoc != nil {
			return false
		}
		a, ok := n.(*syntax.Assign)
		if !ok || a.Name == nil || (a.Value == nil && a.Array == nil) || within(b.edits, int(a.Pos().Offset())) {
			return true
		}
		at, name := int(a.Pos().Offset()), a.Name.Value
		text := b.text[at:int(a.End().Offset())]
		switch m := insideNames().FindStringSubmatch(name); {
		case m != nil && (strings.Contains(b.text, "$"+name) || strings.Contains(b.text, "${"+name)):
			b.add(&field.Row{Fate: field.Refused,
				How: "the script reads the variable too, so hpcc does not rename it: set " + m[1]}, at, text)
		case m != nil:
			b.edits = append(b.edits, edit{at, at + len(name), m[1]})
			b.add(&field.Row{Fate: field.Changed, How: "renamed to " + m[1] + ", its name in the image"}, at, text)
		case a.Value != nil && (strings.HasPrefix(name, "SINGULARITY_BIND") || strings.HasPrefix(name, "APPTAINER_BIND")):
			c := &plainCommand{body: b}
			for item := range strings.SplitSeq(b.argument(a.Value).Text, ",") {
				c.bind(name+"="+item, item)
			}
			for _, r := range c.rows {
				b.add(r, at, r.Text)
			}
		default:
			b.report(a)
		}
		return true
	})
}
