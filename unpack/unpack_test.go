package unpack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/testdata/helpers/testenv"
)

var then = time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)

// layerOf builds a layer from lines in the format of [testenv.Tar].
func layerOf(t testing.TB, lines ...string) v1.Layer {
	t.Helper()
	return static.NewLayer(testenv.Tar(t, then, lines...), types.OCIUncompressedLayer)
}

func imageOf(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	testenv.Check(t, err)
	return img
}

// listing writes a tree as sorted lines like those of layerOf.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if rel == "." {
			return nil
		}
		if rel == configDir {
			return fs.SkipDir
		}
		switch {
		case d.IsDir():
			out = append(out, "d "+rel)
		case d.Type()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			out = append(out, "l "+rel+" "+target)
		case d.Type()&fs.ModeNamedPipe != 0:
			out = append(out, "p "+rel)
		default:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out = append(out, strings.TrimSpace("f "+rel+" "+string(b)))
		}
		return nil
	})
	testenv.Check(t, err)
	sort.Strings(out)
	return strings.Join(out, "\n")
}

func TestLayers(t *testing.T) {
	for _, c := range []struct {
		name   string
		layers [][]string
		want   []string
	}{
		{"whiteout", [][]string{{"d d", "f d/a 1", "f d/b 2"}, {"f d/.wh.a"}}, []string{"d d", "f d/b 2"}},
		{"whiteout at the root", [][]string{{"f foo 1", "f foobar 2"}, {"f .wh.foo"}}, []string{"f foobar 2"}},
		{"whiteout at the root with ./", [][]string{{"f foo 1", "d bar", "f bar/x 1"}, {"f ./.wh.foo", "f ./.wh.bar"}}, nil},
		{"opaque", [][]string{{"d d", "f d/a 1", "d d/s", "f d/s/x 1"}, {"d d", "f d/new 2", "f d/.wh..wh..opq", "f d/late 3"}}, []string{"d d", "f d/late 3", "f d/new 2"}},
		{"opaque hides below a directory that is made again", [][]string{{"d d", "d d/s", "f d/s/x 1"}, {"d d", "d d/s", "f d/s/y 2", "f d/.wh..wh..opq"}}, []string{"d d", "d d/s", "f d/s/y 2"}},
		{"opaque spares what has no directory's entry", [][]string{{"d d", "d d/s", "f d/s/x 1"}, {"f d/s/y 2", "f d/.wh..wh..opq"}}, []string{"d d", "d d/s", "f d/s/y 2"}},
		{"a link led elsewhere", [][]string{{"d x", "d y", "l z x", "f z/a 1", "l z y", "f z/b 2"}}, []string{"d x", "d y", "f x/a 1", "f y/b 2", "l z y"}},
		{"a directory that was named through a link is removed", [][]string{{"d x", "l z x", "d z/a"}, {"f .wh.x"}}, []string{"l z x"}},
		{"hard link to itself", [][]string{{"f a 1", "h a a"}}, []string{"f a 1"}},
		{"opaque root", [][]string{{"f a 1", "d d", "f d/x 1"}, {"f .wh..wh..opq", "f b 2"}}, []string{"f b 2"}},
		{"whiteout and new file in one layer", [][]string{{"f a 1"}, {"f a 2", "f .wh.a"}}, []string{"f a 2"}},
		{"hard link breaks", [][]string{{"f a 1", "h b a"}, {"f a 2"}}, []string{"f a 2", "f b 1"}},
		{"hard link across layers", [][]string{{"d d", "f d/a 1"}, {"h b d/a"}}, []string{"d d", "f b 1", "f d/a 1"}},
		{"hard link to a link", [][]string{{"l a nowhere", "h b a"}}, []string{"l a nowhere", "l b nowhere"}},
		{"link to directory becomes one", [][]string{{"d x", "f x/a 1", "l y x"}, {"d y", "f y/b 2"}}, []string{"d x", "d y", "f x/a 1", "f y/b 2"}},
		{"directory becomes link", [][]string{{"d x", "d y", "f y/b 2"}, {"l y x"}}, []string{"d x", "l y x"}},
		{"directory becomes file and back", [][]string{{"d x", "f x/a 1"}, {"f x 2"}, {"d x"}}, []string{"d x"}},
		{"entries through a link stay inside", [][]string{{"d usr", "d usr/lib", "l lib usr/lib", "f lib/a 1"}}, []string{"d usr", "d usr/lib", "f usr/lib/a 1", "l lib usr/lib"}},
		{"entries through a link to nothing yet", [][]string{{"l bin usr/bin", "f bin/a 1", "d usr/bin/b"}}, []string{"d usr", "d usr/bin", "d usr/bin/b", "f usr/bin/a 1", "l bin usr/bin"}},
		{"entries through two links to nothing", [][]string{{"d d", "l d/x ../y", "l y /z/w", "f d/x/a 1"}}, []string{"d d", "d z", "d z/w", "f z/w/a 1", "l d/x ../y", "l y /z/w"}},
		{"a link to nothing outside", [][]string{{"l x ../../../y", "f x/a 1"}}, []string{"d y", "f y/a 1", "l x ../../../y"}},
		{"absolute link is of the root", [][]string{{"d usr", "l abs /usr", "f abs/a 1"}}, []string{"d usr", "f usr/a 1", "l abs /usr"}},
		{"names that mean nothing", [][]string{{"f a 1", "d d", "f d/b 1"}, {"f .wh.", "f .wh..", "f .wh...", "f d/.wh.."}}, []string{"d d", "f a 1", "f d/b 1"}},
		{"no parents", [][]string{{"f a/b/c 1"}}, []string{"d a", "d a/b", "f a/b/c 1"}},
		{"below a file", [][]string{{"f a 1"}, {"f a/b 2"}}, []string{"d a", "f a/b 2"}},
		{"absolute name", [][]string{{"f /etc/x 1"}}, []string{"d etc", "f etc/x 1"}},
		{"devices", [][]string{{"d dev", "c dev/null", "p fifo", "f a 1"}}, []string{"d dev", "f a 1", "p fifo"}},
		{"our own directory", [][]string{{"d .hpcc", "f .hpcc/image.json {}", "f a 1"}}, []string{"f a 1"}},
		{"whiteout below a file", [][]string{{"f a 1"}, {"f a/.wh.b"}}, []string{"f a 1"}},
		{"whiteout below nothing", [][]string{{"f a 1"}, {"f x/y/.wh.b"}}, []string{"f a 1"}},
		{"whiteout through a link", [][]string{{"d d", "f d/a 1", "l y d"}, {"f y/.wh.a"}}, []string{"d d", "l y d"}},
		{"opaque file", [][]string{{"f a 1"}, {"f a/.wh..wh..opq"}}, []string{"f a 1"}},
		{"opaque below a file", [][]string{{"f a 1"}, {"f a/b/.wh..wh..opq"}}, []string{"f a 1"}},
		{"opaque nothing", [][]string{{"f a 1"}, {"f x/y/.wh..wh..opq"}}, []string{"f a 1"}},
		{"opaque link stays", [][]string{{"d d", "f d/a 1", "l y d"}, {"f y/.wh..wh..opq"}}, []string{"d d", "f d/a 1", "l y d"}},
		{"same layer twice", [][]string{{"f a 1"}, {"f .wh.a"}, {"f a 1"}}, []string{"f a 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ls []v1.Layer
			for _, l := range c.layers {
				ls = append(ls, layerOf(t, l...))
			}
			dir := filepath.Join(t.TempDir(), "tree")
			_, err := Image(context.Background(), imageOf(t, ls...), dir, Options{})
			testenv.Check(t, err)
			if got, want := listing(t, dir), strings.Join(c.want, "\n"); got != want {
				t.Errorf("the tree is\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// A removed directory's time does not apply to a later one, unless the later layer describes
// it.
func TestTimesOfRemovedDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	lower := layerOf(t, "d a", "d a/b", "d c", "d c/d")
	upper := layerOf(t, "f .wh.a", "f .wh.c", "f a/b/new 1", "d c", "f c/d/new 1")
	_, err := Image(context.Background(), imageOf(t, lower, upper), dir, Options{})
	testenv.Check(t, err)
	for p, kept := range map[string]bool{"a": false, "a/b": false, "c": true, "c/d": false} {
		fi, err := os.Stat(filepath.Join(dir, p))
		testenv.Check(t, err)
		if got := fi.ModTime().Equal(then); got != kept {
			t.Errorf("%s has time %v; has it that of its entry: %v, want %v", p, fi.ModTime(), got, kept)
		}
	}
}

func TestModesAndTimes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	rep, err := Image(context.Background(), imageOf(t, layerOf(t, "d0 locked", "f0 locked/f x", "f4755 su x", "d1777 tmp", "c dev", "p fifo")), dir, Options{})
	testenv.Check(t, err)
	for p, want := range map[string]fs.FileMode{"locked": fs.ModeDir | 0o700, "locked/f": 0o400, "su": 0o755, "tmp": fs.ModeDir | fs.ModeSticky | 0o777} {
		fi, err := os.Stat(filepath.Join(dir, p))
		testenv.Check(t, err)
		if fi.Mode() != want {
			t.Errorf("%s has mode %v; want %v", p, fi.Mode(), want)
		}
		if !fi.ModTime().Equal(then) {
			t.Errorf("%s has time %v; want %v", p, fi.ModTime(), then)
		}
	}
	if rep.Devices != 1 || rep.FIFOs != 0 || rep.SetID != 1 {
		t.Errorf("report %+v; want one of each", rep)
	}
	if _, err := keptConfig(dir); err != nil {
		t.Error(err)
	}
}

// A layer applied to a finished tree keeps the image's configuration, and can remove files
// that their mode protects.
func TestApply(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	_, err := Image(context.Background(), imageOf(t, layerOf(t, "d d", "d d/e", "f d/e/f 1", "f a 1")), dir, Options{})
	testenv.Check(t, err)
	for _, d := range []string{"d/e", "d"} {
		testenv.Check(t, os.Chmod(filepath.Join(dir, d), 0o500))
	}
	_, err = Apply(context.Background(), layerOf(t, "f .wh.d", "f .wh..hpcc", "f b 2"), dir, &Notes{}, nil)
	testenv.Check(t, err)
	if got := listing(t, dir); got != "f a 1\nf b 2" {
		t.Errorf("the tree is\n%s", got)
	}
	_, err = Apply(context.Background(), layerOf(t, "f .wh..wh..opq", "f c 3", "f .hpcc/image.json {}"), dir, &Notes{}, nil)
	testenv.Check(t, err)
	if got := listing(t, dir); got != "f c 3" {
		t.Errorf("the tree is\n%s", got)
	}
	if c, err := keptConfig(dir); err != nil || c.RootFS.DiffIDs == nil {
		t.Errorf("the configuration is %v, %v", c, err)
	}
}

// More directories than the limit of open files.
func TestManyDirectories(t *testing.T) {
	var lines []string
	for i := range 1500 {
		lines = append(lines, fmt.Sprintf("f d%d/f x", i))
	}
	img := imageOf(t, layerOf(t, lines...))
	var old syscall.Rlimit
	testenv.Check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	testenv.Check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 700, Max: old.Max}))
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)
	rep, err := Image(context.Background(), img, filepath.Join(t.TempDir(), "tree"), Options{})
	if err != nil || rep.Files != 1500 {
		t.Errorf("Image: %d files, %v; want 1500", rep.Files, err)
	}
}

// Archives that try to leave the tree must not change anything outside.
func TestHostile(t *testing.T) {
	for name, lines := range map[string][]string{
		"climbing name":        {"f ../victim/f bad"},
		"climbing inside":      {"f a/../../victim/f bad"},
		"maze":                 {"l a ..", "l a/b ..", "l a/b/c ..", "f a/b/c/victim/f bad"},
		"chain":                {"d x", "l x/y ../..", "l z x/y/..", "f z/victim/f bad"},
		"absolute link":        {"l a /tmp", "f a/hpcc-hostile bad"},
		"link then hard link":  {"l a ../victim/secret", "h b a", "f b bad"},
		"hard link outside":    {"h a ../victim/secret", "f a bad"},
		"whiteout outside":     {"l a ../victim", "f a/.wh.secret"},
		"whiteout parent":      {"d d", "f d/.wh.../victim"},
		"opaque through link":  {"l a ../victim", "f a/.wh..wh..opq"},
		"directory on a link":  {"l a ../victim", "d0 a"},
		"hard link to nothing": {"h a nowhere"},
		"link onto itself":     {"l a a", "f a/b x"},
		"mutual links":         {"l a b", "l b a", "f a/x bad"},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			victim := filepath.Join(top, "victim")
			testenv.Write(t, filepath.Join(victim, "secret"), "kept")
			_, err := Image(context.Background(), imageOf(t, layerOf(t, lines...)), filepath.Join(top, "tree"), Options{})
			if err != nil && !strings.Contains(err.Error(), "entry \"") {
				t.Errorf("error %q does not name the entry", err)
			}
			if got := listing(t, victim); got != "f secret kept" {
				t.Errorf("outside the tree there is now\n%s", got)
			}
			if _, err := os.Lstat("/tmp/hpcc-hostile"); err == nil {
				t.Error("/tmp was written to")
			}
			if left, _ := filepath.Glob(filepath.Join(top, ".*")); err != nil && len(left) > 0 {
				t.Errorf("a failed unpack leaves %v", left)
			}
		})
	}
}

func TestWrongContent(t *testing.T) {
	good := layerOf(t, "f a 1")
	other := layerOf(t, "f a 2")
	for _, bad := range []v1.Layer{wrongDigest{good, other}, wrongDiffID{good, other}} {
		_, err := Image(context.Background(), imageOf(t, bad), filepath.Join(t.TempDir(), "tree"), Options{})
		if err == nil || !strings.Contains(err.Error(), "digest") {
			t.Errorf("%T: %v; want a digest error", bad, err)
		}
	}
}

// Layers with another layer's metadata.
type wrongDigest struct {
	v1.Layer
	other v1.Layer
}
type wrongDiffID struct {
	v1.Layer
	other v1.Layer
}

func (l wrongDigest) Digest() (v1.Hash, error) { return l.other.Digest() }
func (l wrongDiffID) DiffID() (v1.Hash, error) { return l.other.DiffID() }

// Compare finds what changed, and applying it gives the same tree.
func TestCompareRoundTrip(t *testing.T) {
	top := t.TempDir()
	lower, upper := filepath.Join(top, "lower"), filepath.Join(top, "upper")
	base := layerOf(t, "d d", "f d/a 1", "f d/b 2", "d gone", "f gone/x 1", "f file 1", "l link a", "d kept", "f kept/y 1", "d turn")
	for _, p := range []string{lower, upper} {
		_, err := Image(context.Background(), imageOf(t, base), p, Options{})
		testenv.Check(t, err)
	}
	for _, do := range []func() error{
		func() error { return os.WriteFile(filepath.Join(upper, "d/a"), []byte("changed"), 0o644) },
		func() error { return os.Remove(filepath.Join(upper, "d/b")) },
		func() error { return os.RemoveAll(filepath.Join(upper, "gone")) },
		func() error { return os.Remove(filepath.Join(upper, "link")) },
		func() error { return os.Symlink("b", filepath.Join(upper, "link")) },
		func() error { return os.Remove(filepath.Join(upper, "turn")) },
		func() error { return os.WriteFile(filepath.Join(upper, "turn"), []byte("file"), 0o644) },
		func() error { return os.MkdirAll(filepath.Join(upper, "new/deep"), 0o755) },
		func() error { return os.WriteFile(filepath.Join(upper, "new/deep/f"), []byte("n"), 0o755) },
		func() error { return os.Link(filepath.Join(upper, "new/deep/f"), filepath.Join(upper, "new/hard")) },
	} {
		testenv.Check(t, do())
	}
	var buf bytes.Buffer
	n, err := Compare(&buf, lower, upper, DiffOptions{Newest: then, Stamp: then, Skip: []string{configDir}})
	testenv.Check(t, err)
	if n != 10 {
		t.Errorf("%d entries; want 10", n)
	}
	_, err = Apply(context.Background(), static.NewLayer(buf.Bytes(), types.OCIUncompressedLayer), lower, &Notes{}, nil)
	testenv.Check(t, err)
	if got, want := listing(t, lower), listing(t, upper); got != want {
		t.Errorf("applied:\n%s\nwant:\n%s", got, want)
	}
	buf.Reset()
	if n, err := Compare(&buf, upper, upper, DiffOptions{}); err != nil || n != 0 {
		t.Errorf("a tree differs from itself in %d entries, %v", n, err)
	}
}

func FuzzLayer(f *testing.F) {
	long := strings.Repeat("long/", 60)
	for _, lines := range [][]string{
		{"d a", "l a/b ..", "f a/b/c x", "h d a/b", "f .wh.a", "f a/.wh..wh..opq"},
		{"l a b", "l b ..", "f a/x 1", "d a", "l a /x", "f a 2"},
		{"f x 1", "h y x", "d x", "f x/y 2", "h x/z y", "l x z", "d4711 x", "c x", "p y"},
		{"f " + long + "x 1", "l " + long + "y " + long, "h z " + long + "x", "f .wh.long"},
	} {
		r, err := layerOf(f, lines...).Uncompressed()
		testenv.Check(f, err)
		data, err := io.ReadAll(r)
		testenv.Check(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = summed(data)
		top := t.TempDir()
		testenv.Check(t, os.WriteFile(filepath.Join(top, "secret"), []byte("kept"), 0o644))
		dir := filepath.Join(top, "x", "tree")
		testenv.Check(t, os.MkdirAll(dir, 0o755))
		_, _ = Apply(context.Background(), static.NewLayer(data, types.OCIUncompressedLayer), dir, &Notes{}, nil)
		if names, _ := os.ReadDir(top); len(names) != 2 {
			t.Errorf("outside the tree: %v", names)
		}
		if b, _ := os.ReadFile(filepath.Join(top, "secret")); string(b) != "kept" {
			t.Error("a file outside the tree was changed")
		}
	})
}

// summed adds the checksums to the headers of an archive. Without them, nearly all of a
// fuzzer's changes would be refused for that alone.
func summed(archive []byte) []byte {
	out := bytes.Clone(archive)
	for at := 0; at+512 <= len(out); at += 512 {
		h := out[at : at+512]
		if bytes.Count(h, []byte{0}) == len(h) {
			continue // the end is two such blocks
		}
		copy(h[148:156], "        ")
		sum := 0
		for _, b := range h {
			sum += int(b)
		}
		copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
		if size, err := strconv.ParseUint(strings.Trim(string(h[124:136]), " \x00"), 8, 40); err == nil {
			at += int(size+511) / 512 * 512
		}
	}
	return out
}

// keptConfig reads the configuration that a tree keeps.
func keptConfig(dir string) (*v1.ConfigFile, error) {
	f, err := os.Open(filepath.Join(dir, ConfigFile))
	if err != nil {
		return nil, fmt.Errorf("reading the image's configuration: %w", err)
	}
	defer f.Close()
	c, err := v1.ParseConfigFile(f)
	if err != nil {
		return nil, fmt.Errorf("reading the image's configuration %s: %w", f.Name(), err)
	}
	return c, nil
}

// TestProgress checks that progress advances within a layer, up to the size of all layers.
func TestProgress(t *testing.T) {
	img, err := random.Image(8<<20, 2)
	testenv.Check(t, err)
	var steps []int64
	var size int64
	progress := func(done, total int64) {
		if len(steps) > 0 && done < steps[len(steps)-1] {
			t.Errorf("progress goes back from %d to %d", steps[len(steps)-1], done)
		}
		steps, size = append(steps, done), total
	}
	_, err = Fill(t.Context(), img, t.TempDir(), Options{Progress: progress})
	testenv.Check(t, err)
	if len(steps) < 20 || size < 16<<20 || steps[len(steps)-1] != size {
		t.Errorf("%d calls, the last with %d of %d bytes", len(steps), steps[len(steps)-1], size)
	}
}

// TestApplyKeepsTimes checks that directories whose content a layer changes keep their times
// if the layer does not describe them.
func TestApplyKeepsTimes(t *testing.T) {
	root := filepath.Join(t.TempDir(), "tree")
	_, err := Image(context.Background(), imageOf(t, layerOf(t, "d d", "d d/s", "f d/s/x 1", "d gone", "d link", "l l d/s")), root, Options{})
	testenv.Check(t, err)
	_, err = Apply(context.Background(), layerOf(t, "f d/s/y 2", "f l/z 3", "f d/.wh.none", "f .wh.gone", "f gone/new 4"), root, &Notes{}, nil)
	testenv.Check(t, err)
	for name, kept := range map[string]bool{"d": true, "d/s": true, "gone": false} {
		fi, err := os.Stat(filepath.Join(root, name))
		testenv.Check(t, err)
		if fi.ModTime().Equal(then) != kept {
			t.Errorf("%s has the time %v; kept: want %v", name, fi.ModTime(), kept)
		}
	}
}
