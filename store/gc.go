package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"hpcc/files"
	"hpcc/text"
)

// defaultAge is how long unreferenced data is kept after its last use.
const defaultAge = 7 * 24 * time.Hour

// GCOptions control which data GC keeps.
type GCOptions struct {
	Age    time.Duration // since the last use; 0: a week; negative: remove immediately
	DryRun bool

	// Keep returns the digests of images to keep even if no name refers to them, unless it is nil.
	// GC calls it after it has read the names. If it returns an error, GC removes no blobs and no trees.
	Keep func(context.Context) ([]string, error)

	Progress func(files int64) // gets the number of files examined, unless nil; calls do not overlap
}

// A GCReport counts the data that was removed (in a dry run: would be removed), and the data
// that no image needs but that is too recent to be removed.
type GCReport struct {
	Blobs   int   `json:"blobs"`
	Trees   int   `json:"trees"`
	Records int   `json:"records"` // entries of the cache
	Temps   int   `json:"leftovers"`
	Bytes   int64 `json:"bytes"` // size of all files that were removed

	Kept      int64     `json:"kept_bytes"`          // size of the recent blobs and cached files
	KeptTrees int       `json:"kept_trees"`          // recent trees
	Until     time.Time `json:"kept_until,omitzero"` // when the first of the kept files may be removed; zero if there are none
}

// Add adds the counts of another store.
func (r *GCReport) Add(o GCReport) {
	r.Blobs, r.Trees, r.Records, r.Temps = r.Blobs+o.Blobs, r.Trees+o.Trees, r.Records+o.Records, r.Temps+o.Temps
	r.Bytes, r.Kept, r.KeptTrees = r.Bytes+o.Bytes, r.Kept+o.Kept, r.KeptTrees+o.KeptTrees
	if r.Until.IsZero() || (!o.Until.IsZero() && o.Until.Before(r.Until)) {
		r.Until = o.Until
	}
}

// Text formats the report for people.
func (r *GCReport) Text(dryRun bool) string {
	verb := "freed"
	if dryRun {
		verb = "would be freed"
	}
	s := fmt.Sprintf("%s %s: %s, %s, %s, %s\n", text.Size(r.Bytes), verb,
		text.Count(r.Blobs, "blob", "blobs"), text.Count(r.Trees, "tree", "trees"),
		text.Count(r.Records, "cache entry", "cache entries"), text.Count(r.Temps, "leftover", "leftovers"))
	if !r.Until.IsZero() {
		s += fmt.Sprintf("kept: %s and %s that no image needs, until %s or later; --age 0 frees them now\n",
			text.Size(r.Kept), text.Count(r.KeptTrees, "tree", "trees"), r.Until.Local().Format("2006-01-02 15:04"))
	}
	return s
}

// GC removes data that no name references and that was last used longer ago than the age. It
// also removes the temporary files of killed processes. Other processes may use the store
// concurrently: new blobs have a recent modification time, and reused blobs are touched.
func (s *Store) GC(ctx context.Context, o GCOptions) (GCReport, error) {
	if o.Age == 0 {
		o.Age = defaultAge
	}
	g := &collector{s: s, o: o, before: time.Now().Add(-o.Age), live: map[string]bool{}, named: map[string]bool{}}
	g.freed.Each, g.kept.Each = g.examined, g.examined
	if o.Age < 0 {
		g.before = time.Now().Add(time.Second)
	}
	for _, step := range []func(context.Context) error{g.temps, g.damagedFiles, g.mark, g.records, g.pushed, g.trees, g.blobs} {
		if err := ctx.Err(); err != nil {
			return g.rep, err
		}
		if err := step(ctx); err != nil {
			return g.rep, s.placeError(fmt.Errorf("collecting garbage in %s: %w", s.dir, err))
		}
	}
	if len(g.unknown) > 0 {
		return g.rep, fmt.Errorf("collecting garbage in %s: no blob and no tree was removed, because these images or jobs cannot be read: %w", s.dir, errors.Join(g.unknown...))
	}
	return g.rep, nil
}

type collector struct {
	s       *Store
	o       GCOptions
	before  time.Time
	live    map[string]bool // hex digests that a name, a kept image or a record references
	named   map[string]bool // hex digests that a name or a kept image references
	unknown []error         // errors of names, kept images and jobs whose blobs are unknown
	rep     GCReport
	freed   files.Freed
	kept    files.Freed
	files   int64 // examined
}

func (g *collector) examined() {
	if g.files++; g.o.Progress != nil {
		g.o.Progress(g.files)
	}
}

// old reports whether a file was last used before the limit.
func (g *collector) old(fi fs.FileInfo) bool { return fi.ModTime().Before(g.before) }

// keep records when a file that was used recently may be removed.
func (g *collector) keep(fi fs.FileInfo) {
	if until := fi.ModTime().Add(g.o.Age); g.rep.Until.IsZero() || until.Before(g.rep.Until) {
		g.rep.Until = until
	}
}

// remove removes a file or directory and counts its size. A dry run only counts.
func (g *collector) remove(p string) error {
	if g.o.DryRun {
		g.rep.Bytes += g.freed.Count(p)
		return nil
	}
	n, err := g.freed.RemoveAll(p)
	g.rep.Bytes += n
	return err
}

// temps removes temporary files of processes that have ended: at once where this is certain, and else
// after a day without changes.
func (g *collector) temps(context.Context) error {
	entries, err := os.ReadDir(g.s.path("tmp"))
	if err != nil {
		return err
	}
	me, err := thisProcess()
	if err != nil {
		return err
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			continue
		}
		if !parseOwner(e.Name()).abandoned(me, fi.ModTime()) {
			continue
		}
		g.rep.Temps++
		if err := g.remove(g.s.path("tmp", e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// mark records every blob that a name or a kept image references, and those that cannot be resolved.
func (g *collector) mark(ctx context.Context) error {
	refs, problems := g.s.refs()
	names := slices.Collect(maps.Keys(refs))
	blobs, errs := make([][]v1.Descriptor, len(names)), make([]error, len(names))
	inParallel(len(names), func(i int) { blobs[i], errs[i] = g.s.closure(refs[names[i]].Descriptor) })
	for i, n := range names {
		g.examined()
		if errs[i] != nil {
			problems[n] = fmt.Errorf("image %q: %w", n, errs[i])
		}
		for _, x := range blobs[i] {
			g.live[x.Digest.Hex], g.named[x.Digest.Hex] = true, true
		}
	}
	for _, n := range slices.Sorted(maps.Keys(problems)) {
		g.unknown = append(g.unknown, problems[n])
	}
	if g.o.Keep == nil {
		return nil
	}
	kept, err := g.o.Keep(ctx)
	for _, digest := range kept {
		g.markKept(digest)
	}
	if err != nil {
		g.unknown = append(g.unknown, err)
	}
	return nil
}

// markKept records the blobs of an image to keep.
func (g *collector) markKept(digest string) {
	h, err := v1.NewHash(digest)
	if err != nil || g.named[h.Hex] {
		return
	}
	d, err := g.s.manifest(h)
	if errors.Is(err, fs.ErrNotExist) { // the image is gone
		return
	}
	blobs := []v1.Descriptor{}
	if err == nil {
		blobs, err = g.s.closure(d)
	}
	if err != nil {
		g.unknown = append(g.unknown, fmt.Errorf("image %s: %w", digest, err))
	}
	for _, x := range blobs {
		g.live[x.Digest.Hex], g.named[x.Digest.Hex] = true, true
	}
}

var digestText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`sha256:[0-9a-f]{64}`) })

// records removes old records of the cache. Blobs that the remaining records reference stay
// live. A directory two levels down, such as a build cache, is removed as one unit. Conda
// packages contain no digests of blobs, so records does not read them.
func (g *collector) records(context.Context) error {
	top := g.s.path("cache")
	var kept []string
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		kind := filepath.Dir(p)
		if d.IsDir() && filepath.Dir(kind) != top {
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		if g.old(fi) {
			g.rep.Records++
			if err := g.remove(p); err != nil || !d.IsDir() {
				return err
			}
			return fs.SkipDir
		}
		g.keep(fi)
		if d.IsDir() {
			g.rep.Kept += g.kept.Count(p)
			return fs.SkipDir
		}
		g.rep.Kept += g.kept.CountFile(fi)
		if filepath.Base(kind) != "conda" && fi.Size() <= maxManifest {
			kept = append(kept, p)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return g.readRecords(kept)
}

// readRecords marks the blobs that records of the cache reference.
func (g *collector) readRecords(files []string) error {
	var mu sync.Mutex
	errs := make([]error, len(files))
	inParallel(len(files), func(i int) {
		b, err := os.ReadFile(files[i])
		errs[i] = ignoreGone(err)
		mu.Lock()
		defer mu.Unlock()
		for _, h := range digestText().FindAll(b, -1) {
			g.live[strings.TrimPrefix(string(h), "sha256:")] = true
		}
	})
	return errors.Join(errs...)
}

// inParallel calls do for 0 to n-1, some of them in parallel: most of the time, a network file system
// is waited for. Each call may open a file.
func inParallel(n int, do func(i int)) {
	var g errgroup.Group
	g.SetLimit(files.MaxParallel(8, 1))
	for i := range n {
		g.Go(func() error { do(i); return nil })
	}
	_ = g.Wait() // do returns no error
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// pushed removes old records of pushed images that the store no longer has. Such a record
// keeps no blob, because the image is in a registry.
func (g *collector) pushed(context.Context) error {
	entries, err := os.ReadDir(g.s.path("pushed"))
	if err != nil {
		return ignoreGone(err)
	}
	refs, problems := g.s.refs()
	named := map[string]bool{}
	for n := range problems { // the record shows where to get such an image again
		named[filepath.Base(g.s.pushedFile(n))] = true
	}
	for n, d := range refs {
		named[filepath.Base(g.s.pushedFile(n))], named[d.Digest.Hex] = true, true
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || named[e.Name()] || !g.old(fi) {
			continue
		}
		p := g.s.path("pushed", e.Name())
		if note, err := g.s.readPushed(p); err == nil && named[note.Digest.Hex] {
			continue
		}
		g.rep.Records++
		if err := ignoreGone(g.remove(p)); err != nil {
			return err
		}
	}
	return nil
}

// trees removes unpacked images that no name references and from which no program runs on
// this node.
func (g *collector) trees(context.Context) error {
	if len(g.unknown) > 0 {
		return nil
	}
	entries, err := os.ReadDir(g.s.path("trees"))
	if err != nil {
		return err
	}
	var used map[string]bool
	for _, e := range entries {
		fi, err := os.Lstat(g.s.path("trees", e.Name(), ".hpcc"))
		if err != nil {
			if fi, err = e.Info(); err != nil {
				continue
			}
		}
		if !g.named[e.Name()] && !g.old(fi) {
			g.keep(fi)
			g.rep.KeptTrees++
		}
		if g.live[e.Name()] || !g.old(fi) {
			continue
		}
		if used == nil {
			used = mountedTrees()
		}
		if used[e.Name()] {
			continue
		}
		g.rep.Trees++
		if g.o.DryRun {
			g.rep.Bytes += g.freed.Count(g.s.path("trees", e.Name()))
			continue
		}
		// Rename first, so that no other process sees a partial tree.
		tmp, err := g.s.TempDir()
		if err != nil {
			return err
		}
		if err := renameDir(g.s.path("trees", e.Name()), filepath.Join(tmp, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := g.remove(tmp); err != nil {
			return err
		}
	}
	return nil
}

// blobs removes blobs that neither a name nor a record references.
func (g *collector) blobs(context.Context) error {
	if len(g.unknown) > 0 {
		return nil
	}
	entries, err := os.ReadDir(g.s.path("blobs/sha256"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if g.examined(); g.named[e.Name()] {
			continue
		}
		fi, err := e.Info()
		if err != nil {
			continue
		}
		if g.live[e.Name()] || !g.old(fi) {
			if g.rep.Kept += fi.Size(); !g.live[e.Name()] {
				g.keep(fi)
			}
			continue
		}
		g.rep.Blobs++
		if err := g.remove(g.s.blob(v1.Hash{Algorithm: "sha256", Hex: e.Name()})); err != nil {
			return err
		}
	}
	return nil
}
