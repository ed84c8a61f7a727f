package conda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"hpcc/store"
)

// A pipPick is a version of a distribution that may be chosen.
type pipPick struct {
	name      string // normal
	version   pipVersion
	file      *pipFile // nil when conda provides it
	by        string   // the conda package
	rank      int      // of the best tag; the lowest is the best
	meta      *distMeta
	hashes    []string // one of which it must have; empty for any
	direct    bool     // a row names the very file
	requested bool     // a row names it
	extras    []string
}

func (p *pipPick) String() string { return p.name + " " + p.version.String() }

// A pipWant is that somebody wants a distribution.
type pipWant struct {
	dependencyRow
	name string   // normal
	who  string   // for people
	from []string // the picks that it depends on; none for rows
}

// A pipResolver chooses distributions.
type pipResolver struct {
	ctx      context.Context
	target   *PipTarget
	options  PipOptions
	ranks    map[string]int
	env      map[string]string
	index    *pipIndex
	fetch    *pipFetcher
	files    map[string][]pipFile  // what the indexes have, by normal name
	provided map[string]*pipPick   // by conda
	direct   map[string][]*pipPick // by rows
	checked  bool                  // hashes are demanded (pip's hash-checking mode)
	refused  []PipRefusal
	notes    []string
	tries    int
	conflict string // the first that was met
}

func newPipResolver(ctx context.Context, s *store.Store, t PipTarget, o PipOptions) (*pipResolver, error) {
	r := &pipResolver{ctx: ctx, target: &t, options: o, env: t.environment(), files: map[string][]pipFile{}, provided: map[string]*pipPick{}, direct: map[string][]*pipPick{}}
	var err error
	if r.ranks, err = t.ranks(); err != nil {
		return nil, err
	}
	for _, x := range t.Provided {
		v, err := parsePipVersion(x.Version)
		if err != nil {
			return nil, fmt.Errorf("the conda package %s brings %s: %w", x.Package, x.Name, err)
		}
		if n := pipName(x.Name); r.provided[n] == nil {
			r.provided[n] = &pipPick{name: n, version: v, by: x.Package}
		}
	}
	if r.index, err = openPipIndex(ctx, o.Indexes); err != nil {
		return nil, err
	}
	r.fetch, err = newPipFetcher(s, r.index.web)
	return r, err
}

func (r *pipResolver) refuse(row PipRequirement, run, why string, args ...any) {
	r.refused = append(r.refused, PipRefusal{row.Line, row.String(), fmt.Sprintf(why, args...), run})
}

// rows reads the rows that the target wants.
func (r *pipResolver) rows(rows []PipRequirement) ([]pipWant, error) {
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
	return out, nil
}

// locate finds the wheel of a row that names a URL or path. False is a row that
// is refused.
func (r *pipResolver) locate(w *pipWant) bool {
	row := w.PipRequirement
	have := r.provided[w.name]
	scheme, _, _ := strings.Cut(row.URL, ":")
	_, vcs, _ := strings.Cut(scheme, "+")
	base := path.Base(strings.TrimSuffix(locationPath(row.URL), "/"))
	switch {
	case row.Editable:
		r.refuse(row, "", "it is installed from a directory of sources, which no image has; in a Dockerfile COPY the directory and RUN %s -m pip install --no-deps DIRECTORY", r.target.interpreter())
		return false
	case strings.Contains(scheme, "+") && vcs != "":
		r.refuse(row, r.target.run(row.String()), "it is built from the sources of a repository")
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
	if !strings.HasSuffix(base, ".whl") {
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
	p := &pipPick{name: w.name, version: f.wheel.version, file: &f, direct: true, rank: r.rank(f.wheel)}
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

// rank is that of the wheel's best tag; 0 when the target can use none.
func (r *pipResolver) rank(w *wheelName) int {
	best := 0
	for _, tag := range w.tags {
		if n := r.ranks[tag]; n > 0 && (best == 0 || n < best) {
			best = n
		}
	}
	return best
}

// describe is the target for people.
func (t *PipTarget) describe() string {
	s := "for python " + minor(t.Python) + " and " + t.Subdir
	switch {
	case t.Glibc != "":
		s += ", glibc " + t.Glibc
	case t.Musl != "":
		s += ", musl " + t.Musl
	}
	return s
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
		r.files[n] = found[i]
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

// candidates are what fulfils all wants, the best first: one file of each
// version.
func (r *pipResolver) candidates(name string, wants []pipWant) ([]*pipPick, error) {
	if p := r.provided[name]; p != nil {
		return slices.DeleteFunc([]*pipPick{p}, func(p *pipPick) bool { return !fulfils(p.version, wants) }), nil
	}
	if list := r.direct[name]; list != nil {
		return slices.DeleteFunc(slices.Clone(list), func(p *pipPick) bool { return !fulfils(p.version, wants) }), nil
	}
	if _, ok := r.files[name]; !ok {
		var err error
		if r.files[name], err = r.index.files(r.ctx, name); err != nil {
			return nil, err
		}
	}
	exact := slices.ContainsFunc(wants, func(w pipWant) bool { return w.spec.exact() })
	pre := slices.ContainsFunc(wants, func(w pipWant) bool { return w.spec.pre() })
	var finals, pres []*pipPick
	for i := range r.files[name] {
		f := &r.files[name][i]
		if !fulfils(f.version, wants) || r.fault(f, wants) != "" || f.yanked && !exact {
			continue
		}
		p := &pipPick{name: name, version: f.version, file: f, rank: r.rank(f.wheel)}
		if f.version.isPre() && !pre {
			pres = append(pres, p)
		} else {
			finals = append(finals, p)
		}
	}
	if finals == nil {
		finals = pres // a distribution may have nothing else
	}
	slices.SortStableFunc(finals, func(a, b *pipPick) int {
		return cmp.Or(b.version.compare(a.version), cmp.Compare(a.rank, b.rank), b.file.wheel.compareBuild(a.file.wheel))
	})
	return slices.CompactFunc(finals, func(a, b *pipPick) bool { return a.version.compare(b.version) == 0 }), nil
}

func fulfils(v pipVersion, wants []pipWant) bool {
	return !slices.ContainsFunc(wants, func(w pipWant) bool { return !w.spec.match(v) })
}

// fault says why a file that has a wanted version cannot be used; "" when it can.
func (r *pipResolver) fault(f *pipFile, wants []pipWant) string {
	switch {
	case f.wheel == nil:
		return "sources"
	case r.rank(f.wheel) == 0:
		return strings.TrimSuffix(strings.TrimPrefix(f.name, strings.Join(strings.SplitN(f.name, "-", 3)[:2], "-")+"-"), ".whl")
	}
	if spec, err := parsePipSpecs(f.python); err == nil && f.python != "" {
		if v, err := parsePipVersion(r.target.Python); err == nil && !spec.match(v) {
			return "needs python " + f.python
		}
	}
	for _, w := range wants {
		if len(w.Hashes) > 0 && !agree(f.hashes, w.Hashes) {
			return "another digest than " + some(w.Hashes)
		}
	}
	return ""
}

// agree says whether no digest that both lists have the kind of speaks against
// the file being one of the allowed.
func agree(has, allowed []string) bool {
	kind := func(h string) string { k, _, _ := strings.Cut(h, ":"); return k }
	same := false
	for _, h := range has {
		for _, a := range allowed {
			if same = same || kind(a) == kind(h); a == h {
				return true
			}
		}
	}
	return !same
}

// reason says why nothing fulfils the wants, and the Dockerfile line that helps
// where there are sources.
func (r *pipResolver) reason(name string, wants []pipWant) (why, run string) {
	if p := r.provided[name]; p != nil {
		return fmt.Sprintf("conda's package %s brings %s %s; take one of the two rows out", p.by, name, p.version), ""
	}
	if list := r.direct[name]; list != nil {
		return fmt.Sprintf("a row names the file %s", list[0].file.name), ""
	}
	files := r.files[name]
	if len(files) == 0 {
		var places []string
		for _, x := range r.index.all() {
			places = append(places, shown(x))
		}
		return fmt.Sprintf("there is no package %s in %s", name, strings.Join(places, ", ")), ""
	}
	var versions, faults []string
	sources, yanked := "", ""
	for i := range files {
		f := &files[i]
		versions = append(versions, f.version.String())
		switch fault := r.fault(f, wants); {
		case !fulfils(f.version, wants):
		case fault == "sources":
			sources = f.version.String()
		case fault == "" && f.yanked:
			yanked = f.version.String() + ": " + short(f.reason)
		default:
			faults = append(faults, fault)
		}
	}
	switch {
	case len(faults) > 0:
		why = fmt.Sprintf("no wheel fits: the environment is %s, there are %s", r.target.describe(), some(faults))
	case sources != "":
		why = "there are only sources, which have to be built"
	case yanked != "":
		why = "what fits was taken back by its authors (" + yanked + "); write == to have it all the same"
	default:
		return "there are the versions " + near(versions, wants[0].spec.near()) + localHint(wants, files), ""
	}
	if sources != "" {
		run = r.target.run(name + "==" + sources)
	}
	return why, run
}

// near is a version of the specifier, to list others around it.
func (s pipSpecs) near() string {
	for _, c := range s {
		if c.v.release != nil {
			return c.v.String()
		}
	}
	return ""
}

// localHint explains versions such as 2.1.2+cu118, which other indexes have.
func localHint(wants []pipWant, files []pipFile) string {
	for _, w := range wants {
		for _, c := range w.spec {
			if c.v.local != nil && slices.ContainsFunc(files, func(f pipFile) bool { return f.version.compare(c.v.public()) == 0 }) {
				return fmt.Sprintf("; +%s marks a build of another index, which --extra-index-url names", strings.Join(c.v.local, "."))
			}
		}
	}
	return ""
}

// maxTries bounds the versions that are tried.
const maxTries = 20_000

var errTries = errors.New("more than 20000 versions were tried in vain; write == behind the packages whose versions you know")

// resolve chooses one version of everything that is wanted.
func (r *pipResolver) resolve(wants []pipWant) (map[string]*pipPick, error) {
	s := pipState{picked: map[string]*pipPick{}, wants: map[string][]pipWant{}, extras: map[string][]string{}}
	for _, w := range wants {
		s.wants[w.name] = append(s.wants[w.name], w)
	}
	s.queue = wants
	done, _, err := r.solve(s)
	if err != nil {
		return nil, err
	}
	if done == nil {
		return nil, fmt.Errorf("no choice of versions fulfils all that is wanted: %s", r.conflict)
	}
	for _, w := range wants {
		p := done[w.name]
		p.requested, p.hashes = true, append(p.hashes, w.Hashes...)
		p.extras = append(p.extras, w.Extras...)
	}
	return done, nil
}

// A pipState is how far a choice has come.
type pipState struct {
	picked map[string]*pipPick
	wants  map[string][]pipWant // by name, those of the queue too
	extras map[string][]string
	queue  []pipWant
}

// solve completes a choice, by trying versions in turn, newest first. Where it
// cannot, blame names the picks without whose change it never will, so that
// picks that have no part in it are not tried again.
func (r *pipResolver) solve(s pipState) (done map[string]*pipPick, blame map[string]bool, err error) {
	for len(s.queue) > 0 {
		w := s.queue[0]
		s.queue = s.queue[1:]
		p := s.picked[w.name]
		if p == nil {
			return r.branch(s, w)
		}
		if blame, err = r.follow(&s, p, w); err != nil || blame != nil {
			return nil, blame, err
		}
	}
	return s.picked, nil, nil
}

// branch tries the versions of what is wanted.
func (r *pipResolver) branch(s pipState, w pipWant) (done map[string]*pipPick, blame map[string]bool, err error) {
	wants := s.wants[w.name]
	list, err := r.candidates(w.name, wants)
	if err != nil {
		return nil, nil, err
	}
	blame = map[string]bool{}
	for _, x := range wants {
		for _, f := range x.from {
			blame[f] = true
		}
	}
	if len(list) == 0 {
		r.meet(w.name, wants)
		return nil, blame, nil
	}
	for _, p := range list {
		if r.tries++; r.tries > maxTries {
			return nil, nil, fmt.Errorf("%w; the first conflict: %s", errTries, r.conflict)
		}
		fresh := *p
		n := pipState{picked: maps.Clone(s.picked), wants: maps.Clone(s.wants), extras: maps.Clone(s.extras), queue: slices.Clip(s.queue)}
		n.picked[w.name] = &fresh
		b, err := r.follow(&n, &fresh, w)
		if err == nil && b == nil {
			done, b, err = r.solve(n)
		}
		if err != nil || done != nil {
			return done, nil, err
		}
		if !b[w.name] {
			return nil, b, nil
		}
		delete(b, w.name)
		maps.Copy(blame, b)
	}
	return nil, blame, nil
}

// meet notes the first conflict, which is about the newest versions and so the
// one to explain.
func (r *pipResolver) meet(name string, wants []pipWant) {
	if r.conflict != "" {
		return
	}
	var who []string
	for _, w := range wants {
		who = append(who, fmt.Sprintf("%s wants %s%s", w.who, name, w.spec))
	}
	why, _ := r.reason(name, wants)
	r.conflict = fmt.Sprintf("%s: %s", strings.Join(slices.Compact(who), ", "), why)
}

// follow adds what a pick needs, with the extras that are wanted of it, to the
// queue. A blame says that it does not go with what is picked.
func (r *pipResolver) follow(s *pipState, p *pipPick, w pipWant) (blame map[string]bool, err error) {
	news := []string{}
	if _, known := s.extras[p.name]; !known {
		news = append(news, "")
		s.extras[p.name] = []string{}
	}
	for _, x := range w.Extras {
		if !slices.Contains(s.extras[p.name], x) {
			news = append(news, x)
			s.extras[p.name] = append(slices.Clip(s.extras[p.name]), x)
		}
	}
	if len(news) == 0 || r.options.Closed || p.file == nil {
		return nil, nil
	}
	if p.meta == nil {
		if p.meta, err = r.fetch.metadata(r.ctx, p); err != nil {
			return nil, err
		}
	}
	for _, d := range p.meta.requires {
		i := slices.IndexFunc(news, func(x string) bool { return d.cond.holds(r.env, x) })
		if i < 0 || news[i] != "" && d.cond.holds(r.env, "") {
			continue // not wanted, or wanted before
		}
		n := pipWant{dependencyRow: d, name: pipName(d.Name), who: p.String(), from: []string{p.name}}
		if news[i] != "" {
			n.from = append(n.from, w.from...)
		}
		if blame, err = r.want(s, n); err != nil || blame != nil {
			return blame, err
		}
	}
	return nil, nil
}

// want puts a dependency into the queue.
func (r *pipResolver) want(s *pipState, n pipWant) (blame map[string]bool, err error) {
	known := r.provided[n.name] != nil || r.direct[n.name] != nil
	switch {
	case n.URL != "" && !known:
		return nil, fmt.Errorf("%s needs %s, which is no version of an index; write it as a row of the list", n.who, n.PipRequirement)
	case r.checked && !known && len(s.wants[n.name]) == 0:
		return nil, fmt.Errorf("%s needs %s, which has no row; rows with --hash have to be complete", n.who, n.PipRequirement)
	}
	s.wants[n.name] = append(slices.Clip(s.wants[n.name]), n)
	if p := s.picked[n.name]; p != nil && !n.spec.match(p.version) {
		r.meet(n.name, s.wants[n.name])
		blame = map[string]bool{n.name: true}
		for _, f := range n.from {
			blame[f] = true
		}
		return blame, nil
	}
	s.queue = append(slices.Clip(s.queue), n)
	return nil, nil
}
