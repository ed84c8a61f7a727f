package build

import (
	"context"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
)

// report reports an event of the current step.
func (st *stage) report(e Event) {
	b := st.b
	b.mu.Lock()
	e.Stage, e.Step, e.Total, e.Text = st.index, st.number, b.total, oneLine(e.Text)
	b.mu.Unlock()
	b.report(e)
}

// reported runs the work of the current step, and reports its begin and its end.
func (st *stage) reported(ctx context.Context, text string, work func() (cached bool, err error)) error {
	return reported(ctx, text, st.report, func() (cached bool, took time.Duration, err error) {
		st.saved = 0
		cached, err = work()
		return cached, st.saved, err
	})
}

// reported runs the work of a step, and reports its begin and its end. took is the original duration of
// a cached step.
func reported(ctx context.Context, text string, report func(Event), work func() (cached bool, took time.Duration, err error)) error {
	report(Event{Text: text})
	started := time.Now()
	cached, took, err := work()
	e := Event{Text: text, Done: true, Failed: err != nil, Took: time.Since(started)}
	if e.Cached = cached && err == nil; e.Cached {
		e.Saved = max(0, took-e.Took)
	}
	if err == nil || ctx.Err() == nil {
		report(e)
	}
	return err
}

// await waits for the stages that an instruction copies from, so that the wait is not part
// of the step's duration.
func (st *stage) await(ctx context.Context, c instructions.Command) error {
	for _, from := range fromsOf(c) {
		if _, given := st.b.named(from); given {
			continue
		}
		if j, ok := st.b.stageNamed(from, st.index); ok {
			if _, err := st.b.finished(ctx, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// A printer reports the output of the step's program.
type printer struct{ st *stage }

func (p printer) Write(text []byte) (int, error) {
	p.st.report(Event{Output: text})
	return len(text), nil
}

// fetching returns a function that reports downloaded bytes, at most ten times a second.
func (st *stage) fetching() func(done, total int64) {
	return seldom(func(done, total int64) {
		st.fetched.Store(true)
		st.report(Event{Fetched: done, Size: total})
	})
}

// seldom passes on the first and last call, and at most ten calls per second in between.
func seldom(report func(done, total int64)) func(done, total int64) {
	var last time.Time
	return func(done, total int64) {
		if now := time.Now(); now.Sub(last) >= time.Second/10 || done == total {
			last = now
			report(done, total)
		}
	}
}
