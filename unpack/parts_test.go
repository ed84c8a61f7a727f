package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// closely describes everything in a tree: modes, hard links within it, times, content, notes.
func closely(t testing.TB, dir string) string {
	t.Helper()
	names := map[uint64]int{} // of regular files in the tree, by inode: trees share files
	var out []func() string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if rel == configDir {
			return fs.SkipDir
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s %v %d:%d", rel, fi.Mode(), st.Uid, st.Gid)
		if rel != "." {
			line += " " + fi.ModTime().UTC().Format(time.RFC3339Nano)
		}
		attrs := make([]byte, 4096)
		n, err := unix.Llistxattr(p, attrs)
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
		for _, a := range strings.Split(string(attrs[:max(n, 0)]), "\x00") {
			if strings.HasPrefix(a, "user.") {
				line += fmt.Sprintf(" %s=%q", a, getAttr(p, a))
			}
		}
		switch {
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			names[st.Ino]++
			out = append(out, func() string { return line + fmt.Sprintf(" %d names, %q", names[st.Ino], b) })
			return nil
		case fi.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			line += " to " + target
		}
		out = append(out, func() string { return line })
		return nil
	})
	testenv.Check(t, err)
	var lines []string
	for _, line := range out {
		lines = append(lines, line())
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// retouched returns a layer with modified headers.
func retouched(t testing.TB, l v1.Layer, change func(h *tar.Header)) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for r := tar.NewReader(bytes.NewReader(tarOf(t, l))); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		testenv.Check(t, err)
		change(h)
		testenv.Check(t, w.WriteHeader(h))
		_, err = io.Copy(w, r)
		testenv.Check(t, err)
	}
	testenv.Check(t, w.Close())
	return static.NewLayer(buf.Bytes(), types.OCIUncompressedLayer)
}

func tarOf(t testing.TB, l v1.Layer) []byte {
	t.Helper()
	f, err := l.Uncompressed()
	testenv.Check(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	testenv.Check(t, err)
	return b
}

func storeOf(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "store"))
	testenv.Check(t, err)
	return s
}

// writePart writes a layer into parts, in pieces of the given size.
func writePart(t testing.TB, p *Parts, l v1.Layer, piece int) {
	t.Helper()
	b, id := tarOf(t, l), v1.Hash{}
	id, err := l.DiffID()
	testenv.Check(t, err)
	x := p.Begin(t.Context())
	for ; len(b) > 0; b = b[min(piece, len(b)):] {
		if n, err := x.Write(b[:min(piece, len(b))]); err != nil || n != min(piece, len(b)) {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	x.End(id)
}

// asOne compares a tree built with parts with one built from the layers.
func asOne(t *testing.T, parts *Parts, img v1.Image, text string) {
	t.Helper()
	dir := t.TempDir()
	want, err := Fill(t.Context(), img, filepath.Clean(dir), Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	other := t.TempDir()
	got, err := Fill(t.Context(), img, other, Options{Parts: parts})
	if err != nil {
		t.Fatalf("with parts: %v\n%s", err, text)
	}
	if a, b := closely(t, dir), closely(t, other); a != b {
		t.Fatalf("%s\n\ngives\n%s\n\nwith parts\n%s", text, a, b)
	}
	if got != want {
		t.Errorf("%s\n\ngives %+v, with parts %+v", text, want, got)
	}
}

// Everything that a layer can find below it, and layers that cannot be parts.
func TestParts(t *testing.T) {
	below := []string{"d dir", "f dir/old 1", "d dir/sub", "f dir/sub/x 2", "f file 3", "l link dir", "l away /nowhere", "d1777 tmp", "d0700 closed", "f0400 closed/k 4", "d owned", "l owned/l x"}
	for _, c := range []struct {
		name  string
		lines []string
		part  bool
	}{
		{"new", []string{"d new", "d0750 new/a", "f0755 new/a/b 1", "l new/l a/b", "h new/h new/a/b"}, true},
		{"nothing", nil, true},
		{"into directories", []string{"d dir", "d dir/sub", "f dir/sub/y 1", "d dir/sub/z", "f dir/old 2", "d tmp", "d0711 closed", "f closed/k 5"}, true},
		{"directories for a file and links", []string{"d file", "f file/a 1", "d link", "f link/a 2", "d away", "f away/a 3"}, true},
		{"files for directories and links", []string{"f dir 1", "f link 2", "f away 3", "f file 4"}, true},
		{"links for all", []string{"l dir file", "l file dir", "l link file", "l owned file"}, true},
		{"what had owners", []string{"d owned", "l owned/l y"}, true},
		{"hard links", []string{"f file 1", "h dir file", "h link file"}, true},
		{"names without others", []string{"d dir", "f dir/..x 1", "d dir/...", "f dir/.../wh. 1"}, true},
		{"a whiteout", []string{"f .wh.file"}, false},
		{"a whiteout further down", []string{"d dir", "f dir/.wh.old"}, false},
		{"an opaque directory", []string{"d dir", "f dir/.wh..wh..opq"}, false},
		{"below a link", []string{"f link/a 1"}, false},
		{"a directory described late", []string{"f dir/a 1", "d dir"}, false},
		{"a name twice", []string{"f a 1", "f a 2"}, false},
		{"a directory that becomes a link", []string{"d a", "l a dir"}, false},
		{"a directory twice", []string{"d a", "d0700 a"}, false},
		{"a hard link to another layer's", []string{"h a file"}, false},
		{"a hard link through a link", []string{"l a dir", "h b a/old"}, false},
		{"the root", []string{"d0700 ."}, false},
		{"a device", []string{"c dev"}, false},
		{"set-user-id", []string{"f4755 su 1"}, false},
		{"a directory that denies its owner", []string{"d0500 a"}, false},
		{"our own", []string{"d .hpcc", "f .hpcc/image.json 1"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := retouched(t, layerOf(t, below...), func(h *tar.Header) {
				if strings.HasPrefix(h.Name, "owned") {
					h.Uid, h.Gid = 7, 8
				}
			})
			later := func(h *tar.Header) { h.ModTime = then.Add(time.Hour) }
			l := retouched(t, layerOf(t, c.lines...), later)
			p := NewParts(storeOf(t))
			defer p.Close()
			writePart(t, p, l, 1000)
			if got := len(p.trees) == 1; got != c.part {
				t.Errorf("it is a part: %v; want %v", got, c.part)
			}
			asOne(t, p, imageOf(t, base, l), strings.Join(c.lines, "\n"))
			if len(p.trees) != 0 {
				t.Error("the part is there for another tree")
			}
		})
	}
}

// A link's target before a part was adopted must not be used for the layers above.
func TestPartsBetween(t *testing.T) {
	below := layerOf(t, "d dir", "d other", "l link dir", "f link/a 1", "d d", "d d/e", "f d/e/x 1")
	above := layerOf(t, "f link/b 2", "d d", "d d/e", "f d/e/y 2", "f other/.wh.c")
	for _, line := range []string{"l link other", "f d 1"} {
		middle := layerOf(t, line)
		p := NewParts(storeOf(t))
		writePart(t, p, middle, 512)
		if len(p.trees) != 1 {
			t.Fatalf("%q is not a part", line)
		}
		asOne(t, p, imageOf(t, below, middle, above), line)
		p.Close()
	}
}

// A layer with owners is not a part, because owners need notes.
func TestPartsOfOthers(t *testing.T) {
	for _, lines := range [][]string{{"f a 1"}, {"d a"}, {"l a b"}} {
		l := retouched(t, layerOf(t, lines...), func(h *tar.Header) { h.Gid = 5 })
		p := NewParts(storeOf(t))
		writePart(t, p, l, 512)
		if len(p.trees) != 0 {
			t.Errorf("%q of group 5 is a part", lines)
		}
		p.Close()
	}
}

// Concurrent images of random layers, some of them written as parts.
func TestPartsRandom(t *testing.T) {
	r := seeded(t)
	parts, layers := 0, 0
	for range 150 {
		m := model{}
		var ls []v1.Layer
		var text []string
		for n := range 1 + r.Intn(5) {
			lines := randomLayer(r, m)
			m.apply(lines)
			for i, l := range lines {
				if r.Intn(4) == 0 && (l[0] == 'd' || l[0] == 'f') {
					lines[i] = fmt.Sprintf("%c%04o%s", l[0], []int{0o700, 0o755, 0o775, 0o1777, 0o744, 0o555}[r.Intn(6)], l[1:])
				}
			}
			owner := 0
			if r.Intn(8) == 0 {
				owner = 1000
			}
			ls = append(ls, retouched(t, layerOf(t, lines...), func(h *tar.Header) {
				h.Uid, h.ModTime = owner, then.Add(time.Duration(n)*time.Hour)
			}))
			text = append(text, strings.Join(lines, "\n"))
		}
		p := NewParts(storeOf(t))
		var wg sync.WaitGroup
		for _, l := range ls {
			if r.Intn(4) > 0 {
				layers++
				piece := 1 + rand.Intn(2000)
				wg.Go(func() { writePart(t, p, l, piece) })
			}
		}
		wg.Wait()
		parts += len(p.trees)
		asOne(t, p, imageOf(t, ls...), strings.Join(text, "\n--\n"))
		p.Close()
	}
	if parts*3 < layers {
		t.Errorf("of %d layers %d were parts: too few", layers, parts)
	}
	t.Logf("%d of %d layers were parts", parts, layers)
}

// Large files, which span many blocks.
func TestPartsLarge(t *testing.T) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i, n := range []int{3*blockSize + 7, 0, blockSize - 512, 2 * blockSize, 5 << 20} {
		data := bytes.Repeat([]byte{byte(i), 1, 2, 3, 0}, n/5+1)[:n]
		if i == 4 {
			clear(data) // a hole
		}
		testenv.Check(t, w.WriteHeader(&tar.Header{Name: fmt.Sprint("f", i), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(n), ModTime: then}))
		_, err := w.Write(data)
		testenv.Check(t, err)
	}
	testenv.Check(t, w.Close())
	for _, piece := range []int{77, blockSize, 1 << 20} {
		l := static.NewLayer(buf.Bytes(), types.OCIUncompressedLayer)
		p := NewParts(storeOf(t))
		writePart(t, p, l, piece)
		if len(p.trees) != 1 {
			t.Errorf("in pieces of %d bytes it is not a part", piece)
		}
		asOne(t, p, imageOf(t, l), "large files")
		p.Close()
	}
}

// Abandoned, truncated and cancelled layers are not parts.
func TestPartsGivenUp(t *testing.T) {
	l := layerOf(t, "d d", "f d/a 1", "f d/b 2")
	b := tarOf(t, l)
	id, err := l.DiffID()
	testenv.Check(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		tar  []byte
		id   v1.Hash
	}{
		{"given up", t.Context(), b, v1.Hash{}},
		{"cut off in a header", t.Context(), b[:700], id},
		{"cut off in a file", t.Context(), b[:513+512+512], id},
		{"no archive", t.Context(), bytes.Repeat([]byte("x"), 3*blockSize), id},
		{"cancelled", gone, b, id},
	} {
		p := NewParts(storeOf(t))
		x := p.Begin(c.ctx)
		if _, err := x.Write(c.tar); err != nil {
			t.Errorf("%s: Write: %v", c.name, err)
		}
		if x.End(c.id); len(p.trees) != 0 {
			t.Errorf("%s: it is a part", c.name)
		}
		dir := p.dir
		if p.Close(); dir != "" {
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: after Close there is still %s (%v)", c.name, dir, err)
			}
		}
	}
}

// Tree unpacks layers that cannot be parts.
func TestPartsThatCannotBeMoved(t *testing.T) {
	l := layerOf(t, "d d", "f d/a 1")
	img, s := imageOf(t, l), storeOf(t)
	p := NewParts(s)
	defer p.Close()
	writePart(t, p, l, 512)
	testenv.Check(t, os.RemoveAll(p.dir))
	dir, _, err := Tree(t.Context(), s, img, Options{Parts: p})
	testenv.Check(t, err)
	if got := listing(t, dir); got != "d d\nf d/a 1" {
		t.Errorf("the tree is\n%s", got)
	}
	if left, err := os.ReadDir(filepath.Join(s.Dir(), "tmp")); err != nil || len(left) > 0 {
		t.Errorf("left in tmp: %v, %v", left, err)
	}
}
