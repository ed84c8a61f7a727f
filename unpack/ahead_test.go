package unpack

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// A layer's content is complete however it is read: in pieces without copying, and through
// readers that have their own buffer, request less, or fill part of the buffer themselves.
func TestPieces(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	want := make([]byte, 3*blockSize+12345)
	r.Read(want)
	for name, between := range map[string]func(io.Reader) io.Reader{
		"none":           func(r io.Reader) io.Reader { return r },
		"half":           iotest.HalfReader,
		"a byte":         iotest.OneByteReader,
		"data and error": iotest.DataErrReader,
		"a buffer":       func(r io.Reader) io.Reader { return bufio.NewReaderSize(r, 4096) },
		"several reads":  func(r io.Reader) io.Reader { return filling{r} },
		"a hole first":   func(r io.Reader) io.Reader { return io.MultiReader(bytes.NewReader(want[:100]), skip(r, 100)) },
		"then a hole": func(r io.Reader) io.Reader {
			return filling{io.MultiReader(io.LimitReader(r, 70_000), bytes.NewReader(want[70_000:]))}
		},
	} {
		c := contentOf(want)
		in := between(c)
		var got []byte
		var err error
		for buf := make([]byte, 100_000); err == nil; {
			var b []byte
			if b, err = c.piece(in, buf); len(b) > len(buf) {
				t.Fatalf("%s: a piece of %d bytes; asked for were %d", name, len(b), len(buf))
			}
			got = append(got, b...)
		}
		if !errors.Is(err, io.EOF) || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(want))
		}
	}
}

// contentOf returns a layer of these bytes, in blocks of odd sizes that are reused as soon
// as they are released.
func contentOf(b []byte) *content {
	c := &content{stream: stream{pool: make(blockPool, 10), blocks: make(chan *block)}}
	go func() {
		for n := 1000; len(b) > 0; n = n*3/2 + 1 {
			next := c.pool.get()
			next.data = next.buf[:copy(next.buf[:min(n, blockSize)], b)]
			b = b[len(next.data):]
			c.blocks <- next
		}
		c.blocks <- &block{err: io.EOF}
	}()
	return c
}

// filling reads until p is full, as archive/tar does for sparse files.
type filling struct{ r io.Reader }

func (f filling) Read(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = f.r.Read(p[n:])
		n += m
	}
	return n, err
}

func skip(r io.Reader, n int64) io.Reader {
	_, _ = io.CopyN(io.Discard, r, n)
	return r
}

// A layer that does not match its digest is refused with every compression. Random bytes,
// which zstd stores unchanged, still decode after a change.
func TestDamagedLayers(t *testing.T) {
	data := make([]byte, 1<<20)
	rand.New(rand.NewSource(2)).Read(data)
	for _, mt := range []types.MediaType{types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer} {
		dir := t.TempDir()
		s, err := store.Open(dir)
		testenv.Check(t, err)
		plain, err := tarLayer(t, &tar.Header{Name: "f", Mode: 0o644, Size: int64(len(data))}, data).Uncompressed()
		testenv.Check(t, err)
		info, err := s.PutLayer(context.Background(), mt, func(w io.Writer) error {
			_, err := io.Copy(w, plain)
			return err
		})
		testenv.Check(t, err)
		l, err := s.Layer(info)
		testenv.Check(t, err)
		to := t.TempDir()
		_, err = Apply(context.Background(), l, to, &Notes{}, nil)
		testenv.Check(t, err)
		if got, err := os.ReadFile(filepath.Join(to, "f")); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: the file has %d different bytes, %v", mt, len(got), err)
		}
		blob := filepath.Join(dir, "blobs", "sha256", info.Digest.Hex)
		packed, err := os.ReadFile(blob)
		testenv.Check(t, err)
		packed[len(packed)/2] ^= 1
		testenv.Check(t, os.Remove(blob))
		testenv.Check(t, os.WriteFile(blob, packed, 0o644))
		_, err = Apply(context.Background(), l, t.TempDir(), &Notes{}, nil)
		if err == nil || !strings.Contains(err.Error(), info.Digest.String()) {
			t.Errorf("%s: a changed byte gives %v; want a refusal that names the layer", mt, err)
		}
	}
}
