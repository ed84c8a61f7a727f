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

	"hpcc/files"
	"hpcc/store"
)

// Layers are applied in order. Several layers are read, decompressed and digested ahead, each
// in its own goroutines. Two digests are checked: the blob's, by store.OpenLayer, and the
// tar's.
const (
	blockSize   = 256 << 10 // the store's decoder works in blocks of this size
	blocksAhead = 8         // per layer; more would exceed the processor's cache and take a tenth longer
	maxLayers   = 4         // layers decompressed in parallel
)

// A block is a piece of a layer's tar.
type block struct {
	buf  [blockSize]byte
	data []byte
	err  error // the decoder's error after this block

	users atomic.Int32 // remaining users, minus one
}

// blockPool keeps blocks for reuse.
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

// put releases a block. The last user returns it to the pool.
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

// A stream passes a sequence of blocks from one goroutine to another.
type stream struct {
	pool   blockPool
	blocks chan *block

	cur  *block
	rest []byte // unread bytes of cur
	err  error  // error after cur

	advanced func() // called before the first Read of each block; may be nil

	lend []byte // buffer of the current piece; a Read into it does not copy
	lent []byte // bytes that the last Read did not copy to lend; the next Read copies them
}

func newStream(pool blockPool) stream {
	return stream{pool: pool, blocks: make(chan *block, blocksAhead)}
}

// send passes a block to the reader, the last one with an error. It fails if the reader has
// stopped.
func (s *stream) send(ctx context.Context, b *block) error {
	select {
	case s.blocks <- b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drop discards the remaining blocks.
func (s *stream) drop() {
	for b := range s.blocks {
		s.pool.put(b)
	}
}

func (s *stream) Read(p []byte) (int, error) {
	// On the second Read of a piece, copy the bytes of the first one to their destination,
	// because their block may be reused from now on.
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
		if s.advanced != nil {
			s.advanced()
		}
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

// piece returns the next bytes of r, at most len(buf). r reads from s. If r passes buf to
// s.Read, as archive/tar does except for sparse files, the piece is not copied to buf but
// stays in the block until the next Read.
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

// content is the decompressed tar of one layer.
type content struct {
	stream
	tar   string       // sha256 of the tar in hexadecimal, set after the last byte
	blob  atomic.Int64 // compressed bytes that were read
	close func()
}

// readAhead starts to decompress the layers and sends them in order. The caller must close
// each of them. At most maxLayers are open at a time.
func readAhead(ctx context.Context, layers []v1.Layer) <-chan *content {
	limit := files.MaxParallel(min(maxLayers, goruntime.GOMAXPROCS(0), max(len(layers), 1)), 4)
	out := make(chan *content, limit) // never full
	pool := make(blockPool, limit*blocksAhead)
	open := make(chan struct{}, limit)
	go func() {
		defer close(out)
		for _, l := range layers {
			select {
			case open <- struct{}{}:
				out <- startContent(ctx, l, pool, func() { <-open })
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// startContent starts to decompress a layer. It calls closed when the content is closed.
func startContent(ctx context.Context, l v1.Layer, pool blockPool, closed func()) *content {
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

// decode sends the blocks of a layer. It returns io.EOF at the end.
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
			c.blob.Add(int64(n))
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
	if _, err := io.Copy(io.Discard, &blob); err != nil { // the bytes that the decoder did not read
		return err
	}
	return io.EOF
}

// sendAll sends the bytes of r and returns their sha256.
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

// sendEach sends the bytes of r to the reader and to the digest.
func (c *content) sendEach(ctx context.Context, r io.Reader, toSum chan<- *block) error {
	for {
		b := c.pool.get()
		n, err := 0, error(nil)
		// The store's gzip decoder leaves part of the block empty, and filling this part would
		// be slow. The zstd decoder returns half a block at a time.
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

// check reads the bytes after the archive's end, which the digest includes, and compares the
// digest with tar.
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
		return fmt.Errorf("the content has digest sha256:%s, the image specifies %s", c.tar, tar)
	}
	return nil
}
