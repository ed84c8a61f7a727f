package unpack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	goruntime "runtime"
	"sync"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Layers are applied in order, and decompressed and hashed ahead of that: each
// in two goroutines of its own, several layers at once.
const (
	blockSize   = 256 << 10 // store's decoder works in place in blocks of this size
	blocksAhead = 64        // of one layer
	maxLayers   = 4         // that are decompressed at once
)

// A block is a piece of a layer's tar. Two goroutines look at it.
type block struct {
	buf   [blockSize]byte
	data  []byte
	err   error // what the decoder said behind it
	users atomic.Int32
}

// blockPool keeps blocks to be filled again.
type blockPool chan *block

func (p blockPool) get() *block {
	select {
	case b := <-p:
		b.data, b.err = nil, nil
		return b
	default:
		return &block{}
	}
}

// put is called by each that looked at the block.
func (p blockPool) put(b *block) {
	if b.users.Add(-1) == 0 {
		select {
		case p <- b:
		default:
		}
	}
}

// content is the tar of one layer, as it comes from its decoder.
type content struct {
	pool   blockPool
	blocks chan *block
	done   chan struct{} // closed when sum is there
	sum    string        // sha256 of the tar, in hexadecimal digits
	close  func()

	cur  *block
	rest []byte // of cur, not read yet
	err  error  // behind cur

	// See piece.
	lend []byte // Read copies nothing to its beginning
	lent []byte // but notes here what would have come there
}

// aheadOf begins to decompress the layers and hands them out in order, each to
// be closed. No more than maxLayers are begun and not closed.
func aheadOf(ctx context.Context, layers []v1.Layer) <-chan *content {
	limit := min(maxLayers, goruntime.GOMAXPROCS(0), max(len(layers), 1))
	out := make(chan *content, limit) // so that there is always room
	pool := make(blockPool, limit*blocksAhead)
	open := make(chan struct{}, limit)
	go func() {
		defer close(out)
		for _, l := range layers {
			select {
			case open <- struct{}{}:
				out <- begin(ctx, l, pool, func() { <-open })
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// begin decompresses a layer. closed is called when it is closed.
func begin(ctx context.Context, l v1.Layer, pool blockPool, closed func()) *content {
	ctx, cancel := context.WithCancel(ctx)
	c := &content{pool: pool, blocks: make(chan *block, blocksAhead), done: make(chan struct{})}
	c.close = sync.OnceFunc(func() {
		cancel()
		for b := range c.blocks {
			pool.put(b)
		}
		<-c.done
		closed()
	})
	toHash := make(chan *block, blocksAhead)
	go func() {
		defer close(c.blocks)
		defer close(toHash)
		c.decode(ctx, l, toHash)
	}()
	go func() {
		defer close(c.done)
		h := sha256.New()
		for b := range toHash {
			h.Write(b.data)
			pool.put(b)
		}
		c.sum = hex.EncodeToString(h.Sum(nil))
	}()
	return c
}

// decode fills blocks until the layer ends, or ctx does.
func (c *content) decode(ctx context.Context, l v1.Layer, toHash chan<- *block) {
	send := func(b *block) bool {
		b.users.Store(2)
		select {
		case c.blocks <- b:
			toHash <- b
			return true
		case <-ctx.Done():
			return false
		}
	}
	r, err := l.Uncompressed()
	if err != nil {
		send(&block{err: err})
		return
	}
	defer r.Close()
	for {
		b := c.pool.get()
		n := 0
		// The store's decoder of gzip leaves some of the block empty; to ask for the
		// rest would be slow. That of zstd gives half a block at a time.
		for n <= blockSize/2 && b.err == nil {
			var m int
			m, b.err = r.Read(b.buf[n:])
			n += m
		}
		b.data = b.buf[:n]
		// b belongs to others once it is sent.
		if end := b.err != nil; !send(b) || end {
			return
		}
	}
}

// Read gives the layer's tar.
func (c *content) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		if c.cur != nil {
			c.pool.put(c.cur)
			c.cur = nil
		}
		b, ok := <-c.blocks
		if !ok {
			return 0, context.Canceled
		}
		c.cur, c.rest, c.err = b, b.data, b.err
	}
	n := min(len(p), len(c.rest))
	if n > 0 && len(c.lend) > 0 && &p[0] == &c.lend[0] {
		c.lent = c.rest[:n]
	} else {
		copy(p, c.rest)
	}
	c.rest = c.rest[n:]
	return n, nil
}

// piece returns what r has next, at most len(buf) bytes. r reads from c: where it
// hands buf through, as archive/tar does for all but sparse files, the piece lies
// in the layer's block, where it stays until the next Read, and not in buf.
func (c *content) piece(r io.Reader, buf []byte) ([]byte, error) {
	c.lend, c.lent = buf, nil
	n, err := r.Read(buf)
	c.lend = nil
	if len(c.lent) == n {
		return c.lent, err
	}
	copy(buf, c.lent)
	return buf[:n], err
}

// check reads what follows the archive's end, which counts for the digest, and
// compares the digest.
func (c *content) check(want v1.Hash) error {
	for c.rest = nil; c.err == nil; c.rest = nil {
		if _, err := c.Read(nil); err != nil {
			break
		}
	}
	if c.err != nil && !errors.Is(c.err, io.EOF) {
		return c.err
	}
	<-c.done
	if c.sum != want.Hex {
		return fmt.Errorf("its content has digest sha256:%s, its image says %s", c.sum, want)
	}
	return nil
}
