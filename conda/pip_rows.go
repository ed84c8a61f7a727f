package conda

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// refuse notes a row that cannot be installed, why, and the Dockerfile line that
// does it instead.
func (r *pipResolver) refuse(row PipRequirement, run, why string, args ...any) {
	r.refused = append(r.refused, pipRefusal{row.Line, row.String(), fmt.Sprintf(why, args...), run})
}

// rows reads the rows that the target wants.
func (r *pipResolver) rows(rows []PipRequirement) []pipWant {
	var out []pipWant
	var other []string
	for _, row := range rows {
		r.checked = r.checked || len(row.Hashes) > 0
	}
	for _, row := range rows {
		d, err := row.dependency()
		if err != nil {
			r.refuse(row, "", "%v", err)
			continue
		}
		if !d.cond.holds(r.env, "") {
			other = append(other, row.String())
			continue
		}
		w := pipWant{dependencyRow: d, name: pipName(row.Name), who: "the list"}
		if row.Line > 0 {
			w.who = fmt.Sprintf("line %d", row.Line)
		}
		switch {
		case row.Editable || row.URL != "":
			if !r.locate(&w) {
				continue
			}
		case r.checked && (len(row.Hashes) == 0 || !d.spec.exact()) && r.provided[w.name] == nil:
			r.refuse(row, "", "other rows have a --hash, so that this one needs == and a --hash too")
			continue
		}
		out = append(out, w)
	}
	if len(other) > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%d pip rows are for other platforms or pythons than %s and %s: %s", len(other), r.target.Subdir, r.target.Python, some(other)))
	}
	return out
}

// locate finds the wheel of a row that names a URL or path. False is a row that
// is refused.
func (r *pipResolver) locate(w *pipWant) bool {
	row := w.PipRequirement
	have := r.provided[w.name]
	scheme, _, _ := strings.Cut(row.URL, ":")
	_, vcs, _ := strings.Cut(scheme, "+")
	base := path.Base(strings.TrimSuffix(locationPath(row.URL), "/"))
	const copied = "it is a directory or archive of sources, which have to be built: in a Dockerfile COPY it and RUN %s -m pip install --no-deps PATH"
	switch {
	case vcs != "":
		built := row
		built.Editable = false
		r.refuse(row, r.target.run(built.String()), "it is built from the sources of a repository")
		return false
	case row.Editable:
		r.refuse(row, "", copied, r.target.interpreter())
		return false
	}
	u, err := r.location(row.URL)
	if err != nil {
		r.refuse(row, "", "%v", err)
		return false
	}
	if u.Scheme == "file" {
		if _, err := os.Stat(u.Path); err != nil {
			if have != nil { // conda-build leaves its own paths behind
				w.URL = ""
				return true
			}
			r.refuse(row, "", "the path is not here; if it is of the machine where conda built the package, write NAME==VERSION instead")
			return false
		}
	}
	switch sources := !strings.HasSuffix(base, ".whl"); {
	case sources && u.Scheme == "file":
		r.refuse(row, "", copied, r.target.interpreter())
		return false
	case sources:
		r.refuse(row, r.target.run(row.String()), "it is no wheel but sources, which have to be built")
		return false
	}
	f := pipFile{name: base, url: u.String()}
	if h, err := fragmentHash(u.Fragment); err != nil {
		r.refuse(row, "", "%v", err)
		return false
	} else if u.Fragment, u.RawFragment = "", ""; h != "" {
		f.hashes, f.url = []string{h}, u.String()
	}
	if f.wheel, err = parseWheelName(base); err != nil {
		r.refuse(row, "", "%v", err)
		return false
	}
	if row.Name == "" {
		w.name = pipName(f.wheel.dist)
	}
	p := &pipPick{name: w.name, version: f.wheel.version, file: &f, direct: !row.Locked, rank: r.rank(f.wheel)}
	switch {
	case pipName(f.wheel.dist) != w.name:
		r.refuse(row, "", "the wheel is of %s", f.wheel.dist)
	case p.rank == 0:
		r.refuse(row, "", "the wheel is for %s, the environment is %s", some(f.wheel.tags), r.target.describe())
	case r.provided[w.name] != nil:
		r.refuse(row, "", "conda's package %s has it already, as %s; take one of the two out", r.provided[w.name].by, r.provided[w.name].version)
	case len(r.direct[w.name]) > 0 && r.direct[w.name][0].file.url != f.url:
		r.refuse(row, "", "another row names another file of %s", w.name)
	case r.checked && len(row.Hashes) == 0 && !slices.ContainsFunc(f.hashes, strong):
		r.refuse(row, "", "other rows have a --hash, so that this one needs a --hash or #sha256=… too")
	default:
		r.direct[w.name] = []*pipPick{p}
		return true
	}
	return false
}

// location makes a URL of a row's URL or path.
func (r *pipResolver) location(s string) (*url.URL, error) {
	s, err := expand(s)
	if err != nil {
		return nil, err
	}
	if rest, ok := strings.CutPrefix(s, "file:"); ok && !strings.HasPrefix(rest, "//") {
		s = rest
	}
	if strings.Contains(s, "://") {
		u, err := url.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("reading the URL: %w", plain(err))
		}
		if u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "file" {
			return nil, fmt.Errorf("%q is no https, http or file URL", u.Scheme)
		}
		return u, nil
	}
	s, frag, _ := strings.Cut(s, "#")
	if rest, ok := strings.CutPrefix(s, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		s = filepath.Join(home, rest)
	} else if !filepath.IsAbs(s) {
		s = filepath.Join(r.options.Dir, s)
	}
	abs, err := filepath.Abs(s)
	return &url.URL{Scheme: "file", Path: abs, Fragment: frag}, err
}

// lookup asks the indexes for all rows at once, and refuses those that nothing
// is there for.
func (r *pipResolver) lookup(wants []pipWant) error {
	var names []string
	for _, w := range wants {
		if r.provided[w.name] == nil && r.direct[w.name] == nil && !slices.Contains(names, w.name) {
			names = append(names, w.name)
		}
	}
	found := make([][]pipFile, len(names))
	g, ctx := errgroup.WithContext(r.ctx)
	g.SetLimit(6)
	for i, n := range names {
		g.Go(func() (err error) {
			found[i], err = r.index.files(ctx, n)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, n := range names {
		r.take(n, found[i])
	}
	for _, w := range wants {
		list, err := r.candidates(w.name, []pipWant{w})
		if err != nil {
			return err
		}
		if len(list) == 0 {
			why, run := r.reason(w.name, []pipWant{w})
			r.refuse(w.PipRequirement, run, "%s", why)
		}
	}
	return nil
}
