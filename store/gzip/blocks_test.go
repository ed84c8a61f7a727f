package gzip

import (
	"bytes"
	"errors"
	"math/rand"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestWriter copies streams block by block. It checks that the output has the order of the input.
func TestWriter(t *testing.T) {
	f := BlockFormat{Size: 1000}
	data := make([]byte, 10_500)
	rand.New(rand.NewSource(1)).Read(data)
	for _, size := range []int{0, 1, 999, 1000, 1001, len(data), 3} { // the later ones reuse memory
		var out bytes.Buffer
		w := f.NewWriter(&out, func(b *Block) {
			b.Out = append(b.Out[:0], b.In...)
		})
		for rest := data[:size]; len(rest) > 0; {
			n, err := w.Write(rest[:min(len(rest), 333)])
			testenv.Check(t, err)
			rest = rest[n:]
		}
		if err := w.Close(); err != nil || !bytes.Equal(out.Bytes(), data[:size]) {
			t.Errorf("copying %d bytes: got %d bytes or different ones, %v", size, out.Len(), err)
		}
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestWriterFails(t *testing.T) {
	full := errors.New("no space")
	f := BlockFormat{Size: 10}
	w := f.NewWriter(failing{full}, func(b *Block) { b.Out = append(b.Out[:0], b.In...) })
	var err error
	for n := 0; err == nil && n < 1000; n++ {
		_, err = w.Write(make([]byte, 100))
	}
	if cerr := w.Close(); !errors.Is(err, full) || !errors.Is(cerr, full) {
		t.Errorf("Write = %v, Close = %v; want %v", err, cerr, full)
	}
}
