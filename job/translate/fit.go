package translate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/job/jobscript"
)

// shape converts the job to the units of its target.
func (t *Translation) shape() {
	j := t.Job
	if n := job.Label(j.Name); t.To.Pods() && n != j.Name {
		t.Rows.SetFate(field.Changed, n+", a DNS label", field.Name)
	}
	t.order()
	if t.to.Shape != nil {
		t.to.Shape(j, t.Rows)
	} else {
		dialect.NodeMemory(j, t.Rows)
	}
	if j.Warning.Steps && t.To != t.Dialect {
		t.Rows.Refuse(fmt.Sprintf("only %s can signal the processes that %s starts", t.from.Title, t.from.StepLauncher), field.Signal)
		j.Warning = job.Warning{}
	}
	if !t.to.Signals && j.Warning.Signal != "" && j.Time == 0 {
		t.Rows.Refuse("a warning needs a time limit; add --time", field.Signal)
		j.Warning = job.Warning{}
	}
}

// order removes the dependencies of an Argo job on jobs that are not submitted with it.
func (t *Translation) order() {
	if t.To != job.Argo {
		return
	}
	for _, d := range []struct {
		f     field.Field
		names *[]string
	}{{field.After, &t.Job.After}, {field.AfterAny, &t.Job.AfterAny}, {field.AfterFailed, &t.Job.AfterFailed}} {
		outside := slices.DeleteFunc(slices.Clone(*d.names), func(n string) bool { return slices.Contains(t.among, job.Label(n)) })
		if len(outside) > 0 {
			t.Rows.Refuse(fmt.Sprintf("no script was given for %s: Argo only orders jobs that are submitted together, each "+
				"with --from", strings.Join(outside, ", ")), d.f)
			*d.names = nil
		}
	}
}

// variables adds a row for the variables of its scheduler that hpcc sets for the script, and one for
// each that hpcc cannot set.
func (t *Translation) variables() {
	s := t.Job.Script
	if s == nil {
		return
	}
	var names []string
	for _, v := range jobscript.Needed(s, t.Job, t.to) {
		names = append(names, v.Name)
	}
	if len(names) > 0 {
		t.Rows = append(t.Rows, &field.Row{Text: strings.Join(names, " "), Fate: field.Emulated,
			How: fmt.Sprintf("set from the variables of %s", t.To)})
	}
	if s.From == t.To {
		return
	}
	unknown := t.systemVariable().FindAllString(s.Body, -1)
	slices.Sort(unknown)
	for _, name := range slices.Compact(unknown) {
		known := slices.ContainsFunc(t.from.Variables, func(v job.Variable) bool { return v.Name == name })
		set := slices.ContainsFunc(t.Job.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		if !known && !set && !definedIn(s.Body, name) {
			t.Rows = append(t.Rows, &field.Row{Line: jobscript.NamedIn(s.Body, name), Text: "$" + name, Fate: field.Refused,
				How: "hpcc does not know its value on " + string(t.To)})
		}
	}
}

// systemVariable matches the names of variables that the batch system of the script sets.
func (t *Translation) systemVariable() *regexp.Regexp { return regexp.MustCompile(t.from.VariableText) }

// definedIn reports whether a script sets a variable itself.
func definedIn(body, name string) bool {
	return regexp.MustCompile(`(?m)(^|[ \t;])` + name + `=`).MatchString(body)
}
