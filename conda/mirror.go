package conda

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"

	"hpcc/store/wait"
)

// mirrors are the places of one channel, in the order in which they are asked.
// What is recorded of its packages is the first, whichever they came from:
// their digests say that they are the same.
type mirrors struct {
	places []string     // URLs without a slash at the end
	at     atomic.Int32 // the one to begin with: those before it did not answer
}

// mirrorsOf are the places of a channel at a URL; nil where it is the only one.
func (o Options) mirrorsOf(u string) *mirrors {
	for _, group := range o.Mirrors {
		below, ok := strings.CutPrefix(u, group[0]) // a label of it
		if len(group) < 2 || !ok || (below != "" && !strings.HasPrefix(below, "/")) {
			continue
		}
		m := &mirrors{}
		for _, place := range group {
			m.places = append(m.places, place+below)
		}
		return m
	}
	return nil
}

// mirrorsBeside are the places of a channel of which a list names one, u, which is asked
// first; nil where there are no others.
func (o Options) mirrorsBeside(u string) *mirrors {
	for _, group := range o.Mirrors {
		for i, place := range group {
			below, ok := strings.CutPrefix(u, place)
			if len(group) < 2 || !ok || (below != "" && !strings.HasPrefix(below, "/")) {
				continue
			}
			m := &mirrors{places: []string{u}}
			for _, other := range slices.Concat(group[:i], group[i+1:]) {
				m.places = append(m.places, other+below)
			}
			return m
		}
	}
	return nil
}

// attemptsOfMirror is how often a place is asked while there are others to ask.
const attemptsOfMirror = 2

// try does something at one place after another until it works. One that does
// not answer is asked last from then on; one that has not the file is only
// behind the others. Where none has it, the error is fs.ErrNotExist.
func (m *mirrors) try(ctx context.Context, do func(ctx context.Context, place string) error) error {
	first := int(m.at.Load())
	var absent, failed error
	for i := range m.places {
		n := (first + i) % len(m.places)
		asked := ctx
		if i < len(m.places)-1 {
			asked = wait.Attempts(ctx, attemptsOfMirror)
		}
		err := do(asked, m.places[n])
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, fs.ErrNotExist):
			absent = err
		default:
			m.at.CompareAndSwap(int32(n), int32((n+1)%len(m.places)))
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

// index reads the records of the wanted names from one subdirectory of a
// channel, at the first of its places that has it; a subdirectory that is not there has none.
func (c channel) index(ctx context.Context, subdir string, wanted map[string]bool) (rs []*record, err error) {
	if c.mirrors == nil {
		return c.indexHere(ctx, subdir, wanted)
	}
	err = c.mirrors.try(ctx, func(ctx context.Context, place string) (err error) {
		here := c
		here.url = place
		if rs, err = here.indexHere(ctx, subdir, wanted); err != nil {
			return err
		}
		for _, r := range rs {
			r.origin = c.url
			if rest, ok := strings.CutPrefix(r.URL, place+"/"); ok { // an index can name another base
				r.URL, r.mirrors = c.url+"/"+rest, c.mirrors
			}
		}
		return nil
	})
	return rs, err
}

// download brings a package into dir, verified, and returns its path. Work is
// done in tmp, on the same file system. A place that has it not, or another file under
// its name, is passed over for the channel's next.
func (r *record) download(ctx context.Context, dir, tmp string, add func(n int64)) (file string, err error) {
	if r.mirrors == nil {
		return r.downloadFrom(ctx, r.URL, dir, tmp, add)
	}
	err = r.mirrors.try(ctx, func(ctx context.Context, place string) (err error) {
		var done int64
		file, err = r.downloadFrom(ctx, place+strings.TrimPrefix(r.URL, r.mirrors.places[0]), dir, tmp, func(n int64) { done += n; add(n) })
		if err != nil {
			add(-done)
		}
		return err
	})
	return file, err
}
