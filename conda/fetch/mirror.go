package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"

	"hpcc/store/wait"
)

// Mirrors are the URLs of one channel, in order of preference. Packages are recorded with
// the first URL, whichever they came from, because their digests are equal.
type Mirrors struct {
	Places []string     // URLs without a trailing slash
	at     atomic.Int32 // index of the first to try: those before it failed
}

// attemptsOfMirror is the number of attempts at one mirror while others are left.
const attemptsOfMirror = 2

// Try calls do with one URL after another until it succeeds. A mirror that does not respond
// is tried last from then on; one that lacks the file keeps its position. If none has the
// file, the error is fs.ErrNotExist.
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
