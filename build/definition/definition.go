// Package definition converts definition files of Apptainer to Dockerfiles.
//
//	Parse ─► Recipe ─► Dockerfile, with contexts for %files and local images
//
// It supports the sections that describe an image: %files, %post, %environment, %labels,
// %runscript, %test, %help and %arguments, in several stages. Sections that run programs on the
// host (%pre, %setup), start services (%startscript) or contain apps (%app...) are refused.
package definition

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"hpcc/text"
)

// MaxSize limits the size of a definition file, in bytes.
const MaxSize = 1 << 20

// maxStages limits the stages of a file, and maxEntries the lines of a list such as %files.
const (
	maxStages  = 100
	maxEntries = 10_000
)

// Options of Parse.
type Options struct {
	Dir    string            // directory of relative paths; "" for the current one
	Args   map[string]string // values of templates, {{ NAME }}
	NoTest bool              // do not run %test
}

// An Error is a mistake in a definition file, or a part of it that is not supported.
type Error struct {
	File string
	Line int
	Why  string
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Why) }

// A section is the text below a line %NAME ARGS.
type section struct {
	name, args string
	line       int // of %NAME
	body       []string
}

// A stage is one image of a definition file.
type stage struct {
	line     int // of Bootstrap
	header   map[string]string
	sections []section
}

// stageStart matches the line that begins a stage.
var stageStart = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)^bootstrap\s*:`) })

// Is reports whether a text is a definition file and not a Dockerfile: whether its first line
// that is not a comment begins a stage or a section.
func Is(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		return line[0] == '%' || stageStart().Match(line) || bytes.HasPrefix(bytes.ToLower(line), []byte("from:"))
	}
	return false
}

// ReadFile returns the content of a definition file; nil if the file is not a definition file.
func ReadFile(file string) ([]byte, error) {
	if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil || !Is(content) {
		return nil, err
	}
	return content, nil
}

// A reader reads one file.
type reader struct {
	file    string
	options Options
	used    map[string]bool // arguments
}

func (r *reader) errorf(line int, format string, a ...any) error {
	return &Error{File: r.file, Line: line, Why: fmt.Sprintf(format, a...)}
}

// Parse reads a definition file. Its errors are of type [*Error], or about the files that it
// names.
func Parse(file string, content []byte, o Options) (*Recipe, error) {
	r := &reader{file: file, options: o, used: map[string]bool{}}
	switch {
	case len(content) > MaxSize:
		return nil, r.errorf(1, "larger than %d bytes", MaxSize)
	case !utf8.Valid(content) || bytes.IndexByte(content, 0) >= 0:
		return nil, r.errorf(1, "not a text in UTF-8")
	}
	lines := strings.Split(strings.ReplaceAll(strings.TrimPrefix(string(content), "\ufeff"), "\r\n", "\n"), "\n")
	stages, err := r.stages(lines)
	if err != nil {
		return nil, err
	}
	recipe := &Recipe{File: file, Source: content, Contexts: map[string]string{}, Archives: map[string]string{}}
	for i := range stages {
		if err := r.stage(recipe, stages, i); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Args)) {
		if !r.used[name] {
			return nil, r.errorf(1, "the file does not use the build argument %s; leave it out, or write {{ %s }}",
				text.Short(name), text.Short(name))
		}
	}
	return recipe, nil
}

// stages splits a file into stages and sections.
func (r *reader) stages(lines []string) (out []stage, err error) {
	for first := 0; first < len(lines); {
		end := first + 1
		for end < len(lines) && !stageStart().MatchString(lines[end]) {
			end++
		}
		if slices.ContainsFunc(lines[first:end], func(l string) bool { l = strings.TrimSpace(l); return l != "" && l[0] != '#' }) {
			s, err := r.sections(lines[first:end], first)
			if err != nil {
				return nil, err
			}
			if out = append(out, s); len(out) > maxStages {
				return nil, r.errorf(first+1, "more than %d stages", maxStages)
			}
		}
		first = end
	}
	if len(out) == 0 {
		return nil, r.errorf(1, "the file has no stage; begin with Bootstrap: docker and From: IMAGE")
	}
	return out, nil
}

// sections reads the lines of a stage. offset is the number of lines before it.
func (r *reader) sections(lines []string, offset int) (s stage, err error) {
	s.line = offset + 1
	for i, l := range lines {
		word := strings.TrimSpace(l)
		if stageStart().MatchString(l) {
			s.line = offset + i + 1
		}
		switch {
		case strings.HasPrefix(word, "%"):
			name, args, _ := strings.Cut(strings.TrimPrefix(word, "%"), " ")
			s.sections = append(s.sections, section{name: strings.ToLower(name), args: strings.TrimSpace(args), line: offset + i + 1})
		case len(s.sections) > 0:
			last := &s.sections[len(s.sections)-1]
			last.body = append(last.body, l)
		}
	}
	arguments, err := r.arguments(s.sections)
	if err != nil {
		return s, err
	}
	end := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), "%") })
	if end < 0 {
		end = len(lines)
	}
	header := slices.Clone(lines[:end])
	if err := r.fill(header, offset+1, arguments); err != nil {
		return s, err
	}
	for i := range s.sections {
		x := &s.sections[i]
		head := []string{x.args}
		if x.name == "arguments" {
			continue
		}
		if err := r.fill(head, x.line, arguments); err != nil {
			return s, err
		}
		if err := r.fill(x.body, x.line+1, arguments); err != nil {
			return s, err
		}
		x.args = head[0]
	}
	s.header, err = r.header(header, offset)
	return s, err
}

// template matches {{ NAME }}.
var template = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}`)
})

// arguments returns the values of templates: those of the caller, or else of %arguments.
func (r *reader) arguments(sections []section) (map[string]string, error) {
	out := map[string]string{}
	for _, s := range sections {
		if s.name != "arguments" {
			continue
		}
		for i, l := range s.body {
			if l = strings.TrimSpace(l); l == "" || l[0] == '#' {
				continue
			}
			name, value, ok := strings.Cut(l, "=")
			if name = strings.TrimSpace(name); !ok || !template().MatchString("{{"+name+"}}") {
				return nil, r.errorf(s.line+1+i, "%q is not NAME=VALUE", text.Short(l))
			}
			value = strings.TrimSpace(value)
			if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
				value = value[1 : n-1]
			}
			out[name] = value
			r.used[name] = true
		}
	}
	maps.Copy(out, r.options.Args)
	return out, nil
}

// fill replaces the templates of lines. first is the number of the first one.
func (r *reader) fill(lines []string, first int, arguments map[string]string) (err error) {
	size := 0
	for i, l := range lines {
		lines[i] = template().ReplaceAllStringFunc(l, func(t string) string {
			name := template().FindStringSubmatch(t)[1]
			value, ok := arguments[name]
			if !ok && err == nil {
				err = r.errorf(first+i, "the template %s has no value; add %s=VALUE to %%arguments, or give --build-arg %s=VALUE", t, name, name)
			}
			r.used[name] = true
			return value
		})
		if size += len(lines[i]); size > 16*MaxSize && err == nil {
			err = r.errorf(first+i, "the text with all templates filled in is larger than %d bytes", 16*MaxSize)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// headers are the supported keywords of a stage's header.
var headers = strings.Fields("bootstrap from stage registry namespace")

// header reads the lines NAME: VALUE before the sections of a stage.
func (r *reader) header(lines []string, offset int) (map[string]string, error) {
	out := map[string]string{}
	for i, l := range lines {
		l, _, _ = strings.Cut(l, "#")
		if l = strings.TrimSpace(l); l == "" {
			continue
		}
		name, value, ok := strings.Cut(l, ":")
		name = strings.ToLower(strings.TrimSpace(name))
		switch {
		case !ok:
			return nil, r.errorf(offset+i+1, "%q is not NAME: VALUE", text.Short(l))
		case !slices.Contains(headers, name):
			return nil, r.errorf(offset+i+1, "hpcc does not support %s: in the header; use Bootstrap: docker and From: IMAGE", text.Short(name))
		case strings.HasSuffix(value, `\`):
			return nil, r.errorf(offset+i+1, "the line continues on the next one; write it on one line")
		}
		out[name] = strings.TrimSpace(value)
	}
	return out, nil
}

// refusedSections holds the reason and the advice for each section that is not supported.
var refusedSections = map[string]string{
	"pre":         "hpcc runs no programs on the host; run the commands of %pre before the build",
	"setup":       "hpcc runs no programs on the host; copy files with %files and move the rest to %post",
	"startscript": "hpcc has no services; remove %startscript, and start the service as a job",
}

// one returns the only section of a name, or nil. Sections of one name are joined, as Apptainer
// does.
func (r *reader) one(s *stage, name string) *section {
	var out *section
	for i := range s.sections {
		switch x := &s.sections[i]; {
		case x.name != name:
		case out == nil:
			joined := *x
			joined.body = slices.Clone(x.body)
			out = &joined
		default:
			out.body = append(out.body, x.body...)
			out.args = cmp.Or(x.args, out.args)
		}
	}
	return out
}

// check refuses sections that are not supported or unknown.
func (r *reader) check(s *stage) error {
	known := strings.Fields("help files labels environment post runscript test arguments")
	for _, x := range s.sections {
		switch why, refused := refusedSections[x.name]; {
		case refused:
			return r.errorf(x.line, "%s", why)
		case strings.HasPrefix(x.name, "app"):
			return r.errorf(x.line, "hpcc does not support apps (SCIF); build one image for each app, or move the commands of %%%s to %%post", text.Short(x.name))
		case !slices.Contains(known, x.name):
			return r.errorf(x.line, "unknown section %%%s", text.Short(x.name))
		}
	}
	return nil
}

// base returns the image of FROM for a stage.
func (r *reader) base(recipe *Recipe, stages []stage, i int) (string, error) {
	s := &stages[i]
	from := s.header["from"]
	if from == "" && s.header["bootstrap"] != "scratch" {
		return "", r.errorf(s.line, "the stage has no From: IMAGE")
	}
	if strings.ContainsAny(from, " \t$\"'") {
		return "", r.errorf(s.line, "%q is not the name of an image", text.Short(from))
	}
	switch kind := strings.ToLower(s.header["bootstrap"]); kind {
	case "docker":
		return path.Join(s.header["registry"], s.header["namespace"], from), nil
	case "scratch":
		return "scratch", nil
	case "localimage", "oci", "oci-archive", "docker-archive":
		return recipe.local(r.absolute(from)), nil
	case "":
		return "", r.errorf(s.line, "the stage does not begin with Bootstrap:; write Bootstrap: docker")
	case "library", "shub", "oras":
		return "", r.errorf(s.line, "hpcc does not pull images of %s; use Bootstrap: docker", kind)
	default:
		return "", r.errorf(s.line, "hpcc does not support Bootstrap: %s; use docker, localimage or scratch", text.Short(kind))
	}
}
