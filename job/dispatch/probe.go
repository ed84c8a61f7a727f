package dispatch

import (
	"cmp"
	"context"
	"errors"
	"os/exec"
	"strings"

	"hpcc/job/batch"
	"hpcc/job/invoke"
)

// A Scheduler is a batch system whose commands are on PATH.
type Scheduler struct {
	Name    string // as in --target and the documentation
	Version string // as its command prints it; "" if it does not
	Err     error  // error of a query to it; nil if it answers
}

// Schedulers finds the schedulers of this machine and queries all of them concurrently.
func Schedulers(ctx context.Context) []Scheduler {
	known := describe()
	answers := make([]chan *Scheduler, len(known))
	for i, d := range known {
		answers[i] = make(chan *Scheduler, 1)
		go func() { answers[i] <- probe(ctx, d) }()
	}
	var out []Scheduler
	for _, a := range answers {
		if s := <-a; s != nil {
			out = append(out, *s)
		}
	}
	return out
}

// probe returns nil if the scheduler's command is not on PATH.
func probe(ctx context.Context, d *batch.Description) *Scheduler {
	if _, err := exec.LookPath(d.Command); err != nil {
		return nil
	}
	line := ""
	if text, err := invoke.Probe(ctx, d.Version); err == nil {
		line, _, _ = strings.Cut(strings.TrimSpace(string(text)), "\n")
	}
	if d.Is != nil && !d.Is(line) {
		return nil
	}
	s := &Scheduler{Name: cmp.Or(d.Product, d.Title), Version: line}
	if out, err := invoke.Probe(ctx, d.Ping); err != nil {
		s.Err = &queryError{strings.Join(d.Ping, " "), strings.TrimSpace(string(out)), err}
	}
	return s
}

// A queryError is a failed query, with the scheduler's own message if it printed one.
type queryError struct {
	command, message string
	err              error
}

func (e *queryError) Error() string {
	if errors.Is(e.err, context.DeadlineExceeded) || e.message == "" {
		return e.command + ": " + e.err.Error()
	}
	return e.command + ": " + e.message[strings.LastIndexByte(e.message, '\n')+1:] // the last line has the reason
}
func (e *queryError) Unwrap() error { return e.err }
