package conda

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// A PipRequirement is a package that pip installed or is to install.
type PipRequirement struct {
	Line     int
	Name     string   // as written; "" for a URL or path that does not say it
	Extras   []string // name[extra,…]
	Version  string   // a specifier (PEP 440) such as "==2.1.2+cu118" or ">=1,<2"; "" is any
	URL      string   // of a wheel, an archive, a directory or a repository (git+https://…); "" is from an index
	Editable bool     // -e: installed as a link to a directory
	Hashes   []string // "sha256:hex", any of which is right
	Marker   string   // a condition (PEP 508) that the platform alone does not decide; "" is none
}

func (p PipRequirement) String() string {
	s := p.Name
	if len(p.Extras) > 0 {
		s += "[" + strings.Join(p.Extras, ",") + "]"
	}
	switch {
	case p.URL != "" && s != "":
		s += " @ " + hide(p.URL)
	case p.URL != "":
		s = hide(p.URL)
	}
	return s + p.Version
}

// A PipIndex is where a file tells pip to look.
type PipIndex struct {
	URL       string   // --index-url; "" is pip's own
	Extra     []string // --extra-index-url
	FindLinks []string // --find-links
	NoIndex   bool
}

var (
	// requirementHead is the name and the extras of a requirement (PEP 508).
	requirementHead = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[([A-Za-z0-9._, \t-]*)\])?\s*`)
	})
	// specifier is a version specifier (PEP 440), or several.
	specifier = sync.OnceValue(func() *regexp.Regexp {
		const one = `(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9_.*+!-]{1,128}`
		return regexp.MustCompile(`^` + one + `(?:\s*,\s*` + one + `)*,?$`)
	})
	pipHash = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})$`)
	})
)

// isRequirements tells a requirements.txt of pip from a list for conda, whose
// lines have a single "=". Where the lines are both, the name decides.
func isRequirements(lines []string, file string) bool {
	sure, maybe := false, false
	for _, l := range lines {
		l = strings.TrimSpace(l)
		switch {
		case strings.HasPrefix(l, "# $ conda create"), strings.HasPrefix(l, "# platform:"):
			return false
		case l == "" || strings.HasPrefix(l, "#"):
			continue
		case strings.HasPrefix(l, "-"), strings.Contains(l, " @ "), strings.Contains(l, "; "), strings.Contains(l, " --"), strings.Contains(l, "git+"):
			sure = true
			continue
		}
		m := requirementHead().FindString(l)
		rest, _, _ := strings.Cut(l[len(m):], " #")
		rest = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "\\"))
		switch {
		case m == "":
		case strings.HasPrefix(rest, "=") && !strings.HasPrefix(rest, "=="), strings.Count(strings.TrimLeft(rest, "="), "=") == 1 && strings.HasPrefix(rest, "==") && !strings.Contains(rest, ","):
			return false // name=version=build, name==version=build
		case strings.HasPrefix(rest, "==") || strings.Contains(l, "["):
			maybe = true
		}
	}
	name := path.Base(file)
	return sure || maybe && strings.HasPrefix(name, "requirements") || strings.HasPrefix(name, "requirements") && !strings.HasSuffix(name, ".yml")
}

// requirements reads requirements.txt: what "pip freeze" and pip-compile write,
// with --hash, markers, continued lines and options. It loses python itself
// and every package that is not of pip.
func (r *reader) requirements(lines []string) {
	r.e.Format = "requirements.txt"
	r.settle()
	for i := 0; i < len(lines); i++ {
		first, text := i+1, lines[i]
		for strings.HasSuffix(text, "\\") && i+1 < len(lines) && len(text) <= maxLine {
			i++
			text = text[:len(text)-1] + lines[i]
		}
		r.addRequirement(first, strings.TrimSuffix(text, "\\"))
	}
}

// addRequirement reads one line of a requirements file, which environment.yml
// has below "pip:" as well.
func (r *reader) addRequirement(line int, text string) {
	if strings.HasPrefix(strings.TrimSpace(text), "#") {
		return
	}
	if i := strings.Index(text, " #"); i >= 0 {
		text = text[:i]
	}
	text = strings.TrimSpace(text)
	switch {
	case text == "":
	case strings.HasPrefix(text, "-"):
		r.pipOption(line, text)
	default:
		p, err := parseRequirement(text)
		if err != nil {
			r.wrong(line, "%q: %v", short(hideText(text)), err)
			return
		}
		p.Line = line
		r.keepRequirement(p)
	}
}

// keepRequirement evaluates the marker, as far as the platform decides it.
func (r *reader) keepRequirement(p PipRequirement) {
	if p.Marker != "" {
		switch v, err := evaluateMarker(p.Marker, markerValues(r.target)); {
		case err != nil:
			r.wrong(p.Line, "%s: its marker %q: %v", p, short(p.Marker), err)
			return
		case v == no:
			r.note(p.Line, "%s is not for %s (%s) and is left out", p, r.target, short(p.Marker))
			return
		case v == yes:
			p.Marker = ""
		}
	}
	r.e.Pip = append(r.e.Pip, p)
}

// pipOption reads a line that begins with "-".
func (r *reader) pipOption(line int, text string) {
	name, arg, _ := strings.Cut(text, " ")
	if n, a, ok := strings.Cut(name, "="); ok && strings.HasPrefix(name, "--") {
		name, arg = n, a
	} else if len(name) > 2 && !strings.HasPrefix(name, "--") { // -rFILE
		name, arg = name[:2], name[2:]
	}
	arg = strings.TrimSpace(arg)
	needs := func(list *[]string) {
		if arg == "" {
			r.wrong(line, "%s has no value", name)
			return
		}
		*list = append(*list, arg)
	}
	switch name {
	case "-i", "--index-url":
		var v []string
		if needs(&v); len(v) > 0 {
			r.e.PipIndex.URL = arg
		}
	case "--extra-index-url":
		needs(&r.e.PipIndex.Extra)
	case "-f", "--find-links":
		needs(&r.e.PipIndex.FindLinks)
	case "--no-index":
		r.e.PipIndex.NoIndex = true
	case "-e", "--editable":
		p, err := parseRequirement(arg)
		if err != nil {
			r.wrong(line, "%q: %v", short(hideText(text)), err)
			return
		}
		p.Line, p.Editable = line, true
		r.keepRequirement(p)
	case "-r", "--requirement", "-c", "--constraint":
		r.wrong(line, "%s %s names another file, which hpcc does not follow; put its lines in the place of this one", name, short(arg))
	case "--trusted-host":
		r.wrong(line, "--trusted-host is refused: packages are not fetched without TLS being checked; take the line out")
	case "--require-hashes", "--prefer-binary", "--only-binary", "--pre", "--use-pep517", "--no-binary", "--use-feature":
		r.note(line, "%s is not used", name)
	default:
		r.wrong(line, "%q is no option of requirements files that hpcc knows; take the line out", short(name))
	}
}

// parseRequirement reads a requirement (PEP 508), a URL or a path, with its
// --hash options.
func parseRequirement(text string) (p PipRequirement, err error) {
	if len(text) > maxLine {
		return p, fmt.Errorf("the line has more than %d bytes", maxLine)
	}
	if text, p.Hashes, err = cutHashes(text); err != nil {
		return p, err
	}
	spec := text
	if i := strings.Index(text, ";"); i >= 0 && (!strings.Contains(text, "://") || i > 0 && (text[i-1] == ' ' || text[i-1] == '\t')) {
		spec, p.Marker = strings.TrimSpace(text[:i]), strings.TrimSpace(text[i+1:])
		if p.Marker == "" {
			return p, fmt.Errorf("nothing stands behind \";\"")
		}
	}
	if isLocation(spec) {
		p.URL = spec
		p.Name = nameInURL(spec)
		return p, nil
	}
	m := requirementHead().FindStringSubmatch(spec)
	if m == nil {
		return p, fmt.Errorf("not a requirement of pip: name==version, name @ URL, or a URL")
	}
	p.Name = m[1]
	for _, x := range strings.Split(m[2], ",") {
		if x = strings.TrimSpace(x); x != "" {
			p.Extras = append(p.Extras, x)
		}
	}
	rest := strings.TrimSpace(spec[len(m[0]):])
	if strings.HasPrefix(rest, "(") && strings.HasSuffix(rest, ")") { // an older way to write it
		rest = strings.TrimSpace(rest[1 : len(rest)-1])
	}
	switch u, direct := strings.CutPrefix(rest, "@"); {
	case direct:
		p.URL = strings.TrimSpace(u)
		if p.URL == "" || strings.ContainsAny(p.URL, " \t") {
			return p, fmt.Errorf("no URL stands behind \"@\"")
		}
	case rest == "":
	case !specifier().MatchString(rest):
		return p, fmt.Errorf("%q is no version specifier; write ==1.2 or >=1,<2", short(rest))
	default:
		p.Version = strings.Join(strings.Fields(rest), "")
	}
	return p, nil
}

// cutHashes takes the --hash options from the end of a line.
func cutHashes(text string) (string, []string, error) {
	var hashes []string
	head, rest, ok := strings.Cut(text, " --")
	if !ok {
		return strings.TrimSpace(text), nil, nil
	}
	for _, o := range strings.Split(rest, " --") {
		name, v, _ := strings.Cut(strings.Replace(strings.TrimSpace(o), " ", "=", 1), "=")
		switch {
		case name != "hash":
			return "", nil, fmt.Errorf("--%s is not supported for one package; take it out", short(name))
		case !pipHash().MatchString(v):
			return "", nil, fmt.Errorf("%q is no sha256, sha384 or sha512", short(v))
		}
		hashes = append(hashes, v)
	}
	return strings.TrimSpace(head), hashes, nil
}

// isLocation tells a URL or a path from a name.
func isLocation(s string) bool {
	if i := strings.Index(s, "://"); i >= 0 && !strings.ContainsAny(s[:i], " @[") {
		return true
	}
	return strings.HasPrefix(s, ".") || strings.HasPrefix(s, "/") || strings.HasPrefix(s, "~") || strings.HasPrefix(s, "git+") ||
		strings.HasSuffix(s, ".whl") && !strings.ContainsAny(s, " @")
}

// nameInURL is the package that a URL names: #egg=NAME, or the file name of a wheel.
func nameInURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	name := ""
	for _, kv := range strings.Split(u.Fragment, "&") {
		if v, ok := strings.CutPrefix(kv, "egg="); ok {
			name, _, _ = strings.Cut(v, "[")
		}
	}
	if f := strings.Split(path.Base(u.Path), "-"); name == "" && len(f) >= 5 && strings.HasSuffix(u.Path, ".whl") {
		name = f[0]
	}
	if requirementHead().FindString(name) != name {
		return ""
	}
	return name
}

// hideText takes credentials out of a line that holds a URL.
func hideText(s string) string {
	f := strings.Fields(s)
	for i, w := range f {
		if strings.Contains(w, "://") {
			f[i] = hide(w)
		}
	}
	return strings.Join(f, " ")
}

// normalName is the name under which an index has a package (PEP 503).
func normalName(s string) string {
	return strings.Join(slices.DeleteFunc(strings.FieldsFunc(strings.ToLower(s), func(c rune) bool { return c == '-' || c == '_' || c == '.' }), func(s string) bool { return s == "" }), "-")
}
