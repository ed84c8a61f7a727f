package exports

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/input"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
	"hpcc/text"
)

// The lock files of uv, poetry and pip (PEP 751) list all platforms and pythons together. Each
// package becomes a row with its archives, or with their digests and an index. Package pip
// evaluates the markers and chooses the archives as soon as the version of python is known.

// oneOf refuses a version of a lock file that is not supported. rewrite is the command that
// writes a supported one.
func (r *reader) oneOf(n *yaml.Node, format, rewrite string, supported ...string) bool {
	if n != nil && slices.Contains(supported, n.Value) {
		return true
	}
	line, version := 1, ""
	if n != nil {
		line, version = n.Line, n.Value
	}
	r.wrong(line, "unsupported version %q of %s: want %s; rewrite the file with %s", text.Short(version),
		format, input.List(supported), rewrite)
	return false
}

// pythons sets the versions of python that the file allows: a specifier (PEP 440), or a
// constraint of poetry.
func (r *reader) pythons(n *yaml.Node) {
	if n == nil {
		return
	}
	var all []string
	alternatives, err := constraints(n.Value)
	for _, a := range alternatives {
		for i := range a {
			if v, ok := strings.CutPrefix(a[i], "=="); ok {
				a[i] = strings.TrimPrefix(v, "=")
				if !strings.HasSuffix(a[i], "*") {
					a[i] = "==" + a[i]
				}
			}
		}
		all = append(all, strings.Join(a, ","))
	}
	if err != nil || slices.Contains(all, "") {
		all = nil // any version
	}
	text := "python" + strings.Join(all, "|")
	if len(all) > 0 && strings.IndexByte("=<>!~", all[0][0]) < 0 {
		text = "python " + text[len("python"):]
	}
	if err == nil {
		_, err = solve.ParseSpec(text)
	}
	if err != nil {
		r.wrong(n.Line, "the versions of python: %v", err)
		return
	}
	r.e.Python = []Spec{{Line: n.Line, Text: text}}
}

// constraintTerm matches an operator of poetry or PEP 440 with a version.
var constraintTerm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(\^|~=|~|===|==|!=|<=|>=|<|>|=|)\s*([0-9A-Za-z]+(?:[.+!_-][0-9A-Za-z]+)*(?:\.\*)?|\*)[\s,]*`)
})

// constraints parses a constraint of poetry, of which specifiers (PEP 440) are a part. It returns
// the alternatives, each as clauses of a specifier; no clauses: any version.
func constraints(versions string) (out [][]string, err error) {
	for alternative := range strings.SplitSeq(strings.ReplaceAll(versions, "||", "|"), "|") {
		clauses := []string{}
		for rest := strings.TrimSpace(alternative); rest != ""; {
			m := constraintTerm().FindStringSubmatch(rest)
			if m == nil {
				return nil, fmt.Errorf("%q: not a constraint such as >=3.9,<4", text.Short(versions))
			}
			rest = rest[len(m[0]):]
			c, err := clausesOf(m[1], m[2])
			if err != nil {
				return nil, fmt.Errorf("%q: %w", text.Short(versions), err)
			}
			clauses = append(clauses, c...)
		}
		out = append(out, clauses)
	}
	return out, nil
}

// clausesOf returns one constraint as clauses of a specifier.
func clausesOf(op, version string) ([]string, error) {
	switch {
	case version == "*":
		return nil, nil
	case op == "" || op == "=":
		return []string{"==" + version}, nil
	case op != "^" && op != "~":
		return []string{op + version}, nil
	}
	var numbers []int
	for part := range strings.SplitSeq(version, ".") {
		digits := part[:input.Digits(part)]
		n, err := strconv.Atoi(digits)
		if err != nil {
			return nil, fmt.Errorf("%s%s: not a version", op, version)
		}
		if numbers = append(numbers, n); digits != part {
			break // a pre-release
		}
	}
	at := min(1, len(numbers)-1) // ~1.2.3 allows changes of the third number, ~1 those of the second
	if op == "^" {               // the first number that is not 0 must not change
		if at = slices.IndexFunc(numbers, func(n int) bool { return n > 0 }); at < 0 {
			at = len(numbers) - 1
		}
	}
	upper := ""
	for i := range at + 1 {
		n := numbers[i]
		if i == at {
			n++
		}
		upper += fmt.Sprintf(".%d", n)
	}
	return []string{">=" + version, "<" + upper[1:]}, nil
}

// hash returns a digest of a lock file as "sha256:…", or "" if it is invalid.
func (r *reader) hash(line int, algorithm, sum string) string {
	sizes := map[string]int{"md5": 32, "sha1": 40, "sha224": 56, "sha256": 64, "sha384": 96, "sha512": 128}
	if n := sizes[algorithm]; n == 0 || sum == "" || !isDigest(sum, n) {
		r.wrong(line, "invalid digest %q", text.Short(algorithm+":"+sum))
		return ""
	}
	return algorithm + ":" + strings.ToLower(sum)
}

// hashes returns the digests of an archive: hash = "sha256:…", or hashes = {sha256 = "…"}.
func (r *reader) hashes(n *yaml.Node) (out []string) {
	if h := find(n, "hash"); h != nil {
		algorithm, sum, _ := strings.Cut(h.Value, ":")
		out = append(out, r.hash(h.Line, algorithm, sum))
	}
	all := find(n, "hashes")
	for i := 0; all != nil && all.Kind == yaml.MappingNode && i+1 < len(all.Content); i += 2 {
		out = append(out, r.hash(all.Line, all.Content[i].Value, all.Content[i+1].Value))
	}
	return out
}

// lockedRow returns the row of a package without its location. It refuses packages without a
// name.
func (r *reader) lockedRow(n *yaml.Node) (p pip.Requirement, ok bool) {
	p = pip.Requirement{Line: n.Line, Name: value(n, "name"), Locked: true}
	switch v := value(n, "version"); {
	case n.Kind != yaml.MappingNode:
		r.wrong(n.Line, "not the description of a package")
		return p, false
	case !p.ValidName():
		r.wrong(n.Line, "invalid package name %q", text.Short(p.Name))
		return p, false
	case v != "" && !pip.IsVersion(v):
		r.wrong(find(n, "version").Line, "%s: invalid version %q", p.Name, text.Short(v))
		return p, false
	case v != "":
		p.Specifier = "==" + v
	}
	return p, true
}

// archive returns an archive of a package at a URL, or at a path relative to the directory dir of
// the file.
func (r *reader) archive(n *yaml.Node, dir string) (f pip.Requirement, ok bool) {
	f = pip.Requirement{Line: n.Line, Name: value(n, "name"), URL: value(n, "url"), Hashes: r.hashes(n), Locked: true}
	if f.URL == "" && value(n, "path") != "" {
		f.URL = pathBelow(dir, value(n, "path"))
	}
	if f.URL == "" {
		r.wrong(n.Line, "an archive without url and path")
		return f, false
	}
	f.Size = fileSize(n)
	return f, true
}

// fileSize returns the size of an archive, or 0 if it is unknown.
func fileSize(n *yaml.Node) int64 {
	size, _ := strconv.ParseInt(value(n, "size"), 10, 64)
	return max(size, 0)
}

// pathBelow returns a path that is relative to dir, in a form that no URL has.
func pathBelow(dir, path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	dir = strings.TrimSuffix(strings.TrimPrefix(dir, "./"), "/")
	if dir == "" || dir == "." {
		return "./" + path
	}
	if strings.HasPrefix(dir, "/") {
		return dir + "/" + path
	}
	return "./" + dir + "/" + path
}

// archives sets the archives of a package with a version from its "wheels" and "sdist".
func (r *reader) archives(p *pip.Requirement, n *yaml.Node, dir string) bool {
	list := items(find(n, "wheels"))
	if sdist := find(n, "sdist"); sdist != nil {
		list = append(slices.Clip(list), sdist)
	}
	for _, a := range list {
		f, ok := r.archive(a, dir)
		if !ok {
			return false
		}
		p.Files = append(p.Files, f)
	}
	switch {
	case p.Specifier == "":
		r.wrong(p.Line, "%s has no version", p.Name)
	case len(p.Files) == 0:
		r.wrong(p.Line, "%s has neither wheels nor an sdist", p.Name)
	default:
		return true
	}
	return false
}

// atSubdirectory adds the directory of the package in an archive or repository to its URL.
func atSubdirectory(location, dir string) string {
	if dir == "" || dir == "." {
		return location
	}
	return location + "#subdirectory=" + (&url.URL{Fragment: dir}).EscapedFragment()
}

// repository returns the URL of a commit of a git repository, as pip writes it.
func repository(location, commit, dir string) string {
	return atSubdirectory("git+"+location+"@"+commit, dir)
}

// sources notes that a directory of sources is not installed.
func (r *reader) sources(line int, name, dir string) {
	r.note(line, "%s is a directory of sources (%s) and is not installed; copy it in a Dockerfile after \"FROM conda\", as in COPY %s /src/%s and RUN pip install --no-deps /src/%s", name, text.Short(dir), text.Short(cmp.Or(dir, ".")), name, name)
}

// maxForks limits the packages of one name, and maxExtras the extras of a package. Walks through
// dependencies take time in proportion.
const (
	maxForks  = 50
	maxExtras = 1000
)

// tooMany refuses names with more packages or extras than any tool writes.
func (r *reader) tooMany(p pip.Requirement, forks, extras int) bool {
	if forks <= maxForks && extras <= maxExtras {
		return false
	}
	r.wrong(p.Line, "%s has more than %d packages or %d extras; check that a tool wrote the file", p.Name, maxForks, maxExtras)
	return true
}

// hasLocked refuses a lock file of which nothing remains to install.
func (r *reader) hasLocked() {
	if len(r.bad.Texts) == 0 && !slices.ContainsFunc(r.e.Pip, func(p pip.Requirement) bool { return !p.Virtual }) {
		text := strings.Join(append(r.left, "add one to the project's dependencies and lock again"), "; ")
		r.wrong(1, "no packages remain to be installed for %s: %s", r.target, text)
	}
}

// leftOut notes groups and extras that are not installed.
func (r *reader) leftOut(line int, what string, names []string) {
	if names = slices.Compact(slices.Sorted(slices.Values(names))); len(names) > 0 {
		r.left = append(r.left, fmt.Sprintf("the packages of %s are left out: %s", what, input.Join(names, "and", maxNames)))
		r.note(line, "%s", r.left[len(r.left)-1])
	}
}

// maxNames limits the names of groups in a note.
const maxNames = 20

// values returns the texts of a list.
func values(n *yaml.Node) (out []string) {
	for _, x := range items(n) {
		out = append(out, x.Value)
	}
	return out
}

// environments refuses a file that was locked for other platforms, by its markers.
func (r *reader) environments(n *yaml.Node) {
	list := items(n)
	for _, x := range list {
		holds, known, err := pip.Requirement{Marker: x.Value, Locked: true}.Decide(r.target)
		if err != nil {
			r.wrong(x.Line, "%v", err)
			return
		}
		if holds || !known {
			return
		}
	}
	if len(list) > 0 {
		r.wrong(n.Line, "the file was locked for other environments than %s: %s; add one for it and lock again",
			r.target, input.List(values(n)))
	}
}

// condition checks a marker and adds that of an extra.
func condition(marker, extra string) (string, error) {
	if marker != "" {
		if _, _, err := (pip.Requirement{Marker: marker, Locked: true}).Decide("linux-64"); err != nil {
			return "", err
		}
	}
	switch {
	case extra == "":
		return marker, nil
	case !(pip.Requirement{Name: extra}).ValidName():
		return "", errors.New("invalid extra " + strconv.Quote(text.Short(extra)))
	case marker == "":
		return fmt.Sprintf("extra == %q", extra), nil
	}
	return fmt.Sprintf("(%s) and extra == %q", marker, extra), nil
}
