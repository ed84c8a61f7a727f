package dialect

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hpcc/job"
	"hpcc/job/field"
	"hpcc/text"
)

// Number parses a positive number. For a range, which contains one of the separators, it
// returns the lower bound and records that in the row.
func (r *Reader) Number(s string, separators string) (int, error) {
	first := s
	if i := strings.IndexAny(s, separators); separators != "" && i > 0 {
		first = s[:i]
		r.Changed("at least %s", first)
	}
	n, err := strconv.Atoi(first)
	if err != nil || n < 1 || n > 1<<24 {
		return 0, fmt.Errorf("%q is not a positive number", text.Short(s))
	}
	return n, nil
}

// Set returns a Setter that stores the value in one field: a string, a positive number, the
// indices of an array, or true for an option without an argument.
func Set(f field.Field) Setter {
	return func(r *Reader, v string) (err error) {
		r.Row.Fills(f)
		switch p := f.At(r.Job)[0].(type) {
		case *int:
			*p, err = r.Number(v, "-,")
		case *bool:
			*p = true
		case *job.Array:
			*p, err = job.ParseArray(v)
		case *string:
			if f != field.Name && !job.WordText().MatchString(v) {
				return fmt.Errorf("%q contains characters that directives cannot hold", text.Short(v))
			}
			*p = v
		}
		return err
	}
}

// PlaceGPUs returns the location of GPUs that the script counts per process or in total, for a
// row: each node or one node, and why. node is the batch system's word for a node. If the script
// does not set the number of nodes, PlaceGPUs sets it to one, because [job.Job] counts GPUs per
// node: with the processes on several nodes, each node would get the GPUs of all processes.
func (r *Reader) PlaceGPUs(node string) (where, why string) {
	if r.Job.Nodes > 0 || r.Job.TasksPerNode > 0 || r.Job.Tasks < 2 {
		return "each " + node, ""
	}
	r.Job.Nodes = 1
	return "one " + node, ", because the script does not set the number of " + node + "s"
}

// DivideGPUs converts the GPUs of the full job, or of each process, to GPUs of each node. node is
// the batch system's word for a node. note begins the explanation of a total.
func (r *Reader) DivideGPUs(node, note string) {
	j := r.Job
	if n := r.N.TotalGPUs; n > 0 {
		where, why := r.PlaceGPUs(node)
		nodes := int(j.NodeCount())
		r.FinishRows(field.GPUs, func(row *field.Row) error {
			if n%nodes != 0 {
				return fmt.Errorf("%s cannot be divided equally among %d nodes", text.Count(n, "GPU", "GPUs"), nodes)
			}
			j.GPUs = n / nodes
			if nodes > 1 && note == "" {
				where = fmt.Sprintf("each of %d nodes", nodes)
			}
			row.Become(field.Changed, fmt.Sprintf("%s%d on %s%s", note, j.GPUs, where, why))
			return nil
		})
	}
	if n := r.N.GPUsPerTask; n > 0 {
		where, why := r.PlaceGPUs(node)
		processes := j.ProcessesPerNode()
		r.FinishRows(field.GPUs, func(row *field.Row) error {
			j.GPUs = n * processes
			row.Become(field.Changed, fmt.Sprintf("%d on %s, for its %d processes%s", j.GPUs, where, processes, why))
			return nil
		})
	}
}

// SetRequeue returns the Setter of an option without an argument that decides whether a
// lost job runs again: "yes" or "no".
func SetRequeue(to string) Setter {
	return func(r *Reader, _ string) error {
		r.Job.Requeue = to
		r.Row.Fills(field.Requeue)
		return nil
	}
}

// ExportAllVariables is the Setter of -V: the job gets the environment of the submitting shell.
func (r *Reader) ExportAllVariables(string) error {
	r.Job.Export = []string{"ALL"}
	r.Row.Fills(field.Export)
	return nil
}

// NoInput refuses an option with a file for standard input.
var NoInput = Refuse("jobs have no standard input; redirect in the script: program < file")

// Outside is the Setter of an option that concerns the submission, not the job.
func (r *Reader) Outside(string) error {
	r.Changed("it concerns the submission, not the job; see the flags of \"hpcc submit\"")
	return nil
}

// Refuse returns the Setter of an option that hpcc does not support.
func Refuse(why string) Setter { return func(*Reader, string) error { return errors.New(why) } }

// List splits a list and drops empty items.
func List(s, separators string) []string {
	return strings.FieldsFunc(s, func(c rune) bool { return strings.ContainsRune(separators, c) })
}

// CommaList splits a list at commas outside of quotation marks, and removes the marks.
func CommaList(s string) []string {
	var out []string
	var item strings.Builder
	quote := rune(0)
	for _, c := range s {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && c == ',':
			out = append(out, item.String())
			item.Reset()
		default:
			item.WriteRune(c)
		}
	}
	return append(out, item.String())
}

// Directory sets the directory in which the job starts. A relative path is relative to the
// submit directory.
func (r *Reader) Directory(v string) error {
	if v == "" || strings.ContainsAny(v, "\n\r\x00\"") {
		return fmt.Errorf("directory %q: contains characters that directives cannot hold", text.Short(v))
	}
	if v[0] != '/' {
		v = strings.TrimSuffix(r.Dir, "/") + "/" + v
		r.Changed("%s", v)
	}
	r.Job.Dir = v
	r.Row.Fills(field.Dir)
	return nil
}

// After adds a dependency on jobs: afterok, afterany, afternotok or aftercorr.
func (r *Reader) After(kind string, ids []string) error {
	for _, id := range ids {
		if !job.WordText().MatchString(id) {
			return fmt.Errorf("%q is not a job ID", text.Short(id))
		}
	}
	at := map[string]struct {
		list *[]string
		f    field.Field
	}{"afterok": {&r.Job.After, field.After}, "afterany": {&r.Job.AfterAny, field.AfterAny},
		"afternotok": {&r.Job.AfterFailed, field.AfterFailed}, "aftercorr": {&r.Job.AfterEach, field.AfterEach}}[kind]
	if at.list == nil {
		return fmt.Errorf("hpcc does not know the dependency %q", kind)
	}
	*at.list = append(slices.Clip(*at.list), ids...)
	r.Row.Fills(at.f)
	return nil
}

// OnlyIDs refuses the names of jobs if the target requires job IDs.
func (r *Reader) OnlyIDs(ids ...string) error {
	for _, id := range ids {
		if strings.Trim(id, "0123456789") != "" && !r.Own() && r.To.Target != job.Argo {
			return fmt.Errorf("it names job %q, and the target requires a job ID: use --after ID", text.Short(id))
		}
	}
	return nil
}

// MailOn adds events that send a mail.
func (r *Reader) MailOn(events ...string) {
	for _, e := range events {
		if !slices.Contains(r.Job.MailOn, e) {
			r.Job.MailOn = append(slices.Clip(r.Job.MailOn), e)
		}
	}
}

// Environment parses a list of NAME=VALUE and of names of variables to export.
func (r *Reader) Environment(list []string) error {
	for _, e := range list {
		name, _, value := strings.Cut(e, "=")
		switch {
		case !job.EnvName().MatchString(name):
			return fmt.Errorf("variable %q: not of the form NAME or NAME=VALUE", text.Short(e))
		case value:
			r.Job.Env = append(slices.Clip(r.Job.Env), e)
			r.Row.Fills(field.Env)
		default:
			r.Job.Export = append(slices.Clip(r.Job.Export), name)
			r.Row.Fills(field.Export)
		}
	}
	return nil
}

// The following functions are shared by the batch systems whose command is qsub.

// HostName matches the name of a host.
var HostName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`) })

// YesNo parses y or n.
func YesNo(v string) (bool, error) {
	switch v {
	case "y", "yes":
		return true, nil
	case "n", "no":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither y nor n", text.Short(v))
}

// Requeue parses y or n: whether a lost job runs again.
func (r *Reader) Requeue(v string) error {
	on, err := YesNo(v)
	r.Job.Requeue = map[bool]string{true: "yes", false: "no"}[on]
	r.Row.Fills(field.Requeue)
	return err
}

// Inside returns the default name of an output file in a directory.
func (r *Reader) Inside(dir string, f field.Field) string {
	name := strings.TrimSuffix(dir, "/") + "/" + map[field.Field]string{field.Output: "{name}.o{job}", field.Error: "{name}.e{job}"}[f]
	if !r.Job.Array.IsZero() {
		name += "." + job.Placeholder
	}
	r.Changed("%s", name)
	return name
}

// MailLetters parses the events of -m: b, e and a; n means no mail.
func (r *Reader) MailLetters(v string) error {
	r.Job.MailOn = nil
	for _, c := range v {
		switch w, ok := map[rune]string{'b': "begin", 'e': "end", 'a': "fail"}[c]; {
		case ok:
			r.MailOn(w)
		case c == 'n' || c == ',':
		case c >= 'a' && c <= 'z': // such as s: on suspension
			r.Changed("without %c", c)
		default:
			return fmt.Errorf("%q is not a list of the letters a, b, e and n", text.Short(v))
		}
	}
	r.Row.Fills(field.MailOn)
	return nil
}

// FirstAddress keeps the first mail address of a list.
func (r *Reader) FirstAddress(v string) error {
	list := List(v, ",")
	if len(list) == 0 {
		return errNoValue
	}
	if len(list) > 1 {
		r.Changed("only %s", list[0])
	}
	if at, ok := strings.CutPrefix(list[0], "$USER@"); ok && r.User != "" { // sites replace it
		list[0] = r.User + "@" + at
		r.Changed("%s", list[0])
	}
	return Set(field.Mail)(r, list[0])
}

// dateTime matches CCYYMMDDhhmm, with seconds only if they are zero.
var dateTime = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(\d\d\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(?:\.00)?$`) })

// DateTime parses the time of -a, CCYYMMDDhhmm[.SS].
func (r *Reader) DateTime(v string) error {
	r.Row.Fills(field.Begin)
	m := dateTime().FindStringSubmatch(v)
	if m == nil {
		return fmt.Errorf("%q lacks the year; write CCYYMMDDhhmm", text.Short(v))
	}
	r.Job.Begin = fmt.Sprintf("%s-%s-%sT%s:%s", m[1], m[2], m[3], m[4], m[5])
	return nil
}

// Try calls read for a part of an option. If read fails, Try undoes what read changed in the
// job and in the row.
func (r *Reader) Try(read func() error) error {
	before, numbers, row := *r.Job, r.N, *r.Row
	err := read()
	if err != nil {
		*r.Job, r.N, *r.Row = before, numbers, row
	}
	return err
}

// ResourceList calls read for each resource of -l, NAME=VALUE separated by commas. If read
// fails for every resource, the option is refused; otherwise the row lists the failures.
func (r *Reader) ResourceList(v string, read func(name, value, item string) error) error {
	var failed []string
	for _, item := range CommaList(v) {
		if item == "" {
			continue
		}
		name, value, _ := strings.Cut(item, "=")
		if err := r.Try(func() error { return read(name, value, item) }); err != nil {
			failed = append(failed, item+": "+err.Error())
		}
	}
	switch {
	case len(failed) == 0:
		return nil
	case !r.Row.Filled():
		return errors.New(strings.Join(failed, "; "))
	}
	r.Changed("without %s", strings.Join(failed, "; "))
	return nil
}
