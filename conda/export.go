// Package conda turns a conda export into image layers, without conda, without
// running anything, for any architecture.
//
// The way is Read → Resolve → Layers. [Read] understands "conda list -e" and
// "@EXPLICIT" files. [Resolve] looks every entry up in the channels; nothing is
// solved. [Plan.Layers] fetches the packages, verifies them, puts the prefix
// where packages have a placeholder, and writes layers whose digests depend on
// the packages and the prefix alone.
//
// Channels and packages are not trusted: every byte is checked against the
// export's or the index's digest, every path must stay in the prefix, sizes
// are bounded, scripts that packages want run are listed and not run.
package conda

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// An Export is a list of packages as a tool wrote it.
type Export struct {
	File     string
	Subdir   string // the platform it was written on, such as linux-64; "" when it does not say
	Explicit bool   // the entries are URLs
	Entries  []Entry
}

// An Entry is one line of an export.
type Entry struct {
	Line    int
	Channel string // "channel::name=…", else ""
	Name    string
	Version string
	Build   string // "" in hand-written lists
	URL     string // of explicit entries
	MD5     string // hex; "" when the line has none
	SHA256  string
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
	Line int // the first of them
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

var (
	// CEP 26: names of packages.
	nameText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_](?:[a-zA-Z0-9_.-]*[a-zA-Z0-9_])?$`) })
	// CEP 33: versions; CEP 26: build strings.
	versionText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_.+!-]{1,64}$`) })
	buildText   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_.+]{1,64}$`) })
	// CEP 23: the line of an explicit file.
	urlLine = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(.+[/\\])?([^/\\#]+(?:\.tar\.bz2|\.conda))(?:#(?:([0-9a-f]{32})|(?:sha256:)?([0-9a-f]{64})))?$`)
	})
)

// Read reads an export. file is its name in messages. Rows of pip packages and
// lines that are neither are refused, all at once, as a [LineError].
func Read(r io.Reader, file string) (*Export, error) {
	e := &Export{File: file}
	text, err := readLines(r)
	if err != nil {
		return nil, &LineError{file, len(text) + 1, fmt.Errorf("reading the export: %w", err)}
	}
	e.Explicit = slices.Contains(text, "@EXPLICIT") // it speaks of the whole file
	var pip, bad faults
	for i, line := range text {
		switch {
		case line == "" || line == "@EXPLICIT":
		case strings.HasPrefix(line, "#"):
			if p, ok := strings.CutPrefix(line, "# platform:"); ok {
				e.Subdir = strings.TrimSpace(p)
			}
		default:
			x, err := parseLine(line, e.Explicit)
			x.Line = i + 1
			switch {
			case err != nil:
				bad.add(x.Line, fmt.Sprintf("%q: %v", short(line), err))
			case isPip(x.Build):
				pip.add(x.Line, x.Name+"=="+x.Version)
			default:
				e.Entries = append(e.Entries, x)
			}
		}
	}
	switch {
	case len(bad.texts) > 0 && slices.Contains(text, "dependencies:"):
		return nil, &LineError{file, bad.line, errors.New("it looks like an environment.yml, which does not say which packages were installed; write the export with \"conda list -e\" or \"conda list --explicit\"")}
	case len(bad.texts) > 0:
		return nil, &LineError{file, bad.line, errors.New(bad.join("; "))}
	case len(pip.texts) > 0:
		return nil, &LineError{file, pip.line, fmt.Errorf("%d packages were installed by pip, which is not supported yet: %s; take these lines out and install them in a Dockerfile (FROM the image, RUN pip install)", len(pip.texts), strings.Join(pip.texts, " "))}
	case len(e.Entries) == 0:
		return nil, &LineError{file, max(len(text), 1), errors.New("the export lists no package; write it with \"conda list -e\" or \"conda list --explicit\"")}
	}
	if err := unique(e); err != nil {
		return nil, err
	}
	return e, nil
}

// faults are lines of an export that cannot be used, for one reason.
type faults struct {
	line  int // the first of them
	texts []string
}

func (f *faults) add(line int, text string) {
	if f.line == 0 {
		f.line = line
	}
	f.texts = append(f.texts, text)
}

// join lists as many as a person reads.
func (f *faults) join(sep string) string {
	const most = 20
	if n := len(f.texts) - most; n > 0 {
		return strings.Join(f.texts[:most], sep) + fmt.Sprintf("%sand %d lines more", sep, n)
	}
	return strings.Join(f.texts, sep)
}

// readLines reads an export's lines, without blanks around them and without
// the mark that some editors put before the first.
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
		out = append(out, strings.TrimSpace(line))
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

func short(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// parseLine reads name=version=build, or a URL of an explicit file.
func parseLine(line string, explicit bool) (Entry, error) {
	if explicit {
		return parseURL(line)
	}
	var e Entry
	if strings.Contains(line, "://") && !strings.Contains(line, "::") {
		return e, fmt.Errorf("a URL needs the line @EXPLICIT above it")
	}
	spec := line
	if ch, rest, ok := strings.Cut(spec, "::"); ok {
		e.Channel, spec = ch, rest
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
	switch {
	case !nameText().MatchString(e.Name):
		return e, fmt.Errorf("%q is no package name", short(e.Name))
	case !versionText().MatchString(e.Version):
		return e, fmt.Errorf("%q is no exact version", short(e.Version))
	case e.Build != "" && !isPip(e.Build) && !buildText().MatchString(e.Build):
		return e, fmt.Errorf("%q is no build string", short(e.Build))
	}
	return e, nil
}

// parseURL reads URL[#md5|#sha256:…]; name, version and build are in the file name.
func parseURL(line string) (Entry, error) {
	m := urlLine().FindStringSubmatch(line)
	if m == nil {
		return Entry{}, fmt.Errorf("not the URL of a package (.conda or .tar.bz2, with #md5 or #sha256)")
	}
	e := Entry{URL: m[1] + m[2], MD5: m[3], SHA256: m[4]}
	if strings.Contains(e.URL, "<TOKEN>") {
		return e, fmt.Errorf("its token was taken out when it was written; put yours in the place of <TOKEN>")
	}
	fn, err := url.PathUnescape(m[2]) // "!" and "+" of versions
	if err != nil {
		return e, fmt.Errorf("reading the URL: %w", err)
	}
	var ok bool
	if e.Name, e.Version, e.Build, ok = splitFile(fn); !ok {
		return e, fmt.Errorf("the file name is not name-version-build")
	}
	return e, nil
}

// splitFile takes a package's file name apart: from the right, at "-", twice.
func splitFile(fn string) (name, version, build string, ok bool) {
	fn = strings.TrimSuffix(strings.TrimSuffix(path.Base(fn), ".conda"), ".tar.bz2")
	i := strings.LastIndexByte(fn, '-')
	if i < 0 {
		return "", "", "", false
	}
	build, fn = fn[i+1:], fn[:i]
	if i = strings.LastIndexByte(fn, '-'); i < 0 {
		return "", "", "", false
	}
	name, version = fn[:i], fn[i+1:]
	return name, version, build, nameText().MatchString(name) && versionText().MatchString(version) && buildText().MatchString(build)
}

// unique refuses two lines for one package.
func unique(e *Export) error {
	seen := map[string]int{}
	for _, x := range e.Entries {
		if before, ok := seen[x.Name]; ok {
			return &LineError{e.File, x.Line, fmt.Errorf("package %s stands in line %d already", x.Name, before)}
		}
		seen[x.Name] = x.Line
	}
	return nil
}

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
