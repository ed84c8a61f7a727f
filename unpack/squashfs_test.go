package unpack

import (
	"archive/tar"
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// squashSample is an archive with one of everything that a tree can hold.
func squashSample(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	day := time.Unix(1_700_000_000, 0)
	put := func(h tar.Header, data []byte) {
		h.Size, h.ModTime = int64(len(data)), day
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	random := make([]byte, 3*sqBlock)
	rand.New(rand.NewSource(1)).Read(random)
	put(tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}, nil)
	put(tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o1777, Uid: 7, Gid: 8}, nil)
	for _, n := range []int{0, 1, 5000, sqBlock - 1, sqBlock, sqBlock + 1, 3 * sqBlock} {
		put(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("d/%d", n), Mode: 0o644}, random[:n])
	}
	hole := make([]byte, 4*sqBlock)
	copy(hole[2*sqBlock:], "in the middle")
	put(tar.Header{Typeflag: tar.TypeReg, Name: "hole", Mode: 0o600}, hole)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "nothing", Mode: 0o600}, make([]byte, 2*sqBlock))
	put(tar.Header{Typeflag: tar.TypeReg, Name: "twin", Mode: 0o755}, random[:5000])
	put(tar.Header{Typeflag: tar.TypeReg, Name: "su", Mode: 0o4755, Uid: 70000}, []byte("set-id"))
	put(tar.Header{Typeflag: tar.TypeReg, Name: "ping", Mode: 0o755, PAXRecords: map[string]string{capsRecord: "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}}, []byte("ping"))
	put(tar.Header{Typeflag: tar.TypeLink, Name: "z", Linkname: "ping"}, nil)
	put(tar.Header{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "d/../nowhere", Uid: 5}, nil)
	for i := range 1500 { // several runs and metadata blocks
		put(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("many/a name of some length %d", i), Mode: 0o644, Gid: i % 3}, random[i:i+i%7])
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// squashTree unpacks an archive, with a configuration.
func squashTree(t testing.TB, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := Archive(context.Background(), bytes.NewReader(archive), dir); err != nil {
		t.Fatal(err)
	}
	if err := putConfig(dir, []byte(`{"os":"linux"}`)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// squash writes a tree to a file.
func squash(t testing.TB, tree string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "x.sqfs"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := WriteSquashFS(context.Background(), tree, f); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// linesOf is what an archive says, a line for each member.
func linesOf(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	out := map[string]string{}
	links := map[string]string{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(h.Name, configDir) || h.Name == "./" {
			continue
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("%c %o %d:%d %d %s %q %x", h.Typeflag, h.Mode, h.Uid, h.Gid, h.ModTime.Unix(), h.Linkname, h.PAXRecords[capsRecord], data)
		if h.Typeflag == tar.TypeLink {
			line = links[h.Linkname]
		}
		links[h.Name], out[h.Name] = line, line
	}
}

func TestSquashFSHoldsATree(t *testing.T) {
	tree := squashTree(t, squashSample(t))
	// What has no time in the image has another one in every tree.
	later := squashTree(t, squashSample(t))
	now := time.Now().Add(time.Hour)
	for _, p := range []string{later, filepath.Join(later, "many"), filepath.Join(later, configDir)} {
		if err := os.Chtimes(p, now, now); err != nil {
			t.Fatal(err)
		}
	}
	file := squash(t, tree)
	a, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(squash(t, later))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two trees of one image give different files")
	}

	var layer bytes.Buffer
	config, err := SquashFSLayer(context.Background(), file, &layer)
	if err != nil {
		t.Fatal(err)
	}
	if string(config) != `{"os":"linux"}` {
		t.Errorf("configuration is %q", config)
	}
	var want map[string]string
	if err := treeArchive(tree, &Notes{}, func(r io.Reader) error { want = linesOf(t, r); return nil }); err != nil {
		t.Fatal(err)
	}
	same(t, "the layer", linesOf(t, &layer), want)

	dir := filepath.Join(t.TempDir(), "new")
	if _, err := SquashFS(context.Background(), file, dir); err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := CopyTree(context.Background(), tree, copied); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, copied} {
		if err := treeArchive(d, &Notes{}, func(r io.Reader) error { same(t, d, linesOf(t, r), want); return nil }); err != nil {
			t.Fatal(err)
		}
		if c, err := os.ReadFile(filepath.Join(d, ConfigFile)); err != nil || string(c) != `{"os":"linux"}` {
			t.Errorf("configuration in %s is %q, %v", d, c, err)
		}
	}
}

func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if len(want) < 1500 {
		t.Fatalf("only %d names to compare", len(want))
	}
	for n, w := range want {
		// An unpacked "many" has no time of its own.
		if g := got[n]; g != w && n != "many/" {
			t.Errorf("%s: %s is %.200s, want %.200s", what, n, g, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s has %d names, want %d", what, len(got), len(want))
	}
}

// TestSquashFSHostile gives the reader files whose parts lie.
func TestSquashFSHostile(t *testing.T) {
	small := func(change func(w *squasher)) []byte {
		f, err := os.Create(filepath.Join(t.TempDir(), "x"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w, err := newSquasher(f)
		if err != nil {
			t.Fatal(err)
		}
		w.root = &sqNode{h: &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}, inode: 1}
		w.nodes["."] = w.root
		for _, n := range []string{"d", "f"} {
			h := &tar.Header{Typeflag: tar.TypeReg, Name: n, Size: 4, Mode: 0o644}
			if n == "d" {
				h = &tar.Header{Typeflag: tar.TypeDir, Name: n, Mode: 0o755}
			}
			if err := w.add(h, strings.NewReader("text")); err != nil {
				t.Fatal(err)
			}
		}
		change(w)
		if err := w.endData(); err != nil {
			t.Fatal(err)
		}
		if err := w.tables(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	rename := func(to string) func(*squasher) {
		return func(w *squasher) { w.root.kids[to] = w.root.kids["f"]; delete(w.root.kids, "f") }
	}
	super := func(at int, v uint32) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], v) }
	}
	for _, c := range []struct {
		name   string
		change func(*squasher)
		patch  func([]byte)
		want   string
	}{
		{"fine", nil, nil, ""},
		{"climbing", rename(".."), nil, "no name for a file"},
		{"with a slash", rename("../../x"), nil, "no name for a file"},
		{"NUL", rename("a\x00b"), nil, "no name for a file"},
		{"whiteout", rename(".wh.d"), nil, "marks what was removed"},
		{"whiteout of all", rename(whOpaque), nil, "marks what was removed"},
		{"in two places", func(w *squasher) { w.root.kids["e"] = w.root.kids["d"] }, nil, "in two places"},
		{"bomb", func(w *squasher) {
			n := w.root.kids["f"]
			n.h.Size, n.fragment, n.sizes = 1<<40, sqNone, make([]uint32, 1)
		}, nil, "too many for what is packed"},
		{"shorter than it says", func(w *squasher) { w.root.kids["f"].h.Size = 5 }, nil, "fragment is shorter"},
		{"no such fragment", func(w *squasher) { w.root.kids["f"].fragment = 9 }, nil, "not in the table"},
		{"blocks beyond the end", func(w *squasher) {
			n := w.root.kids["f"]
			n.h.Size, n.fragment, n.start, n.sizes = sqBlock, sqNone, 1<<50, []uint32{4096}
		}, nil, "beyond its end"},
		{"block of four gigabytes", func(w *squasher) {
			n := w.root.kids["f"]
			n.h.Size, n.fragment, n.sizes = sqBlock, sqNone, []uint32{0xfeffffff}
		}, nil, "a block of"},
		{"long link", func(w *squasher) {
			w.root.kids["f"].h.Typeflag, w.root.kids["f"].h.Linkname = tar.TypeSymlink, strings.Repeat("x", 5000)
		}, nil, "5000 bytes"},
		{"block size", nil, super(12, 3), "its blocks have 3 bytes"},
		{"huge blocks", nil, super(12, 1<<31), "its blocks have"},
		{"lzma", nil, super(20, 17<<16|2), "packed with lzma"},
		{"version", nil, super(28, 3), "SquashFS 3.0"},
		{"truncated", nil, super(40, 1<<30), "truncated"},
		{"root elsewhere", nil, super(32, 0xffff), "its root"},
		{"no owners", nil, super(26, 0), "SquashFS 0.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.change == nil {
				c.change = func(*squasher) {}
			}
			b := small(c.change)
			if c.patch != nil {
				c.patch(b)
			}
			top := t.TempDir()
			file := filepath.Join(top, "x.sqfs")
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := SquashFS(context.Background(), file, filepath.Join(top, "in", "..", "tree"))
			if (c.want == "" && err != nil) || (c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want))) {
				t.Fatalf("error is %v, want %q", err, c.want)
			}
			left, err := os.ReadDir(top)
			if err != nil || (c.want != "" && len(left) != 1) {
				t.Errorf("left behind: %v %v", left, err)
			}
		})
	}
}

// A block that is missing, because the file was truncated meanwhile or the
// block unpacks to nothing, is no end of the file that it belongs to.
func TestSquashFSMissingBlock(t *testing.T) {
	var empty bytes.Buffer
	if err := zlib.NewWriter(&empty).Close(); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]uint32{"truncated": sqBlock | sqPlain, "empty": uint32(empty.Len())} {
		s := &squashReader{f: bytes.NewReader(empty.Bytes()), size: 1 << 20, ctx: context.Background(), un: &unsquasher{}}
		s.super.BlockSize = sqBlock
		s.meta = map[uint64]sqMetaBlock{0: {data: sqPack(nil, size)}}
		n := &sqInode{fragment: sqNone, sizes: s.metaAt(0, 0)}
		got, err := io.ReadAll(&sqContent{s: s, n: n, left: sqBlock})
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %d bytes, %v; want an unexpected end", name, len(got), err)
		}
	}
}

func FuzzSquashFS(f *testing.F) {
	tree := f.TempDir()
	var big []byte
	for i := range sqBlock + 10 {
		big = append(big, byte(i/1000))
	}
	for name, data := range map[string][]byte{"d/short": []byte("text"), "d/twin": []byte("text"), "blocks": big, ".hpcc/image.json": []byte("{}")} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o755); err != nil {
			f.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, name), data, 0o600); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.Symlink("d/short", filepath.Join(tree, "link")); err != nil {
		f.Fatal(err)
	}
	if err := os.Link(filepath.Join(tree, "blocks"), filepath.Join(tree, "hard")); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(squash(f, tree))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.TrimRight(b, "\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<20 {
			return
		}
		file := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var n int64
		_, _ = eachInSquashFS(context.Background(), file, func(h *tar.Header, r io.Reader) error {
			if strings.Contains("/"+h.Name+"/", "/../") || strings.HasPrefix(h.Name, "/") {
				t.Errorf("name %q leaves the root", h.Name)
			}
			if r == nil {
				return nil
			}
			m, err := io.Copy(io.Discard, io.LimitReader(r, 64<<20))
			if n += m; n > 128<<20 {
				return io.ErrShortBuffer
			}
			return err
		})
	})
}
