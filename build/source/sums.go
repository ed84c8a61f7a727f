package source

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/store"
)

// A fileStat identifies the state of a file without reading it. Programs cannot set ctime, so
// it differs after every change.
type fileStat struct {
	inode        uint64
	size         int64
	mtime, ctime int64 // nanoseconds since 1970
}

func statOf(st *unix.Stat_t) fileStat {
	return fileStat{st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
}

// settled reports whether any later change would give the file a different ctime. The
// timestamps of file systems have a resolution of milliseconds; those of old ones, of seconds.
func (s fileStat) settled(now time.Time) bool {
	tick := 100 * time.Millisecond
	if s.ctime%int64(time.Second) == 0 {
		tick = 2 * time.Second
	}
	return s.ctime < now.Add(-tick).UnixNano()
}

type sum [sha256.Size]byte

// A sumRecord is the digest of a file, with the file's state when it was read.
type sumRecord struct {
	stat fileStat
	sum  sum
}

// sums caches the digests of a context's files in the store, so that a build reads only
// files that changed. A nil *sums is an empty cache.
type sums struct {
	store *store.Store
	dir   string // path of the context
	key   string
	once  sync.Once
	mu    sync.Mutex
	known map[string]sumRecord // by the file's path below dir
	dirty bool                 // known has digests that the store lacks
}

// Remember enables the cache of the digests of the directory's files: the entry key in the
// store's cache "context". The next build then reads only files that changed.
func (c *Dir) Remember(s *store.Store, key string) {
	c.sums = &sums{store: s, dir: c.Dir, key: key}
	go c.sums.once.Do(c.sums.load) // in the background, while files are listed
}

// Save writes new digests to the store.
func (c *Dir) Save() error { return c.sums.save() }

// Small files stay in memory after reading: files with unknown digests are usually copied
// next, and opening a file takes longer than reading it.
const (
	SmallFile = 64 << 10 // largest small file, in bytes
	keptBytes = 64 << 20 // largest total size of the kept files of a source
)

// digests returns the digest of each item's bytes, or zero if the item is not a regular file.
// It sets Data of the small files that it reads.
func (s *sums) digests(items []Item) ([]sum, error) {
	out := make([]sum, len(items))
	var missing []int
	for i, it := range items {
		if !it.Mode.IsRegular() || it.opaque {
			continue
		}
		if r, ok := s.lookup(it.Path); ok && r.stat == it.stat {
			out[i] = r.sum
			continue
		}
		missing = append(missing, i)
	}
	now := time.Now()
	var g errgroup.Group
	var next, kept atomic.Int64
	slab := make([]byte, keptSize(items, missing))
	for range min(len(missing), files.MaxParallel(goruntime.GOMAXPROCS(0), 2)) {
		g.Go(func() error {
			buf := make([]byte, 128<<10)
			var r Reader
			defer r.Close()
			for {
				n := int(next.Add(1)) - 1
				if n >= len(missing) {
					return nil
				}
				it := &items[missing[n]]
				size, err := readSum(&r, it.Path, &out[missing[n]], buf)
				if err != nil {
					return fmt.Errorf("reading %q: %w", it.Path, err)
				}
				if it.stat.settled(now) {
					s.record(it.Path, sumRecord{it.stat, out[missing[n]]})
				}
				if size > SmallFile {
					continue
				}
				if end := kept.Add(size); end <= int64(len(slab)) {
					it.Data = slab[end-size : end : end]
					copy(it.Data, buf)
				}
			}
		})
	}
	return out, g.Wait()
}

// keptSize returns the number of bytes to keep in memory for the small files among the missing
// ones.
func keptSize(items []Item, missing []int) int64 {
	var n int64
	for _, i := range missing {
		if size := items[i].stat.size; size <= SmallFile {
			n += size
		}
	}
	return min(n, keptBytes)
}

// readSum computes the digest of a file, and returns its size. If the file fits into buf,
// buf holds its content afterwards.
func readSum(r *Reader, file string, out *sum, buf []byte) (size int64, err error) {
	f, err := r.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	h := sha256.New()
	for {
		n, err := io.ReadFull(f, buf)
		h.Write(buf[:n])
		size += int64(n)
		if AtEnd(err) {
			h.Sum(out[:0])
			return size, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// AtEnd reports whether an error of io.ReadFull means that the file has ended.
func AtEnd(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }

func (s *sums) lookup(file string) (sumRecord, bool) {
	if s == nil {
		return sumRecord{}, false
	}
	s.once.Do(s.load)
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.known[s.below(file)]
	return r, ok
}

func (s *sums) record(file string, r sumRecord) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[s.below(file)], s.dirty = r, true
}

// below returns the path of a file relative to the context.
func (s *sums) below(file string) string { return strings.TrimPrefix(file, s.dir+"/") }

// sumsHead is the beginning of a context's record in the store. For each file, the record then
// contains the length of the path as a varint, the path, inode, size, mtime and ctime
// (little-endian, 8 bytes each) and the digest.
const sumsHead = "hpcc sums 1\n"

// maxSums limits the number of cached files per context.
const maxSums = 1 << 20

// load reads the record from the store. It treats a damaged record as empty.
func (s *sums) load() {
	data, err := s.store.Cached("context", s.key)
	if err == nil {
		s.known = parseSums(data)
	}
	if s.known == nil {
		s.known = map[string]sumRecord{}
	}
}

// parseSums parses a record. It returns nil if the record is damaged.
func parseSums(data []byte) map[string]sumRecord {
	rest, ok := bytes.CutPrefix(data, []byte(sumsHead))
	if !ok {
		return nil
	}
	const fixed = 4*8 + sha256.Size
	known := make(map[string]sumRecord, len(rest)/(fixed+40))
	text := string(rest) // one allocation for all paths
	for len(rest) > 0 {
		n, k := binary.Uvarint(rest)
		if k <= 0 || n > uint64(len(rest)) || len(rest)-k-int(n) < fixed {
			return nil
		}
		path := text[k : k+int(n)]
		b := rest[k+int(n):]
		r := sumRecord{stat: fileStat{binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:])),
			int64(binary.LittleEndian.Uint64(b[16:])), int64(binary.LittleEndian.Uint64(b[24:]))}}
		copy(r.sum[:], b[32:])
		known[path] = r
		rest, text = b[fixed:], text[k+int(n)+fixed:]
	}
	return known
}

// save writes the record to the store. If there are too many files, it drops deleted ones.
func (s *sums) save() error {
	if s == nil || !s.dirty {
		return nil
	}
	if len(s.known) > maxSums {
		maps.DeleteFunc(s.known, func(file string, _ sumRecord) bool {
			_, err := os.Lstat(filepath.Join(s.dir, file))
			return err != nil
		})
	}
	var buf bytes.Buffer
	w := bufio.NewWriter(&buf)
	_, _ = w.WriteString(sumsHead)
	var b []byte
	for file, r := range s.known {
		b = append(binary.AppendUvarint(b[:0], uint64(len(file))), file...)
		for _, n := range []uint64{r.stat.inode, uint64(r.stat.size), uint64(r.stat.mtime), uint64(r.stat.ctime)} {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
		_, _ = w.Write(append(b, r.sum[:]...))
	}
	_ = w.Flush()
	return s.store.Cache("context", s.key, buf.Bytes())
}
