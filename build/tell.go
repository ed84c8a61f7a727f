package build

import (
	"context"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
)

// tell reports something of the step under way.
func (st *stage) tell(e Event) {
	b := st.b
	b.mu.Lock()
	e.Stage, e.Step, e.Total, e.Text = st.index, st.number, b.total, oneLine(e.Text)
	b.mu.Unlock()
	b.report(e)
}

// fail reports that the step under way ended with an error of its own.
func (st *stage) fail(ctx context.Context, text string, begun time.Time) {
	if ctx.Err() == nil {
		st.tell(Event{Text: text, Done: true, Failed: true, Took: time.Since(begun)})
	}
}

// await waits for the stages that an instruction takes files from, so that the
// time of the step is its own.
func (st *stage) await(ctx context.Context, c instructions.Command) error {
	for _, from := range fromsOf(c) {
		if _, given := st.b.Contexts[from]; given {
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

// A printer reports what the step's program prints.
type printer struct{ st *stage }

func (p printer) Write(text []byte) (int, error) {
	p.st.tell(Event{Output: text})
	return len(text), nil
}

// fetching reports the bytes of a download, at most ten times a second.
func (st *stage) fetching() func(done, total int64) {
	return seldom(func(done, total int64) {
		st.fetched.Store(true)
		st.tell(Event{Fetched: done, Size: total})
	})
}

// seldom passes the first and the last call on, and else ten in a second.
func seldom(tell func(done, total int64)) func(done, total int64) {
	var last time.Time
	return func(done, total int64) {
		if now := time.Now(); now.Sub(last) >= time.Second/10 || done == total {
			last = now
			tell(done, total)
		}
	}
}
