package translate

import (
	"strings"
	"testing"

	"hpcc/job"
)

// fuzzDialect holds a reader to this: whatever the file says, a translation
// ends, is bounded, has a fate for each row, and is a script or an error for every target.
func fuzzDialect(f *testing.F, d *dialect) {
	for _, c := range cases(f) {
		f.Add(string(c.source.Text), c.source.Command)
	}
	for i := range d.options {
		name, _, _ := strings.Cut(d.options[i].names, " ")
		for _, v := range []string{"", " 1", " 1-8:2%4", " x[1-3]", " select[a]", " 1:2:3", " a=b,c", " =", "=1"} {
			f.Add("#!/bin/sh\n"+d.prefix+" "+name+v+"\n", d.command+" "+name+v+" echo")
		}
	}
	f.Fuzz(func(t *testing.T, text, command string) {
		for _, to := range matrix {
			for _, s := range []Source{{Text: []byte(text)}, {Command: command}} {
				s.Name, s.Dialect, s.Dir, s.Home, s.User = "f.sh", d.target, "/d", "/h", "u"
				s.Open = func(string) ([]byte, error) { return []byte(text), nil }
				tr, err := Translate(s, to)
				if err != nil {
					continue
				}
				tr.Job.Program, tr.Job.Store = "/bin/hpcc", "/store"
				tr.Fit()
				for _, r := range tr.Rows {
					if (severity[r.Fate] == 0 && r.Fate != Kept) || (r.Fate == Refused && r.How == "") {
						t.Errorf("row %+v has no fate or no reason", r)
					}
				}
				script, _, err := job.Render(tr.Job, to)
				if err == nil && len(script) > 8*len(text)+8*len(command)+1<<16 {
					t.Errorf("%d bytes of script for %d", len(script), len(text))
				}
			}
		}
	})
}

func FuzzReadSlurm(f *testing.F)      { fuzzDialect(f, slurmDialect) }
func FuzzReadLSF(f *testing.F)        { fuzzDialect(f, lsfDialect) }
func FuzzReadGridEngine(f *testing.F) { fuzzDialect(f, gridEngineDialect) }
func FuzzReadPBS(f *testing.F)        { fuzzDialect(f, pbsDialect) }
