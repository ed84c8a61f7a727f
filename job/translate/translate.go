// Package translate reads job scripts and submit commands of batch systems.
//
//	script ─► Translator ─► dialect.Reader ─► Job and rows ─► Merge, Fit ─► Job for the target
//
// Every directive becomes a field of the Job and a [field.Row] with its fate: kept, changed,
// emulated or refused. None is dropped silently. The body of the script stays unchanged, except
// for programs that run in an image. The package does not write job scripts, and does not check
// what the body does.
package translate

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/job/invoke"
	"hpcc/text"
)

// A Source is a job written for a scheduler: a script, or a submit command that may name one.
type Source struct {
	Name    string     // name of the file, for messages
	Text    []byte     // the script, or a file with a submit command
	Command string     // the submit command itself, instead of Text
	Dialect job.Target // "": detected from the directives
	Dir     string     // absolute: directory of the submission
	Home    string     // home directory, where some batch systems start jobs
	User    string     // user name, for patterns in file names
	// Open reads the script that a submit command names.
	Open func(name string) ([]byte, error)

	hasDir func(name string) bool
	query  func(argv ...string) string
}

// AskHost lets the translation ask this host, from which the script would be submitted: whether a
// directory exists, and the commands of the script's batch system for the site's rules.
func (s *Source) AskHost(ctx context.Context) {
	s.hasDir = func(name string) bool {
		fi, err := os.Stat(name)
		return err == nil && fi.IsDir()
	}
	s.query = func(argv ...string) string {
		out, err := invoke.Call(ctx, "/", argv[0], argv[1:]...)
		if err != nil {
			return ""
		}
		return string(out)
	}
}

// A Translation is a job read from a Source for a target. Its rows are final after Fit.
type Translation struct {
	Job     *job.Job
	Source  string     // name of the source, for messages
	Dialect job.Target // of the source
	To      job.Target
	Rows    field.Rows

	from, to  *dialect.Dialect
	known     Translator
	own       string        // the script's own image; "" if it names none
	overruled []field.Field // fields set by flags
	among     []string      // labels of the jobs in the same workflow
}

// A Translator knows the dialects of all targets, in the order of messages.
type Translator []*dialect.Dialect

// of returns the dialect of a target, or nil.
func (ds Translator) of(t job.Target) *dialect.Dialect {
	if i := slices.IndexFunc(ds, func(d *dialect.Dialect) bool { return d.Target == t }); i >= 0 {
		return ds[i]
	}
	return nil
}

// readable returns the dialects whose scripts hpcc can read.
func (ds Translator) readable() Translator {
	return slices.DeleteFunc(slices.Clone(ds), func(d *dialect.Dialect) bool { return d.Prefix == "" })
}

// with returns the dialects that have a submit command.
func (ds Translator) with(command string) Translator {
	return slices.DeleteFunc(ds.readable(), func(d *dialect.Dialect) bool { return d.Command != command })
}

// list joins the distinct values of a property of the dialects, such as "a, b and c".
func (ds Translator) list(name func(*dialect.Dialect) string, last string) string {
	var names []string
	for _, d := range ds {
		if n := name(d); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	if n := len(names) - 1; n > 0 && last != "" {
		return strings.Join(names[:n], ", ") + last + names[n]
	}
	return strings.Join(names, ", ")
}

func targetOf(d *dialect.Dialect) string { return string(d.Target) }

// Translate reads a source for a target. It returns an error if the source is not a job. A directive that the target
// does not support is a row, not an error.
func (ds Translator) Translate(s Source, to job.Target) (*Translation, error) {
	text, command, err := ds.parts(&s)
	if err != nil {
		return nil, err
	}
	if d := ds.manifests(text); command == nil && s.Dialect == "" && d != nil {
		t, r := ds.begin(s, d, to)
		err := d.ReadManifest(r, s.Name, text)
		t.Rows = r.Rows
		return t, err
	}
	if len(text) > job.MaxScript {
		return nil, fmt.Errorf("%s has %d bytes; a job script has at most %d", s.Name, len(text), job.MaxScript)
	}
	d := ds.readable().of(s.Dialect)
	if s.Dialect != "" && d == nil {
		return nil, fmt.Errorf("unknown dialect %q; use %s", s.Dialect, ds.readable().list(targetOf, " or "))
	}
	if d == nil {
		if d, err = ds.detect(s.Name, strings.Split(text, "\n"), command); err != nil {
			return nil, err
		}
	}
	if command != nil && command.name != d.Command {
		return nil, fmt.Errorf("%s is not a command of %s; use %s", command.name, d.Title, d.Command)
	}
	t, r := ds.begin(s, d, to)
	t.Job.Script = &job.Script{Name: s.Name, From: d.Target, Dir: s.Dir, FromTitle: d.Title, Sets: d.Variables}
	r.Script(text)
	if command != nil {
		command.read(r)
	}
	r.Body(text)
	r.End()
	t.Rows, t.own = r.Rows, t.Job.Image
	return t, nil
}

// begin returns a translation without a job's settings, and the reader that fills them in.
func (ds Translator) begin(s Source, d *dialect.Dialect, to job.Target) (*Translation, *dialect.Reader) {
	t := &Translation{Job: &job.Job{Dir: s.Dir}, Source: s.Name, Dialect: d.Target, To: to, from: d, to: ds.of(to), known: ds}
	if t.to == nil {
		t.to = &dialect.Dialect{Target: to}
	}
	return t, &dialect.Reader{Dialect: d, To: t.to, Dir: s.Dir, Home: s.Home, User: s.User, HasDir: s.hasDir, Query: s.query, Job: t.Job}
}

// manifests returns the dialect that reads a text as a manifest, or nil.
func (ds Translator) manifests(text string) *dialect.Dialect {
	if i := slices.IndexFunc(ds, func(d *dialect.Dialect) bool { return d.IsManifest != nil && d.IsManifest(text) }); i >= 0 {
		return ds[i]
	}
	return nil
}

// parts returns the script and the submit command of a source; one of them may be empty.
func (ds Translator) parts(s *Source) (script string, command *submitCommand, err error) {
	line := s.Command
	if line == "" {
		if line = ds.loneCommand(string(s.Text)); line == "" {
			err = checkScript(s.Name, s.Text)
			return string(s.Text), nil, err
		}
	}
	if command, err = ds.parseSubmit(line); err != nil {
		return "", nil, fmt.Errorf("reading the command line %q: %w", text.Short(line), err)
	}
	if command.input == "" {
		command.input = ds.scriptName(s, command)
	}
	switch command.input {
	case "":
		return "", command, nil
	case ":":
		return "", nil, fmt.Errorf("reading the command line %q: hpcc does not support heterogeneous jobs: submit their "+
			"components as separate jobs, or request equal nodes", text.Short(line))
	}
	if s.Open == nil {
		return "", nil, fmt.Errorf("the command line names script %q, which hpcc cannot open", command.input)
	}
	content, err := s.Open(command.input)
	if err != nil {
		return "", nil, fmt.Errorf("reading the script of %q: %w", text.Short(line), err)
	}
	s.Name = command.input
	return string(content), command, checkScript(s.Name, content)
}

// scriptName returns the name of the script in a command. If the command fits several batch systems, the first script
// that can be opened wins.
func (ds Translator) scriptName(s *Source, c *submitCommand) string {
	d := ds.readable().of(s.Dialect)
	if s.Dialect == "" {
		d, _ = ds.guess(c)
	}
	if d != nil || s.Dialect != "" {
		return c.script(d)
	}
	name := ""
	for _, d := range ds.with(c.name) {
		if name = c.script(d); s.Open == nil {
			break
		}
		if _, err := s.Open(name); err == nil {
			break
		}
	}
	return name
}

// checkScript returns an error for text that cannot be a script.
func checkScript(name string, text []byte) error {
	switch {
	case bytes.IndexByte(text, 0) >= 0:
		return fmt.Errorf("%s is not a script: it contains a NUL byte", name)
	case len(bytes.TrimSpace(text)) == 0:
		return fmt.Errorf("%s is empty", name)
	}
	return nil
}

// detect returns the dialect of a file, from its directives or its submit command.
func (ds Translator) detect(name string, lines []string, command *submitCommand) (*dialect.Dialect, error) {
	if command != nil {
		if of := ds.with(command.name); len(of) == 1 {
			return of[0], nil
		}
	}
	var found Translator
	var where []string
	for _, d := range ds.readable() {
		if n := slices.IndexFunc(lines, d.Marks); n >= 0 {
			found, where = append(found, d), append(where, fmt.Sprintf("%s in line %d", d.Prefix, n+1))
		}
	}
	switch {
	case command != nil:
		if found = found.with(command.name); len(found) != 1 {
			return ds.guess(command)
		}
	case len(found) == 0:
		known := ds.readable()
		return nil, fmt.Errorf("%s has no directives (%s); choose the scheduler with --dialect %s", name,
			known.list(func(d *dialect.Dialect) string { return d.Prefix }, ""), known.list(targetOf, " or "))
	case len(found) > 1:
		return nil, fmt.Errorf("%s has directives of several schedulers (%s); choose one with --dialect", name, strings.Join(where, ", "))
	}
	return found[0], nil
}

// Among sets the jobs that are steps of the same workflow, which this one may depend on.
func (t *Translation) Among(names []string) {
	for _, n := range names {
		t.among = append(t.among, job.Label(n))
	}
}

// Fit removes what the target does not support from the job, and completes the rows. It is called once, after the
// flags.
func (t *Translation) Fit() {
	t.separate(field.Output, &t.Job.Output)
	t.separate(field.Error, &t.Job.Error)
	t.shape()
	if t.To != t.Dialect && t.To != job.Local && !t.To.Pods() {
		for _, f := range []field.Field{field.Queue, field.Account} {
			t.Rows.SetFate(field.Kept, "if the target has one with this name", f)
		}
	}
	for _, f := range slices.Sorted(maps.Keys(t.to.Verdicts)) {
		v := t.to.Verdicts[f]
		if (v.When != nil && !v.When(t.Job)) || (t.To.Pods() && slices.Contains(t.overruled, f)) { // a flag applies to the pod
			continue
		}
		if !slices.ContainsFunc(t.Rows, func(r *field.Row) bool { return r.Has(f) }) {
			continue
		}
		if v.Fate == field.Refused {
			t.Rows.Refuse(v.How, f)
		} else {
			t.Rows.SetFate(v.Fate, v.How, f)
		}
		if v.Fate == field.Refused || v.Drop {
			f.Clear(t.Job)
		}
	}
	t.fileNames()
	t.variables()
	t.image()
	t.body()
	for _, r := range t.Rows {
		if r.Fate == "" {
			r.Fate = field.Kept
		}
	}
}

// separate gives each task of an array its own file.
func (t *Translation) separate(f field.Field, file *string) {
	if s := *file; !t.Job.Array.IsZero() && s != "" && s != "/dev/null" && !strings.Contains(s, job.Placeholder) &&
		!strings.Contains(s, "%") {
		*file = s + "." + job.Placeholder
		t.Rows.SetFate(field.Changed, "a separate file for each task: "+*file, f)
	}
}

// fileNames marks the options whose file names have a job ID, if hpcc names the files: the ID is then hpcc's. Rows of
// defaults already show the pattern.
func (t *Translation) fileNames() {
	if t.to.OpensFiles != nil && t.to.OpensFiles(t.Job) {
		return
	}
	for _, f := range []struct {
		field field.Field
		name  string
	}{{field.Output, t.Job.Output}, {field.Error, t.Job.Error}} {
		if !strings.Contains(f.name, "{job}") || slices.Contains(t.overruled, f.field) {
			continue
		}
		for _, r := range t.Rows {
			if isDefault := strings.HasPrefix(r.Text, "("); r.Has(f.field) && !isDefault {
				r.Become(field.Changed, "the job ID in the name is hpcc's")
			}
		}
	}
}

// Lost returns the number of refused rows.
func (t *Translation) Lost() int {
	n := 0
	for _, r := range t.Rows {
		if r.Fate == field.Refused {
			n++
		}
	}
	return n
}
