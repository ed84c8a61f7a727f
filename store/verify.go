package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"hpcc/files"
	"hpcc/text"
	"hpcc/text/terminal"
)

// A Finding is a file in a store that is not what hpcc wrote.
type Finding struct {
	Path   string   // relative to the store
	Reason string   // "is missing", "is damaged: its digest is sha256:…"
	Images []string // the names that use it, sorted
	Moved  string   // current path; empty if it was left in place
	Cure   string   // a command or an action that repairs it
}

// Text describes the file for people, in several lines.
func (f Finding) Text() string {
	s := terminal.Clean(f.Path) + " " + text.OneLine(f.Reason) + "\n"
	for _, line := range []struct{ title, value string }{
		{"used by:  ", strings.Join(f.Images, ", ")}, {"moved to: ", f.Moved}, {"repair:   ", f.Cure},
	} {
		if line.value != "" {
			s += "  " + line.title + terminal.Clean(line.value) + "\n"
		}
	}
	return s
}

// VerifyOptions are the options of [Store.Verify].
type VerifyOptions struct {
	DryRun   bool                    // leave damaged files in place
	Progress func(done, total int64) // bytes of blobs; calls do not overlap
}

// A Verified counts what [Store.Verify] read.
type Verified struct {
	Blobs, Names, Records int
	Bytes                 int64 // of blobs
}

// Verify reads all blobs, names, push records and build cache records, some in parallel, and
// compares them with their digests and checksums. It moves damaged blobs and cache records
// away (see [Store.Discard]), because other commands recreate them. Damaged names and push
// records stay in place. Other packages verify trees, packages and jobs.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) ([]Finding, Verified, error) {
	v := &verifier{s: s, o: o, bad: map[string]bool{}}
	for _, step := range []func(context.Context) error{v.blobs, v.names, v.pushed, v.records, v.readme} {
		if err := step(ctx); err != nil {
			return v.found, v.n, s.placeError(fmt.Errorf("verifying %s: %w", s.dir, err))
		}
	}
	return v.found, v.n, nil
}

type verifier struct {
	s     *Store
	o     VerifyOptions
	found []Finding
	n     Verified
	bad   map[string]bool // damaged blobs, by hexadecimal digest
}

// Discard moves a damaged file or directory of the store, by its relative path, to the
// directory damaged/, from which GC removes it after its age. It returns the new path, or ""
// if it cannot be moved.
func (s *Store) Discard(rel string) string {
	return s.moveAway(s.path(rel), strings.ReplaceAll(rel, "/", "-"))
}

// discard calls [Store.Discard], except in a dry run. It returns the new path, or "".
func (v *verifier) discard(rel string) string {
	if v.o.DryRun {
		return ""
	}
	return v.s.Discard(rel)
}

func (v *verifier) blobs(ctx context.Context) error {
	dir := filepath.Join("blobs", "sha256")
	entries, err := os.ReadDir(v.s.path(dir))
	if err != nil {
		return ignoreGone(err)
	}
	t := &transferred{progress: v.o.Progress}
	var list []v1.Hash
	for _, e := range entries {
		h := v1.Hash{Algorithm: "sha256", Hex: e.Name()}
		fi, err := e.Info()
		switch {
		case err != nil: // removed meanwhile
		case checkHash(h) != nil || !fi.Mode().IsRegular():
			v.found = append(v.found, Finding{Path: filepath.Join(dir, e.Name()), Reason: "is not a blob", Cure: "remove it"})
		default:
			list, t.total = append(list, h), t.total+fi.Size()
		}
	}
	v.n.Blobs, v.n.Bytes = len(list), t.total
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(goruntime.GOMAXPROCS(0))
	for _, h := range list {
		g.Go(func() error {
			reason, err := v.s.defect(gctx, h, -1, t)
			if gctx.Err() != nil {
				return gctx.Err()
			}
			if err != nil {
				reason = "cannot be read: " + err.Error()
			}
			if reason == "" || reason == missing {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			v.bad[h.Hex] = true
			v.found = append(v.found, Finding{Path: filepath.Join(dir, h.Hex), Reason: reason})
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// Find the names that use damaged blobs before a damaged manifest is moved away.
	steps := v.stepLayers()
	for i := range v.found {
		f := &v.found[i]
		h := v1.Hash{Algorithm: "sha256", Hex: filepath.Base(f.Path)}
		if !v.bad[h.Hex] {
			continue
		}
		e := v.s.damaged(h, f.Reason, "")
		f.Images, f.Cure = e.Images, strings.Join(e.Cures, "; ")
		switch {
		case f.Cure != "":
		case steps[h.String()]:
			f.Cure = "nothing to do: the next build repeats the step that made it"
		default:
			f.Cure = "nothing to do: no name uses it"
		}
	}
	for i := range v.found {
		if v.bad[filepath.Base(v.found[i].Path)] {
			v.found[i].Moved = v.discard(v.found[i].Path)
		}
	}
	return nil
}

// stepLayers returns the digests in records of the build cache.
func (v *verifier) stepLayers() map[string]bool {
	out := map[string]bool{}
	for _, kind := range []string{"build", "installed"} {
		entries, _ := os.ReadDir(v.s.path("cache", kind))
		for _, e := range entries {
			b, _ := os.ReadFile(v.s.path("cache", kind, e.Name()))
			for _, h := range digestText().FindAll(b, -1) {
				out[string(h)] = true
			}
		}
	}
	return out
}

// names checks each name's manifest, configuration and layers.
func (v *verifier) names(ctx context.Context) error {
	refs, problems := v.s.refs()
	v.n.Names = len(refs) + len(problems)
	for n, err := range problems {
		f := Finding{Path: filepath.Join("refs", escape(n)), Reason: "is damaged: " + err.Error(), Images: []string{n}}
		var damaged *DamagedRefError
		if errors.As(err, &damaged) {
			f.Cure = damaged.Cure + "; or hpcc rm " + n
		}
		v.found = append(v.found, f)
	}
	at := map[string]int{} // indexes of v.found, by path
	for _, n := range slices.Sorted(maps.Keys(refs)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		v.follow(refs[n].Descriptor, 0, func(path, reason string) {
			i, ok := at[path]
			if !ok {
				i = len(v.found)
				at[path] = i
				v.found = append(v.found, Finding{Path: path, Reason: reason})
			}
			if f := &v.found[i]; !slices.Contains(f.Images, n) {
				f.Images = append(f.Images, n)
				f.Cure = strings.TrimPrefix(f.Cure+"; "+v.s.cure(n, refs[n]), "; ")
			}
		})
	}
	slices.SortStableFunc(v.found, func(a, b Finding) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// follow checks that the blobs of a manifest or index exist and have the sizes that it
// specifies. Damaged blobs have already been reported.
func (v *verifier) follow(d v1.Descriptor, depth int, report func(path, reason string)) {
	file := filepath.Join(blobName(d.Digest))
	if v.bad[d.Digest.Hex] || depth > maxDepth {
		return
	}
	check := func(d v1.Descriptor) bool {
		fi, err := os.Stat(v.s.blob(d.Digest))
		switch {
		case v.bad[d.Digest.Hex]:
		case err != nil:
			report(blobName(d.Digest), missing)
		case fi.Size() != d.Size:
			report(blobName(d.Digest), fmt.Sprintf("has %d bytes instead of %d", fi.Size(), d.Size))
		default:
			return true
		}
		return false
	}
	if err := checkHash(d.Digest); err != nil {
		report(file, err.Error())
		return
	}
	if !check(d) {
		return
	}
	b, err := readSmall(openRegular(v.s.blob(d.Digest)))
	if err != nil {
		report(file, err.Error())
		return
	}
	if d.MediaType.IsIndex() {
		idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
		if err != nil {
			report(file, "is not an index: "+err.Error())
			return
		}
		for _, m := range idx.Manifests {
			v.follow(m, depth+1, report)
		}
		return
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	if err != nil {
		report(file, "is not a manifest: "+err.Error())
		return
	}
	for _, x := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if err := checkHash(x.Digest); err != nil {
			report(file, err.Error())
			continue
		}
		check(x)
	}
}

func (v *verifier) pushed(context.Context) error {
	entries, err := os.ReadDir(v.s.path("pushed"))
	if err != nil {
		return ignoreGone(err)
	}
	for _, e := range entries {
		v.n.Records++
		if _, err := v.s.readPushed(v.s.path("pushed", e.Name())); err != nil {
			n, _ := unescape(e.Name())
			v.found = append(v.found, Finding{Path: filepath.Join("pushed", e.Name()),
				Reason: "is damaged: " + err.Error(), Images: []string{n}, Cure: "remove the file, then hpcc push " + n + " REF"})
		}
	}
	return nil
}

// records checks the small records of the cache, except the directories conda and mount,
// which have other formats.
func (v *verifier) records(ctx context.Context) error {
	kinds, err := os.ReadDir(v.s.path("cache"))
	if err != nil {
		return ignoreGone(err)
	}
	for _, kind := range kinds {
		if kind.Name() == "conda" || kind.Name() == "mount" || !kind.IsDir() {
			continue
		}
		entries, err := os.ReadDir(v.s.path("cache", kind.Name()))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return err
			}
			rel := filepath.Join("cache", kind.Name(), e.Name())
			b, err := os.ReadFile(v.s.path(rel))
			if errors.Is(err, fs.ErrNotExist) || e.IsDir() {
				continue
			}
			v.n.Records++
			if err == nil {
				_, err = files.CheckText(b)
			}
			if errors.Is(err, files.ErrNoSum) && json.Valid(b) {
				continue // from an older version: its next reader removes it
			}
			if err != nil {
				v.found = append(v.found, Finding{Path: rel, Reason: "is damaged: " + err.Error(),
					Moved: v.discard(rel), Cure: "nothing to do: the next build recreates it"})
			}
		}
	}
	return nil
}

// readme checks the file README and restores its text.
func (v *verifier) readme(context.Context) error {
	b, err := os.ReadFile(v.s.path("README"))
	if errors.Is(err, fs.ErrNotExist) || string(b) == readme {
		return nil
	}
	f := Finding{Path: "README", Reason: "is damaged: it has different content", Cure: "nothing to do: its text was restored"}
	if v.o.DryRun {
		f.Cure = "hpcc gc --verify restores its text"
	} else if err := v.s.writeFile("README", []byte(readme)); err != nil {
		return err
	}
	v.found = append(v.found, f)
	return nil
}

// Trees lists the unpacked images by the hexadecimal digests of their manifests.
func (s *Store) Trees() ([]string, error) {
	entries, err := os.ReadDir(s.path("trees"))
	if err != nil {
		return nil, ignoreGone(err)
	}
	var out []string
	for _, e := range entries {
		if checkHash(v1.Hash{Algorithm: "sha256", Hex: e.Name()}) == nil {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// ByManifest returns the image with this manifest.
func (s *Store) ByManifest(h v1.Hash) (v1.Image, error) {
	b, err := s.readBlob(h)
	if err != nil {
		return nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("reading manifest %s: %w", h, err)
	}
	return &image{s, b, m.MediaType}, nil
}

// NamesOf returns the names that refer to a manifest or blob, sorted.
func (s *Store) NamesOf(h v1.Hash) []string { return s.damaged(h, "", "").Images }
