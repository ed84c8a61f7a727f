package squashfs

import (
	"archive/tar"
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"hpcc/testdata/helpers/testenv"
)

// TestWalkHostile checks that the reader refuses corrupt files with a reason.
func TestWalkHostile(t *testing.T) {
	small := func(change func(w *Writer)) []byte {
		f, err := os.Create(filepath.Join(t.TempDir(), "x"))
		testenv.Check(t, err)
		defer f.Close()
		w, err := NewWriter(f, &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755})
		testenv.Check(t, err)
		for _, n := range []string{"d", "f"} {
			h := &tar.Header{Typeflag: tar.TypeReg, Name: n, Size: 4, Mode: 0o644}
			if n == "d" {
				h = &tar.Header{Typeflag: tar.TypeDir, Name: n, Mode: 0o755}
			}
			testenv.Check(t, w.Add(h, strings.NewReader("text")))
		}
		change(w)
		testenv.Check(t, w.endData())
		testenv.Check(t, w.tables())
		b, err := os.ReadFile(f.Name())
		testenv.Check(t, err)
		return b
	}
	rename := func(to string) func(*Writer) {
		return func(w *Writer) { w.root.children[to] = w.root.children["f"]; delete(w.root.children, "f") }
	}
	super := func(at int, v uint32) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], v) }
	}
	for _, c := range []struct {
		name   string
		change func(*Writer)
		patch  func([]byte)
		want   string
	}{
		{"valid", nil, nil, ""},
		{"parent directory", rename(".."), nil, "not a valid file name"},
		{"with a slash", rename("../../x"), nil, "not a valid file name"},
		{"NUL", rename("a\x00b"), nil, "not a valid file name"},
		{"directory with two names", func(w *Writer) { w.root.children["e"] = w.root.children["d"] }, nil, "appears twice"},
		{"bomb", func(w *Writer) {
			n := w.root.children["f"]
			n.h.Size, n.fragment, n.sizes = 1<<40, none, make([]uint32, 1)
		}, nil, "too many for the compressed size"},
		{"short fragment", func(w *Writer) { w.root.children["f"].h.Size = 5 }, nil, "fragment is too short"},
		{"missing fragment", func(w *Writer) { w.root.children["f"].fragment = 9 }, nil, "not in the table"},
		{"blocks beyond the end", func(w *Writer) {
			n := w.root.children["f"]
			n.h.Size, n.fragment, n.start, n.sizes = blockSize, none, 1<<50, []uint32{4096}
		}, nil, "beyond the end"},
		{"block of four gigabytes", func(w *Writer) {
			n := w.root.children["f"]
			n.h.Size, n.fragment, n.sizes = blockSize, none, []uint32{0xfeffffff}
		}, nil, "invalid block of"},
		{"long link", func(w *Writer) {
			w.root.children["f"].h.Typeflag, w.root.children["f"].h.Linkname = tar.TypeSymlink, strings.Repeat("x", 5000)
		}, nil, "5000 bytes"},
		{"value out of line", func(w *Writer) {
			w.root.children["f"].h.PAXRecords = map[string]string{xattrRecord + "user.a": "v"}
			// The attribute refers to offset 17, the size of a value of 1 MiB.
			value := pack(nil, uint16(outOfLine), uint16(1), "a", uint32(8), uint64(17), uint32(1<<20))
			inline := pack(nil, uint16(0), uint16(1), "a", uint32(1), "v")
			w.attrs = attrTable{sets: []attrSet{{value, 1}}, seen: map[string]uint32{string(inline): 0}}
		}, nil, "invalid value of 1048576 bytes"},
		{"block size", nil, super(12, 3), "block size is 3 bytes"},
		{"huge blocks", nil, super(12, 1<<31), "block size is"},
		{"lzma", nil, super(20, 17<<16|2), "compressed with lzma"},
		{"lz4", nil, super(20, 17<<16|5), "compressed with lz4"},
		{"version", nil, super(28, 3), "SquashFS 3.0"},
		{"truncated", nil, super(40, 1<<30), "truncated"},
		{"wrong root", nil, super(32, 0xffff), "the root"},
		{"no owners", nil, super(26, 0), "SquashFS 0.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.change == nil {
				c.change = func(*Writer) {}
			}
			b := small(c.change)
			if c.patch != nil {
				c.patch(b)
			}
			file := filepath.Join(t.TempDir(), "x.sqfs")
			testenv.Check(t, os.WriteFile(file, b, 0o600))
			err := Walk(context.Background(), file, func(_ *tar.Header, r io.Reader) error {
				if r == nil {
					return nil
				}
				_, err := io.Copy(io.Discard, r)
				return err
			})
			if (c.want == "" && err != nil) || (c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want))) {
				t.Fatalf("error is %v; want %q", err, c.want)
			}
		})
	}
}

// TestMissingBlock checks that a missing block is not reported as the end of the file that
// contains it. A block is missing if the image was truncated while it was read, or is empty.
func TestMissingBlock(t *testing.T) {
	var empty bytes.Buffer
	testenv.Check(t, zlib.NewWriter(&empty).Close())
	for name, size := range map[string]uint32{"truncated": blockSize | plain, "empty": uint32(empty.Len())} {
		s := &reader{f: bytes.NewReader(empty.Bytes()), size: 1 << 20, ctx: context.Background(), dec: &decompressor{}}
		s.super.BlockSize = blockSize
		s.meta = map[uint64]metaBlock{0: {data: pack(nil, size)}}
		n := &inode{fragment: none, sizes: s.metaAt(0, 0)}
		got, err := io.ReadAll(&content{s: s, n: n, left: blockSize})
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %d bytes, %v; want an unexpected end", name, len(got), err)
		}
	}
}

func FuzzWalk(f *testing.F) {
	var big []byte
	for i := range blockSize + 10 {
		big = append(big, byte(i/1000))
	}
	out, err := os.Create(filepath.Join(f.TempDir(), "x"))
	testenv.Check(f, err)
	defer out.Close()
	w, err := NewWriter(out, &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755})
	testenv.Check(f, err)
	for _, x := range []struct {
		kind           byte
		name, to, data string
	}{
		{tar.TypeDir, "d", "", ""}, {tar.TypeReg, "d/short", "", "text"}, {tar.TypeReg, "d/twin", "", "text"}, {tar.TypeReg, "blocks", "", string(big)},
		{tar.TypeSymlink, "link", "d/short", ""}, {tar.TypeLink, "hard", "blocks", ""},
	} {
		h := &tar.Header{Typeflag: x.kind, Name: x.name, Linkname: x.to, Mode: 0o755, Size: int64(len(x.data)), PAXRecords: map[string]string{xattrRecord + "user.a": x.name}}
		testenv.Check(f, w.Add(h, strings.NewReader(x.data)))
	}
	testenv.Check(f, w.Close())
	b, err := os.ReadFile(out.Name())
	testenv.Check(f, err)
	f.Add(bytes.TrimRight(b, "\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<20 {
			return
		}
		file := filepath.Join(t.TempDir(), "x")
		testenv.Check(t, os.WriteFile(file, b, 0o600))
		var n int64
		_ = Walk(context.Background(), file, func(h *tar.Header, r io.Reader) error {
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

// TestCompressions reads files of mksquashfs in each compression.
func TestCompressions(t *testing.T) {
	testenv.NeedProgram(t, "mksquashfs")
	root := t.TempDir()
	want := strings.Repeat("line of text\n", 30_000) // several blocks
	testenv.Check(t, os.WriteFile(filepath.Join(root, "f"), []byte(want), 0o600))
	for comp, refused := range map[string]string{
		"gzip": "", "zstd": "", "xz": "", "lzo": "compressed with lzo", "lz4": "compressed with lz4",
	} {
		file := filepath.Join(t.TempDir(), "x.sqfs")
		out, err := exec.Command("mksquashfs", append([]string{root, file, "-quiet", "-no-progress", "-comp"}, strings.Fields(comp)...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", comp, err, out)
		}
		var got []byte
		err = Walk(context.Background(), file, func(h *tar.Header, r io.Reader) (err error) {
			if h.Name == "f" {
				got, err = io.ReadAll(r)
			}
			return err
		})
		if refused != "" && (err == nil || !strings.Contains(err.Error(), refused)) {
			t.Errorf("%s: error is %v; want %q", comp, err, refused)
		}
		if refused == "" && (err != nil || string(got) != want) {
			t.Errorf("%s: %d bytes, error %v; want %d bytes", comp, len(got), err, len(want))
		}
	}
}

// TestXZBlock checks that a stream of xz decides neither about memory nor about bytes beyond
// its end.
func TestXZBlock(t *testing.T) {
	var b bytes.Buffer
	w, err := xz.NewWriter(&b)
	testenv.Check(t, err)
	_, err = w.Write([]byte(strings.Repeat("x", 9000)))
	testenv.Check(t, err)
	testenv.Check(t, w.Close())
	u := &decompressor{xz: true}
	if out, err := u.block(b.Bytes(), 9000); err != nil || len(out) != 9000 {
		t.Errorf("block is %d bytes, %v; want 9000", len(out), err)
	}
	if _, err := u.block(b.Bytes(), 8192); !errors.Is(err, errTooLong) {
		t.Errorf("error is %v; want %v", err, errTooLong)
	}
	for i := range 40 {
		_, _ = u.block(b.Bytes()[:i], 9000)
	}
	filtered := bytes.Clone(b.Bytes())
	filtered[13] |= 1
	if _, err := u.block(filtered, 9000); err == nil || !strings.Contains(err.Error(), "filters of xz") {
		t.Errorf("error is %v; want one about filters", err)
	}
	huge := bytes.Clone(b.Bytes())
	if huge[14] != 0x21 {
		t.Fatalf("filter is %#x; want LZMA2 at once", huge[14])
	}
	huge[16] = 40 // a dictionary of 4 GiB
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	_, _ = u.block(huge, 9000)
	goruntime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
		t.Errorf("allocated %d bytes", used)
	}
}
