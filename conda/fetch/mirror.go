package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"

	"hpcc/store/wait"
)

// Mirrors are the places of one channel, in the order in which they are asked.
// What is recorded of its packages is the first, whichever they came from:
// their digests say that they are the same.
type Mirrors struct {
	Places []string     // URLs without a slash at the end
	at     atomic.Int32 // the one to begin with: those before it did not answer
}

// attemptsOfMirror is how often a place is asked while there are others to ask.
const attemptsOfMirror = 2

// Try does something at one place after another until it works. One that does
// not answer is asked last from then on; one that has not the file is only
// behind the others. Where none has it, the error is fs.ErrNotExist.
func (m *Mirrors) Try(ctx context.Context, do func(ctx context.Context, place string) error) error {
	first := int(m.at.Load())
	var absent, failed error
	for i := range m.Places {
		n := (first + i) % len(m.Places)
		asked := ctx
		if i < len(m.Places)-1 {
			asked = wait.Attempts(ctx, attemptsOfMirror)
		}
		err := do(asked, m.Places[n])
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, fs.ErrNotExist):
			absent = err
		default:
			m.at.CompareAndSwap(int32(n), int32((n+1)%len(m.Places)))
			if failed != nil {
				err = fmt.Errorf("%w; %w", failed, err)
			}
			failed = err
		}
	}
	if failed == nil {
		return absent
	}
	return failed
}
