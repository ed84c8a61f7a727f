package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os/exec"
	"runtime"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/testdata/helpers/testenv"
)

// The output depends neither on the number of cores nor on the sizes of writes, and the
// formats' own programs read it.
func TestPackers(t *testing.T) {
	testenv.Slow(t)
	for _, p := range []struct {
		mt    types.MediaType
		block int
		read  []string
	}{
		{types.OCILayer, 1 << 20, []string{"gzip", "-dc"}},
		{types.OCILayerZStd, zstdFormat.Size, []string{"zstd", "-dc"}},
	} {
		t.Run(p.read[0], func(t *testing.T) {
			testenv.NeedProgram(t, p.read[0])
			r := rand.New(rand.NewSource(1))
			var text bytes.Buffer
			for text.Len() < 3*p.block {
				fmt.Fprintf(&text, "line %d of %x\n", r.Intn(1000), r.Int63())
			}
			before := map[int][]byte{}
			sizes := []int{0, 1, p.block - 1, p.block, p.block + 1, text.Len(), p.block, 1, 0} // memory is used again
			for _, size := range sizes {
				data := text.Bytes()[:size]
				packed := packParts(t, p.mt, data, 1<<20, 4)
				if old, ok := before[size]; ok && !bytes.Equal(packed, old) {
					t.Errorf("%d bytes: after larger ones they give another file", size)
				}
				before[size] = packed
				if !bytes.Equal(packed, packParts(t, p.mt, data, 77_777, 1)) {
					t.Errorf("%d bytes: another number of cores and other parts give another file", size)
				}
				cmd := exec.Command(p.read[0], p.read[1:]...)
				cmd.Stdin = bytes.NewReader(packed)
				if got, err := cmd.Output(); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%s reads %d of %d bytes, %v", p.read[0], len(got), size, err)
				}
			}
		})
	}
}

// packParts compresses data, part by part, on some cores.
func packParts(t *testing.T, mt types.MediaType, data []byte, part, cores int) []byte {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	var out bytes.Buffer
	z, err := packer(&out, mt)
	testenv.Check(t, err)
	for len(data) > 0 {
		n, err := z.Write(data[:min(part, len(data))])
		testenv.Check(t, err)
		data = data[n:]
	}
	testenv.Check(t, z.Close())
	return out.Bytes()
}

// A full disk ends the writing with the disk's error, at any time.
func TestPackersFail(t *testing.T) {
	full := errors.New("no space")
	for _, mt := range []types.MediaType{types.OCILayer, types.OCILayerZStd} {
		for _, room := range []int{10, 100} { // the first has room for gzip's header
			z, err := packer(&fullWriter{room, full}, mt)
			testenv.Check(t, err)
			_, werr := io.CopyN(z, rand.New(rand.NewSource(2)), int64(8*zstdFormat.Size))
			if cerr := z.Close(); !errors.Is(werr, full) || !errors.Is(cerr, full) {
				t.Errorf("%s with room for %d bytes: writing says %v, closing %v", mt, room, werr, cerr)
			}
		}
		if mt != types.OCILayer {
			continue
		}
		if _, err := packer(&fullWriter{0, full}, mt); !errors.Is(err, full) {
			t.Errorf("%s without room: %v", mt, err)
		}
	}
}

type fullWriter struct {
	room int
	err  error
}

func (w *fullWriter) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, w.err
	}
	return len(p), nil
}
