package exports

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/fetch"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
	"hpcc/text"
)

// list reads the output of "conda list -e" and "conda list --export", and lists for "conda
// create --file": one name=version=build per line. The format lacks channels, platform,
// digests, and the origin of pip packages.
func (r *reader) list(lines []string) {
	r.e.Format = "conda list -e"
	for i, line := range lines {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case strings.HasPrefix(line, "#"):
			r.header(line)
		default:
			r.listLine(i+1, line)
		}
	}
	r.settle()
}

func (r *reader) listLine(n int, line string) {
	if i := strings.Index(line, " #"); i > 0 {
		line = strings.TrimSpace(line[:i])
	}
	if x, ok := pipRow(line); ok {
		x.Line = n
		r.add(x)
		return
	}
	line = r.withoutExtras(n, line)
	// In a list, conda reads name=version as that version, not as all that begin with it.
	at := strings.LastIndexByte(line, ':') + 1 // a channel may contain "=" and "~"
	if name, version, ok := strings.Cut(line[at:], "="); ok && solve.IsVersion(strings.TrimSpace(version)) {
		if name = strings.TrimSpace(name); !strings.ContainsAny(name, " <>!~") {
			line = line[:at] + name + "==" + version
		}
	}
	x, pinned, err := parseRow(line)
	x.Line = n
	switch {
	case err != nil:
		r.wrong(n, "%q: %v", text.Short(line), err)
	case pinned:
		r.add(x)
	default:
		r.e.Specs = append(r.e.Specs, Spec{Line: n, Text: line})
	}
}

// add adds an entry, or a requirement for a package that pip installed.
func (r *reader) add(x Entry) {
	switch {
	case isPip(x.Build) || x.Channel == "pypi" || x.Channel == "<develop>":
		r.e.Pip = append(r.e.Pip, pip.Requirement{Line: x.Line, Name: x.Name, Specifier: "==" + x.Version})
		if x.Build == "dev_0" || x.Channel == "<develop>" {
			r.note(x.Line, "%s was installed from a directory (pip install -e), which the list does not record; %s==%s from the package index replaces it", x.Name, x.Name, x.Version)
		}
	default:
		r.e.Entries = append(r.e.Entries, x)
	}
}

// parseRow parses a row that names a conda package by a MatchSpec. pinned reports that the spec
// accepts only the version of the entry and, if it has one, its build.
func parseRow(row string) (x Entry, pinned bool, err error) {
	own, _, _ := strings.Cut(row[strings.LastIndex(row, "::")+1:], "[")
	head, version, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(own, ":")), " ")
	version = strings.TrimSpace(version)
	hasVersion := strings.ContainsAny(head, "=<>!~") // a build follows the blank, as in "a>=1 b_*"
	switch {
	case strings.Contains(own, "://"):
		return x, false, errors.New("a URL needs the line @EXPLICIT above it")
	case strings.ContainsAny(row, "\x00\t\r\n"), version != "" && !hasVersion && !strings.Contains("0123456789*=<>!~^([,|", version[:1]):
		return x, false, errors.New("not of the form name=version=build")
	case strings.Contains(own, "/"):
		return x, false, errors.New("\"/\" is valid in a channel only, as in channel/noarch::name")
	}
	s, err := solve.ParseSpec(row)
	if err == nil && strings.Trim(s.Name, "0123456789") == "" {
		err = errors.New("the name has no letter")
	}
	if err != nil {
		return x, false, err
	}
	x.Channel, x.Name = s.Channel(), s.Name
	x.Version, x.Build = s.Pin()
	return x, x.Version != "", nil
}

// extrasText matches a name with pip's extras in brackets, which have no "=".
var extrasText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z0-9._-]+)\s*(\[[A-Za-z0-9._, -]*\])`)
})

// withoutExtras removes pip's extras from a conda row, as conda does, and notes them.
func (r *reader) withoutExtras(line int, row string) string {
	m := extrasText().FindStringSubmatch(row)
	if m == nil {
		return row
	}
	r.note(line, "%s: conda packages have no extras; %s is not used", text.Short(m[0]), text.Short(m[2]))
	return m[1] + row[len(m[0]):]
}

// pipRow parses a row of a package that pip installed. Its version need not be one of conda.
func pipRow(line string) (Entry, bool) {
	f := strings.Split(line, "=")
	if len(f) != 3 || !isPip(strings.TrimSpace(f[2])) {
		return Entry{}, false
	}
	x := Entry{Name: strings.ToLower(strings.TrimSpace(f[0])), Version: strings.TrimSpace(f[1]), Build: strings.TrimSpace(f[2])}
	return x, x.check() == nil
}

// colourRow matches a row of a colour palette: hexadecimal digits, or three numbers.
var colourRow = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:.*\s(?:#|0x)|#|0x)?[0-9A-Fa-f]{6}(?:[0-9A-Fa-f]{2})?$|^\d{1,3}[\s,]+\d{1,3}[\s,]+\d{1,3}(?:\s|$)`)
})

// isPalette reports whether all rows are colours. Their names or digits would be valid names of
// packages. A row of letters only, such as "facade", is not enough.
func isPalette(lines []string) bool {
	numbers := false
	for _, l := range lines {
		l = strings.TrimSpace(l)
		switch {
		case colourRow().MatchString(l):
			numbers = numbers || strings.ContainsAny(l, "#0123456789")
		case l != "" && !strings.HasPrefix(l, "#"):
			return false
		}
	}
	return numbers
}

// check validates name, version and build (CEP 26, CEP 33).
func (e Entry) check() error {
	switch {
	case !solve.IsName(e.Name):
		return fmt.Errorf("%q is not a package name", text.Short(e.Name))
	case !solve.IsVersion(e.Version):
		return fmt.Errorf("%q is not an exact version", text.Short(e.Version))
	case e.Build != "" && !isPip(e.Build) && !solve.IsBuild(e.Build):
		return fmt.Errorf("%q is not a build string", text.Short(e.Build))
	}
	return nil
}

// isListTable reports whether the lines are the table of "conda list" or "mamba list".
func isListTable(lines []string) bool {
	for _, l := range lines {
		l = strings.TrimSpace(l)
		if strings.HasPrefix(l, "# packages in environment at") || strings.HasPrefix(l, "List of packages in environment") {
			return true
		}
		if f := strings.Fields(strings.TrimPrefix(l, "#")); len(f) >= 3 && f[0] == "Name" && f[1] == "Version" && f[2] == "Build" {
			return true
		}
	}
	return false
}

// listTable reads the columns of "conda list" and "mamba list": name, version, build, channel. An
// empty channel means "defaults". The format lacks digests, the platform, and the URLs of the
// channels.
func (r *reader) listTable(lines []string) {
	r.e.Format = "conda list"
	for i, line := range lines {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#") || strings.HasPrefix(f[0], "─") || strings.HasPrefix(f[0], "---"):
		case f[0] == "Name" || strings.HasPrefix(line, "List of packages in environment"):
		case len(f) < 3 || len(f) > 4:
			r.wrong(i+1, "%q: want the columns name, version, build, channel", text.Short(line))
		default:
			x := Entry{Line: i + 1, Name: strings.ToLower(f[0]), Version: f[1], Build: f[2]}
			if len(f) == 4 {
				x.Channel = f[3]
			}
			if err := x.check(); err != nil {
				r.wrong(i+1, "%q: %v", text.Short(line), err)
				continue
			}
			r.add(x)
		}
	}
	r.settle()
}

// listJSON reads "conda list --json" and "mamba list --json". The format lacks digests.
func (r *reader) listJSON(root *yaml.Node) {
	r.e.Format = "conda list --json"
	count := map[string]int{}
	for _, n := range root.Content {
		if n.Kind != yaml.MappingNode {
			r.wrong(n.Line, "not a package of \"conda list --json\"")
			continue
		}
		x := Entry{Line: n.Line, Name: strings.ToLower(value(n, "name")), Version: value(n, "version"),
			Build: value(n, "build_string"), Channel: value(n, "base_url")}
		if c := value(n, "channel"); x.Channel == "" || c == "pypi" || c == "<develop>" {
			x.Channel = c
		}
		if err := x.check(); err != nil {
			r.wrong(n.Line, "%v", err)
			continue
		}
		if p := value(n, "platform"); fetch.IsPlatform(p) {
			count[p]++
		}
		r.add(x)
	}
	r.e.Subdir = most(count)
	r.settle()
}

// most returns the key with the highest count; the first by name wins a tie.
func most(count map[string]int) string {
	best := ""
	for s, n := range count {
		if n > count[best] || (n == count[best] && s < best) {
			best = s
		}
	}
	return best
}
