package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"

	"hpcc/web"
)

// Mirrors are the URLs of one channel, in order of preference. Packages are recorded with
// the first URL, no matter which mirror served them, because their digests are equal.
type Mirrors struct {
	URLs []string     // URLs without a trailing slash
	at   atomic.Int32 // index of the mirror to try first; those before it failed
}

// attemptsPerMirror is the number of attempts at a mirror before the next; the last mirror
// gets the usual number.
const attemptsPerMirror = 2

// Try calls do with one URL after another until it succeeds. A mirror that fails is tried last
// from then on; one that lacks the file keeps its position. If no mirror has the file, the
// error is fs.ErrNotExist.
func (m *Mirrors) Try(ctx context.Context, do func(ctx context.Context, mirror string) error) error {
	first := int(m.at.Load())
	var absent, failed error
	for i := range m.URLs {
		n := (first + i) % len(m.URLs)
		attempt := ctx
		if i < len(m.URLs)-1 {
			attempt = web.Attempts(ctx, attemptsPerMirror)
		}
		err := do(attempt, m.URLs[n])
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, fs.ErrNotExist):
			absent = err
		default:
			m.at.CompareAndSwap(int32(n), int32((n+1)%len(m.URLs)))
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
