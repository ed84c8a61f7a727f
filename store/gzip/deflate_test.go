package gzip

import (
	"bytes"
	"compress/flate"
	"io"
	"math"
	"math/rand"
	"testing"

	"hpcc/testdata/testenv"
)

// inflateAfter decompresses packed with Go's own decoder. before is the preceding data, to
// which matches may refer. inflateAfter appends the final block, which a deflater omits.
func inflateAfter(t *testing.T, before, packed []byte) []byte {
	t.Helper()
	end := bitWriter{}
	end.stored(nil, true)
	got, err := io.ReadAll(flate.NewReaderDict(io.MultiReader(bytes.NewReader(packed), bytes.NewReader(end.buf)), before))
	testenv.Check(t, err)
	return got
}

func TestDeflate(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	d := &deflater{}
	for _, kind := range sampleKinds {
		// Sizes near those of a part and of the tail in which no match starts.
		for _, size := range []int{1, 2, tail, tail + 1, 20, maxMatch + 2, 5000, partBytes - 1, partBytes, partBytes + 1, 2*partBytes + 77} {
			for _, from := range []int{0, 1, tail, tail + 1, 300, windowSize} {
				data := sample(r, kind, from+size)
				packed := d.block(nil, data, from)
				if got := inflateAfter(t, data[:from], packed); !bytes.Equal(got, data[from:]) {
					t.Fatalf("%d bytes of %s after %d: decompressed to %d bytes, or to different ones", size, kind, from, len(got))
				}
				if limit := size + 5*(size>>16+4) + 5; len(packed) > limit { // stored blocks (RFC 1951, 3.2.4) for each part, and the end
					t.Errorf("%d bytes of %s after %d: compressed to %d bytes, but stored blocks need only %d", size, kind, from, len(packed), limit)
				}
			}
		}
	}
}

// TestDeflateMatches checks that the deflater finds matches in the block and in the bytes
// before it.
func TestDeflateMatches(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	d := &deflater{}
	random := sample(r, "random", 20_000)
	letters := make([]byte, 100_000)
	for i := range letters {
		letters[i] = byte(r.Intn(16))
	}
	for what, c := range map[string]struct {
		data        []byte
		from, limit int
	}{
		"zeros":                {make([]byte, 1<<20), 0, 3000},
		"repeated data":        {append(bytes.Clone(random), random...), 0, len(random) + 700},
		"repeats earlier data": {append(bytes.Clone(random), random...), len(random), 700},
		"16 different bytes":   {letters, 0, 51_000},
	} {
		if n := len(d.block(nil, c.data, c.from)); n > c.limit {
			t.Errorf("%s: compressed to %d bytes; want at most %d", what, n, c.limit)
		}
	}
}

// TestMakeCode checks that codes are complete, that no code word is too long, and that the
// average length is close to the entropy.
func TestMakeCode(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	for range 2000 {
		count := make([]uint32, 2+r.Intn(maxLit-1))
		sum, entropy := 0.0, 0.0
		for i := range count {
			if r.Intn(3) > 0 {
				count[i] = uint32(1 + math.Exp(r.Float64()*12)) // down to one in 160,000
			}
			sum += float64(count[i])
		}
		codewords := make([]codeword, len(count))
		makeCode(codewords, count, maxCodeword)
		space, size, used := 0, 0.0, 0
		for i, w := range codewords {
			if count[i] > 0 {
				used++
				entropy += float64(count[i]) * math.Log2(sum/float64(count[i]))
			}
			if (w.len() == 0 && count[i] > 0) || w.len() > maxCodeword {
				t.Fatalf("symbol %d with frequency %d has a code word of %d bits", i, count[i], w.len())
			}
			if w.len() > 0 {
				space += 1 << (maxCodeword - w.len())
			}
			size += float64(count[i]) * float64(w.len())
		}
		if space != 1<<maxCodeword {
			t.Fatalf("%v: the code is not complete: %d of %d", count, space, 1<<maxCodeword)
		}
		if used > 1 && size > entropy+sum {
			t.Fatalf("%v: %.0f bits; the entropy is %.0f", count, size, entropy)
		}
	}
}

func FuzzDeflate(f *testing.F) {
	r := rand.New(rand.NewSource(1))
	for i, kind := range sampleKinds {
		f.Add(sample(r, kind, 3000), uint16(i*100), uint16(1+i))
	}
	d := &deflater{}
	f.Fuzz(func(t *testing.T, data []byte, from, times uint16) {
		at := int(from) % (len(data) + 1)
		data = append(data, bytes.Repeat(data[at:], int(times%64))...)
		packed := d.block(nil, data, at)
		if got := inflateAfter(t, data[:at], packed); !bytes.Equal(got, data[at:]) {
			t.Fatalf("%d bytes after %d: decompressed to %d bytes, or to different ones", len(data)-at, at, len(got))
		}
	})
}
