package dialect_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/job/quantity"
)

// toy is a dialect with each kind of option.
var toy = dialect.Dialect{
	Target: "toy", Title: "the toy", Prefix: "#TOY", Command: "toy", Separators: []string{"next"},
	Options: dialect.Options{
		Glued: true, Abbrev: true,
		Values: map[string]dialect.Setter{
			"-n --ntasks":    dialect.Set(field.Tasks),
			"-N --nodes":     dialect.Set(field.Nodes),
			"-J --name":      dialect.Set(field.Name),
			"-q --queue":     dialect.Set(field.Queue),
			"-M --mail":      (*dialect.Reader).FirstAddress,
			"-m --mail-type": (*dialect.Reader).MailLetters,
			"-a --at":        (*dialect.Reader).DateTime,
			"-r --rerun":     (*dialect.Reader).Requeue,
			"-d --dir":       (*dialect.Reader).Directory,
			"-v --variables": func(r *dialect.Reader, v string) error { return r.Environment(dialect.CommaList(v)) },
			"-o --output":    func(r *dialect.Reader, v string) error { return r.Output(v, field.Output, percent) },
			"-w --after":     func(r *dialect.Reader, v string) error { return r.After("afterok", dialect.List(v, ":")) },
			"-l":             readToys,
			"--odd":          nil,
		},
		Pairs:    map[string]dialect.Setter{"-p --pair": func(r *dialect.Reader, v string) error { r.Changed("%q", v); return nil }},
		Flags:    map[string]dialect.Setter{"-x --exclusive": dialect.Set(field.Exclusive), "-W --wait": (*dialect.Reader).Outside, "--stdin": dialect.Refuse("jobs have none")},
		Optional: map[string]dialect.Setter{"--again": dialect.SetRequeue("yes")},
	},
	Finish: func(*dialect.Reader) {}, Defaults: func(*dialect.Reader) {},
}

var percent = dialect.Pattern{Sign: "%", Letters: []string{"%j", "{job}"}}

func readToys(r *dialect.Reader, v string) error {
	return r.ResourceList(v, func(name, value, _ string) (err error) {
		r.Job.GPUs, err = r.Number(value, "-")
		if name == "gpus" && err == nil {
			r.Row.Fills(field.GPUs)
			return nil
		}
		return fmt.Errorf("unknown")
	})
}

// TestScript reads scripts. Each option becomes a row, and what a refused one set is undone.
func TestScript(t *testing.T) {
	for _, c := range []struct{ name, script, rows, job string }{
		{"separate, glued, with an equals sign, abbreviated", "#TOY -n 8\n#TOY -N2 --queue=a\n#TOY --nam x", "1 -n 8 \n2 -N2 \n2 --queue=a \n3 --nam x ", "x 2 8 a"},
		{"one of two that an abbreviation fits", "#TOY --n 8", `1 --n 8 refused: hpcc does not know this option of the toy`, "x 0 0 "},
		{"too short an abbreviation", "#TOY --e", `1 --e refused: hpcc does not know this option of the toy`, "x 0 0 "},
		{"two arguments", "#TOY -p a b -x", "1 -p a b changed: \"a b\"\n1 -x ", "x 0 0 "},
		{"an optional argument", "#TOY --again --again=3", "1 --again changed: line 1 overrides it\n1 --again=3 ", "x 0 0 "},
		{"no value", "#TOY -n", "1 -n refused: its value is missing", "x 0 0 "},
		{"a long value", "#TOY -q " + strings.Repeat("x", 4097), "1 -q " + strings.Repeat("x", 4097) + " refused: its value has more than 4096 bytes", "x 0 0 "},
		{"unknown, with its values", "#TOY -z 1 2 -n 3", "1 -z 1 2 refused: hpcc does not know this option of the toy\n1 -n 3 ", "x 0 3 "},
		{"not an option", "#TOY -n 3 4", "1 -n 3 \n1 4 refused: it is not an option; a value with blanks needs quotation marks", "x 0 3 "},
		{"only here", "#TOY --odd 1", "1 --odd 1 refused: only the toy has this option", "x 0 0 "},
		{"outside of the job", "#TOY -W", `1 -W changed: it concerns the submission, not the job; see the flags of "hpcc submit"`, "x 0 0 "},
		{"refused", "#TOY --stdin", "1 --stdin refused: jobs have none", "x 0 0 "},
		{"not a number", "#TOY -n 0", `1 -n 0 refused: "0" is not a positive number`, "x 0 0 "},
		{"the lower bound", "#TOY -n 2-4", "1 -n 2-4 changed: at least 2", "x 0 2 "},
		{"the last one counts", "#TOY -n 2\n#TOY -n 3", "1 -n 2 changed: line 2 overrides it\n2 -n 3 ", "x 0 3 "},
		{"a variable", "#TOY -q $Q", "1 -q $Q refused: the toy does not expand variables in directives: write the value itself", "x 0 0 "},
		{"a variable in a name", "#TOY -J a-$Q", "1 -J a-$Q changed: a--Q, which every scheduler accepts", "a--Q 0 0 "},
		{"a placeholder", "#TOY -n <number>", "1 -n <number> refused: <number> is a placeholder: write the value itself", "x 0 0 "},
		{"after a command", "#TOY -n 2\ntrue\n#TOY -N 2", "1 -n 2 \n3 #TOY -N 2 refused: the toy ignores it, because it follows the first command, in line 2", "x 0 2 "},
		{"the next component", "#TOY -n 2\n#TOY next\n#TOY -n 3", "1 -n 2 \n2 #TOY next refused: hpcc requests only the first component of a heterogeneous job: submit the others as separate jobs, or request equal nodes\n" +
			"3 #TOY -n 3 refused: it belongs to another component of the heterogeneous job", "x 0 2 "},
		{"not directives", "##TOY -n 2\n #TOY -n 2\n#TOYS -n 2\n#TOY", "", "x 0 0 "},
		{"an open quotation mark", "#TOY -q 'a", "1 #TOY -q 'a refused: ", "x 0 0 "},
		{"CRLF", "#TOY -n 2\r\n", "0 (line ends) changed: CRLF became LF, because shells cannot read scripts with CRLF\n1 -n 2 ", "x 0 2 "},
		{"resources, one of them unknown", "#TOY -l gpus=2,x=3", "1 -l gpus=2,x=3 changed: without x=3: unknown", "x 0 0  2"},
		{"resources, all unknown", "#TOY -l x=3", "1 -l x=3 refused: x=3: unknown", "x 0 0 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := read(t, c.script+"\n", "other")
			var rows []string
			for _, row := range r.Rows {
				text := fmt.Sprintf("%d %s %s", row.Line, row.Text, row.Fate)
				if row.How != "" {
					text += ": " + row.How
				}
				rows = append(rows, text)
			}
			if got := strings.Join(rows, "\n"); got != c.rows && !(strings.HasSuffix(c.rows, "refused: ") && strings.HasPrefix(got, c.rows)) {
				t.Errorf("the rows are\n%s\nwant\n%s", got, c.rows)
			}
			got := fmt.Sprint(r.Job.Name, " ", r.Job.Nodes, " ", r.Job.Tasks, " ", r.Job.Queue)
			if r.Job.GPUs > 0 {
				got += fmt.Sprint(" ", r.Job.GPUs)
			}
			if got != c.job {
				t.Errorf("the job is %q; want %q", got, c.job)
			}
		})
	}
}

// read reads a script for a target.
func read(t *testing.T, script string, to job.Target) *dialect.Reader {
	t.Helper()
	r := &dialect.Reader{Dialect: &toy, To: &dialect.Dialect{Target: to}, Dir: "/d", User: "u", Job: &job.Job{Script: &job.Script{Name: "x.sh"}}}
	r.Script(script)
	r.Body(script)
	r.End()
	return r
}

// TestOwn checks that options which only one batch system has stay for it.
func TestOwn(t *testing.T) {
	r := read(t, "#!/bin/sh -e\n#TOY --odd 1\n", toy.Target)
	if got := r.Job.Native; !slices.Equal(got, []string{"--odd 1"}) || r.Rows[0].Fate == field.Refused {
		t.Errorf("native options %q, %+v", got, r.Rows[0])
	}
	if got := r.Job.Script.Shell; !slices.Equal(got, []string{"/bin/sh", "-e"}) {
		t.Errorf("the shell is %q", got)
	}
}

// TestValues reads values that several batch systems share.
func TestValues(t *testing.T) {
	for option, want := range map[string]string{
		"-M a@b,c@d":                 "mail=a@b: only a@b",
		"-M $USER@b":                 "mail=u@b: u@b",
		"-m abe":                     "on=[fail begin end]",
		"-m bs":                      "on=[begin]: without s",
		"-m B":                       `refused: "B" is not a list of the letters a, b, e and n`,
		"-a 202701020304":            "begin=2027-01-02T03:04",
		"-a 202701020304.00":         "begin=2027-01-02T03:04",
		"-a 01020304":                `refused: "01020304" lacks the year; write CCYYMMDDhhmm`,
		"-r y":                       "requeue=yes",
		"-r n":                       "requeue=no",
		"-r x":                       `refused: "x" is neither y nor n`,
		"-d sub":                     "dir=/d/sub: /d/sub",
		"-d /x":                      "dir=/x",
		`-v "A='b,c',D"`:             "env=[A=b,c] export=[D]",
		"-v 1A":                      `refused: variable "1A": not of the form NAME or NAME=VALUE`,
		"-o a-%j-%u":                 "output=a-{job}-u",
		"-o a-%N":                    "output=a-: only the toy replaces %N; the file is a-",
		"-o %N":                      "refused: only the toy replaces %N",
		"-o {a}":                     `refused: file "{a}": contains characters that directives cannot hold`,
		"-w 1:2":                     "after=[1 2]",
		"-w 1;2":                     `refused: "1;2" is not a job ID`,
		"--exclusive":                "exclusive",
		"--queue='a b'":              `refused: "a b" contains characters that directives cannot hold`,
		"--mail=a@b --mail-type=bea": "mail=a@b on=[begin end fail]",
	} {
		r := read(t, "#TOY "+option+"\n", "other")
		j, got := r.Job, ""
		for _, s := range []struct {
			name  string
			value any
		}{{"mail", j.Mail}, {"on", j.MailOn}, {"begin", j.Begin}, {"requeue", j.Requeue}, {"dir", j.Dir}, {"env", j.Env}, {"export", j.Export}, {"output", j.Output}, {"after", j.After}} {
			if v := fmt.Sprint(s.value); v != "" && v != "[]" {
				got += " " + s.name + "=" + v
			}
		}
		if j.Exclusive {
			got += " exclusive"
		}
		if row := r.Rows[0]; row.Fate == field.Refused {
			got += " refused: " + row.How
		} else if row.How != "" {
			got += ": " + row.How
		}
		if got = strings.TrimSpace(got); got != want {
			t.Errorf("%s: %s; want %s", option, got, want)
		}
	}
}

// TestNext parses the argv of a launcher.
func TestNext(t *testing.T) {
	for _, c := range []struct {
		argv, name, value string
		n                 int
	}{
		{"-n 4 x", "-n", "4", 2}, {"-n4 x", "-n", "4", 1}, {"-n=4 x", "-n", "4", 1}, {"--ntasks=4", "--ntasks", "4", 1}, {"-x y", "-x", "", 1},
		{"-p a b c", "-p", "a", 3}, {"-n", "-n", "", 1}, {"-z 1", "-z", "", 0}, {"--again x", "--again", "", 1},
	} {
		if name, value, n := toy.Options.Next(strings.Fields(c.argv)); name != c.name || value != c.value || n != c.n {
			t.Errorf("Next(%q) = %q, %q, %d; want %q, %q, %d", c.argv, name, value, n, c.name, c.value, c.n)
		}
	}
	if !toy.Options.Knows("--nodes") || toy.Options.Knows("--node") {
		t.Error("Knows accepts abbreviations, or no names")
	}
}

// TestMemory converts memory per processor.
func TestMemory(t *testing.T) {
	row := &field.Row{}
	row.Fills(field.Memory)
	j := &job.Job{CPUs: 2, Nodes: 2, Tasks: 6, TasksPerNode: 3}
	j.MemoryPerCPU = 1 << 30
	dialect.NodeMemory(j, field.Rows{row})
	if j.Memory != 6<<30 || j.MemoryPerCPU != 0 || row.Fate != field.Changed || row.How != quantity.FormatMemory(6<<30)+" on each node" {
		t.Errorf("%d bytes on each node, %d for each processor, %+v", j.Memory, j.MemoryPerCPU, row)
	}
	dialect.NodeMemory(j, field.Rows{row}) // again
	if j.Memory != 6<<30 {
		t.Errorf("%d bytes on each node", j.Memory)
	}
}

// TestPlaceGPUs puts GPUs of several processes on one node, unless the script sets the number of nodes.
func TestPlaceGPUs(t *testing.T) {
	for _, c := range []struct {
		j     job.Job
		nodes int
		where string
	}{{job.Job{Tasks: 4}, 1, "one host"}, {job.Job{Tasks: 4, Nodes: 2}, 2, "each host"}, {job.Job{}, 0, "each host"}} {
		r := &dialect.Reader{Job: &c.j}
		if where, why := r.PlaceGPUs("host"); where != c.where || c.j.Nodes != c.nodes || (why != "") != (where == "one host") {
			t.Errorf("PlaceGPUs: %s%s, %d nodes; want %s, %d", where, why, c.j.Nodes, c.where, c.nodes)
		}
	}
}
