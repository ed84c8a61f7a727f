package conda

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"hpcc/conda/exports"
	"hpcc/conda/fetch"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
)

// LockBase adds the packages of a base plan to the lock of the environment above it.
func (p *Plan) LockBase(l *exports.Locked) {
	for _, r := range p.pkgs {
		l.Add(lockedRecord(r), r.URL, true)
	}
}

// Lock returns the lock of an installed plan, with the chosen wheels.
func (p *Plan) Lock(wheels []pip.Wheel) exports.Locked {
	l := exports.Locked{Platform: p.Subdir, Variables: p.export.Variables, Built: map[string][]string{}}
	for _, r := range p.pkgs {
		l.Add(lockedRecord(r), r.URL, false)
		if c := fetch.Bare(r.Origin); !slices.Contains(l.Channels, c) {
			l.Channels = append(l.Channels, c)
		}
	}
	for _, w := range wheels {
		x := exports.LockedPackage{Name: w.Name, Version: w.Version, Manager: "pip", Dependencies: map[string]string{}}
		x.Hash.SHA256 = w.SHA256
		l.Add(x, w.Address, false)
		for _, b := range w.BuiltWith {
			if u, err := url.Parse(b.Address); err != nil || u.String() != fetch.Bare(b.Address) {
				l.Hidden = append(l.Hidden, b.Name)
			}
			l.Built[w.Name] = append(l.Built[w.Name], fmt.Sprintf("%s @ %s#sha256=%s", b.Name, fetch.Bare(b.Address), b.SHA256))
		}
		if w.Asked {
			l.Asked = append(l.Asked, w.Name)
		}
		if w.Direct {
			l.Direct = append(l.Direct, w.Name)
		}
	}
	slices.SortStableFunc(l.Channels, func(a, b string) int { return cmp.Compare(p.rank(a), p.rank(b)) })
	return l
}

// rank returns the position of a channel in the user's list.
func (p *Plan) rank(channel string) int {
	for i, name := range p.channels {
		if c, err := openChannel(name); err == nil && fetch.Bare(c.url) == channel {
			return i
		}
	}
	return len(p.channels)
}

// lockedRecord converts a package record to its form in a lock file.
func lockedRecord(r *solve.Record) exports.LockedPackage {
	x := exports.LockedPackage{Name: r.Name, Version: r.Version, Manager: "conda", Dependencies: map[string]string{}}
	x.Hash.MD5, x.Hash.SHA256 = r.MD5, r.SHA256
	for _, d := range r.Depends {
		if n := solve.Dependency(d); n != "" {
			x.Dependencies[n] = cmp.Or(strings.TrimSpace(strings.TrimPrefix(d, n)), "*")
		}
	}
	return x
}
