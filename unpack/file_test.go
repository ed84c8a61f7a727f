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
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// TestHoles checks that unpacked files have the same bytes as in the layer, and that long runs
// of zeros take no space on disk.
func TestHoles(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	noise := func(n int) []byte { b := make([]byte, n); r.Read(b); return b }
	zeros := func(n int) []byte { return make([]byte, n) }
	for name, c := range map[string]struct {
		parts  [][]byte
		sparse bool
	}{
		"empty":                {nil, false},
		"short":                {[][]byte{noise(10)}, false},
		"short zeros":          {[][]byte{zeros(1000)}, false},
		"zeros":                {[][]byte{zeros(8 << 20)}, true},
		"zeros, odd":           {[][]byte{zeros(8<<20 + 17)}, true},
		"a hole at the start":  {[][]byte{zeros(1 << 20), noise(5)}, true},
		"a hole at the end":    {[][]byte{noise(5), zeros(1 << 20)}, true},
		"a hole inside":        {[][]byte{noise(100_000), zeros(3<<20 + 5), noise(70_000)}, true},
		"many holes":           {[][]byte{noise(1 << 18), zeros(1 << 18), noise(1 << 16), zeros(1 << 17), noise(1)}, true},
		"a byte among zeros":   {[][]byte{zeros(1 << 17), {1}, zeros(1 << 17)}, true},
		"exactly a buffer":     {[][]byte{noise(256 << 10)}, false},
		"exactly two buffers":  {[][]byte{noise(256 << 10), zeros(256 << 10)}, true},
		"noise of many blocks": {[][]byte{noise(3<<20 + 1)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			data := bytes.Join(c.parts, nil)
			dir := filepath.Join(t.TempDir(), "tree")
			_, err := Image(context.Background(), imageOf(t, tarLayer(t, &tar.Header{Name: "f", Mode: 0o644, Size: int64(len(data))}, data)), dir, Options{})
			testenv.Check(t, err)
			got, err := os.ReadFile(filepath.Join(dir, "f"))
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("the file has %d bytes or different ones, %v; want %d bytes", len(got), err, len(data))
			}
			var st syscall.Stat_t
			testenv.Check(t, syscall.Stat(filepath.Join(dir, "f"), &st))
			if used := st.Blocks * 512; (c.sparse && used >= st.Size) || (!c.sparse && used+4095 < st.Size) {
				t.Errorf("a file of %d bytes uses %d bytes on disk; want a sparse file: %v", st.Size, used, c.sparse)
			}
		})
	}
}

// tarLayer returns a layer with one entry.
func tarLayer(t testing.TB, h *tar.Header, data []byte) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	testenv.Check(t, w.WriteHeader(h))
	_, err := w.Write(data)
	testenv.Check(t, err)
	testenv.Check(t, w.Close())
	return static.NewLayer(buf.Bytes(), types.OCIUncompressedLayer)
}

// gnuSparse returns an entry in GNU tar's old format: one piece of data at an offset in a
// file of some size.
func gnuSparse(name string, offset, size int64, data []byte) []byte {
	b := make([]byte, 512)
	number := func(at int, v int64) { // base 256, because octal numbers end at 8 GiB
		for i := 11; i > 0; i-- {
			b[at+i] = byte(v)
			v >>= 8
		}
		b[at] = 0x80
	}
	copy(b, name)
	copy(b[100:], "0000644\x00")
	copy(b[108:], "0000000\x000000000\x00")
	number(124, int64(len(data)))
	copy(b[136:], "00000000000\x00")
	b[156] = 'S'
	copy(b[257:], "ustar  \x00")
	number(386, offset)
	number(398, int64(len(data)))
	number(410, size) // the end of the map
	number(483, size)
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	b = append(b, data...)
	return append(b, make([]byte, (512-len(data)%512)%512)...)
}

func TestSparse(t *testing.T) {
	end := make([]byte, 1024)
	layer := func(entries ...[]byte) v1.Layer {
		return static.NewLayer(append(bytes.Join(entries, nil), end...), types.OCIUncompressedLayer)
	}
	data := []byte("data")
	dir := filepath.Join(t.TempDir(), "tree")
	_, err := Image(context.Background(), imageOf(t, layer(gnuSparse("s", 5<<20, 20<<20, data))), dir, Options{})
	testenv.Check(t, err)
	want := make([]byte, 20<<20)
	copy(want[5<<20:], data)
	got, err := os.ReadFile(filepath.Join(dir, "s"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("sparse entry: %d bytes or different ones, %v", len(got), err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, "s"), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("a sparse file with four bytes of data uses %d bytes on disk, %v", st.Blocks*512, err)
	}
	const tooMuch = `entry "bomb": sparse file of`
	for name, c := range map[string]struct {
		layer v1.Layer
		want  string
	}{
		"eight exbibytes":    {layer(gnuSparse("bomb", 0, 1<<63-1, data)), tooMuch},
		"a tebibyte":         {layer(gnuSparse("bomb", 0, 1<<40, data)), tooMuch},
		"two entries":        {layer(gnuSparse("a", 0, 1<<20, data), gnuSparse("bomb", 0, maxSparse-1<<19, data)), tooMuch},
		"data after its end": {layer(gnuSparse("bomb", 1<<20, 1000, data)), "invalid tar header"},
		"a negative offset":  {layer(gnuSparse("bomb", -1<<40, 1000, data)), "invalid tar header"},
	} {
		dir := filepath.Join(t.TempDir(), "tree")
		_, err := Image(context.Background(), imageOf(t, c.layer), dir, Options{})
		if err == nil || !strings.Contains(err.Error(), "layer sha256:") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Image = %v; want the layer and %q", name, err, c.want)
		}
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s: a refused image leaves a tree", name)
		}
	}
}

// TestClaims checks that entries that claim more data than the archive contains are refused
// and take no space.
func TestClaims(t *testing.T) {
	head := func(size int64, pax map[string]string) []byte {
		var buf bytes.Buffer
		testenv.Check(t, tar.NewWriter(&buf).WriteHeader(&tar.Header{Name: "big", Mode: 0o644, Size: size, PAXRecords: pax, Format: tar.FormatPAX}))
		return buf.Bytes()
	}
	for name, b := range map[string][]byte{
		"more than its data":     append(head(5000, nil), make([]byte, 1024)...),
		"8 EiB":                  append(head(1<<63-1, nil), make([]byte, 1024)...),
		"truncated data":         append(head(1<<30, nil), bytes.Repeat([]byte("x"), 300_000)...),
		"a negative size in PAX": bytes.Replace(head(1<<40, nil), []byte("size=1099511627776"), []byte("size=-999511627776"), 1),
		"an absurd size in PAX":  bytes.Replace(head(1<<40, nil), []byte("size=1099511627776"), []byte("size=9999999999999"), 1),
		"a non-numeric size":     bytes.Replace(head(1<<40, nil), []byte("size=1099511627776"), []byte("size=10995x1627776"), 1),
		"truncated header":       head(10, nil)[:300],
		"not an archive":         bytes.Repeat([]byte("x"), 512),
	} {
		dir := filepath.Join(t.TempDir(), "tree")
		_, err := Image(context.Background(), imageOf(t, static.NewLayer(b, types.OCIUncompressedLayer)), dir, Options{})
		if err == nil || !strings.Contains(err.Error(), "layer sha256:") {
			t.Errorf("%s: Image = %v; want a refusal that names the layer", name, err)
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "*")); len(left) > 0 {
			t.Errorf("%s: files remain: %q", name, left)
		}
	}
}

// TestUmask checks that files get the modes in the archive, regardless of the umask.
func TestUmask(t *testing.T) {
	var lines []string
	for m := range 0o1000 {
		lines = append(lines, fmt.Sprintf("f%o f%d x", m, m))
	}
	img := imageOf(t, layerOf(t, lines...))
	for _, mask := range []int{0, 0o022, 0o027, 0o077} {
		dir := filepath.Join(t.TempDir(), "tree")
		old := syscall.Umask(mask)
		_, err := Image(context.Background(), img, dir, Options{})
		syscall.Umask(old)
		testenv.Check(t, err)
		for m := range 0o1000 {
			fi, err := os.Stat(filepath.Join(dir, fmt.Sprintf("f%d", m)))
			testenv.Check(t, err)
			if got := int(fi.Mode().Perm()); got != m|0o400 {
				t.Errorf("umask %03o: mode %03o becomes %03o", mask, m, got)
			}
		}
	}
	for text, want := range map[string]uint32{"Name:\tx\nUmask:\t0022\nState:\tR\n": 0o022, "": 0o777, "Name:\tx\nState:\tR\n": 0o777, "\nUmask:\tx\n": 0o777} {
		if got := umaskOf(text); got != want {
			t.Errorf("umaskOf(%q) = %o; want %o", text, got, want)
		}
	}
}

// TestDefaultACL checks that a default ACL, which replaces the umask, does not change modes.
func TestDefaultACL(t *testing.T) {
	top := t.TempDir()
	acl := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][2]uint16{{0x01, 7}, {0x04, 5}, {0x20, 0}} { // user::rwx group::r-x other::--- (acl(5), posix_acl_xattr.h)
		acl = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(acl, e[0]), e[1]), ^uint32(0))
	}
	if err := unix.Setxattr(top, "system.posix_acl_default", acl, 0); errors.Is(err, unix.ENOTSUP) {
		t.Skip("the file system has no ACLs:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, "tree")
	_, err := Image(context.Background(), imageOf(t, layerOf(t, "d755 d", "f600 d/a x", "f644 d/b x", "f755 d/c x", "f644 d/e x", "f644 no/f x")), dir, Options{})
	testenv.Check(t, err)
	for p, want := range map[string]os.FileMode{"d": 0o755, "d/a": 0o600, "d/b": 0o644, "d/c": 0o755, "d/e": 0o644, "no/f": 0o644} {
		fi, err := os.Stat(filepath.Join(dir, p))
		testenv.Check(t, err)
		if fi.Mode().Perm() != want {
			t.Errorf("%s has mode %v; want %v", p, fi.Mode().Perm(), want)
		}
	}
}

// TestChainedLinks checks that a link can change between two entries whose paths contain it.
func TestChainedLinks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	img := imageOf(t, layerOf(t, "d one", "d two", "l near one", "l far near", "f far/a 1"),
		layerOf(t, "f far/b 2", "l near two", "f far/c 3", "f .wh.near", "l near one", "f far/d 4"))
	_, err := Image(context.Background(), img, dir, Options{})
	testenv.Check(t, err)
	if got, want := listing(t, dir), "d one\nd two\nf one/a 1\nf one/b 2\nf one/d 4\nf two/c 3\nl far near\nl near one"; got != want {
		t.Errorf("the tree is\n%s\nwant\n%s", got, want)
	}
}

// TestAhead checks that reading ahead ends when the reader stops, and that a layer's error is
// returned.
func TestAhead(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 40<<20)
	gone := errors.New("disk failure")
	good := tarLayer(t, &tar.Header{Name: "f", Mode: 0o644, Size: int64(len(big))}, big)
	for name, layers := range map[string][]v1.Layer{
		"the first fails":         {breaking{good, 20 << 10, gone}, good, good},
		"the second fails":        {good, breaking{good, 1 << 10, gone}, good, good, good, good},
		"the last is truncated":   {good, good, breaking{good, 1 << 10, io.ErrUnexpectedEOF}},
		"the first does not open": {breaking{good, -1, gone}, good},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		tr, err := openTree(t.TempDir(), &Notes{})
		testenv.Check(t, err)
		err = tr.layers(ctx, layers, func(int, int64) {})
		if err == nil || (!errors.Is(err, gone) && !errors.Is(err, io.ErrUnexpectedEOF)) || !strings.Contains(err.Error(), "unpacking layer sha256:") {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		tr.close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	tr, err := openTree(t.TempDir(), &Notes{})
	testenv.Check(t, err)
	defer tr.close()
	err = tr.layers(ctx, []v1.Layer{good, good, good, good, good, good}, func(int, int64) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled after the first layer: %v", err)
	}
}

// breaking is a layer that fails after some bytes. If after is -1, it cannot be opened.
type breaking struct {
	v1.Layer
	after int64
	err   error
}

func (b breaking) Compressed() (io.ReadCloser, error) {
	if b.after < 0 {
		return nil, b.err
	}
	r, err := b.Layer.Compressed()
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(r, b.after), errReader{b.err}), r}, nil
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }
