// Package exports reads the environments that other tools exported, and writes lock files.
//
//	list, @EXPLICIT, environment.yml, conda-lock.yml, pixi.lock, pixi.toml, requirements.txt → Read → Export
//	uv.lock, poetry.lock, pylock.toml → Read → Export
//	an environment on disk → ReadPrefix → Export
//
// [Read] detects the format from the content. It reports all mistakes together, each with
// its line; Notes list what is ignored. Files are not trusted: size, lines and nesting are
// limited. This package downloads nothing.
package exports

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf16"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
	"hpcc/files"
)

// An Export is an exported environment. Fields that a format lacks are empty; the comment
// of each reader lists them.
type Export struct {
	File        string // file name, or names, for messages
	Dir         string // directory of relative paths in an export of several files; else "": that of File
	Format      string // format, for people: "conda list -e", "pixi.lock 6", …
	Subdir      string // platform on which it was written, such as linux-64; "" if unknown
	Explicit    bool   // every entry has a URL and is for the target: no lookup is needed
	Entries     []Entry
	Specs       []Spec            // packages with version constraints
	Channels    []string          // in order; may include "nodefaults" and "defaults"
	Pip         []pip.Requirement // packages of pip
	Python      []Spec            // the versions of python that Pip needs
	Constraints []pip.Requirement // limit the versions of Pip and its dependencies; they install nothing
	PipOpen     bool              // resolve the dependencies of Pip, as pip does
	PipIndexes  pip.Indexes       // indexes of pip packages
	Variables   map[string]string // environment variables to set
	Base        []Entry           // packages of the base image, from [ResolveBase], if the export was locked with one
	Limits      []Spec            // limit packages that others need; they install nothing
	Virtual     []Entry           // virtual packages of the machines that the export is for
	Flexible    bool              // later channels may have packages that earlier ones have too
	Notes       []string          // what is ignored, for people, each with FILE:LINE
}

// An Entry is one package of an export, with exact version and build.
type Entry struct {
	File    string // that has the line, in an export of several files; else ""
	Line    int
	Channel string // "channel::name=…" or a URL; "" if unknown
	Name    string
	Version string
	Build   string // "" in hand-written lists
	URL     string // of explicit entries
	MD5     string // hex; "" if unknown
	SHA256  string
	Size    int64 // bytes of the archive; 0 if unknown
}

// A Spec is a package that an export names by constraints.
type Spec struct {
	File string // as in Entry
	Line int
	Text string // a MatchSpec (CEP 29), as written in the file
	// Asked marks a user's request in an installed environment whose entries already satisfy
	// it. It shows which packages matter and is not a missing package.
	Asked bool
}

func (e Entry) String() string {
	if e.URL != "" {
		return e.URL
	}
	return strings.TrimSuffix(e.Name+"="+e.Version+"="+e.Build, "=")
}

// Limits of an export.
const (
	maxExport = 16 << 20
	maxLine   = 64 << 10
)

// A LineError is the error for an unusable export, with the first bad line.
type LineError struct {
	File string
	Line int // first bad line; 0 if the error has no line
	Err  error
}

func (e *LineError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

func (e *LineError) Unwrap() error { return e.Err }

// ReadOptions select the part of a file to read.
type ReadOptions struct {
	// Subdir is the platform of the image, such as linux-64. It selects packages,
	// selectors and markers. "" is the platform that the file was written on, or else
	// linux-64.
	Subdir string
	// Environment selects an environment of a pixi.lock or pixi.toml; "" is "default".
	Environment string
	// Channels of the user, which replace those of the files.
	Channels []string
	// Virtual returns the virtual packages of the target machine. It is called only for files
	// that depend on them. nil: they are unknown.
	Virtual func() ([]*solve.Record, error)
	// Open opens the files that "-r" and "-c" rows name. nil: such rows are refused.
	Open func(name string) (io.ReadCloser, error)
}

// ReadFile reads the export in a file, as [Read] does, and the files that its "-r" and "-c" rows
// name.
func ReadFile(name string, o ReadOptions) (*Export, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening the export: %w", err)
	}
	defer f.Close()
	o.Open = openRegular
	return Read(f, name, o)
}

// Read reads an export. It detects the format from the content, or from the file name if
// the content is ambiguous. file is the name in messages. All mistakes are reported in one
// [LineError]; Notes list what is ignored.
func Read(in io.Reader, file string, o ReadOptions) (*Export, error) {
	lines, err := readLines(in)
	if err != nil {
		return nil, &LineError{file, len(lines) + 1, fmt.Errorf("reading the export: %w", err)}
	}
	r := &reader{e: &Export{File: file}, target: o.Subdir, environment: o.Environment, virtual: o.Virtual, open: o.Open}
	r.read(lines)
	return r.done(lines)
}

// A reader collects the content and the mistakes of a file.
type reader struct {
	e           *Export
	target      string // platform to read for; "" until known
	environment string
	virtual     func() ([]*solve.Record, error)
	bad         input.Faults
	left        []string // the groups and extras that are left out

	open     func(name string) (io.ReadCloser, error) // opens included files; nil: not allowed
	within   []include                                // the included files that are being read
	includes int                                      // number of included files
}

// wrong records a mistake; all are reported together.
func (r *reader) wrong(line int, format string, a ...any) {
	row, within := r.position(line)
	text := fmt.Sprintf(format, a...)
	if within != "" {
		text = within + ": " + text
	}
	r.bad.Add("", row, text)
}

// note records something that is ignored.
func (r *reader) note(line int, format string, a ...any) {
	r.e.Notes = append(r.e.Notes, (&LineError{r.file(), line, fmt.Errorf(format, a...)}).Error())
}

// settle sets the platform to read for, after the file's own is known.
func (r *reader) settle() {
	switch {
	case r.target != "":
	case r.e.Subdir != "":
		r.target = r.e.Subdir
	default:
		r.target = "linux-64"
	}
}

// read detects the format and reads the file.
func (r *reader) read(lines []string) {
	first := ""
	for _, l := range lines {
		if t := strings.TrimSpace(l); t != "" && !strings.HasPrefix(t, "#") && t != "---" {
			first = t
			break
		}
	}
	switch {
	case slices.ContainsFunc(lines, func(l string) bool { return strings.TrimSpace(l) == "@EXPLICIT" }): // @EXPLICIT applies to the whole file
		r.explicit(lines)
	case isTOML(first, lines, r.e.File):
		r.toml(lines)
	case strings.HasPrefix(first, "{") || strings.HasPrefix(first, "[") || yamlKey().MatchString(first):
		r.document(lines)
	case isListTable(lines):
		r.listTable(lines)
	case isPalette(lines):
		r.wrong(1, "the file lists colours, not packages; write an export with \"conda list -e\"")
	case isRequirements(lines, r.e.File):
		r.requirements(lines)
	default:
		r.list(lines)
	}
}

// yamlKey matches a YAML line with a key, which other formats do not have.
var yamlKey = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:[A-Za-z_][A-Za-z_-]*|"[a-z_-]+")\s*:(?:\s|$)`)
})

// done returns the mistakes or the export.
func (r *reader) done(lines []string) (*Export, error) {
	e := r.e
	if len(r.bad.Texts) == 0 {
		r.unique()
		r.foreign()
	}
	switch {
	case len(r.bad.Texts) > 0:
		if line, text := cause(lines); line > 0 {
			return nil, &LineError{e.File, line, errors.New(text)}
		}
		return nil, &LineError{e.File, r.bad.Line, errors.New(r.bad.Join("; "))}
	case len(e.Entries)+len(e.Specs)+len(e.Pip) == 0:
		return nil, &LineError{e.File, max(len(lines), 1),
			errors.New("the export lists no package; write it with \"conda list -e\" or \"conda list --explicit\"")}
	}
	return e, nil
}

// foreign notes that an export is from a system with different package names.
func (r *reader) foreign() {
	if s, _, _ := strings.Cut(r.e.Subdir, "-"); (s == "win" || s == "osx") && !strings.HasPrefix(r.target, s) {
		r.note(0, "the export was written on %s; packages for that system only (vc, ucrt, m2w64-*, libcxx, …) have other names on %s: remove those that are missing there", r.e.Subdir, r.target)
	}
}

// unique leaves out rows that repeat a package, with a note, and refuses those that differ.
func (r *reader) unique() {
	seen := map[string]Entry{}
	r.e.Entries = slices.DeleteFunc(r.e.Entries, func(x Entry) bool {
		before, repeated := seen[x.Name]
		seen[x.Name] = x
		if !repeated {
			return false
		}
		at := before.Line
		if before.Line = x.Line; before != x || at == x.Line {
			r.wrong(x.Line, "duplicate package %s, already in line %d; remove one of them", x.Name, at)
			return false
		}
		r.note(x.Line, "%s is already in line %d and is left out", x, at)
		return true
	})
}

// UnmetSpecs returns the specs that the entries do not satisfy.
func (e *Export) UnmetSpecs() []Spec {
	return slices.DeleteFunc(slices.Clone(e.Specs), func(s Spec) bool { return s.Asked })
}

// readLines reads an export's lines, without the byte order mark that some editors write. A file
// in UTF-16, which PowerShell writes for ">", needs its byte order mark.
func readLines(r io.Reader) ([]string, error) {
	limited := &io.LimitedReader{R: r, N: maxExport + 1}
	text := bufio.NewReader(limited)
	sc := bufio.NewScanner(text)
	if mark, _ := text.Peek(2); bytes.Equal(mark, []byte("\xff\xfe")) || bytes.Equal(mark, []byte("\xfe\xff")) {
		b, err := io.ReadAll(text)
		if err != nil {
			return nil, err
		}
		sc = bufio.NewScanner(strings.NewReader(fromUTF16(b)))
	}
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
		return out, fmt.Errorf("line longer than %d bytes; check that the file is an export", maxLine)
	}
	if limited.N <= 0 {
		return out, fmt.Errorf("larger than %d bytes; check that the file is an export", maxExport)
	}
	return out, sc.Err()
}

// fromUTF16 decodes a text in UTF-16 that begins with a byte order mark.
func fromUTF16(b []byte) string {
	order := binary.ByteOrder(binary.LittleEndian)
	if b[0] == 0xfe {
		order = binary.BigEndian
	}
	var units []uint16
	for ; len(b) >= 2; b = b[2:] {
		units = append(units, order.Uint16(b))
	}
	return string(utf16.Decode(units))
}

// isPip reports whether a build string marks a package that pip installed.
func isPip(build string) bool { return build == "pypi_0" || build == "dev_0" || build == "<pip>" }

// subdirs maps platforms of images to conda's names.
var subdirs = map[string]string{
	"amd64": "linux-64", "arm64": "linux-aarch64", "ppc64le": "linux-ppc64le", "s390x": "linux-s390x",
	"riscv64": "linux-riscv64", "386": "linux-32",
}

// Subdir returns conda's name of a platform, such as linux-ppc64le.
func Subdir(p v1.Platform) (string, error) {
	if s, ok := subdirs[p.Architecture]; ok && p.OS == "linux" {
		return s, nil
	}
	return "", fmt.Errorf("conda has no packages for platform %s", p.String())
}

// isDigest reports whether s is empty or n hex digits.
func isDigest(s string, n int) bool {
	_, err := hex.DecodeString(s)
	return s == "" || (len(s) == n && err == nil)
}

// hideText removes credentials from a line with a URL.
func hideText(s string) string {
	f := strings.Fields(s)
	for i, w := range f {
		if strings.Contains(w, "://") {
			f[i] = fetch.Hide(w)
		}
	}
	return strings.Join(f, " ")
}
