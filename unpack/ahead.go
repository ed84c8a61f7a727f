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

	"hpcc/store"
	"hpcc/store/disk"
)

// Layers are applied in order, and read, decompressed and digested ahead of that:
// each in goroutines of its own, several layers at once. Both digests count: that of
// the blob, which store.OpenLayer compares, and that of the tar.
const (
	blockSize   = 256 << 10 // store's decoder works in place in blocks of this size
	blocksAhead = 8         // of one layer; more leave the processor's cache, and cost a tenth of the time
	maxLayers   = 4         // that are decompressed at once
)

// A block is a piece of a layer's tar.
type block struct {
	buf  [blockSize]byte
	data []byte
	err  error // what the decoder said behind it

	users atomic.Int32 // that look at it, beside the one that puts it back last
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
	if b.users.Add(-1) >= 0 {
		return
	}
	b.users.Store(0)
	select {
	case p <- b:
	default:
	}
}

// A stream is bytes that one goroutine sends in blocks and another one reads.
type stream struct {
	pool   blockPool
	blocks chan *block

	cur  *block
	rest []byte // of cur, not read yet
	err  error  // behind cur

	// See piece.
	lend []byte // Read copies nothing to its beginning
	lent []byte // but notes here, until the next Read, what would have come there
}

func newStream(pool blockPool) stream {
	return stream{pool: pool, blocks: make(chan *block, blocksAhead)}
}

// send hands a block over, the last one with an error. It is an error itself when
// nobody will read it.
func (s *stream) send(ctx context.Context, b *block) error {
	select {
	case s.blocks <- b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drop reads what is left and forgets it.
func (s *stream) drop() {
	for b := range s.blocks {
		s.pool.put(b)
	}
}

func (s *stream) Read(p []byte) (int, error) {
	// The second Read of a piece: what the first one left in its block, which may be
	// filled again from now on, goes to where it was asked for.
	copy(s.lend, s.lent)
	s.lent = nil
	for len(s.rest) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		if s.cur != nil {
			s.pool.put(s.cur)
			s.cur = nil
		}
		b, ok := <-s.blocks
		if !ok {
			return 0, context.Canceled
		}
		s.cur, s.rest, s.err = b, b.data, b.err
	}
	n := min(len(p), len(s.rest))
	if n > 0 && len(s.lend) > 0 && &p[0] == &s.lend[0] {
		s.lent = s.rest[:n]
	} else {
		copy(p, s.rest)
	}
	s.rest = s.rest[n:]
	return n, nil
}

// piece returns what r has next, at most len(buf) bytes. r reads from s: where it
// hands buf through, as archive/tar does for all but sparse files, the piece lies
// in the block, where it stays until the next Read, and not in buf.
func (s *stream) piece(r io.Reader, buf []byte) ([]byte, error) {
	s.lend, s.lent = buf, nil
	n, err := r.Read(buf)
	s.lend = nil
	if len(s.lent) == n {
		return s.lent, err
	}
	copy(buf, s.lent)
	return buf[:n], err
}

// content is the tar of one layer, as it comes from its decoder.
type content struct {
	stream
	tar   string // sha256 of the tar, in hexadecimal digits, when all was read
	close func()
}

// aheadOf begins to decompress the layers and hands them out in order, each to
// be closed. No more than maxLayers are begun and not closed.
func aheadOf(ctx context.Context, layers []v1.Layer) <-chan *content {
	limit := disk.AtOnce(min(maxLayers, goruntime.GOMAXPROCS(0), max(len(layers), 1)), 4)
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
	c := &content{stream: newStream(pool)}
	c.close = sync.OnceFunc(func() {
		cancel()
		c.drop()
		closed()
	})
	go func() {
		defer close(c.blocks)
		_ = c.send(ctx, &block{err: c.decode(ctx, l)})
	}()
	return c
}

// decode sends the blocks of a layer; io.EOF when that were all.
func (c *content) decode(ctx context.Context, l v1.Layer) error {
	f, err := store.OpenLayer(l)
	if err != nil {
		return err
	}
	blob := newStream(c.pool)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(blob.blocks)
		defer f.Close()
		for err := error(nil); err == nil; {
			b := c.pool.get()
			n := 0
			n, b.err = f.Read(b.buf[:])
			b.data = b.buf[:n]
			if err = b.err; blob.send(ctx, b) != nil {
				return
			}
		}
	}()
	defer blob.drop()
	defer cancel()
	r, done, err := store.Decoder(&blob)
	if err != nil {
		return err
	}
	defer done()
	if c.tar, err = c.sendAll(ctx, r); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, &blob); err != nil { // what the decoder did not want
		return err
	}
	return io.EOF
}

// sendAll sends what r has and returns its sha256.
func (c *content) sendAll(ctx context.Context, r io.Reader) (string, error) {
	toSum, sum := make(chan *block, blocksAhead), make(chan string, 1)
	go func() {
		h := sha256.New()
		for b := range toSum {
			h.Write(b.data)
			c.pool.put(b)
		}
		sum <- hex.EncodeToString(h.Sum(nil))
	}()
	err := c.sendEach(ctx, r, toSum)
	close(toSum)
	return <-sum, err
}

// sendEach sends what r has to the reader and to the one who digests it.
func (c *content) sendEach(ctx context.Context, r io.Reader, toSum chan<- *block) error {
	for {
		b := c.pool.get()
		n, err := 0, error(nil)
		// The store's decoder of gzip leaves some of the block empty; to ask for the
		// rest would be slow. That of zstd gives half a block at a time.
		for n <= blockSize/2 && err == nil {
			var m int
			m, err = r.Read(b.buf[n:])
			n += m
		}
		b.data = b.buf[:n]
		b.users.Store(1)
		if serr := c.send(ctx, b); serr != nil {
			return serr
		}
		toSum <- b
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// check reads what follows the archive's end, which counts for the digest, and
// compares the digest with that of the tar.
func (c *content) check(tar v1.Hash) error {
	for c.rest = nil; c.err == nil; c.rest = nil {
		if _, err := c.Read(nil); err != nil {
			break
		}
	}
	if c.err != nil && !errors.Is(c.err, io.EOF) {
		return c.err
	}
	if c.tar != tar.Hex {
		return fmt.Errorf("its content has digest sha256:%s, its image says %s", c.tar, tar)
	}
	return nil
}
