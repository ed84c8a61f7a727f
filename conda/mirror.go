package conda

import (
	"context"
	"slices"
	"strings"

	"hpcc/conda/fetch"
	"hpcc/conda/solve"
)

// mirrorsOf returns the mirrors of a channel URL, or nil if it has no others.
func (o Options) mirrorsOf(u string) *fetch.Mirrors {
	for _, group := range o.Mirrors {
		below, ok := strings.CutPrefix(u, group[0]) // a label of the channel
		if len(group) < 2 || !ok || (below != "" && !strings.HasPrefix(below, "/")) {
			continue
		}
		m := &fetch.Mirrors{}
		for _, mirror := range group {
			m.URLs = append(m.URLs, mirror+below)
		}
		return m
	}
	return nil
}

// withMirrors returns u and its mirrors, u first, or nil if it has no mirrors.
func (o Options) withMirrors(u string) *fetch.Mirrors {
	for _, group := range o.Mirrors {
		for i, mirror := range group {
			below, ok := strings.CutPrefix(u, mirror)
			if len(group) < 2 || !ok || (below != "" && !strings.HasPrefix(below, "/")) {
				continue
			}
			m := &fetch.Mirrors{URLs: []string{u}}
			for _, other := range slices.Concat(group[:i], group[i+1:]) {
				m.URLs = append(m.URLs, other+below)
			}
			return m
		}
	}
	return nil
}

// index reads the records of the wanted names from one subdirectory of a channel, at the
// first mirror that has it. A missing subdirectory has no records.
func (c channel) index(ctx context.Context, subdir string, wanted map[string]bool) (rs []*solve.Record, err error) {
	if c.mirrors == nil {
		return c.fetchIndex(ctx, subdir, wanted)
	}
	err = c.mirrors.Try(ctx, func(ctx context.Context, mirror string) (err error) {
		at := c
		at.url = mirror
		if rs, err = at.fetchIndex(ctx, subdir, wanted); err != nil {
			return err
		}
		for _, r := range rs {
			r.Origin = c.url
			if rest, ok := strings.CutPrefix(r.URL, mirror+"/"); ok { // an index can name another base
				r.URL, r.Mirrors = c.url+"/"+rest, c.mirrors
			}
		}
		return nil
	})
	return rs, err
}
