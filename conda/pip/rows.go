package pip

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/files"
	"hpcc/text"
)

// refuse records a row that cannot be installed, the reason, and the Dockerfile line to
// use instead.
func (r *resolver) refuse(row Requirement, run, why string, args ...any) {
	text := row.String()
	if row.Within != "" {
		text = row.Within + ": " + text
	}
	r.refused = append(r.refused, refusal{row.Line, text, fmt.Sprintf(why, args...), run})
}

// rows returns the demands of the rows whose conditions hold for the target. It refuses
// invalid rows.
func (r *resolver) rows(rows []Requirement) []demand {
	var out []demand
	rows, skipped := r.required(rows)
	for _, row := range slices.Concat(rows, r.options.Constraints) {
		r.requireHashes = r.requireHashes || len(row.Hashes) > 0
	}
	r.constrain()
	for _, row := range rows {
		d, err := row.dependency()
		if err != nil {
			r.refuse(row, "", "%v", err)
			continue
		}
		if !d.cond.holds(row.environment(r.env), "") {
			skipped = append(skipped, row.String())
			continue
		}
		w := demand{dependencyRow: d, name: NormalName(row.Name), origin: row.origin()}
		switch {
		case row.Virtual:
			continue
		case row.Editable || row.URL != "":
			if !r.locate(&w) {
				continue
			}
		case len(row.Files) > 0 && row.Files[0].URL != "":
			if err := r.listFiles(row); err != nil {
				r.refuse(row, "", "%v", err)
				continue
			}
		case r.requireHashes && !isHashed(append(slices.Clip(r.limits[w.name]), w)) && r.provided[w.name] == nil:
			r.refuse(row, "", "other rows have a --hash, so this one needs == and a --hash too")
			continue
		}
		out = append(out, w)
	}
	if len(skipped) > 0 {
		r.notes = append(r.notes, fmt.Sprintf("skipped pip rows whose conditions exclude %s with python %s: %s",
			r.target.Subdir, r.target.Python, input.List(skipped)))
	}
	return out
}

// isHashed reports whether rows for one distribution name a single version and its digests.
func isHashed(rows []demand) bool {
	return slices.ContainsFunc(rows, func(w demand) bool { return len(w.Hashes) > 0 }) &&
		slices.ContainsFunc(rows, func(w demand) bool { return w.spec.exact() })
}

// constrain reads the constraints whose conditions hold for the target. It refuses invalid ones.
func (r *resolver) constrain() {
	for _, row := range r.options.Constraints {
		d, err := row.dependency()
		if err != nil {
			r.refuse(row, "", "%v", err)
			continue
		}
		if name := NormalName(row.Name); d.cond.holds(r.env, "") {
			r.limits[name] = append(slices.Clip(r.limits[name]), demand{dependencyRow: d, name: name, origin: row.origin()})
		}
	}
}

// locate finds the wheel or sources of a row that names a URL or path. It returns false
// if it refuses the row.
func (r *resolver) locate(w *demand) bool {
	row := w.Requirement
	have := r.provided[w.name]
	scheme, _, _ := strings.Cut(row.URL, ":")
	_, vcs, _ := strings.Cut(scheme, "+")
	switch {
	case vcs != "":
		built := row
		built.Editable = false
		r.refuse(row, r.target.run(built.String()),
			"repositories cannot be fetched; use an archive of the commit, as in NAME @ https://github.com/OWNER/REPOSITORY/archive/COMMIT.tar.gz")
		return false
	}
	u, err := r.location(row.URL)
	if err != nil {
		r.refuse(row, "", "%v", err)
		return false
	}
	if u.Scheme == "file" {
		fi, err := os.Stat(u.Path)
		switch {
		case err != nil && have != nil: // conda-build records paths of its build host
			w.URL = ""
			return true
		case err != nil:
			r.refuse(row, "", "no such file or directory: %s; if conda recorded the path on another machine, write NAME==VERSION instead", u.Path)
			return false
		case fi.IsDir():
			return r.locateDirectory(w, u)
		}
	}
	if row.Editable {
		r.refuse(row, "", "an editable package is a directory of sources; remove -e")
		return false
	}
	f, err := locatedFile(u)
	if err != nil {
		r.refuse(row, "", "%v", err)
		return false
	}
	return r.useFile(w, f)
}

// locatedFile returns the file at a row's URL, with the digest and the subdirectory in
// the fragment.
func locatedFile(u *url.URL) (*indexFile, error) {
	f := &indexFile{name: path.Base(strings.TrimSuffix(u.Path, "/"))}
	h, err := fragmentHash(u.Fragment)
	if err != nil {
		return nil, err
	}
	if h != "" {
		f.hashes = []string{h}
	}
	for part := range strings.SplitSeq(u.Fragment, "&") {
		if dir, ok := strings.CutPrefix(part, "subdirectory="); ok {
			if f.subdir, err = input.CleanPath(dir); err != nil {
				return nil, fmt.Errorf("subdirectory %q: %w", text.Short(dir), err)
			}
		}
	}
	if h != "" || f.subdir != "" {
		u.Fragment, u.RawFragment = "", ""
	}
	f.url = u.String()
	if strings.HasSuffix(f.name, ".whl") {
		if f.wheel, err = parseWheelName(f.name); err == nil {
			f.version = f.wheel.version
		}
	}
	return f, err
}

// useFile makes the file that a row names the only candidate for its distribution. It
// returns false if it refuses the row.
func (r *resolver) useFile(w *demand, f *indexFile) bool {
	row := w.Requirement
	p := &pick{name: w.name, file: f, direct: !row.Locked, rank: sourceRank, with: row.BuildWith}
	dist := ""
	if f.wheel != nil {
		dist, p.rank = f.wheel.dist, r.rank(f.wheel)
	} else if n, v, ok := sourceName(f.name); ok && f.subdir == "" && (row.Name == "" || NormalName(n) == w.name) {
		dist, f.version = n, v
	}
	if row.Name == "" {
		w.name = NormalName(dist)
		p.name = w.name
	}
	p.version = f.version
	switch have := r.provided[w.name]; {
	case f.wheel == nil && r.options.Build == nil && strings.HasPrefix(f.url, "file:"):
		r.refuse(row, "", "it is a source archive, which has to be built%s; in a Dockerfile COPY it and RUN %s -m pip install --no-deps PATH", r.because(), r.target.interpreter())
	case f.wheel == nil && r.options.Build == nil:
		r.refuse(row, r.target.run(row.String()), "it is a source archive, which has to be built%s", r.because())
	case f.wheel == nil && sourceKind(f.name) == "":
		r.refuse(row, "", "neither a wheel nor a source archive: the name must end with one of .whl, %s", strings.Join(sourceKinds, ", "))
	case w.name == "":
		r.refuse(row, "", "the name of the package is unknown; write NAME @ %s", display(row.URL))
	case dist != "" && NormalName(dist) != w.name:
		r.refuse(row, "", "the wheel contains %s, not %s", dist, w.name)
	case p.rank == 0:
		r.refuse(row, "", "the wheel is for %s, but the environment is %s", input.List(f.wheel.tags), r.target.describe())
	case have != nil:
		r.refuse(row, "", "the conda package %s already provides version %s; remove one of the two rows", have.by, have.version)
	case len(r.direct[w.name]) > 0 && r.direct[w.name][0].file.url != f.url:
		r.refuse(row, "", "another row names a different file for %s", w.name)
	case r.requireHashes && len(row.Hashes) == 0 && !slices.ContainsFunc(f.hashes, strong):
		r.refuse(row, "", "other rows have a --hash, so this one needs a --hash or #sha256=… too")
	default:
		for _, twin := range r.direct[w.name] {
			p.hashes = twin.hashes
		}
		r.direct[w.name] = []*pick{p.demand([]demand{*w})}
		return true
	}
	return false
}

// readSourceVersions reads the versions of sources whose file names do not contain them.
func (r *resolver) readSourceVersions() error {
	for _, name := range slices.Sorted(maps.Keys(r.direct)) {
		for _, p := range r.direct[name] {
			if p.version.release != nil {
				continue
			}
			m, err := r.fetch.metadata(r.ctx, p)
			if err != nil {
				return err
			}
			p.version, p.file.version = m.version, m.version
		}
	}
	return nil
}

// location parses a row's URL, or returns the file URL of its path.
func (r *resolver) location(s string) (*url.URL, error) {
	s, err := fetch.Expand(s)
	if err != nil {
		return nil, err
	}
	if rest, ok := strings.CutPrefix(s, "file:"); ok && !strings.HasPrefix(rest, "//") {
		s = rest
	}
	if strings.Contains(s, "://") {
		u, err := url.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("reading the URL: %w", fetch.Plain(err))
		}
		if u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "file" {
			return nil, fmt.Errorf("%q: not an https, http or file URL", u.Scheme)
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

// lookup queries the indexes for all rows in parallel, and refuses rows that no file
// satisfies.
func (r *resolver) lookup(wants []demand) error {
	var names []string
	at := map[string]string{} // the package's own index
	for _, w := range wants {
		if r.provided[w.name] == nil && r.direct[w.name] == nil && r.files[w.name] == nil && !slices.Contains(names, w.name) {
			names = append(names, w.name)
			at[w.name] = w.Index
		}
	}
	found := make([][]indexFile, len(names))
	g, ctx := errgroup.WithContext(r.ctx)
	g.SetLimit(files.MaxParallel(6, 4))
	for i, n := range names {
		g.Go(func() (err error) {
			found[i], err = r.index.files(ctx, n, at[n])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, n := range names {
		r.rateFiles(n, found[i])
	}
	for _, w := range wants {
		if d := r.direct[w.name]; len(d) > 0 && d[0].version.release == nil {
			continue // the version is unknown until the sources are read
		}
		list, err := r.candidates(w.name, []demand{w})
		if err != nil {
			return err
		}
		if len(list) == 0 {
			why, run := r.reason(w.name, []demand{w})
			r.refuse(w.Requirement, run, "%s", why)
		}
	}
	return nil
}
