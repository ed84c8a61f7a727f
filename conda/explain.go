package conda

import (
	"context"
	"strings"
)

// An unsolvable is a problem without an answer, in plain words.
type unsolvable struct{ lines []string }

func (e *unsolvable) Error() string { return strings.Join(e.lines, "\n") }

func (l *pool) explain(ctx context.Context, core []*edge) error {
	e := &unsolvable{}
	for _, x := range core {
		e.lines = append(e.lines, x.from+" -> "+x.to)
	}
	return e
}
