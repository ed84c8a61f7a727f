// Package exports reads environments that tools wrote down, and writes lock files.
//
//	list, @EXPLICIT, environment.yml, conda-lock.yml, pixi.lock, requirements.txt → Read → Export
//	an environment on disk → ReadPrefix → Export
//
// [Read] finds out the format from the content. Mistakes are reported together, each with
// its line; what of a file is not used is a note. Files are not trusted: their size,
// lines and nesting are bounded. Nothing is looked up or fetched here.
package exports

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/pip"
	"hpcc/store/wait"
)

// An Export is an environment as a tool wrote it down. What a format cannot
// say stays empty; each reader's comment tells what its format loses.
type Export struct {
	File       string // its name in messages
	Format     string // what it is, for people: "conda list -e", "pixi.lock 6", …
	Subdir     string // the platform it was written on, such as linux-64; "" when it does not say
	Explicit   bool   // every entry is a URL and for the target: nothing is to be looked up
	Entries    []Entry
	Specs      []Spec            // packages that it names without saying which exactly
	Channels   []string          // in order; "nodefaults" and "defaults" stand where the file has them
	Pip        []pip.Requirement // what pip installed, or is to
	PipOpen    bool              // what the packages of Pip need besides is to be looked for, as pip does
	PipIndexes pip.Indexes       // where the file has pip look
	Variables  map[string]string // to be set in the environment
	Base       []Entry           // packages of the image below it, as [ResolveBase] planned them when the export was locked
	Notes      []string          // what of the file is not used, for people, each with FILE:LINE
}

// An Entry is one package of an export, known by version and build.
type Entry struct {
	Line    int
	Channel string // "channel::name=…" or a URL; "" when the export does not say
	Name    string
	Version string
	Build   string // "" in hand-written lists
	URL     string // of explicit entries
	MD5     string // hex; "" when the line has none
	SHA256  string
	Size    int64 // bytes of the archive; 0 when the export does not say
}

// A Spec is a package that an export names by conditions.
type Spec struct {
	Line int
	Text string // a MatchSpec (CEP 29), as it stands in the file
	// Asked marks what a user once asked for in an environment whose entries
	// answer it: it says which packages matter, not what is missing.
	Asked bool
}

func (e Entry) String() string {
	if e.URL != "" {
		return e.URL
	}
	return strings.TrimSuffix(e.Name+"="+e.Version+"="+e.Build, "=")
}

// Bounds of an export.
const (
	maxExport = 16 << 20
	maxLine   = 64 << 10
)

// A LineError is an export that cannot be used, with the lines at fault.
type LineError struct {
	File string
	Line int // the first of them; 0 when it is not a matter of lines
	Err  error
}

func (e *LineError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

func (e *LineError) Unwrap() error { return e.Err }

// ReadOptions choose what of a file is read.
type ReadOptions struct {
	// Subdir is the platform that the image is for, such as linux-64: files
	// for several platforms are read for it, selectors and markers hold for it.
	// "" is the platform that the file was written on, else linux-64.
	Subdir string
	// Environment is one of several that a pixi.lock has; "" is "default".
	Environment string
}

// ReadFile reads the export in a file, as Read does.
func ReadFile(name string, o ReadOptions) (*Export, error) {
	f, err := wait.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening the export: %w", err)
	}
	defer f.Close()
	return Read(f, name, o)
}

// Read reads an export of any format; which, its content says, and its name
// where the content does not. file is its name in messages. What cannot be
// used is told at once, as a [LineError]; what is not used stands in Notes.
func Read(in io.Reader, file string, o ReadOptions) (*Export, error) {
	lines, err := readLines(in)
	if err != nil {
		return nil, &LineError{file, len(lines) + 1, fmt.Errorf("reading the export: %w", err)}
	}
	r := &reader{e: &Export{File: file}, target: o.Subdir, environment: o.Environment}
	r.read(lines)
	return r.done(len(lines))
}

// A reader collects what a file says, and what is wrong with it.
type reader struct {
	e           *Export
	target      string // the platform to read for; "" until known
	environment string
	bad         input.Faults
}

// wrong keeps a mistake of the file; all are told together.
func (r *reader) wrong(line int, format string, a ...any) {
	r.bad.Add(line, fmt.Sprintf(format, a...))
}

// note tells what of the file is not used.
func (r *reader) note(line int, format string, a ...any) {
	r.e.Notes = append(r.e.Notes, (&LineError{r.e.File, line, fmt.Errorf(format, a...)}).Error())
}

// settle chooses the platform to read for, once the file has said its own.
func (r *reader) settle() {
	switch {
	case r.target != "":
	case r.e.Subdir != "":
		r.target = r.e.Subdir
	default:
		r.target = "linux-64"
	}
}

// read finds the format out and reads it.
func (r *reader) read(lines []string) {
	first := ""
	for _, l := range lines {
		if t := strings.TrimSpace(l); t != "" && !strings.HasPrefix(t, "#") && t != "---" {
			first = t
			break
		}
	}
	switch {
	case slices.ContainsFunc(lines, func(l string) bool { return strings.TrimSpace(l) == "@EXPLICIT" }): // it speaks of the whole file
		r.explicit(lines)
	case strings.HasPrefix(first, "{") || strings.HasPrefix(first, "[") || yamlKey().MatchString(first):
		r.document(lines)
	case isHuman(lines):
		r.human(lines)
	case isRequirements(lines, r.e.File):
		r.requirements(lines)
	default:
		r.list(lines)
	}
}

// yamlKey is how a line of YAML begins that is not a line of a list.
var yamlKey = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:[A-Za-z_][A-Za-z_-]*|"[a-z_-]+")\s*:(?:\s|$)`)
})

// done tells the mistakes, or gives the export.
func (r *reader) done(lines int) (*Export, error) {
	e := r.e
	if len(r.bad.Texts) == 0 {
		r.unique()
		r.foreign()
	}
	switch {
	case len(r.bad.Texts) > 0:
		return nil, &LineError{e.File, r.bad.Line, errors.New(r.bad.Join("; "))}
	case len(e.Entries)+len(e.Specs)+len(e.Pip) == 0:
		return nil, &LineError{e.File, max(lines, 1), errors.New("the export lists no package; write it with \"conda list -e\" or \"conda list --explicit\"")}
	}
	return e, nil
}

// foreign tells that an export is from a system whose names differ.
func (r *reader) foreign() {
	if s, _, _ := strings.Cut(r.e.Subdir, "-"); (s == "win" || s == "osx") && !strings.HasPrefix(r.target, s) {
		r.note(0, "it was written on %s; packages of that system alone (vc, ucrt, m2w64-*, libcxx, …) have other names on %s: take out those that are missing there", r.e.Subdir, r.target)
	}
}

// unique refuses two lines for one package.
func (r *reader) unique() {
	seen := map[string]int{}
	for _, x := range r.e.Entries {
		if before, ok := seen[x.Name]; ok {
			r.wrong(x.Line, "package %s stands in line %d already; take one of them out", x.Name, before)
		}
		seen[x.Name] = x.Line
	}
}

// Wishes are the specs that the entries do not answer.
func (e *Export) Wishes() []Spec {
	return slices.DeleteFunc(slices.Clone(e.Specs), func(s Spec) bool { return s.Asked })
}

// readLines reads an export's lines, without the mark that some editors put
// before the first.
func readLines(r io.Reader) ([]string, error) {
	limited := &io.LimitedReader{R: r, N: maxExport + 1}
	sc := bufio.NewScanner(limited)
	sc.Buffer(make([]byte, 0, 4096), maxLine)
	var out []string
	for sc.Scan() {
		line := sc.Text()
		if len(out) == 0 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		out = append(out, line)
	}
	if errors.Is(sc.Err(), bufio.ErrTooLong) {
		return out, fmt.Errorf("the line has more than %d bytes: is this an export?", maxLine)
	}
	if limited.N <= 0 {
		return out, fmt.Errorf("it has more than %d bytes: is this an export?", maxExport)
	}
	return out, sc.Err()
}

// isPip tells the fake builds of packages that pip installed.
func isPip(build string) bool { return build == "pypi_0" || build == "dev_0" || build == "<pip>" }

// subdirs are conda's names for the platforms of images.
var subdirs = map[string]string{
	"amd64": "linux-64", "arm64": "linux-aarch64", "ppc64le": "linux-ppc64le", "s390x": "linux-s390x", "riscv64": "linux-riscv64", "386": "linux-32",
}

// Subdir is conda's name for a platform, such as linux-ppc64le.
func Subdir(p v1.Platform) (string, error) {
	if s, ok := subdirs[p.Architecture]; ok && p.OS == "linux" {
		return s, nil
	}
	return "", fmt.Errorf("conda has no packages for platform %s", p.String())
}

// isDigest tells whether s is empty or n hex digits.
func isDigest(s string, n int) bool {
	_, err := hex.DecodeString(s)
	return s == "" || (len(s) == n && err == nil)
}

// hideText takes credentials out of a line that holds a URL.
func hideText(s string) string {
	f := strings.Fields(s)
	for i, w := range f {
		if strings.Contains(w, "://") {
			f[i] = fetch.Hide(w)
		}
	}
	return strings.Join(f, " ")
}
