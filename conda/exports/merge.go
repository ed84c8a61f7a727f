package exports

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"hpcc/conda/pip"
)

// ReadFiles reads the files that together describe one environment. All constraints hold, and the
// channels of the first file come first. A variable has the value of the last file that sets it. A
// lock file, which has all packages of an environment, can be merged only with other lists of exact
// packages and with pip packages.
func ReadFiles(names []string, o ReadOptions) (*Export, error) {
	e, err := ReadFile(names[0], o)
	if err != nil || len(names) == 1 {
		return e, err
	}
	e.Dir = filepath.Dir(e.File)
	e.own(e.File)
	for _, name := range names[1:] {
		next, err := ReadFile(name, o)
		if err != nil {
			return nil, err
		}
		next.own(next.File)
		if err := e.merge(next, o); err != nil {
			return nil, fmt.Errorf("merging %s and %s: %w", e.File, next.File, err)
		}
	}
	if e.hasConda() && !e.Explicit { // conda's packages and those of pip need the same python
		e.Specs, e.Python = append(e.Specs, e.Python...), nil
	}
	return e, nil
}

// hasConda reports whether the export has packages of conda.
func (e *Export) hasConda() bool { return len(e.Entries)+len(e.UnmetSpecs()) > 0 }

// own records the file of each row.
func (e *Export) own(file string) {
	for i := range e.Entries {
		e.Entries[i].File = file
	}
	for _, list := range [][]Spec{e.Specs, e.Limits, e.Python} {
		for i := range list {
			list[i].File = file
		}
	}
	for _, list := range [][]pip.Requirement{e.Pip, e.Constraints} {
		for i, p := range list {
			list[i].Line, list[i].Within = 0, cmp.Or(p.Within, fmt.Sprintf("%s:%d", file, p.Line))
		}
	}
}

// merge adds the content of another file. The environment has the channels of o if there are some.
func (e *Export) merge(next *Export, o ReadOptions) error {
	if len(e.Base) > 0 && len(next.Base) > 0 {
		return errors.New("both are locked with a base image; merge the exports from which they were locked")
	}
	if err := e.mergeEntries(next); err != nil {
		return err
	}
	if err := e.mergePip(next); err != nil {
		return err
	}
	if len(o.Channels) == 0 {
		if err := e.mergeChannels(next); err != nil {
			return err
		}
	}
	for _, k := range slices.Sorted(maps.Keys(next.Variables)) {
		if was, ok := e.Variables[k]; ok && was != next.Variables[k] {
			e.Notes = append(e.Notes, fmt.Sprintf("%s: variable %s replaces that of an earlier file", next.File, k))
		}
		if e.Variables == nil {
			e.Variables = map[string]string{}
		}
		e.Variables[k] = next.Variables[k]
	}
	e.Base = append(e.Base, next.Base...)
	e.Specs, e.Limits, e.Python = append(e.Specs, next.Specs...), append(e.Limits, next.Limits...), append(e.Python, next.Python...)
	e.Virtual = append(e.Virtual, next.Virtual...)
	e.Flexible = e.Flexible || next.Flexible
	e.Notes = append(e.Notes, next.Notes...)
	e.File += ", " + next.File
	return nil
}

// mergePip adds the pip packages of another file, with paths relative to e.Dir.
func (e *Export) mergePip(next *Export) error {
	x, y := &e.PipIndexes, next.PipIndexes
	if x.URL != "" && y.URL != "" && x.URL != y.URL {
		return errors.New("they name different package indexes; write one of them as --extra-index-url")
	}
	x.URL, x.NoIndex, x.Extra = cmp.Or(x.URL, y.URL), x.NoIndex || y.NoIndex, append(x.Extra, y.Extra...)
	from := filepath.Dir(next.File)
	for _, l := range y.FindLinks {
		x.FindLinks = append(x.FindLinks, rebase(l, from, e.Dir))
	}
	for _, p := range next.Pip {
		p.URL = rebase(p.URL, from, e.Dir)
		for i, f := range p.Files {
			p.Files[i].URL = rebase(f.URL, from, e.Dir)
		}
		e.Pip = append(e.Pip, p)
	}
	e.Constraints = append(e.Constraints, next.Constraints...)
	e.PipOpen = e.PipOpen || next.PipOpen
	return nil
}

// mergeEntries adds the exact packages of another file. It refuses two builds of one package, and
// files for different platforms.
func (e *Export) mergeEntries(next *Export) error {
	if e.Subdir != "" && next.Subdir != "" && e.Subdir != next.Subdir {
		return fmt.Errorf("one is for %s and the other for %s", e.Subdir, next.Subdir)
	}
	if e.hasConda() && next.hasConda() && e.Explicit != next.Explicit {
		locked := e
		if next.Explicit {
			locked = next
		}
		return fmt.Errorf("%s is the lock of a complete environment, to which no conda packages can be added; merge the exports from which it was locked", locked.Entries[0].File)
	}
	e.Explicit = e.Explicit || next.Explicit
	e.Subdir = cmp.Or(e.Subdir, next.Subdir)
	known := map[string]Entry{}
	for _, x := range e.Entries {
		known[x.Name] = x
	}
	for _, x := range next.Entries {
		have, ok := known[x.Name]
		switch {
		case !ok:
			e.Entries = append(e.Entries, x)
		case have.Version != x.Version || have.Build != x.Build || have.URL != x.URL:
			return fmt.Errorf("%s:%d: %s contradicts %s in %s:%d; remove one of them", x.File, x.Line, x, have, have.File, have.Line)
		}
	}
	return nil
}

// mergeChannels adds the channels of another file, in an order that both files have. It refuses
// files that order their common channels differently, because the order decides which packages are
// used.
func (e *Export) mergeChannels(next *Export) error {
	merged := slices.Clone(e.Channels)
	var fresh []string // channels to add before the next common one
	last := -1
	for _, c := range next.Channels {
		at := slices.Index(merged, c)
		switch {
		case at < 0:
			fresh = append(fresh, c)
			continue
		case at < last && c != "nodefaults":
			return fmt.Errorf("they order their channels differently (%s; %s); set the order with --channel",
				strings.Join(e.Channels, " "), strings.Join(next.Channels, " "))
		}
		merged = slices.Insert(merged, at, fresh...)
		last = max(last, at+len(fresh))
		fresh = nil
	}
	e.Channels = append(merged, fresh...)
	return nil
}
