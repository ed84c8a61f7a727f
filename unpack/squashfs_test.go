package unpack

import (
	"archive/tar"
	"bytes"
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

	"hpcc/testdata/helpers/testenv"
	"hpcc/unpack/squashfs"
)

// squashBlock is the block size of the written files, in bytes.
const squashBlock = 128 << 10

// squashSample returns an archive with one of everything that a tree can hold.
func squashSample(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	day := time.Unix(1_700_000_000, 0)
	put := func(h tar.Header, data []byte) {
		h.Size, h.ModTime = int64(len(data)), day
		testenv.Check(t, tw.WriteHeader(&h))
		_, err := tw.Write(data)
		testenv.Check(t, err)
	}
	random := make([]byte, 3*squashBlock)
	rand.New(rand.NewSource(1)).Read(random)
	put(tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}, nil)
	put(tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o1777, Uid: 7, Gid: 8}, nil)
	for _, n := range []int{0, 1, 5000, squashBlock - 1, squashBlock, squashBlock + 1, 3 * squashBlock} {
		put(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("d/%d", n), Mode: 0o644}, random[:n])
	}
	hole := make([]byte, 4*squashBlock)
	copy(hole[2*squashBlock:], "in the middle")
	put(tar.Header{Typeflag: tar.TypeReg, Name: "hole", Mode: 0o600}, hole)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "nothing", Mode: 0o600}, make([]byte, 2*squashBlock))
	put(tar.Header{Typeflag: tar.TypeReg, Name: "twin", Mode: 0o755}, random[:5000])
	put(tar.Header{Typeflag: tar.TypeReg, Name: "su", Mode: 0o4755, Uid: 70000}, []byte("set-id"))
	put(tar.Header{Typeflag: tar.TypeReg, Name: "ping", Mode: 0o755, PAXRecords: map[string]string{capsRecord: "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}}, []byte("ping"))
	put(tar.Header{Typeflag: tar.TypeLink, Name: "z", Linkname: "ping"}, nil)
	put(tar.Header{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "d/../nowhere", Uid: 5}, nil)
	for i := range 1500 { // several runs and metadata blocks
		put(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("many/a name of some length %d", i), Mode: 0o644, Gid: i % 3}, random[i:i+i%7])
	}
	testenv.Check(t, tw.Close())
	return b.Bytes()
}

// squashTree unpacks an archive, with a configuration.
func squashTree(t testing.TB, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	testenv.Check(t, Archive(context.Background(), bytes.NewReader(archive), dir))
	testenv.Check(t, putConfig(dir, []byte(`{"os":"linux"}`)))
	return dir
}

// squash writes a tree to a file.
func squash(t testing.TB, tree string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "x.sqfs"))
	testenv.Check(t, err)
	defer f.Close()
	testenv.Check(t, WriteSquashFS(context.Background(), tree, f, nil))
	return f.Name()
}

// linesOf describes an archive, one line for each member.
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
		testenv.Check(t, err)
		if strings.HasPrefix(h.Name, configDir) || h.Name == "./" {
			continue
		}
		data, err := io.ReadAll(tr)
		testenv.Check(t, err)
		line := fmt.Sprintf("%c %o %d:%d %d %s %q %x", h.Typeflag, h.Mode, h.Uid, h.Gid, h.ModTime.Unix(), h.Linkname, h.PAXRecords[capsRecord], data)
		if h.Typeflag == tar.TypeLink {
			line = links[h.Linkname]
		}
		links[h.Name], out[h.Name] = line, line
	}
}

func TestSquashFSHoldsATree(t *testing.T) {
	tree := squashTree(t, squashSample(t))
	// Files without a time in the image have another one in every tree.
	later := squashTree(t, squashSample(t))
	now := time.Now().Add(time.Hour)
	for _, p := range []string{later, filepath.Join(later, "many"), filepath.Join(later, configDir)} {
		testenv.Check(t, os.Chtimes(p, now, now))
	}
	file := squash(t, tree)
	a, err := os.ReadFile(file)
	testenv.Check(t, err)
	b, err := os.ReadFile(squash(t, later))
	testenv.Check(t, err)
	if !bytes.Equal(a, b) {
		t.Error("two trees of one image give different files")
	}

	var layer bytes.Buffer
	config, _, err := SquashFSLayer(context.Background(), file, &layer)
	testenv.Check(t, err)
	if string(config) != `{"os":"linux"}` {
		t.Errorf("configuration is %q", config)
	}
	var want map[string]string
	testenv.Check(t, treeArchive(tree, &Notes{}, func(r io.Reader) error { want = linesOf(t, r); return nil }))
	same(t, "the layer", linesOf(t, &layer), want)

	dir := filepath.Join(t.TempDir(), "new")
	err = unpackSquashFS(file, dir)
	testenv.Check(t, err)
	copied := t.TempDir()
	testenv.Check(t, CopyTree(context.Background(), tree, copied))
	for _, d := range []string{dir, copied} {
		testenv.Check(t, treeArchive(d, &Notes{}, func(r io.Reader) error { same(t, d, linesOf(t, r), want); return nil }))
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

// TestSquashFSRefused reads files that no image can hold, and corrupt ones. The target
// directory stays empty.
func TestSquashFSRefused(t *testing.T) {
	super := func(at int, v uint32) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], v) }
	}
	for _, c := range []struct {
		name, file string
		patch      func([]byte)
		want       string
	}{
		{"fine", "f", nil, ""},
		{"whiteout", ".wh.d", nil, "marks removed files"},
		{"whiteout of all", whOpaque, nil, "marks removed files"},
		{"huge blocks", "f", super(12, 1<<31), "block size is"},
		{"lzma", "f", super(20, 17<<16|2), "compressed with lzma"},
		{"truncated", "f", super(40, 1<<30), "truncated"},
		{"root elsewhere", "f", super(32, 0xffff), "the root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := t.TempDir()
			file := filepath.Join(top, "x.sqfs")
			f, err := os.Create(file)
			testenv.Check(t, err)
			w, err := squashfs.NewWriter(f, &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755})
			testenv.Check(t, err)
			testenv.Check(t, w.Add(&tar.Header{Typeflag: tar.TypeReg, Name: c.file, Size: 4, Mode: 0o644}, strings.NewReader("text")))
			testenv.Check(t, errors.Join(w.Close(), f.Close()))
			if c.patch != nil {
				b, err := os.ReadFile(file)
				testenv.Check(t, err)
				c.patch(b)
				testenv.Check(t, os.WriteFile(file, b, 0o600))
			}
			err = unpackSquashFS(file, filepath.Join(top, "in", "..", "tree"))
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

// unpackSquashFS unpacks a SquashFS file to a new directory.
func unpackSquashFS(file, dir string) error {
	return NewDir(dir, func(root string) error {
		_, _, err := FillSquashFS(context.Background(), file, root)
		return err
	})
}
