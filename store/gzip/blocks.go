package gzip

import (
	"io"
	"runtime"
	"sync"
)

// A BlockFormat splits a stream into blocks of one size, compresses several in parallel and
// writes the results in order. The output depends neither on the number of cores nor on the
// sizes of writes. Writers of one BlockFormat reuse each other's memory. The gzip layers of
// this package and the zstd layers of package store use it.
type BlockFormat struct {
	Size int // size of a block in bytes

	free sync.Pool // of *Block
}

// A Block is a piece of a stream. The pack function appends the compressed form of In to
// Out[:0].
type Block struct {
	In    []byte
	Out   []byte
	State any // state that pack reuses with this memory

	packed chan struct{}
}

// A BlockWriter compresses written data. The caller must call Close.
type BlockWriter struct {
	to     io.Writer
	format *BlockFormat
	pack   func(*Block)
	free   chan *Block   // blocks for reuse
	cur    *Block        // the block being filled
	order  chan *Block   // blocks in stream order
	ended  chan struct{} // closed when all blocks are written
	mu     sync.Mutex
	failed error
}

// NewWriter returns a writer that compresses each block with pack and writes the result to
// w. pack is called concurrently.
func (f *BlockFormat) NewWriter(w io.Writer, pack func(*Block)) *BlockWriter {
	n := 2*runtime.GOMAXPROCS(0) + 1
	z := &BlockWriter{to: w, format: f, pack: pack,
		free: make(chan *Block, n), order: make(chan *Block, n), ended: make(chan struct{})}
	for range n {
		b, ok := f.free.Get().(*Block)
		if !ok {
			b = &Block{}
		}
		b.In = b.In[:0]
		z.free <- b
	}
	z.cur = <-z.free
	go z.write()
	return z
}

// write writes the blocks in order.
func (w *BlockWriter) write() {
	defer close(w.ended)
	for b := range w.order {
		<-b.packed
		if w.err() == nil {
			if _, err := w.to.Write(b.Out); err != nil {
				w.mu.Lock()
				w.failed = err
				w.mu.Unlock()
			}
		}
		w.free <- b
	}
}

func (w *BlockWriter) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// Write compresses p. It returns the error of an earlier write to the underlying writer.
func (w *BlockWriter) Write(p []byte) (n int, err error) {
	size := w.format.Size
	for len(p) > 0 {
		if err := w.err(); err != nil {
			return n, err
		}
		b := w.cur
		if cap(b.In) < size { // allocated late: a small stream needs only one block
			b.In = make([]byte, 0, size)
		}
		m := copy(b.In[len(b.In):size], p)
		b.In = b.In[:len(b.In)+m]
		if n, p = n+m, p[m:]; len(b.In) == size {
			w.send()
			w.cur = <-w.free
			w.cur.In = w.cur.In[:0]
		}
	}
	return n, nil
}

// send compresses the current block in its own goroutine.
func (w *BlockWriter) send() {
	b := w.cur
	b.packed = make(chan struct{})
	w.order <- b
	go func() {
		w.pack(b)
		close(b.packed)
	}()
}

// Close writes the last block, which may be empty, and waits for the others. It does
// not close the underlying writer.
func (w *BlockWriter) Close() error {
	w.send()
	close(w.order)
	<-w.ended
	for range cap(w.free) {
		w.format.free.Put(<-w.free)
	}
	return w.err()
}
