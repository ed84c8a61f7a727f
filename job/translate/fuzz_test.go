package translate

import (
	"strings"
	"testing"

	"hpcc/job"
)

// fuzzDialect holds a reader to this: whatever the file says, a translation
// ends and has a fate for each row, for every target.
func fuzzDialect(f *testing.F, d *dialect) {
	for i := range d.options {
		name, _, _ := strings.Cut(d.options[i].names, " ")
		for _, v := range []string{"", " 1", " 1-8:2%4", " x[1-3]", " select[a]", " 1:2:3", " a=b,c", " =", "=1"} {
			f.Add("#!/bin/sh\n"+d.prefix+" "+name+v+"\n", d.command+" "+name+v+" echo")
		}
	}
	f.Fuzz(func(t *testing.T, text, command string) {
		for _, to := range []job.Target{job.Slurm, job.LSF, job.GridEngine, job.PBS, job.Local, job.Kubernetes, job.OpenShift, job.Argo} {
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
			}
		}
	})
}

func FuzzReadSlurm(f *testing.F)      { fuzzDialect(f, slurmDialect) }
func FuzzReadLSF(f *testing.F)        { fuzzDialect(f, lsfDialect) }
func FuzzReadGridEngine(f *testing.F) { fuzzDialect(f, gridEngineDialect) }
func FuzzReadPBS(f *testing.F)        { fuzzDialect(f, pbsDialect) }
