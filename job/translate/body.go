package translate

import (
	"errors"
	"fmt"
	"maps"
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

// Without an image, the lines of a translated script stay unchanged. With an image, hpcc removes lines that only
// prepare the host's environment, and makes the host's launchers start their program in the image.

// A preparation is a line that sets up the host's environment. The image has its own; a launcher may need the host's.
type preparation struct {
	line     *regexp.Regexp
	launcher bool // keep it if the script calls a launcher of the host
}

var preparations = sync.OnceValue(func() []preparation {
	end := `\s*(#.*)?$`
	word := `[^\s;&|<>]+`
	return []preparation{
		{regexp.MustCompile(`^\s*(module|ml)(\s+` + word + `)*` + end), true},
		{regexp.MustCompile(`^\s*spack\s+load(\s+` + word + `)*` + end), true},
		{regexp.MustCompile(`^\s*(source|\.)\s+"?/etc/profile(\.d/[\w.-]+)?"?` + end), true},
		{regexp.MustCompile(`^\s*(source|\.)\s+` + word + `/(init|Init)/(bash|sh|profile|modules\.sh|lmod\.sh)"?` + end), true},
		{regexp.MustCompile(`^\s*(source|\.)\s+` + word + `/conda\.sh"?` + end), false},
		{regexp.MustCompile(`^\s*(source|\.)\s+(` + word + `/)?activate"?(\s+` + word + `)?` + end), false},
		{regexp.MustCompile(`^\s*(conda|mamba|micromamba)\s+(activate|deactivate)(\s+` + word + `)*` + end), false},
		{regexp.MustCompile(`^\s*eval\s+"?\$\(\s*("?` + word + `)?conda"?\s+shell\.\w+\s+hook[^)]*\)"?` + end), false},
	}
})

// mpiLaunchers start the processes of a job under every batch system. The options are those of mpirun of Open MPI and
// MPICH.
var mpiLaunchers = map[string]dialect.Launcher{"mpirun": {Options: mpiOptions}, "mpiexec": {Options: mpiOptions}}

var mpiOptions = dialect.Options{
	Values: map[string]dialect.Setter{
		"-n -np --n --np -c -N -npernode --npernode -npersocket --npersocket -ppn -f -H -host --host -hosts -hostfile " +
			"--hostfile -machinefile --machinefile -x -wdir --wdir -wd -path --path " +
			"--prefix -output-filename --output-filename --timeout -timeout --map-by -map-by --bind-to -bind-to --rank-by " +
			"-rank-by --cpu-set --cpu-list -am --am -rf --rankfile -rankfile " +
			"-iface -launcher -bootstrap -genvlist -envlist -prepend-rank -pmi-port -outfile-pattern -errfile-pattern --tune " +
			"-tune --stdin -stdin --personality": nil},
	Pairs: map[string]dialect.Setter{"-mca --mca -gmca --gmca --prtemca --pmixmca -genv -env": nil},
	Flags: map[string]dialect.Setter{
		"--tag-output -tag-output --timestamp-output --report-bindings -report-bindings --oversubscribe -oversubscribe " +
			"--nooversubscribe --allow-run-as-root --display-map -display-map --display-allocation " +
			"-genvall -envall -envnone -genvnone -l -q --quiet -v --verbose -V --bynode -bynode --bycore -bycore --byslot " +
			"--nolocal -nolocal -bind-to-core --bind-to-core -gpu --preload-binary -s --enable-recovery --continuous --xml " +
			"-prot": nil},
}

// launcher returns a launcher by name, and the only batch system that has it, if any.
func (ds Translator) launcher(name string) (dialect.Launcher, *dialect.Dialect) {
	for _, d := range ds {
		if l, ok := d.Launchers[name]; ok {
			return l, d
		}
	}
	return mpiLaunchers[name], nil
}

// called matches a launcher that is run as a command, and captures its name. In pods container programs count as
// launchers.
func (ds Translator) called(to job.Target) *regexp.Regexp {
	names := []string{"mpirun", "mpiexec"}
	if to.Pods() {
		names = slices.AppendSeq(names, maps.Keys(front.Programs()))
	}
	for _, d := range ds {
		names = slices.AppendSeq(names, maps.Keys(d.Launchers))
	}
	return regexp.MustCompile(`(?:^|[;&|({]|\b(?:then|do|else|time|exec|nohup|if|while|` +
		`!))\s*(?:[A-Za-z_]\w*=\S*\s+)*(?:\S*/)?(` + strings.Join(names, "|") + `)(?:\s|$)`)
}

var hereDocument = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|[^<])<<(-?)\s*\\?['"]?([A-Za-z_]\w*)`) })

// A logicalLine is a line of a script with its continuations after a backslash or in an open quotation, outside
// here-documents. text includes the line break.
type logicalLine struct {
	number int
	text   string
	plain  bool // a command; not a comment, here-document or blank line
}

// logicalLines splits a script. Joined, the texts of the lines are the script.
func logicalLines(body string) []logicalLine {
	var out []logicalLine
	until, tabs, number, quote := "", false, 0, byte(0)
	for l := range strings.Lines(body) {
		number++
		bare := strings.TrimSuffix(l, "\n")
		if until != "" {
			if bare == until || (tabs && strings.TrimLeft(bare, "\t") == until) {
				until = ""
			}
			out = append(out, logicalLine{number, l, false})
			continue
		}
		if n := len(out); n > 0 && out[n-1].plain && (quote != 0 || strings.HasSuffix(out[n-1].text, "\\\n")) {
			out[n-1].text += l
		} else {
			t := strings.TrimSpace(bare)
			out = append(out, logicalLine{number, l, t != "" && t[0] != '#'})
		}
		if last := out[len(out)-1]; last.plain {
			if quote = quoteAfter(bare, quote); quote != 0 {
				continue
			}
			if m := hereDocument().FindStringSubmatch(bare); m != nil {
				tabs, until = m[1] == "-", m[2]
			}
		}
	}
	return out
}

// quoteAfter returns the quotation mark that is still open after a line, or 0. open is the one that
// was open before the line, or 0.
func quoteAfter(line string, open byte) byte {
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && open != '\'':
			i++
		case c == open:
			open = 0
		case open == 0 && (c == '\'' || c == '"'):
			open = c
		case open == 0 && c == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t'):
			return 0
		}
	}
	return open
}

// body processes the script, as described above. It is called once, when the job's image is known.
func (t *Translation) body() {
	s := t.Job.Script
	switch {
	case s == nil:
	case !t.To.Pods():
		if isShell(s.Shell) {
			t.launchers()
		}
	case !isShell(s.Shell):
		t.pathsByLine()
	default:
		b, err := t.newPodBody()
		if err == nil {
			b.run()
			return
		}
		row := &field.Row{Text: "(script)", Fate: field.Changed,
			How: "hpcc cannot parse it as a script of bash, so it reads its lines one by one and changes no commands"}
		var parse syntax.ParseError
		if errors.As(err, &parse) {
			row.Line, row.How = int(parse.Pos.Line()), row.How+": "+parse.Text
		}
		t.Rows = append(t.Rows, row)
		t.launchers()
		t.pathsByLine()
	}
}

// pathsByLine reports the paths of a script that hpcc cannot parse.
func (t *Translation) pathsByLine() {
	s := t.Job.Script
	b := &podBody{t: t, text: s.Body, ignored: commentLines(s.Body), assigned: map[string][]string{}, reported: map[string]bool{}}
	for _, m := range assignment().FindAllStringSubmatch(s.Body, -1) {
		b.assigned[m[1]] = append(b.assigned[m[1]], "")
	}
	b.scriptMounts()
	b.hostPaths()
	b.finish()
}

// launchers processes the lines of a script for targets without pods, or one that hpcc cannot parse.
func (t *Translation) launchers() {
	s := t.Job.Script
	lines, called := logicalLines(s.Body), t.known.called(t.To)
	s.Host = !t.To.Pods() && slices.ContainsFunc(lines, func(l logicalLine) bool { return l.plain && called.MatchString(l.text) })
	var body strings.Builder
	others := 0
	for _, l := range lines {
		text, row := l.text, (*field.Row)(nil)
		if l.plain {
			text, row = t.line(l, called, s.Host)
		}
		if row != nil {
			row.Line, row.Text = l.number, strings.TrimSpace(strings.ReplaceAll(l.text, "\\\n", ""))
			t.Rows = append(t.Rows, row)
		} else if l.plain {
			others++
		}
		body.WriteString(text)
	}
	if t.Job.Image != "" && s.Host && others > 0 {
		t.Rows = append(t.Rows, &field.Row{Text: "(other lines)", Fate: field.Changed,
			How: "run on the host, because the script calls launchers there; put \"hpcc run " + t.Job.Image +
				" --\" before programs that need the image"})
	}
	if t.Job.Image != "" {
		s.Body = body.String()
	}
}

// line returns the new text of a command's line, and its row; a nil row leaves the line unchanged.
func (t *Translation) line(l logicalLine, called *regexp.Regexp, host bool) (string, *field.Row) {
	m := called.FindStringSubmatch(l.text)
	if m == nil {
		return t.prepares(l.text, host)
	}
	launcher, only := t.known.launcher(m[1])
	in := imageOptions{options: launchedImage(launcher, lineArguments(l.text))}
	switch {
	case only != nil && only.Target != t.To:
		return l.text, &field.Row{Fate: field.Refused,
			How: fmt.Sprintf("only %s has %s, and hpcc does not change the line: start the processes with mpirun%s", only.Title,
				m[1], in.advice(launcher))}
	case t.To.Pods() && front.Programs()[m[1]] != nil:
		return l.text, &field.Row{Fate: field.Refused,
			How: "pods do not have " + m[1] + ", and hpcc does not change the line: write the program alone, which the pod " +
				"runs in its image"}
	case t.Job.Image == "" && len(in.options) > 0:
		return l.text, &field.Row{Fate: field.Kept,
			How: "the site must have the plugin that starts the image; name an IMAGE to use hpcc instead"}
	case t.Job.Image == "" || t.To.Pods(): // the image provides it
		return l.text, nil
	}
	text, why := t.inImage(l.text, m[1])
	if why != "" {
		return l.text, &field.Row{Fate: field.Refused,
			How: why + "; hpcc does not change the line: put \"hpcc run " + t.Job.Image + " --\" before its program"}
	}
	how := "the host's " + m[1] + " starts the program in " + t.Job.Image
	if len(in.options) > 0 {
		how += ", with hpcc instead of the site's plugin"
		if !slices.ContainsFunc(in.options, func(o front.Option) bool { return o.Role == front.Dir }) {
			how += "; it starts in the line's directory: --cd sets it"
		}
	}
	return text, &field.Row{Fate: field.Changed, How: how}
}

// lineArguments returns the arguments of a line that is one simple command, without its name.
func lineArguments(line string) []front.Word {
	args, _ := text.Words(line, true)
	out := make([]front.Word, 0, len(args))
	for _, a := range args {
		out = append(out, front.Word{Text: a.Text, Source: line[a.Start:a.End], Live: a.Live, Start: a.Start, End: a.End})
	}
	return out[min(1, len(out)):]
}

// prepares returns the new text of a line that prepares the host's environment, and its row.
func (t *Translation) prepares(text string, host bool) (string, *field.Row) {
	if t.Job.Image == "" {
		return text, nil
	}
	for _, p := range preparations() {
		if !p.line.MatchString(text) {
			continue
		}
		if p.launcher && host {
			return text, &field.Row{Fate: field.Kept, How: "it may provide the launcher"}
		}
		rest := strings.TrimLeft(text, " \t")
		comment, end := strings.CutSuffix(strings.ReplaceAll(rest, "\\\n", "\n"), "\n")
		comment = strings.ReplaceAll(comment, "\n", "\n# ")
		if end {
			comment += "\n"
		}
		// The colon keeps a shell block from being empty.
		return text[:len(text)-len(rest)] + ": # hpcc left out: " + comment,
			&field.Row{Fate: field.Changed, How: "left out: it prepared the host, and the image has its own environment"}
	}
	return text, nil
}

// inImage inserts "hpcc run" before a launcher's program. If it cannot, why is the reason.
func (t *Translation) inImage(line, launcher string) (out, why string) {
	args, err := text.Words(line, true)
	if len(args) == 0 || path.Base(args[0].Text) != launcher {
		return "", launcher + " is part of a longer command"
	}
	if err != nil && (err != text.ErrOperator || joins(line[args[len(args)-1].End:])) {
		return "", launcher + " is part of a longer command"
	}
	l, _ := t.known.launcher(launcher)
	var in imageOptions
	rest := launcherOptions(l, lineArguments(line), func(args []front.Word, n int) bool {
		switch o, ok := containerOption(l, args, n); {
		case ok:
			in.options, in.cuts = append(in.options, o), append(in.cuts, [2]int{args[0].Start, args[n-1].End})
		case n == 0 && (!strings.HasPrefix(args[0].Text, "--") || !strings.Contains(args[0].Text, "=")):
			why = fmt.Sprintf("hpcc does not know whether the option %s takes a value", args[0].Text)
			return false
		}
		return true
	})
	switch {
	case why != "":
		return "", why
	case len(rest) == 0:
		return "", "it does not name a program"
	case slices.ContainsFunc(rest, func(w front.Word) bool { return w.Text == ":" }):
		return "", "it starts several programs"
	case len(l.HostFirst) > 0 && !slices.Contains(l.HostFirst, args[1].Text):
		return "", "hpcc does not know which argument is the host"
	case path.Base(rest[0].Text) == "hpcc":
		return line, ""
	}
	if why := in.read(l); why != "" {
		return "", why
	}
	at := rest[0].Start
	return in.without(line[:at]) + in.prefix(t.Job, t.Job.ExactImage()) + " " + line[at:], ""
}

// joins reports whether more than redirections follows the argv of a command.
func joins(s string) bool {
	s = redirection().ReplaceAllString(s, "")
	return strings.ContainsAny(s, "|;&()")
}

var redirection = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9]*[<>]&[0-9-]|&>>?`) })

// isShell reports whether a shell with the grammar of sh runs the script.
func isShell(args []string) bool {
	for _, w := range args {
		switch path.Base(w) {
		case "sh", "bash", "ksh", "zsh", "dash":
			return true
		}
	}
	return false
}
