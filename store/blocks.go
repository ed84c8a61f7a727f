package store

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// How much of a layer is packed as one. The output depends on it and not on the
// number of cores.
const (
	zstdBlock = 4 << 20
	gzipBlock = 1 << 20
)

// A blockWriter packs on all cores, block by block, and writes in order.
type blockWriter struct {
	to         io.Writer
	size, keep int           // of a block, and of what stood before it and is at hand, in bytes
	pack       func(*block)  // fills out
	pool       *sync.Pool    // of blocks of this size, for the next writer
	free       chan *block   // whose memory may be used again
	now        *block        // that is being filled
	order      chan *block   // as they are to be written
	ended      chan struct{} // all are written
	mu         sync.Mutex
	failed     error
}

type block struct {
	in      []byte
	from    int // where it begins: before stands the end of the block before
	out     []byte
	packed  chan struct{}
	deflate *deflater
}

// Blocks are used again by the next writer: an environment has dozens of layers, and
// each would ask for megabytes.
var zstdBlocks, gzipBlocks sync.Pool

func newBlockWriter(to io.Writer, size, keep int, pool *sync.Pool, pack func(*block)) *blockWriter {
	n := 2*runtime.GOMAXPROCS(0) + 1
	w := &blockWriter{to: to, size: size, keep: keep, pack: pack, pool: pool,
		free: make(chan *block, n), order: make(chan *block, n), ended: make(chan struct{})}
	for range n {
		b, ok := pool.Get().(*block)
		if !ok {
			b = &block{}
		}
		b.in, b.from = b.in[:0], 0
		w.free <- b
	}
	w.now = <-w.free
	go w.write()
	return w
}

// write writes the blocks in their order.
func (w *blockWriter) write() {
	defer close(w.ended)
	for b := range w.order {
		<-b.packed
		if w.err() == nil {
			if _, err := w.to.Write(b.out); err != nil {
				w.mu.Lock()
				w.failed = err
				w.mu.Unlock()
			}
		}
		w.free <- b
	}
}

func (w *blockWriter) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

func (w *blockWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if err := w.err(); err != nil {
			return n, err
		}
		b := w.now
		if cap(b.in) < b.from+w.size { // a small layer has one block
			b.in = append(make([]byte, 0, w.keep+w.size), b.in...)
		}
		m := copy(b.in[len(b.in):b.from+w.size], p)
		b.in = b.in[:len(b.in)+m]
		if n, p = n+m, p[m:]; len(b.in) == b.from+w.size {
			w.send()
			w.now = <-w.free
			w.now.in = append(w.now.in[:0], b.in[len(b.in)-w.keep:]...)
			w.now.from = w.keep
		}
	}
	return n, nil
}

// send has the block packed that was filled.
func (w *blockWriter) send() {
	b := w.now
	b.packed = make(chan struct{})
	w.order <- b
	go func() {
		w.pack(b)
		close(b.packed)
	}()
}

// Close writes what is left.
func (w *blockWriter) Close() error {
	w.send()
	close(w.order)
	<-w.ended
	for range cap(w.free) {
		w.pool.Put(<-w.free)
	}
	return w.err()
}

// A zstdWriter packs into frames (RFC 8878, section 3.1) that do not know each
// other, which decoders read as one file. An empty layer is one empty frame.
type zstdWriter struct {
	*blockWriter
	enc *zstd.Encoder
}

func newZstdWriter(to io.Writer) (*zstdWriter, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithZeroFrames(true))
	if err != nil {
		return nil, err
	}
	pack := func(b *block) { b.out = enc.EncodeAll(b.in, b.out[:0]) }
	return &zstdWriter{newBlockWriter(to, zstdBlock, 0, &zstdBlocks, pack), enc}, nil
}

func (z *zstdWriter) Close() error { return cmp.Or(z.blockWriter.Close(), z.enc.Close()) }

// A gzipWriter writes one member (RFC 1952, 2.3) whose blocks point back into
// each other.
type gzipWriter struct {
	*blockWriter
	crc, size uint32
}

func newGzipWriter(to io.Writer) (*gzipWriter, error) {
	// No time, no name, no system: the same layer is the same file.
	_, err := to.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255})
	pack := func(b *block) {
		if b.deflate == nil {
			b.deflate = &deflater{}
		}
		b.out = b.deflate.block(b.out[:0], b.in, b.from)
	}
	return &gzipWriter{blockWriter: newBlockWriter(to, gzipBlock, windowSize, &gzipBlocks, pack)}, err
}

func (z *gzipWriter) Write(p []byte) (int, error) {
	z.crc = crc32.Update(z.crc, crc32.IEEETable, p)
	z.size += uint32(len(p))
	return z.blockWriter.Write(p)
}

func (z *gzipWriter) Close() error {
	if err := z.blockWriter.Close(); err != nil {
		return err
	}
	end := bitWriter{}
	end.stored(nil, true)
	end.buf = binary.LittleEndian.AppendUint32(end.buf, z.crc)
	_, err := z.to.Write(binary.LittleEndian.AppendUint32(end.buf, z.size))
	return err
}
