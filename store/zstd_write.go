package store

import (
	"cmp"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// zstdBlock is how much of a layer one frame holds. The output depends on it
// and not on the number of cores.
const zstdBlock = 4 << 20

// A zstdWriter packs on all cores: into frames (RFC 8878, section 3.1) that do
// not know each other, which decoders read as one file.
type zstdWriter struct {
	to     io.Writer
	enc    *zstd.Encoder
	free   chan *zstdFrame
	now    *zstdFrame      // that is being filled
	order  chan *zstdFrame // as they are to be written
	ended  chan struct{}   // all are written
	mu     sync.Mutex
	failed error
}

type zstdFrame struct {
	in, out []byte
	packed  chan struct{}
}

func newZstdWriter(to io.Writer) (*zstdWriter, error) {
	cores := runtime.GOMAXPROCS(0)
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(cores), zstd.WithZeroFrames(true))
	if err != nil {
		return nil, err
	}
	n := cores + 1 // one is filled meanwhile
	z := &zstdWriter{to: to, enc: enc, free: make(chan *zstdFrame, n), order: make(chan *zstdFrame, n), ended: make(chan struct{})}
	for range n {
		z.free <- &zstdFrame{}
	}
	z.now = <-z.free
	go z.write()
	return z, nil
}

// write writes the frames in their order.
func (z *zstdWriter) write() {
	defer close(z.ended)
	for f := range z.order {
		<-f.packed
		if z.err() == nil {
			if _, err := z.to.Write(f.out); err != nil {
				z.mu.Lock()
				z.failed = err
				z.mu.Unlock()
			}
		}
		z.free <- f
	}
}

func (z *zstdWriter) err() error {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.failed
}

func (z *zstdWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if err := z.err(); err != nil {
			return n, err
		}
		if z.now.in == nil {
			z.now.in = make([]byte, 0, zstdBlock)
		}
		m := copy(z.now.in[len(z.now.in):zstdBlock], p)
		z.now.in = z.now.in[:len(z.now.in)+m]
		if n, p = n+m, p[m:]; len(z.now.in) == zstdBlock {
			z.pack()
			z.now = <-z.free
			z.now.in = z.now.in[:0]
		}
	}
	return n, nil
}

// pack has the frame packed that was filled.
func (z *zstdWriter) pack() {
	f := z.now
	f.packed = make(chan struct{})
	z.order <- f
	go func() {
		f.out = z.enc.EncodeAll(f.in, f.out[:0])
		close(f.packed)
	}()
}

// Close writes what is left; an empty layer is one empty frame.
func (z *zstdWriter) Close() error {
	z.pack()
	close(z.order)
	<-z.ended
	return cmp.Or(z.err(), z.enc.Close())
}
