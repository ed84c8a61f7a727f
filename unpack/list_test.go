package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/testdata/helpers/testenv"
)

// listed lists Files in the format of a tree's listing.
func listed(t *testing.T, f *Files) string {
	t.Helper()
	var out []string
	var walk func(at string, d *File)
	walk = func(at string, d *File) {
		for _, base := range d.Names() {
			p, file := path.Join(at, base), d.At(base)
			switch file.Kind {
			case fs.ModeDir:
				out = append(out, "d "+p)
				walk(p, file)
			case fs.ModeSymlink:
				out = append(out, "l "+p+" "+file.Link)
			case 0:
				b, err := f.Read(context.Background(), file, 1<<20)
				testenv.Check(t, err)
				out = append(out, strings.TrimSpace("f "+p+" "+string(b)))
			}
		}
	}
	walk("", f.root)
	sort.Strings(out)
	return strings.Join(out, "\n")
}

// List describes images as they are when unpacked.
func TestListIsTheTree(t *testing.T) {
	r := seeded(t)
	for n := range 200 {
		img, m, text := randomImage(t, r)
		f, err := List(context.Background(), img)
		if err != nil {
			t.Fatalf("image %d: %v\n%s", n, err, text)
		}
		if got := listed(t, f); got != m.String() {
			t.Fatalf("image %d:\n%s\n\nis listed as\n%s\n\nwant\n%s", n, text, got, m)
		}
	}
	for _, layers := range [][]string{
		{"d a\nl b a\nf b/x 1", "f a/x 2\nf b/y 3"},
		{"l bin usr/bin\nf bin/sh 1", "f usr/bin/ls 2\nf .wh.bin"},
		{"l up ../../..\nf up/x 1\nl abs /a/b\nf abs/y 2"},
		{"f a 1\nf a/b 2", "d a"},
		{"d a\nf a/x 1\nf a/y 2", "f a/.wh..wh..opq\nf a/z 3", "h b a/z"},
		{"d a\nd a/b\nf a/b/x 1\nf a/b/y 1\nf a/k 1", "f a/b/new 2\nf a/.wh..wh..opq"},
		{"d a\nl a/up ..\nd c\nf a/up/c/x 1", "f a/up/c/.wh.x"},
		{"f x 1\nf x 2\nh y x", "f x 3"},
		{"c dev\nd d\np d/p", "f d/.wh.p"},
		{"f .hpcc/image.json {}\nf .wh..wh.plnk 1\nf a 1", "f .wh.."},
	} {
		img := imageOf(t)
		for _, l := range layers {
			ls, err := img.Layers()
			testenv.Check(t, err)
			img = imageOf(t, append(ls, layerOf(t, strings.Split(l, "\n")...))...)
		}
		dir := filepath.Join(t.TempDir(), "tree")
		if _, err := Image(context.Background(), img, dir, Options{}); err != nil {
			t.Fatalf("%q: %v", layers, err)
		}
		f, err := List(context.Background(), img)
		if err != nil {
			t.Fatalf("%q: %v", layers, err)
		}
		if got, want := listed(t, f), listing(t, dir); got != want {
			t.Errorf("%q is listed as\n%s\n\nthe tree:\n%s", layers, got, want)
		}
		if err := checkTree(context.Background(), img, dir); err != nil {
			t.Errorf("%q: %v", layers, err)
		}
	}
}

// Owners, modes and capabilities are those of the last entry, not those on disk.
func TestListSaysWhose(t *testing.T) {
	layer := func(hs ...tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range hs {
			testenv.Check(t, w.WriteHeader(&h))
		}
		testenv.Check(t, w.Close())
		return b.Bytes()
	}
	caps := map[string]string{capsRecord: "\x01\x00\x00\x02"}
	img := imageOf(t,
		static.NewLayer(layer(tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o2700, Uid: 5, Gid: 6},
			tar.Header{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o4711, Uid: 7, PAXRecords: caps},
			tar.Header{Name: "d/h", Typeflag: tar.TypeLink, Linkname: "d/f", Mode: 0o644}), types.OCIUncompressedLayer),
		static.NewLayer(layer(tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o770, Gid: 8}), types.OCIUncompressedLayer))
	f, err := List(context.Background(), img)
	testenv.Check(t, err)
	for p, want := range map[string]string{"/d": "770 0:8 false", "/d/f": "4711 7:0 true", "/d/h": "4711 7:0 true", "/": "755 0:0 false"} {
		real, x, err := f.Resolve(p, nil)
		if err != nil || real != p {
			t.Fatalf("%s: %s, %v", p, real, err)
		}
		if got := fmt.Sprintf("%o %d:%d %v", x.Perm, x.UID, x.GID, x.Caps); got != want {
			t.Errorf("%s is %s; want %s", p, got, want)
		}
	}
	if at, _, err := f.Resolve("/d/none/x", nil); err == nil || at != "/d/none" {
		t.Errorf("a missing path: %s, %v", at, err)
	}
}

// FuzzList reads arbitrary layers, and then all of the result.
func FuzzList(f *testing.F) {
	f.Add([]byte("d a\nl b a\nf b/x 1\nh c b/x"), []byte("f .wh.b\nf a/.wh..wh..opq\nl l l"))
	f.Add([]byte("l a ../a/../../b\nl b a"), []byte("f a/b/c 1\nd a"))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		var all [][]byte
		for _, text := range [][]byte{one, two} {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for line := range strings.Lines(string(text)) {
				p, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
				name, arg, _ := strings.Cut(arg, " ")
				h := tar.Header{Name: name, Linkname: arg, Typeflag: map[string]byte{"d": tar.TypeDir, "l": tar.TypeSymlink, "h": tar.TypeLink, "f": tar.TypeReg}[p]}
				_ = w.WriteHeader(&h)
			}
			_ = w.Close()
			all = append(all, b.Bytes())
		}
		files, err := List(context.Background(), imageOf(t, static.NewLayer(all[0], types.OCIUncompressedLayer), static.NewLayer(all[1], types.OCIUncompressedLayer)))
		if err != nil {
			return
		}
		var walk func(at string, d *File)
		walk = func(at string, d *File) {
			for _, base := range d.Names() {
				p := path.Join(at, base)
				if real, _, err := files.Resolve(p, nil); err == nil && (!strings.HasPrefix(real, "/") || strings.Contains(real, "/../")) {
					t.Fatalf("%s leads to %s", p, real)
				}
				if d.At(base).Kind == fs.ModeDir {
					walk(p, d.At(base))
				}
			}
		}
		walk("/", files.root)
	})
}
