package gzip

import (
	"bytes"
	"compress/flate"
	stdgzip "compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/gzip"

	"hpcc/testdata/helpers/testenv"
)

// sample returns n bytes of one kind of data.
func sample(r *rand.Rand, kind string, n int) []byte {
	out := make([]byte, 0, n+300)
	for len(out) < n {
		switch kind {
		case "zeros":
			out = append(out, make([]byte, n)...)
		case "random":
			out = append(out, byte(r.Int()))
		case "text":
			out = append(out, strings.Fields("the quick brown fox jumps over a lazy dog import return self def")[r.Intn(12)]...)
			out = append(out, " \n\t("[r.Intn(4)])
		case "skewed": // codes of all lengths
			out = append(out, byte(r.ExpFloat64()*9))
		case "near": // matches of all short distances
			d := 1 + r.Intn(12)
			for range r.Intn(300) + d {
				if len(out) < d {
					out = append(out, byte(r.Int()))
				} else {
					out = append(out, out[len(out)-d])
				}
			}
			out = append(out, byte(r.Int()))
		case "far": // matches near the maximum distance
			if d := windowSize + 4 - r.Intn(9); len(out) > d && r.Intn(4) > 0 {
				out = append(out, out[len(out)-d:len(out)-d+3+r.Intn(min(d-3, 300))]...)
			}
			out = append(out, byte(r.Int()))
		}
	}
	return out[:n]
}

var sampleKinds = []string{"zeros", "random", "text", "skewed", "near", "far"}

// packers are the available Go encoders.
var packers = map[string]func(io.Writer, int) (io.WriteCloser, error){
	"compress/flate": func(w io.Writer, level int) (io.WriteCloser, error) { return stdgzip.NewWriterLevel(w, level) },
	"klauspost":      func(w io.Writer, level int) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, level) },
	"hpcc":           func(w io.Writer, _ int) (io.WriteCloser, error) { return NewWriter(w) },
}

func TestGunzipEncoders(t *testing.T) {
	testenv.Slow(t)
	r := rand.New(rand.NewSource(1))
	for _, kind := range sampleKinds {
		for _, size := range []int{0, 1, 100, 70_000, 600_000} {
			data := sample(r, kind, size)
			for name, open := range packers {
				for level := flate.HuffmanOnly; level <= flate.BestCompression; level++ {
					if (size > 100_000 && level%3 != 0) || (name == "hpcc" && level > flate.HuffmanOnly) { // it has only one level
						continue
					}
					var packed bytes.Buffer
					z, err := open(&packed, level)
					testenv.Check(t, err)
					_, err = z.Write(data)
					testenv.Check(t, err)
					testenv.Check(t, z.Close())
					checkGunzip(t, fmt.Sprintf("%s -%d of %d bytes %s", name, level, size, kind), packed.Bytes(), data)
				}
			}
		}
	}
}

// TestGunzipPrograms decompresses the output of common programs, if they are installed.
func TestGunzipPrograms(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	for _, line := range []string{"gzip -c -1", "gzip -c -9", "pigz -c -1 -b 32", "pigz -c -6 -i", "pigz -c -11", "zopfli -c --i1", "libdeflate-gzip -c -1", "libdeflate-gzip -c -12", "igzip -c -0", "igzip -c -3"} {
		args := strings.Fields(line)
		t.Run(line, func(t *testing.T) {
			if _, err := exec.LookPath(args[0]); err != nil {
				t.Skip(err)
			}
			for _, kind := range sampleKinds {
				data := sample(r, kind, 150_000)
				file := filepath.Join(t.TempDir(), "data")
				testenv.Check(t, os.WriteFile(file, data, 0o600))
				packed, err := exec.Command(args[0], append(args[1:], file)...).Output()
				testenv.Check(t, err)
				checkGunzip(t, line+" "+kind, packed, data)
			}
		})
	}
}

// checkGunzip decompresses packed with reads of several sizes.
func checkGunzip(t *testing.T, what string, packed, want []byte) {
	t.Helper()
	for _, how := range []struct {
		name string
		src  io.Reader
		size int // of the reads
	}{
		{"small reads", bytes.NewReader(packed), 1000},
		{"in place", bytes.NewReader(packed), outBuffer},
		{"in place, source in halves", iotest.HalfReader(bytes.NewReader(packed)), outBuffer + 77},
		{"source by bytes", iotest.DataErrReader(iotest.OneByteReader(bytes.NewReader(packed))), 1 << 20},
	} {
		if how.name == "source by bytes" && len(packed) > 10_000 {
			continue
		}
		if got, err := gunzipAll(how.src, how.size); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s, %s: %d bytes, %v; want %d bytes", what, how.name, len(got), err, len(want))
		}
	}
}

// gunzipAll reads all data with reads of one size.
func gunzipAll(r io.Reader, size int) ([]byte, error) {
	z, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	var out []byte
	for buf := make([]byte, size); ; {
		n, err := z.Read(buf)
		if out = append(out, buf[:n]...); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return out, err
		}
	}
}

// stdGunzip decompresses with the standard library.
func stdGunzip(b []byte) ([]byte, error) {
	z, err := stdgzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// sameAsStd checks that both decoders return the same bytes, or both an error.
func sameAsStd(t *testing.T, packed []byte) {
	t.Helper()
	want, wantErr := stdGunzip(packed)
	for _, size := range []int{1 << 20, 4000} {
		got, err := gunzipAll(bytes.NewReader(packed), size)
		if (err == nil) != (wantErr == nil) || (err == nil && !bytes.Equal(got, want)) {
			t.Fatalf("%d bytes, %v; compress/gzip returns %d bytes, %v\n%x", len(got), err, len(want), wantErr, packed)
		}
	}
}

// member returns a gzip member of a raw stream. fields are the optional header fields that
// flags announce, and data is the content, for the trailer.
func member(flags byte, fields string, raw, data []byte) []byte {
	b := append([]byte{0x1f, 0x8b, 8, flags, 0, 0, 0, 0, 0, 255}, fields...)
	if flags&flagHeaderCRC != 0 {
		b = binary.LittleEndian.AppendUint16(b, uint16(crc32.ChecksumIEEE(b)))
	}
	b = append(b, raw...)
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(data)), uint32(len(data)))
}

// bitStream assembles a bit stream, such as one that no encoder writes. An item is either
// VALUE/BITS or a code word in binary, with the highest bit first, such as b0101.
func bitStream(t testing.TB, items string) []byte {
	var out []byte
	var acc uint64
	var n uint
	for _, item := range strings.Fields(items) {
		var v, k uint
		if code, ok := strings.CutPrefix(item, "b"); ok {
			for i, c := range code {
				v |= uint(c-'0') << i
			}
			k = uint(len(code))
		} else if _, err := fmt.Sscanf(item, "%d/%d", &v, &k); err != nil {
			t.Fatal(err)
		}
		acc |= uint64(v) << n
		for n += k; n >= 8; n -= 8 {
			out = append(out, byte(acc))
			acc >>= 8
		}
	}
	if n > 0 {
		out = append(out, byte(acc))
	}
	return out
}

// dynamicHeader returns the items for [bitStream] that start a dynamic block with these code
// lengths. Its code length code has 16 code words of four bits, one for each length.
func dynamicHeader(lit, dist []int) string {
	s := fmt.Sprintf("1/1 2/2 %d/5 %d/5 15/4", len(lit)-257, len(dist)-1)
	for _, sym := range preOrder {
		if sym < 16 {
			s += " 4/3"
		} else {
			s += " 0/3"
		}
	}
	for _, n := range append(append([]int{}, lit...), dist...) {
		s += fmt.Sprintf(" b%04b", n)
	}
	return s
}

// TestGunzipOddities checks that streams that no encoder writes, most of them invalid, are
// decoded as compress/gzip decodes them.
func TestGunzipOddities(t *testing.T) {
	lit := func(set map[int]int) []int {
		n := 257
		for i := range set {
			n = max(n, i+1)
		}
		out := make([]int, n)
		for i, k := range set {
			out[i] = k
		}
		return out
	}
	abc := []byte("abc")
	for name, c := range map[string]struct {
		items string
		data  []byte
	}{
		"empty fixed":                                {"1/1 1/2 b0000000", nil},
		"empty stored":                               {"1/1 0/2 0/5 0/16 65535/16", nil},
		"stored with a wrong inverse":                {"1/1 0/2 0/5 0/16 65534/16", nil},
		"stored":                                     {"1/1 0/2 31/5 3/16 65532/16 97/8 98/8 99/8", abc},
		"stored, short":                              {"1/1 0/2 0/5 9/16 65526/16 97/8", nil},
		"block type 3":                               {"1/1 3/2", nil},
		"length symbol 286":                          {"1/1 1/2 b10010001 b11000110 b00000 b0000000", nil},
		"distance symbol 30":                         {"1/1 1/2 b10010001 b0000001 b11110 b0000000", nil},
		"distance beyond the start":                  {"1/1 1/2 b10010001 b0000001 b00001 b0000000", nil},
		"length 258 as 227 and 31":                   {"1/1 1/2 b10010001 b11000100 31/5 b00000 b0000000", bytes.Repeat([]byte{0x61}, 259)},
		"length 258":                                 {"1/1 1/2 b10010001 b11000101 b00000 b0000000", bytes.Repeat([]byte{0x61}, 259)},
		"match into the previous block":              {"0/1 1/2 b10010001 b0000000 1/1 1/2 b0000001 b00000 b0000000", []byte("aaaa")},
		"one code of one bit":                        {dynamicHeader(lit(map[int]int{256: 1}), []int{0}) + " b0", nil},
		"unused code word":                           {dynamicHeader(lit(map[int]int{256: 1}), []int{0}) + " b1 0/64", nil},
		"one code of two bits":                       {dynamicHeader(lit(map[int]int{256: 2}), []int{0}) + " b00", nil},
		"no end of block":                            {dynamicHeader(lit(map[int]int{97: 1}), []int{0}) + " b0 b0 b0", nil},
		"no codes":                                   {dynamicHeader(lit(nil), []int{0}) + " 0/64", nil},
		"no distances, none used":                    {dynamicHeader(lit(map[int]int{97: 1, 256: 1}), []int{0}) + " b0 b1", []byte("a")},
		"no distances, one used":                     {dynamicHeader(lit(map[int]int{97: 2, 98: 2, 256: 2, 257: 2}), []int{0}) + " b00 b11 0/64", nil},
		"one distance":                               {dynamicHeader(lit(map[int]int{97: 2, 98: 2, 256: 2, 257: 2}), []int{1}) + " b00 b11 b0 b10", []byte("aaaa")},
		"unused distance code word":                  {dynamicHeader(lit(map[int]int{97: 2, 98: 2, 256: 2, 257: 2}), []int{1}) + " b00 b11 b1 b10 0/64", nil},
		"one distance of two bits":                   {dynamicHeader(lit(map[int]int{97: 2, 98: 2, 256: 2, 257: 2}), []int{2}) + " b00 b11 b00 b10", nil},
		"over-subscribed":                            {dynamicHeader(lit(map[int]int{97: 1, 98: 1, 256: 1}), []int{0}) + " b0", nil},
		"over-subscribed at the end":                 {dynamicHeader(lit(map[int]int{97: 1, 98: 2, 99: 2, 256: 2}), []int{0}) + " b0", nil},
		"incomplete":                                 {dynamicHeader(lit(map[int]int{97: 2, 256: 2, 98: 2}), []int{0}) + " b00", nil},
		"incomplete distances":                       {dynamicHeader(lit(map[int]int{97: 1, 256: 1}), []int{2, 2, 2}) + " b0 b1", nil},
		"287 lengths":                                {dynamicHeader(make([]int, 287), []int{0}), nil},
		"31 distances":                               {dynamicHeader(make([]int, 257), make([]int, 31)), nil},
		"repeats nothing":                            {"1/1 2/2 0/5 0/5 15/4 1/3 0/3 0/3 1/3 0/45 b1 0/2", nil},
		"repeats beyond the lengths":                 {"1/1 2/2 0/5 0/5 15/4 0/3 0/3 1/3 1/3 0/45 b1 127/7 b1 127/7", nil},
		"codes of 15 bits":                           {dynamicHeader(lit(map[int]int{0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 8, 8: 9, 9: 10, 10: 11, 11: 12, 12: 13, 13: 14, 14: 15, 256: 15}), []int{0}) + " b111111111111110 b111111111111110 b0 b111111111111111", []byte{14, 14, 0}},
		"distances of 15 bits":                       {dynamicHeader(lit(map[int]int{97: 1, 256: 2, 257: 2}), []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 15}) + " b0 b11 b0 b0 b0 b11 b10 b10", bytes.Repeat([]byte("a"), 9)},
		"empty stored block, then empty fixed block": {"0/1 0/2 0/5 0/16 65535/16 1/1 1/2 b0000000", nil},
	} {
		t.Run(name, func(t *testing.T) {
			raw := bitStream(t, c.items)
			want, err := io.ReadAll(flate.NewReader(bytes.NewReader(raw)))
			if err == nil && !bytes.Equal(want, c.data) {
				t.Errorf("compress/flate returns %q; the table has %q", want, c.data)
			}
			// The checksum is valid, so only the stream can cause an error.
			sameAsStd(t, member(0, "", raw, want))
			sameAsStd(t, member(0, "", append([]byte{0, 0, 0, 255, 255}, raw...), want))
		})
	}
}

func TestGunzipContainer(t *testing.T) {
	raw, data := []byte{3, 0}, []byte(nil)
	one := member(0, "", raw, data)
	for name, c := range map[string]struct {
		packed []byte
		ok     bool
	}{
		"a name":                  {member(flagName, "layer.tar\x00", raw, data), true},
		"all optional fields":     {member(flagExtra|flagName|flagComment|flagHeaderCRC|1, "\x04\x00abcdn\x00c\xe9\x00", raw, data), true},
		"a wrong header CRC":      {append([]byte{0x1f, 0x8b, 8, 2, 0, 0, 0, 0, 0, 255, 1, 2}, one[10:]...), false},
		"a name of 511 bytes":     {member(flagName, strings.Repeat("x", 511)+"\x00", raw, data), true},
		"a name of 512 bytes":     {member(flagName, strings.Repeat("x", 512)+"\x00", raw, data), false},
		"an unterminated name":    {member(flagName, "xx", nil, nil)[:12], false},
		"a truncated extra field": {member(flagExtra, "\xff\xffxx", raw, data), false},
		"reserved flags":          {member(0xe0, "", raw, data), true},
		"an unknown method":       {append([]byte{0x1f, 0x8b, 7}, one[3:]...), false},
		"two members":             {append(bytes.Clone(one), member(flagName, "b\x00", []byte{75, 4, 0}, []byte("a"))...), true},
		"a match across members":  {append(member(0, "", []byte{75, 4, 0}, []byte("a")), member(0, "", bitStream(t, "1/1 1/2 b0000001 b00000 b0000000"), []byte("aaa"))...), false},
		"trailing zeros":          {append(bytes.Clone(one), 0, 0, 0), false},
		"trailing text":           {append(bytes.Clone(one), "garbage garbage"...), false},
		"a wrong checksum":        {append(bytes.Clone(one[:len(one)-8]), 1, 0, 0, 0, 0, 0, 0, 0), false},
		"a wrong length":          {append(bytes.Clone(one[:len(one)-4]), 1, 0, 0, 0), false},
		"no trailer":              {one[:len(one)-8], false},
		"half the trailer":        {one[:len(one)-3], false},
		"an empty file":           {nil, false},
		"only a header":           {one[:10], false},
		"half a header":           {one[:5], false},
	} {
		t.Run(name, func(t *testing.T) {
			sameAsStd(t, c.packed)
			if _, err := gunzipAll(bytes.NewReader(c.packed), 1<<20); (err == nil) != c.ok {
				t.Errorf("error is %v; want success: %v", err, c.ok)
			}
		})
	}
}

// TestGunzipDamage truncates or changes a stream at every byte. Truncated streams must be
// refused, and changed ones handled as compress/gzip handles them.
func TestGunzipDamage(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	var packed bytes.Buffer
	z := stdgzip.NewWriter(&packed)
	_, err := z.Write(sample(r, "text", 3000))
	testenv.Check(t, err)
	testenv.Check(t, z.Close())
	for n := range packed.Len() {
		if _, err := gunzipAll(bytes.NewReader(packed.Bytes()[:n]), 1<<20); err == nil {
			t.Fatalf("the first %d of %d bytes are accepted as the full file", n, packed.Len())
		}
		changed := bytes.Clone(packed.Bytes())
		changed[n] ^= 1 << r.Intn(8)
		sameAsStd(t, changed)
	}
}

// TestGunzipSourceError checks that errors of the source are returned, also by later reads.
func TestGunzipSourceError(t *testing.T) {
	var packed bytes.Buffer
	z := stdgzip.NewWriter(&packed)
	z.Write(bytes.Repeat([]byte("abc"), 1000))
	z.Close()
	broken := errors.New("the disk is gone")
	for n := range packed.Len() {
		src := io.MultiReader(bytes.NewReader(packed.Bytes()[:n]), iotest.ErrReader(broken))
		if _, err := gunzipAll(src, 1<<20); !errors.Is(err, broken) {
			t.Fatalf("a source that fails after %d bytes: %v; want its error", n, err)
		}
	}
	g, err := NewReader(bytes.NewReader(packed.Bytes()[:packed.Len()-1]))
	testenv.Check(t, err)
	_, first := io.Copy(io.Discard, g)
	if _, err := g.Read(make([]byte, 10)); err == nil || !errors.Is(err, first) {
		t.Errorf("after %v the reader returns %v", first, err)
	}
}

// TestGunzipBomb checks that decompressing a file to a thousand times its size allocates no
// memory beyond the decoder's own.
func TestGunzipBomb(t *testing.T) {
	testenv.Slow(t)
	var packed bytes.Buffer
	z := stdgzip.NewWriter(&packed)
	zeros := make([]byte, 1<<20)
	for range 256 {
		_, err := z.Write(zeros)
		testenv.Check(t, err)
	}
	z.Close()
	buf := make([]byte, 512<<10)
	if n := testing.AllocsPerRun(1, func() {
		g, err := NewReader(bytes.NewReader(packed.Bytes()))
		testenv.Check(t, err)
		for total := 0; ; {
			n, err := g.Read(buf)
			if total += n; errors.Is(err, io.EOF) {
				if total != 256<<20 {
					t.Errorf("%d bytes; want 256 MiB", total)
				}
				break
			}
			testenv.Check(t, err)
		}
	}); n > 20 {
		t.Errorf("reading 256 MiB takes %v allocations", n)
	}
}

// FuzzGunzip compares the decoder with compress/gzip on arbitrary bytes.
func FuzzGunzip(f *testing.F) {
	r := rand.New(rand.NewSource(4))
	for _, kind := range sampleKinds {
		for _, level := range []int{flate.HuffmanOnly, 0, 1, 6, 9} {
			var packed bytes.Buffer
			z, _ := stdgzip.NewWriterLevel(&packed, level)
			z.Write(sample(r, kind, 50+r.Intn(500)))
			z.Close()
			f.Add(packed.Bytes())
		}
	}
	f.Add(member(flagExtra|flagName|flagComment|flagHeaderCRC, "\x04\x00abcdn\x00c\x00", []byte{3, 0}, nil))
	f.Fuzz(func(t *testing.T, packed []byte) {
		if len(packed) < 1<<16 {
			sameAsStd(t, packed)
		}
	})
}

// FuzzInflate compares the decoders on arbitrary deflate streams. It adds a valid trailer, so
// that differences do not disappear in a checksum error. If before is not 0, a stored block of
// that size precedes the stream and fills the window.
func FuzzInflate(f *testing.F) {
	r := rand.New(rand.NewSource(5))
	for _, kind := range sampleKinds {
		for _, level := range []int{flate.HuffmanOnly, 0, 1, 6, 9} {
			var raw bytes.Buffer
			z, _ := flate.NewWriter(&raw, level)
			z.Write(sample(r, kind, 50+r.Intn(500)))
			z.Close()
			f.Add(raw.Bytes(), uint16(r.Intn(1<<16)))
		}
	}
	f.Add(bitStream(f, "1/1 1/2 b10010001 b11000101 b00000 b0000000"), uint16(40000))
	past := sample(r, "text", 1<<16)
	f.Fuzz(func(t *testing.T, raw []byte, before uint16) {
		if len(raw) > 1<<16 {
			return
		}
		if before > 0 {
			head := append([]byte{0, byte(before), byte(before >> 8), byte(^before), byte(^before >> 8)}, past[:before]...)
			raw = append(head, raw...)
		}
		src := bytes.NewReader(raw)
		want, err := io.ReadAll(io.LimitReader(flate.NewReader(src), 8<<20))
		if len(want) == 8<<20 {
			return
		}
		if err == nil {
			raw = raw[:len(raw)-src.Len()]
		}
		sameAsStd(t, member(0, "", raw, want))
	})
}

// BenchmarkGunzip reads the file that HPCC_BENCH_GZIP names.
func BenchmarkGunzip(b *testing.B) {
	packed, err := os.ReadFile(os.Getenv("HPCC_BENCH_GZIP"))
	if err != nil {
		b.Skip("HPCC_BENCH_GZIP does not name a readable file")
	}
	for _, c := range []struct {
		name string
		open func(io.Reader) (io.Reader, error)
	}{
		{"hpcc", func(r io.Reader) (io.Reader, error) { return NewReader(r) }},
		{"klauspost", func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
		{"standard", func(r io.Reader) (io.Reader, error) { return stdgzip.NewReader(r) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			buf := make([]byte, 1<<20)
			for b.Loop() {
				z, err := c.open(bytes.NewReader(packed))
				testenv.Check(b, err)
				n := int64(0)
				for err == nil {
					var k int
					k, err = z.Read(buf)
					n += int64(k)
				}
				if !errors.Is(err, io.EOF) {
					b.Fatal(err)
				}
				b.SetBytes(n)
			}
		})
	}
}

// TestWriterFile checks that the Writer's output stays the same. If another version of klauspost's
// encoder changes it, change the digest here, and raise the versions of the keys of cached layers:
// keyVersion in build, and layerFormat in conda and conda/pip.
func TestWriterFile(t *testing.T) {
	r := rand.New(rand.NewSource(6))
	sum := sha256.New()
	for _, kind := range sampleKinds {
		z, err := NewWriter(sum)
		testenv.Check(t, err)
		_, err = z.Write(sample(r, kind, format.Size+100_000))
		testenv.Check(t, err)
		testenv.Check(t, z.Close())
	}
	if got, want := fmt.Sprintf("%x", sum.Sum(nil)), "18d19300858e862f1dff19eefe2ab8d949b84a1b4d0d6d677a3a62dddf5d9427"; got != want {
		t.Errorf("the digest of the files is %s; want %s", got, want)
	}
}

// BenchmarkWriter compresses the content of the file that HPCC_BENCH_GZIP names.
func BenchmarkWriter(b *testing.B) {
	packed, err := os.ReadFile(os.Getenv("HPCC_BENCH_GZIP"))
	if err != nil {
		b.Skip("HPCC_BENCH_GZIP does not name a readable file")
	}
	data, err := gunzipAll(bytes.NewReader(packed), 1<<20)
	testenv.Check(b, err)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		w, err := NewWriter(io.Discard)
		testenv.Check(b, err)
		_, err = w.Write(data)
		testenv.Check(b, err)
		testenv.Check(b, w.Close())
	}
}

// TestBuildTable decodes each code word of random complete codes.
func TestBuildTable(t *testing.T) {
	seed := time.Now().UnixNano()
	r := rand.New(rand.NewSource(seed))
	for range 2000 {
		// A complete code: code words are split at random, up to 15 bits.
		codewords := []string{"0", "1"}
		for range r.Intn(284) {
			i := r.Intn(len(codewords))
			if r.Intn(2) == 0 {
				i = len(codewords) - 1
			}
			if w := codewords[i]; len(w) < maxCode {
				codewords[i] = w + "0"
				codewords = append(codewords, w+"1")
			}
		}
		lengths := make([]uint8, len(codewords))
		for i, w := range codewords {
			lengths[i] = uint8(len(w))
		}
		var f inflater
		if !buildTable(f.lit[:], litBits, lengths, preEntry) {
			t.Fatalf("seed %d: a complete code of lengths %v is refused", seed, lengths)
		}
		code := 0
		for n := 1; n <= maxCode; n++ {
			for sym, l := range lengths {
				if int(l) != n {
					continue
				}
				f.bits, f.count = 0, uint(n)
				for i := range n {
					f.bits |= uint64(code>>(n-1-i)&1) << i
				}
				if e, err := f.symbol(f.lit[:], litBits); err != nil || int(e>>16&0x7fff) != sym&0x7fff || f.count != 0 {
					t.Fatalf("seed %d: code word %0*b is decoded as %d, %v; want %d; lengths %v", seed, n, code, e>>16&0x7fff, err, sym, lengths)
				}
				code++
			}
			code <<= 1
		}
	}
}
