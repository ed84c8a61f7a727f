package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/testdata/helpers/testenv"
)

// entryOf returns the header and content for a line like those of layerOf.
func entryOf(t *testing.T, line string) (*tar.Header, string) {
	t.Helper()
	r, err := layerOf(t, line).Uncompressed()
	testenv.Check(t, err)
	tr := tar.NewReader(r)
	h, err := tr.Next()
	testenv.Check(t, err)
	var text bytes.Buffer
	_, err = text.ReadFrom(tr)
	testenv.Check(t, err)
	return h, text.String()
}

// The entries that a LayerWriter writes, in order, and the first error.
func TestLayerWriter(t *testing.T) {
	base := t.TempDir()
	if _, err := Apply(context.Background(), layerOf(t, "d usr", "d700 usr/lib", "l lib usr/lib", "l abs /usr/lib", "l up ../../../usr",
		"l loop loop", "l nowhere gone/away", "f file old", "d dir", "f dir/in x"), base, &Notes{}, nil); err != nil {
		t.Fatal(err)
	}
	testenv.Check(t, new(Notes).setOwner(base+"/usr/lib", 3, 4))
	for _, c := range []struct {
		name string
		put  []string
		want string // names of entries with mode and owner, then the error
	}{
		{"new file", []string{"f a/b/c text"}, "a/ 755 0:0|a/b/ 755 0:0|a/b/c 644 0:0"},
		{"directories stay as they are", []string{"f usr/lib/x 1"}, "usr/ 755 0:0|usr/lib/ 700 3:4|usr/lib/x 644 0:0"},
		{"through a link", []string{"f lib/x 1"}, "usr/ 755 0:0|usr/lib/ 700 3:4|usr/lib/x 644 0:0"},
		{"through an absolute link", []string{"f abs/x 1"}, "usr/ 755 0:0|usr/lib/ 700 3:4|usr/lib/x 644 0:0"},
		{"through a link that climbs", []string{"f up/x 1"}, "usr/ 755 0:0|usr/x 644 0:0"},
		{"through a link that leads nowhere", []string{"f nowhere/x 1"}, "gone/ 755 0:0|gone/away/ 755 0:0|gone/away/x 644 0:0"},
		{"through a link of the layer", []string{"l here usr", "f here/x 1"}, "here 644 0:0|usr/ 755 0:0|usr/x 644 0:0"},
		{"through a loop", []string{"f loop/x 1"}, "!too many levels"},
		{"over a file", []string{"f file new"}, "file 644 0:0"},
		{"over a link, not through it", []string{"f lib new"}, "lib 644 0:0"},
		{"a directory onto a directory", []string{"d750 dir"}, "dir/ 750 0:0"},
		{"a directory onto a link to one", []string{"d750 lib"}, "usr/ 755 0:0|usr/lib/ 750 0:0"},
		{"a directory onto a link to nothing", []string{"d nowhere"}, "!/nowhere is a link in the image that does not lead to a directory"},
		{"a directory onto a file", []string{"d file"}, "!/file is a file in the image: a directory cannot be copied onto it"},
		{"a directory onto a file of the layer", []string{"f new 1", "d new"}, "new 644 0:0|!/new is a file in the image"},
		{"a file onto a directory", []string{"f dir x"}, "!/dir is a directory in the image: a file cannot replace it"},
		{"below a file", []string{"f file/x 1"}, "!/file is a file in the image, not a directory"},
		{"below a file of the layer", []string{"f n 1", "f n/x/y 1"}, "n 644 0:0|!/n is a file in the image, not a directory"},
		{"climbing", []string{"f ../../x 1"}, "x 644 0:0"},
		{"a mark of something removed", []string{"f a/.wh.b 1"}, "a/ 755 0:0|!layers cannot hold a file"},
		{"our own", []string{"f .hpcc/image.json {}"}, ".hpcc/ 755 0:0"},
		{"the root", []string{"d ."}, "!the root cannot be replaced"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			w := NewLayerWriter(&out, base, &Notes{}, then)
			var failed error
			for _, line := range c.put {
				h, text := entryOf(t, line)
				if failed = w.Put(h, strings.NewReader(text)); failed != nil {
					break
				}
			}
			_, err := w.Close()
			testenv.Check(t, err)
			var got []string
			for _, h := range headers(t, out.Bytes()) {
				got = append(got, fmt.Sprintf("%s %o %d:%d", h.Name, h.Mode, h.Uid, h.Gid))
			}
			want := strings.Split(c.want, "|")
			if last := want[len(want)-1]; strings.HasPrefix(last, "!") {
				if want = want[:len(want)-1]; failed == nil || !strings.Contains(failed.Error(), last[1:]) {
					t.Errorf("error %v; want %q", failed, last[1:])
				}
			} else if failed != nil {
				t.Error(failed)
			}
			if strings.Join(got, "|") != strings.Join(want, "|") {
				t.Errorf("entries %q; want %q", got, want)
			}
		})
	}
}

// A file that shrinks while it is read is an error, not a corrupt layer.
func TestLayerWriterShortFile(t *testing.T) {
	w := NewLayerWriter(&bytes.Buffer{}, t.TempDir(), &Notes{}, then)
	err := w.Put(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 10}, strings.NewReader("four"))
	if err == nil || !strings.Contains(err.Error(), "expected 10 bytes, read 4") {
		t.Errorf("error %v", err)
	}
}

// The members of an archive keep what tar keeps for root: owners, set-id bits, times, links
// and devices. Hard links refer to members of the same archive.
func TestLayerWriterArchive(t *testing.T) {
	base := t.TempDir()
	_, err := Apply(context.Background(), layerOf(t, "d opt", "l etc /opt"), base, &Notes{}, nil)
	testenv.Check(t, err)
	write := func(lines ...string) (string, error) {
		r, err := layerOf(t, lines...).Uncompressed()
		testenv.Check(t, err)
		var out bytes.Buffer
		w := NewLayerWriter(&out, base, &Notes{}, then)
		err = w.Archive(context.Background(), "/etc/new", tar.NewReader(r))
		if _, cerr := w.Close(); cerr != nil {
			t.Fatal(cerr)
		}
		var got []string
		for _, h := range headers(t, out.Bytes()) {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%c %s %o %s", h.Typeflag, h.Name, h.Mode, h.Linkname)))
		}
		return strings.Join(got, "|"), err
	}
	got, err := write("d .", "f4755 sub/su x", "h other sub/su", "l link /etc/passwd", "c dev", "f link/x in")
	want := "5 opt/ 755|5 opt/new/ 755|5 opt/new/sub/ 755|0 opt/new/sub/su 4755|1 opt/new/other 644 opt/new/sub/su|2 opt/new/link 644 /etc/passwd|3 opt/new/dev 644" +
		"|5 opt/new/etc/ 755|5 opt/new/etc/passwd/ 755|0 opt/new/etc/passwd/x 644"
	if err != nil || got != want {
		t.Errorf("entries %q, error %v; want %q", got, err, want)
	}
	for _, bad := range []string{"f ../out x", "h l ../../etc/passwd", "h l missing", "f .wh.x x"} {
		if got, err := write(bad); err == nil {
			t.Errorf("%s gives %q", bad, got)
		}
	}
}

// The layer of any archive has clean names below the root and applies
// without leaving the tree.
func FuzzLayerWriterArchive(f *testing.F) {
	for _, lines := range [][]string{{"d a", "l a/b ..", "f a/b/c x"}, {"l a /etc", "f a/passwd x"}, {"f x 1", "h y x", "d x"}, {"l l l", "f l/l x"}} {
		r, err := layerOf(f, lines...).Uncompressed()
		testenv.Check(f, err)
		var b bytes.Buffer
		_, err = b.ReadFrom(r)
		testenv.Check(f, err)
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		archive = summed(archive)
		base := t.TempDir()
		_, err := Apply(context.Background(), layerOf(t, "d usr", "l lib usr", "f file x"), base, &Notes{}, nil)
		testenv.Check(t, err)
		var out bytes.Buffer
		w := NewLayerWriter(&out, base, &Notes{}, then)
		if err := w.Archive(context.Background(), "lib/new", tar.NewReader(bytes.NewReader(archive))); err != nil {
			return
		}
		_, err = w.Close()
		testenv.Check(t, err)
		for _, h := range headers(t, out.Bytes()) {
			if c, err := cleanName(h.Name); err != nil || strings.TrimSuffix(h.Name, "/") != c || c == "." {
				t.Fatalf("name %q", h.Name)
			}
		}
		if _, err := Apply(context.Background(), static.NewLayer(out.Bytes(), types.OCIUncompressedLayer), base, &Notes{}, nil); err != nil {
			t.Fatalf("its layer cannot be applied: %v", err)
		}
	})
}

// TestExactTimes checks that Apply gives files the exact times that a layer has in whole seconds.
func TestExactTimes(t *testing.T) {
	late := then.Add(700 * time.Millisecond)
	var out bytes.Buffer
	w := NewLayerWriter(&out, t.TempDir(), &Notes{}, late)
	for _, h := range []*tar.Header{{Typeflag: tar.TypeReg, Name: "d/f"}, {Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "f"}, {Typeflag: tar.TypeDir, Name: "d/e"}} {
		h.ModTime = late
		testenv.Check(t, w.Put(h, nil))
	}
	again := &tar.Header{Typeflag: tar.TypeReg, Name: "d/again", ModTime: late}
	testenv.Check(t, w.Put(again, nil))
	again.ModTime = then
	testenv.Check(t, w.Put(again, nil))
	if at, ok := w.Times["d/again"]; ok {
		t.Errorf("a file written again in a whole second has the time %v", at)
	}
	_, err := w.Close()
	testenv.Check(t, err)
	for _, c := range []struct {
		times map[string]time.Time
		want  time.Time
	}{{nil, then}, {w.Times, late}} {
		dir := t.TempDir()
		_, err := Apply(context.Background(), static.NewLayer(out.Bytes(), types.OCIUncompressedLayer), dir, &Notes{}, c.times)
		testenv.Check(t, err)
		for _, name := range []string{"d", "d/f", "d/l", "d/e"} {
			if fi, err := os.Lstat(filepath.Join(dir, name)); err != nil || !fi.ModTime().Equal(c.want) {
				t.Errorf("%s has the time %v (%v); want %v", name, fi.ModTime(), err, c.want)
			}
		}
	}
}
