package pip

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/files"
	"hpcc/store"
	"hpcc/text"
)

// An installation is a wheel being installed.
type installation struct {
	*wheel
	file  string // in the cache; its name begins with its digest
	pick  *pick
	rec   *fetch.File
	built bool // built from sources by this run: the times in the wheel are meaningless
	lost  map[string]bool
}

// Layers fetches the wheels, verifies them and writes layers to put above those of
// the conda packages. notes report omitted files. The same plan gives the
// same layers.
func (p *Plan) Layers(ctx context.Context, s *store.Store, o Options) (layers []v1.Layer, notes []string, err error) {
	in, err := p.open(ctx, o)
	defer func() {
		for _, x := range in {
			if x != nil && x.wheel != nil {
				x.Close()
			}
		}
	}()
	if err != nil {
		return nil, nil, err
	}
	in = sortInstalls(in)
	if notes, err = p.settle(in); err != nil {
		return nil, nil, err
	}
	notes = append(notes, p.missing(in)...)
	groups := layer.Spread(in, o.PackageLayers, func(x *installation) layer.Package { return layer.Package{Name: x.pick.name, Size: x.rec.Size} })
	layers = make([]v1.Layer, len(groups))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(files.MaxParallel(goruntime.GOMAXPROCS(0), 8))
	for i, members := range groups {
		g.Go(func() (err error) {
			layers[i], err = p.install(gctx, s, members, o)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	return layers, notes, nil
}

// open fetches and reads all wheels, and builds those that are only sources.
func (p *Plan) open(ctx context.Context, o Options) ([]*installation, error) {
	var total, done int64
	for _, x := range p.picks {
		total += x.file.size
	}
	var mu sync.Mutex
	add := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		if done += n; o.Progress != nil {
			o.Progress(done, max(total, done))
		}
	}
	in := make([]*installation, len(p.picks))
	built := map[*pick]*builtWheel{}
	for i, x := range p.picks {
		if x.file.wheel == nil {
			b, err := p.fetch.builder.build(ctx, x)
			if err != nil {
				return nil, err
			}
			built[x], p.Wheels[i].BuiltWith = b, b.with
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(files.MaxParallel(6, 4))
	for i, x := range p.picks {
		g.Go(func() error {
			file, rec, err := p.fetch.archive(gctx, x, add)
			if err != nil {
				return err
			}
			name := x.file.wheel
			if b := built[x]; b != nil {
				file, name = b.file, b.name
			}
			w, err := openWheel(file, name, &p.target)
			if err != nil {
				return fmt.Errorf("reading %s: %w", name.file, err)
			}
			p.Wheels[i].SHA256 = rec.SHA256
			in[i] = &installation{wheel: w, file: file, pick: x, rec: rec, built: built[x] != nil, lost: map[string]bool{}}
			return nil
		})
	}
	return in, g.Wait()
}

// sortInstalls orders wheels so that each comes after its dependencies.
func sortInstalls(in []*installation) []*installation {
	return layer.Order(in, func(x *installation) layer.Package {
		p := layer.Package{Name: x.pick.name}
		for _, d := range x.meta.requires {
			p.Needs = append(p.Needs, NormalName(d.Name))
		}
		return p
	})
}

// paths returns all paths that the installation writes, below the prefix.
func (x *installation) paths(t *Target) []string {
	var out []string
	for _, e := range x.files {
		out = append(out, e.dst)
	}
	for _, p := range x.programs {
		out = append(out, "bin/"+p.Name)
	}
	for _, n := range []string{"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"} {
		out = append(out, path.Join(t.site(), x.info, n))
	}
	return out
}

// settle decides which wheel owns each path. As with pip, the last of several wheels
// wins and the others leave the path out. A path that would be written through a file
// or link of another package is refused.
func (p *Plan) settle(in []*installation) (notes []string, err error) {
	owner := map[string]*installation{}
	clashes := map[[2]string][]string{}
	for _, x := range in {
		for _, dst := range x.paths(&p.target) {
			if before := owner[dst]; before != nil && before != x {
				before.lost[dst] = true
				k := [2]string{before.name.dist, x.name.dist}
				clashes[k] = append(clashes[k], dst)
			}
			owner[dst] = x
			if below, ok := p.target.Paths[dst]; ok {
				if below.Dir {
					return nil, fmt.Errorf("installing %s: path %q is a directory in the conda package %s",
						x.name.file, text.Short(dst), below.Package)
				}
				k := [2]string{"the conda package " + below.Package, x.name.dist}
				clashes[k] = append(clashes[k], dst)
			}
		}
	}
	for _, dst := range slices.Sorted(maps.Keys(owner)) {
		for d := path.Dir(dst); d != "."; d = path.Dir(d) {
			below, ok := p.target.Paths[d]
			switch {
			case owner[d] != nil:
				return nil, fmt.Errorf("installing %s: path %q lies below %q, which is not a directory in %s",
					owner[dst].name.file, text.Short(dst), text.Short(d), owner[d].name.file)
			case ok && !below.Dir:
				return nil, fmt.Errorf("installing %s: path %q lies below %q, which is not a directory in the conda package %s", owner[dst].name.file, text.Short(dst), text.Short(d), below.Package)
			}
		}
	}
	for k, list := range clashes {
		notes = append(notes, fmt.Sprintf("%s in both %s and %s; the latter's are used: %s",
			text.Count(len(list), "path is", "paths are"), k[0], k[1], input.List(list)))
	}
	slices.Sort(notes)
	return notes, nil
}

// missing returns the dependencies of the wheels that nothing provides in a matching version.
func (p *Plan) missing(in []*installation) (notes []string) {
	have := map[string]pyVersion{}
	for _, x := range p.target.Provided {
		if v, err := parseVersion(x.Version); err == nil {
			have[NormalName(x.Name)] = v
		}
	}
	byName := map[string]*installation{}
	for _, x := range in {
		have[x.pick.name], byName[x.pick.name] = x.pick.version, x
	}
	env, extras := p.target.environment(), map[string][]string{}
	type ask struct{ name, extra string }
	var queue []ask
	for _, x := range in {
		queue = append(queue, ask{x.pick.name, ""})
		for _, e := range x.pick.extras {
			queue = append(queue, ask{x.pick.name, e})
		}
	}
	for len(queue) > 0 {
		a := queue[0]
		queue = queue[1:]
		x := byName[a.name]
		if x == nil || slices.Contains(extras[a.name], a.extra) {
			continue
		}
		extras[a.name] = append(extras[a.name], a.extra)
		for _, d := range x.meta.requires {
			if !d.cond.holds(env, a.extra) || (a.extra != "" && d.cond.holds(env, "")) {
				continue
			}
			name := NormalName(d.Name)
			for _, e := range d.Extras {
				queue = append(queue, ask{name, e})
			}
			switch v, ok := have[name]; {
			case !ok:
				notes = append(notes, fmt.Sprintf("%s needs %s, which no package provides", x.pick, d.Requirement))
			case !d.spec.match(v):
				notes = append(notes, fmt.Sprintf("%s needs %s, but %s is installed", x.pick, d.Requirement, v))
			}
		}
	}
	slices.Sort(notes)
	return slices.Compact(notes)
}

// install writes the wheel's files, its scripts and its RECORD to a layer.
func (x *installation) install(ctx context.Context, w *layer.Writer, t *Target) error {
	var rows [][3]string
	row := func(dst, sum string, size int64) {
		r := [3]string{relative(t.site(), dst), sum, fmt.Sprint(size)}
		if sum == "" { // signatures
			r[2] = ""
		}
		rows = append(rows, r)
	}
	for _, e := range x.files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := x.put(w, e, t, row); err != nil {
			return fmt.Errorf("entry %q: %w", text.Short(e.zip.Name), err)
		}
	}
	small := func(dst string, mode int64, data []byte) error {
		sum := sha256.Sum256(data)
		row(dst, recordSum("sha256", sum[:]), int64(len(data)))
		if x.lost[dst] {
			return nil
		}
		return w.File(dst, mode, data, 0)
	}
	for _, p := range x.programs {
		if err := small("bin/"+p.Name, 0o755, p.Text(t.interpreter())); err != nil {
			return err
		}
	}
	info := path.Join(t.site(), x.info)
	// micromamba lists a package only if it finds pip's name here (PEP 376).
	if err := small(info+"/INSTALLER", 0o644, []byte("pip\n")); err != nil {
		return err
	}
	if origin := x.origin(); origin != nil {
		if err := small(info+"/direct_url.json", 0o644, origin); err != nil {
			return err
		}
	}
	if x.pick.requested {
		if err := small(info+"/REQUESTED", 0o644, nil); err != nil {
			return err
		}
	}
	rows = append(rows, [3]string{x.info + "/RECORD", "", ""})
	return w.File(info+"/RECORD", 0o644, recordText(rows), 0)
}

// put writes one file of the wheel and verifies its digest.
func (x *installation) put(w *layer.Writer, e *wheelEntry, t *Target, row func(dst, sum string, size int64)) error {
	r, err := e.zip.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	h := tar.Header{Typeflag: tar.TypeReg, Name: e.dst, Mode: 0o644, Size: e.size, ModTime: e.modTime()}
	if x.built {
		h.ModTime = layer.Epoch
	}
	if e.exec {
		h.Mode = 0o755
	}
	sum, check := io.Writer(io.Discard), func() error { return nil }
	if e.sum != "" {
		hs, err := recordHash(e.sum)
		if err != nil {
			return err
		}
		sum, check = hs, func() error {
			alg, want, _ := strings.Cut(e.sum, "=")
			if got := recordSum(alg, hs.Sum(nil)); got != alg+"="+strings.TrimRight(want, "=") {
				return fmt.Errorf("digest mismatch: %s, RECORD lists %s", got, e.sum)
			}
			return nil
		}
	}
	from := io.TeeReader(io.LimitReader(r, e.size+1), sum)
	if e.script {
		return x.putScript(w, e, t, h, from, check, row)
	}
	to := io.Writer(io.Discard)
	if !x.lost[e.dst] {
		if err := w.Header(&h); err != nil {
			return err
		}
		to = w
	}
	n, err := io.Copy(to, from)
	if err == nil && n != e.size {
		err = fmt.Errorf("size mismatch: %d bytes, not %d", n, e.size)
	}
	if err == nil {
		err = check()
	}
	if err != nil {
		return err
	}
	row(e.dst, e.sum, e.size)
	return nil
}

// maxScript limits the size of a script, which is held in memory, in bytes.
const maxScript = 256 << 20

// putScript writes a script of the wheel, with the environment's python in its first
// line. Wheels keep binaries among the scripts too.
func (x *installation) putScript(w *layer.Writer, e *wheelEntry, t *Target, h tar.Header, from io.Reader,
	check func() error, row func(dst, sum string, size int64)) error {
	data, err := input.ReadAll(from, min(e.size, maxScript))
	if err == nil && int64(len(data)) != e.size {
		err = fmt.Errorf("size mismatch: %d bytes, not %d", len(data), e.size)
	}
	if err == nil {
		err = check()
	}
	if err != nil {
		return err
	}
	sum := e.sum
	if changed, ok := shebang(data, t.interpreter()); ok {
		s := sha256.Sum256(changed)
		data, sum = changed, recordSum("sha256", s[:])
	}
	row(e.dst, sum, int64(len(data)))
	if x.lost[e.dst] {
		return nil
	}
	h.Size = int64(len(data))
	if err := w.Header(&h); err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// origin returns direct_url.json (PEP 610), the URL of a wheel that a row names by URL.
// It returns nil for a local file, to keep local directories out of the image.
func (x *installation) origin() []byte {
	u := fetch.Public(x.pick.file.url)
	if !x.pick.direct || u == "" {
		return nil
	}
	text, err := json.Marshal(u)
	if err != nil {
		return nil // cannot fail for strings
	}
	where := ""
	if x.pick.file.subdir != "" {
		where = fmt.Sprintf(`"subdirectory": %q, `, x.pick.file.subdir)
	}
	return fmt.Appendf(nil, `{"archive_info": {"hash": "sha256=%s", "hashes": {"sha256": "%s"}}, %s"url": %s}`,
		x.rec.SHA256, x.rec.SHA256, where, text)
}

// relative returns the relative path from a directory below the prefix to a path below it.
func relative(from, to string) string {
	a, b := strings.Split(from, "/"), strings.Split(to, "/")
	n := 0
	for n < len(a) && n < len(b)-1 && a[n] == b[n] {
		n++
	}
	return strings.Repeat("../", len(a)-n) + strings.Join(b[n:], "/")
}

// recordText returns RECORD as pip writes it: sorted, with the line ends of RFC 4180.
func recordText(rows [][3]string) []byte {
	slices.SortFunc(rows, func(a, b [3]string) int { return slices.Compare(a[:], b[:]) })
	var b bytes.Buffer
	for _, r := range rows {
		for i, f := range r {
			if i > 0 {
				b.WriteByte(',')
			}
			if strings.ContainsAny(f, ",\"") {
				f = `"` + strings.ReplaceAll(f, `"`, `""`) + `"`
			}
			b.WriteString(f)
		}
		b.WriteString("\r\n")
	}
	return b.Bytes()
}
