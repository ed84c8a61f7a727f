package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// What is written does not depend on the number of cores or on how the data
// comes, and zstd itself reads it.
func TestZstdWriter(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	var text bytes.Buffer
	for text.Len() < 3*zstdBlock {
		fmt.Fprintf(&text, "line %d of %x\n", r.Intn(1000), r.Int63())
	}
	pack := func(data []byte, part, cores int) []byte {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
		var out bytes.Buffer
		z, err := newZstdWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		for len(data) > 0 {
			n, err := z.Write(data[:min(part, len(data))])
			if err != nil {
				t.Fatal(err)
			}
			data = data[n:]
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	for _, size := range []int{0, 1, zstdBlock - 1, zstdBlock, zstdBlock + 1, text.Len()} {
		data := text.Bytes()[:size]
		packed := pack(data, 1<<20, 4)
		if !bytes.Equal(packed, pack(data, 77_777, 1)) {
			t.Errorf("%d bytes: another number of cores and other parts give another file", size)
		}
		if _, err := exec.LookPath("zstd"); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			continue
		}
		cmd := exec.Command("zstd", "-dc")
		cmd.Stdin = bytes.NewReader(packed)
		if got, err := cmd.Output(); err != nil || !bytes.Equal(got, data) {
			t.Errorf("zstd reads %d of %d bytes, %v", len(got), size, err)
		}
	}
}

// A full disk ends it with the disk's error, whenever it comes.
func TestZstdWriterFails(t *testing.T) {
	full := errors.New("no space")
	for _, room := range []int{0, 100} {
		z, err := newZstdWriter(&fullWriter{room, full})
		if err != nil {
			t.Fatal(err)
		}
		_, werr := io.CopyN(z, rand.New(rand.NewSource(2)), 8*zstdBlock)
		if cerr := z.Close(); !errors.Is(werr, full) || !errors.Is(cerr, full) {
			t.Errorf("with room for %d bytes: writing says %v, closing %v", room, werr, cerr)
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
