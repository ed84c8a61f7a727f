// Package pack runs the tasks of a packed job: many tasks in one allocation.
//
//	hpcc task --pack                   keeper, on the first node: starts the others, and starts them again
//	  ├ hpcc task --role=coordinator   assigns the tasks to the workers, over TCP
//	  └ launcher of the scheduler
//	      hpcc task --role=node        on each node: keeps its worker alive
//	        └ hpcc task --role=worker  runs tasks, as many at once as its slots, and records them
//
// Any of these processes may be killed at any time. The coordinator has no state of its own: workers
// append the record of a task to their own file before they report its end, and they report the tasks
// that they run to a new coordinator. A worker without a coordinator continues these tasks only until
// its lease ends. A task whose worker is lost runs again only after its supervisor has ended it, or
// after the lease. A worker that reconnects later ends its tasks.
package pack

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"hpcc/files"
	"hpcc/job"
)

// A Plan describes a packed job to all of its processes.
type Plan struct {
	Job    string      // ID
	Array  job.Array   // the tasks; Limit bounds those that run at once
	Count  int         // value of HPCC_TASK_COUNT
	Nodes  int         // of the allocation
	First  int         // number of the first attempts; those of earlier runs have lower numbers
	Slots  int         // tasks that run at once on a node; 0: as many as its CPUs and memory allow
	Each   job.Request // the request of a task
	Argv   []string    // of the program; {task} and parameters are replaced
	Image  int         // number of arguments in Argv that start the image for all tasks of a node; 0: each task starts it
	Name   string      // the job's name, for names of files
	Output string      // pattern of the output files; "": one file for each slot
	Errors string      // pattern of the files of standard error; "": the output file
	Retry  job.Retry
	Params []string      // flags that define the parameters
	Lease  time.Duration // for which workers continue without a coordinator
	Native string        // the scheduler's ID of the job
	Dir    string        // working directory of the tasks
	Env    []string      // of the job, because most launchers pass on little of it

	Version job.ImageVersion // of the image
	File    string           // the image, for which Version has the version if it is a file

	dir    string // of the job
	run    string
	params job.Params
	fill   bool // variables contain placeholders
}

// A meeting is what the processes of a run have in common: files in pack.RUN below the directory of
// the job, which only the owner can read.
type meeting struct {
	Plan  *Plan
	Token string // the secret of the run
}

// An address has the addresses on which the coordinator listens.
type address struct{ Hosts []string } // HOST:PORT

// Progress is the state of a run, which is written every few seconds.
type Progress struct {
	Workers, Running int
	At               time.Time
}

func (p *Plan) file(name string) string { return filepath.Join(p.dir, "pack."+p.run, name) }

func (p *Plan) put(name string, v any) error {
	b, err := marshal(v)
	if err == nil {
		err = files.WritePrivate(p.file(name), string(b))
	}
	if err != nil {
		return fmt.Errorf("writing a file of the packed job: %w", err)
	}
	return nil
}

// get reads a file, and returns false if it does not exist. It lists the directory first, because
// NFS caches failed lookups for a long time.
func (p *Plan) get(name string, v any) bool {
	if _, err := os.ReadDir(p.file("")); err != nil {
		return false
	}
	return job.ReadJSON(p.file(name), v) == nil
}

// begin creates the files of a new run in dir, the directory of the job.
func (p *Plan) begin(dir string) error {
	p.dir = dir
	if err := files.MakeDir(dir); err != nil {
		return err
	}
	var r job.Records
	if err := r.Survey(dir); err != nil {
		return err
	}
	p.First = First(r.Runs, p.Retry)
	p.clean("*") // of runs that were killed
	p.run = random(8)
	if err := os.Mkdir(p.file(""), 0o700); err != nil {
		return err
	}
	return p.put("plan", meeting{p, random(32)})
}

// First returns the number of the first attempts in a run after a number of others.
func First(runs int, retry job.Retry) int { return runs * (retry.Times + 1) }

// clean removes the files of runs that have ended, but not their records.
func (p *Plan) clean(run string) {
	for _, pattern := range []string{"pack." + run, "results." + run + ".*"} {
		files, _ := filepath.Glob(filepath.Join(p.dir, pattern))
		for _, file := range files {
			_ = os.RemoveAll(file)
		}
	}
}

// join reads the plan of a run that another process has begun.
func join(dir, run string) (*Plan, string, error) {
	at := Plan{dir: dir, run: run}
	var m meeting
	if !at.get("plan", &m) || m.Plan == nil {
		return nil, "", fmt.Errorf("joining packed job %s: its plan cannot be read in %s; all nodes must share the store",
			filepath.Base(dir), dir)
	}
	p := m.Plan
	p.dir, p.run = dir, run
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, "", err
	}
	for _, e := range entries {
		p.fill = p.fill || strings.HasSuffix(e.Name(), "."+job.Placeholder)
	}
	return p, m.Token, nil
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Read returns the progress of the run in dir, the directory of a job, or false if none is under way.
func Read(dir string) (at Progress, ok bool) {
	files, _ := filepath.Glob(filepath.Join(dir, "pack.*", "progress"))
	for _, file := range files {
		if p := (Progress{}); job.ReadJSON(file, &p) == nil && p.At.After(at.At) {
			at, ok = p, true
		}
	}
	return at, ok
}
