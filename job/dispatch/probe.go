package dispatch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"

	"hpcc/job/invoke"
)

// A Scheduler is one whose commands are on PATH.
type Scheduler struct {
	Name    string // as --target and documentation call it
	Version string // as its command says; "" when it does not
	Err     error  // why it does not answer; nil: it does
}

// A schedulerProbe says how to find a scheduler: its commands, and what says its
// version and whether it answers. is tells commands of one name apart.
type schedulerProbe struct {
	name          string
	command       string
	version, ping []string
	is            func(version string) bool
}

var schedulerProbes = []schedulerProbe{
	{name: "Slurm", command: "sbatch", version: []string{"sbatch", "--version"}, ping: []string{"scontrol", "ping"}},
	{name: "LSF", command: "bsub", version: []string{"bsub", "-V"}, ping: []string{"lsid"}},
	{name: "Grid Engine", command: "qsub", version: []string{"qstat", "-help"}, ping: []string{"qstat"}, is: func(string) bool { return os.Getenv("SGE_ROOT") != "" }},
	{name: "PBS", command: "qsub", version: []string{"qstat", "--version"}, ping: []string{"qstat", "-B"}, is: func(v string) bool { return os.Getenv("SGE_ROOT") == "" && strings.Contains(v, "pbs") }},
	{name: "Kubernetes", command: "kubectl", version: []string{"kubectl", "version", "--client"}, ping: []string{"kubectl", "version", "--request-timeout=2s"}},
	{name: "OpenShift", command: "oc", version: []string{"oc", "version", "--client"}, ping: []string{"oc", "whoami", "--request-timeout=2s"}},
	{name: "Argo Workflows", command: "argo", version: []string{"argo", "version", "--short"}, ping: []string{"argo", "list", "--request-timeout=2s"}},
}

// Schedulers finds the schedulers of this machine and asks each whether it
// answers, all at the same time.
func Schedulers(ctx context.Context) []Scheduler {
	answers := make([]chan *Scheduler, len(schedulerProbes))
	for i, p := range schedulerProbes {
		answers[i] = make(chan *Scheduler, 1)
		go func() { answers[i] <- p.look(ctx) }()
	}
	var out []Scheduler
	for _, a := range answers {
		if s := <-a; s != nil {
			out = append(out, *s)
		}
	}
	return out
}

// look returns nil when the scheduler is not here.
func (p schedulerProbe) look(ctx context.Context) *Scheduler {
	if _, err := exec.LookPath(p.command); err != nil {
		return nil
	}
	line := ""
	if text, err := invoke.Probe(ctx, p.version); err == nil {
		line, _, _ = strings.Cut(strings.TrimSpace(string(text)), "\n")
	}
	if p.is != nil && !p.is(line) {
		return nil
	}
	s := &Scheduler{Name: p.name, Version: line}
	if out, err := invoke.Probe(ctx, p.ping); err != nil {
		s.Err = &notAnswering{strings.Join(p.ping, " "), strings.TrimSpace(string(out)), err}
	}
	return s
}

// notAnswering is a scheduler's refusal, in its own words where it has some.
type notAnswering struct {
	command, words string
	err            error
}

func (e *notAnswering) Error() string {
	if errors.Is(e.err, context.DeadlineExceeded) || e.words == "" {
		return e.command + ": " + e.err.Error()
	}
	return e.command + ": " + e.words[strings.LastIndexByte(e.words, '\n')+1:] // the reason stands last
}
func (e *notAnswering) Unwrap() error { return e.err }
