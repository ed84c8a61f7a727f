package exports

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
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
	x, err := parseLine(line)
	x.Line = n
	switch {
	case err == nil:
		r.add(x)
	case isSpec(line):
		r.e.Specs = append(r.e.Specs, Spec{Line: n, Text: line})
	default:
		r.wrong(n, "%q: %v", input.Text(line), err)
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

// specLine matches lines of a list that can be a MatchSpec: a name, optionally with a
// channel, and constraints.
var specLine = sync.OnceValue(func() *regexp.Regexp {
	const cond = `[=<>!~]*[^\s'"=<>!~,|\[\]]+`
	return regexp.MustCompile(`^(?:[^\s\[\]=<>!~]+::)?[a-zA-Z0-9_*][a-zA-Z0-9_.*-]*(?:(?:\s*[=<>!~]+[^\s'"=<>!~,|\[\]]+|\s+[0-9*=<>!~][^\s'"=<>!~,|\[\]]*)(?:\s*[,|]\s*` + cond + `)*(?:[= ][^\s'"=<>!~,|\[\]]+)?)?\s*(?:\[[^\]]*\])?$`)
})

func isSpec(s string) bool {
	if (strings.Contains(s, "/") && !strings.Contains(s, "::")) || (strings.Contains(s, "://") && !strings.Contains(s, "::")) {
		return false
	}
	return len(s) <= 1024 && specLine().MatchString(s) && !strings.ContainsAny(s, "\x00\t\r\n")
}

// parseLine parses name=version=build.
func parseLine(line string) (Entry, error) {
	var e Entry
	if strings.Contains(line, "://") && !strings.Contains(line, "::") {
		return e, fmt.Errorf("a URL needs the line @EXPLICIT above it")
	}
	spec := line
	if i := strings.LastIndex(spec, "::"); i >= 0 {
		e.Channel, spec = spec[:i], spec[i+2:]
	}
	f := strings.Split(spec, "=")
	if len(f) == 4 && f[1] == "" { // name==version=build
		f = append(f[:1], f[2:]...)
	}
	if len(f) == 3 && f[1] == "" {
		f = []string{f[0], f[2]}
	}
	if len(f) < 2 || len(f) > 3 {
		return e, fmt.Errorf("not of the form name=version=build")
	}
	e.Name, e.Version = strings.ToLower(strings.TrimSpace(f[0])), strings.TrimSpace(f[1])
	if len(f) == 3 {
		e.Build = strings.TrimSpace(f[2])
	}
	return e, e.check()
}

// check validates name, version and build (CEP 26, CEP 33).
func (e Entry) check() error {
	switch {
	case !solve.IsName(e.Name):
		return fmt.Errorf("%q is not a package name", input.Text(e.Name))
	case !solve.IsVersion(e.Version):
		return fmt.Errorf("%q is not an exact version", input.Text(e.Version))
	case e.Build != "" && !isPip(e.Build) && !solve.IsBuild(e.Build):
		return fmt.Errorf("%q is not a build string", input.Text(e.Build))
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
			r.wrong(i+1, "%q: want the columns name, version, build, channel", input.Text(line))
		default:
			x := Entry{Line: i + 1, Name: strings.ToLower(f[0]), Version: f[1], Build: f[2]}
			if len(f) == 4 {
				x.Channel = f[3]
			}
			if err := x.check(); err != nil {
				r.wrong(i+1, "%q: %v", input.Text(line), err)
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
		x := Entry{Line: n.Line, Name: strings.ToLower(value(n, "name")), Version: value(n, "version"), Build: value(n, "build_string"), Channel: value(n, "base_url")}
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
