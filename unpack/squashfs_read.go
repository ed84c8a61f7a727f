package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path"
	"strings"
	"time"
)

// SquashFS unpacks a SquashFS file to dir, which must not exist or be empty, as
// [Image] does an image. When it fails, dir is as it was.
func SquashFS(ctx context.Context, file, dir string) (Report, error) {
	var rep Report
	err := toNewDir(dir, func(root string) error {
		var err error
		rep, err = FillSquashFS(ctx, file, root)
		return err
	})
	if err != nil {
		return Report{}, fmt.Errorf("unpacking %s to %q: %w", file, dir, err)
	}
	return rep, nil
}

// FillSquashFS unpacks a SquashFS file into an empty directory. When it fails,
// what is in dir is undefined.
func FillSquashFS(ctx context.Context, file, dir string) (Report, error) {
	t, err := openTree(dir, NewNotes(dir))
	if err != nil {
		return Report{}, err
	}
	defer t.close()
	t.made = map[string]bool{}
	config, err := eachInSquashFS(ctx, file, t.entry)
	if err == nil {
		err = t.finish()
	}
	if err == nil && config != nil {
		err = putConfig(dir, config)
	}
	if err == nil {
		err = t.notes.Save(dir)
	}
	return t.rep, err
}

// SquashFSLayer writes a SquashFS file as a layer, an uncompressed tar, and
// returns the configuration in it, nil when there is none.
func SquashFSLayer(ctx context.Context, file string, w io.Writer) (config []byte, err error) {
	tw := tar.NewWriter(w)
	config, err = eachInSquashFS(ctx, file, func(h *tar.Header, r io.Reader) error {
		if h.Name == configDir || strings.HasPrefix(h.Name, configDir+"/") {
			return nil
		}
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if err := tw.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		_, err := io.Copy(tw, r)
		return err
	})
	if err == nil {
		err = tw.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	return config, nil
}

// IsSquashFS says whether a file begins as a SquashFS does. A pipe is none: who
// opens one waits for its other end.
func IsSquashFS(file string) bool {
	if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	b := make([]byte, 4)
	_, err = io.ReadFull(f, b)
	return err == nil && binary.LittleEndian.Uint32(b) == sqMagic
}

// maxConfig is the longest configuration that is read, in bytes.
const maxConfig = 4 << 20

// eachInSquashFS calls do for each file: directories before what is in them.
func eachInSquashFS(ctx context.Context, file string, do func(*tar.Header, io.Reader) error) (config []byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	s, err := openSquashFS(f, fi.Size())
	if err != nil {
		return nil, err
	}
	defer s.un.close()
	s.ctx, s.links, s.dirs = ctx, map[uint32]string{}, map[uint64]bool{s.super.Root: true}
	s.do = func(h *tar.Header, r io.Reader) error {
		if h.Name == ConfigFile && h.Typeflag == tar.TypeReg {
			if h.Size > maxConfig {
				return fmt.Errorf("the configuration has %d bytes; the most that is read is %d", h.Size, maxConfig)
			}
			config, err = io.ReadAll(r)
			return err
		}
		return do(h, r)
	}
	n, err := s.inode(s.super.Root)
	if err != nil {
		return nil, fmt.Errorf("its root: %w", err)
	}
	if n.kind != sqDir {
		return nil, errors.New("its root is no directory")
	}
	err = s.walk(n, ".", 0)
	return config, err
}

// A squashReader reads one file system. Nothing in it is believed: what is read
// is bounded by the file's length, whatever numbers stand in it.
type squashReader struct {
	f     io.ReaderAt
	size  int64
	super sqSuper
	un    *unsquasher
	meta  map[uint64]sqMetaBlock // metadata blocks by their place

	ids   []uint32
	ctx   context.Context
	do    func(*tar.Header, io.Reader) error
	links map[uint32]string // first names of files that have several
	dirs  map[uint64]bool   // that were walked
	count int
	bytes int64 // of content so far

	tail      uint64 // place of the fragment block that was read last
	tailBytes []byte
}

type sqMetaBlock struct {
	data []byte
	next uint64
}

// maxUnpacked is how many bytes a file of n may unpack to: zstd and gzip pack
// what people keep at most a hundredfold.
func maxUnpacked(n int64) int64 { return 1<<30 + 1000*n }

func openSquashFS(f io.ReaderAt, size int64) (*squashReader, error) {
	s := &squashReader{f: f, size: size, meta: map[uint64]sqMetaBlock{}}
	if err := binary.Read(io.NewSectionReader(f, 0, sqSuperSize), binary.LittleEndian, &s.super); err != nil || s.super.Magic != sqMagic {
		return nil, errors.New("it is no SquashFS")
	}
	p := &s.super
	switch {
	case p.Major != 4 || p.Minor != 0:
		return nil, fmt.Errorf("its format is SquashFS %d.%d; hpcc knows 4.0", p.Major, p.Minor)
	case p.BlockSize < 4096 || p.BlockSize > sqBlockMax || bits.OnesCount32(p.BlockSize) != 1:
		return nil, fmt.Errorf("its blocks have %d bytes", p.BlockSize)
	case p.Bytes > uint64(size):
		return nil, fmt.Errorf("it is truncated: it should have %d bytes and has %d", p.Bytes, size)
	case p.IDs == 0 || p.InodeTable >= p.DirTable || p.DirTable >= p.Bytes:
		return nil, errors.New("its tables are not where they should be")
	}
	var err error
	if s.un, err = newUnsquasher(p.Compression); err != nil {
		return nil, err
	}
	for i := range int(p.IDs) {
		b, err := s.entry(p.IDTable, i, 4)
		if err != nil {
			s.un.close()
			return nil, fmt.Errorf("reading its owners: %w", err)
		}
		s.ids = append(s.ids, binary.LittleEndian.Uint32(b))
	}
	return s, nil
}

// read reads n bytes of the file.
func (s *squashReader) read(at uint64, n int) ([]byte, error) {
	if at > uint64(s.size) || uint64(n) > uint64(s.size)-at {
		return nil, fmt.Errorf("%d bytes at %d lie beyond its end", n, at)
	}
	b := make([]byte, n)
	_, err := s.f.ReadAt(b, int64(at))
	return b, err
}

// maxMetaBlocks bounds the metadata blocks that are kept.
const maxMetaBlocks = 512

// metaBlock reads the metadata block at a place of the file.
func (s *squashReader) metaBlock(at uint64) (sqMetaBlock, error) {
	if m, ok := s.meta[at]; ok {
		return m, nil
	}
	head, err := s.read(at, 2)
	if err != nil {
		return sqMetaBlock{}, err
	}
	h := binary.LittleEndian.Uint16(head)
	n := int(h &^ sqMetaPlain)
	if n == 0 || n > sqMetaSize {
		return sqMetaBlock{}, fmt.Errorf("a metadata block of %d bytes", n)
	}
	data, err := s.read(at+2, n)
	if err == nil && h&sqMetaPlain == 0 {
		data, err = s.un.block(data, sqMetaSize)
	}
	if err != nil {
		return sqMetaBlock{}, fmt.Errorf("the metadata block at %d: %w", at, err)
	}
	if len(s.meta) >= maxMetaBlocks {
		clear(s.meta)
	}
	m := sqMetaBlock{data, at + 2 + uint64(n)}
	s.meta[at] = m
	return m, nil
}

// sqCursor reads on through metadata blocks.
type sqCursor struct {
	s      *squashReader
	at     uint64
	offset int
}

// metaAt is the metadata that a reference into a table leads to.
func (s *squashReader) metaAt(table, ref uint64) *sqCursor {
	return &sqCursor{s, table + ref>>16, int(ref & 0xffff)}
}

// take returns the next n bytes.
func (c *sqCursor) take(n int) ([]byte, error) {
	out := make([]byte, 0, n)
	for len(out) < n {
		m, err := c.s.metaBlock(c.at)
		if err != nil {
			return nil, err
		}
		if c.offset > len(m.data) {
			return nil, errors.New("a reference leads beyond its block")
		}
		have := m.data[c.offset:]
		if len(have) == 0 {
			if len(m.data) == 0 {
				return nil, errors.New("an empty metadata block")
			}
			c.at, c.offset = m.next, 0
			continue
		}
		have = have[:min(len(have), n-len(out))]
		out = append(out, have...)
		c.offset += len(have)
	}
	return out, nil
}

// numbers takes numbers of these widths in bytes.
func (c *sqCursor) numbers(widths ...int) ([]uint64, error) {
	total := 0
	for _, w := range widths {
		total += w
	}
	b, err := c.take(total)
	if err != nil {
		return nil, err
	}
	out := make([]uint64, len(widths))
	for i, w := range widths {
		var full [8]byte
		copy(full[:], b[:w])
		out[i] = binary.LittleEndian.Uint64(full[:])
		b = b[w:]
	}
	return out, nil
}

// entry is one of a list of entries of a fixed width: see squasher.list.
func (s *squashReader) entry(places uint64, i, width int) ([]byte, error) {
	per := sqMetaSize / width
	b, err := s.read(places+uint64(i/per)*8, 8)
	if err != nil {
		return nil, err
	}
	c := &sqCursor{s, binary.LittleEndian.Uint64(b), i % per * width}
	return c.take(width)
}

// sqInode is an inode as it was read.
type sqInode struct {
	kind     int
	h        tar.Header // without a name
	number   uint32
	links    uint64
	start    uint64 // of blocks; for a directory a reference
	size     uint64
	fragment uint32
	offset   uint32
	attr     uint32
	sizes    *sqCursor // of blocks
}

// inode reads what a reference leads to.
func (s *squashReader) inode(ref uint64) (*sqInode, error) {
	c := s.metaAt(s.super.InodeTable, ref)
	v, err := c.numbers(2, 2, 2, 2, 4, 4)
	if err != nil {
		return nil, err
	}
	kind := int(v[0])
	if kind < 1 || kind > sqSocket+sqLong {
		return nil, fmt.Errorf("an inode of kind %d", kind)
	}
	if v[2] >= uint64(len(s.ids)) || v[3] >= uint64(len(s.ids)) {
		return nil, errors.New("its owner is not in the table")
	}
	n := &sqInode{kind: kind, number: uint32(v[5]), fragment: sqNone, attr: sqNone}
	n.h.Mode, n.h.ModTime = int64(v[1]&0o7777), time.Unix(int64(v[4]), 0)
	n.h.Uid, n.h.Gid = int(s.ids[v[2]]), int(s.ids[v[3]])
	long := kind > sqLong
	if long {
		n.kind -= sqLong
	}
	return n, n.body(c, long)
}

// body reads what is of the inode's kind.
func (n *sqInode) body(c *sqCursor, long bool) error {
	var v []uint64
	var err error
	switch {
	case n.kind == sqDir && long:
		if v, err = c.numbers(4, 4, 4, 4, 2, 2, 4); err == nil {
			n.size, n.start, n.attr = v[1], v[2]<<16|v[5], uint32(v[6])
		}
	case n.kind == sqDir:
		if v, err = c.numbers(4, 4, 2, 2, 4); err == nil {
			n.size, n.start = v[2], v[0]<<16|v[3]
		}
	case n.kind == sqFile && long:
		if v, err = c.numbers(8, 8, 8, 4, 4, 4, 4); err == nil {
			n.start, n.size, n.links, n.fragment, n.offset, n.attr = v[0], v[1], v[3], uint32(v[4]), uint32(v[5]), uint32(v[6])
		}
		n.sizes = c
	case n.kind == sqFile:
		if v, err = c.numbers(4, 4, 4, 4); err == nil {
			n.start, n.size, n.fragment, n.offset = v[0], v[3], uint32(v[1]), uint32(v[2])
		}
		n.sizes = c
	case n.kind == sqSymlink:
		if v, err = c.numbers(4, 4); err != nil {
			return err
		}
		if v[1] > maxPath {
			return fmt.Errorf("its link target has %d bytes", v[1])
		}
		to, err := c.take(int(v[1]))
		n.h.Linkname = string(to)
		return err
	}
	return err
}

// walk calls do for a directory and all below it.
func (s *squashReader) walk(dir *sqInode, name string, depth int) error {
	if depth > maxNesting || len(name) > maxPath {
		return fmt.Errorf("%.200q: directories lie too deep in each other", name)
	}
	dir.h.Name, dir.h.Typeflag = name, tar.TypeDir
	if err := s.emit(dir, nil); err != nil {
		return err
	}
	if dir.size < 3 {
		return fmt.Errorf("%.200q: a directory of %d bytes", name, dir.size)
	}
	left := int64(dir.size) - 3 // "." and ".." count, as three bytes
	c := s.metaAt(s.super.DirTable, dir.start)
	for left > 0 {
		head, err := c.numbers(4, 4, 4)
		if err != nil {
			return fmt.Errorf("%.200q: %w", name, err)
		}
		if head[0] > 255 {
			return fmt.Errorf("%.200q: a run of %d names", name, head[0]+1)
		}
		left -= 12
		for range head[0] + 1 {
			v, err := c.numbers(2, 2, 2, 2)
			if err != nil {
				return fmt.Errorf("%.200q: %w", name, err)
			}
			b, err := c.take(int(v[3]) + 1)
			if err != nil {
				return fmt.Errorf("%.200q: %w", name, err)
			}
			if left -= 8 + int64(len(b)); left < 0 {
				return fmt.Errorf("%.200q: the directory is longer than it says", name)
			}
			if err := s.child(name, string(b), head[1]<<16|v[0], depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// child calls do for one name of a directory.
func (s *squashReader) child(dir, base string, ref uint64, depth int) error {
	name := path.Join(dir, base)
	if base == "." || base == ".." || strings.ContainsAny(base, "/\x00") {
		return fmt.Errorf("%.200q: no name for a file: %.200q", dir, base)
	}
	if strings.HasPrefix(base, whPrefix) {
		return fmt.Errorf("%.200q: images cannot hold a file whose name begins with %s, which marks what was removed (image-spec, \"Whiteouts\")", name, whPrefix)
	}
	n, err := s.inode(ref)
	if err != nil {
		return fmt.Errorf("%.200q: %w", name, err)
	}
	if n.kind == sqDir {
		if s.dirs[ref] {
			return fmt.Errorf("%.200q: the directory is in two places", name)
		}
		s.dirs[ref] = true
		return s.walk(n, name, depth+1)
	}
	n.h.Name = name
	var r io.Reader
	switch n.kind {
	case sqFile:
		n.h.Typeflag, n.h.Size = tar.TypeReg, int64(n.size)
		if first, ok := s.links[n.number]; ok && n.links > 1 {
			n.h.Typeflag, n.h.Size, n.h.Linkname = tar.TypeLink, 0, first
			break
		}
		if n.links > 1 {
			s.links[n.number] = name
		}
		limit := maxUnpacked(s.size)
		if n.size > uint64(limit) || s.bytes+int64(n.size) > limit {
			return fmt.Errorf("%.200q: the files have more than %d bytes, too many for what is packed", name, limit)
		}
		s.bytes += int64(n.size)
		r = &sqContent{s: s, n: n, left: int64(n.size), at: n.start}
	case sqSymlink:
		n.h.Typeflag = tar.TypeSymlink
	case sqBlockDev:
		n.h.Typeflag = tar.TypeBlock
	case sqCharDev:
		n.h.Typeflag = tar.TypeChar
	case sqFIFO:
		n.h.Typeflag = tar.TypeFifo
	default:
		return nil // sockets live as long as their program
	}
	return s.emit(n, r)
}

// emit calls do.
func (s *squashReader) emit(n *sqInode, r io.Reader) error {
	if s.count++; s.count > maxEntries || s.count > int(s.super.Inodes)+len(s.links)+maxLinked {
		return fmt.Errorf("it has more files than the %d that it says", s.super.Inodes)
	}
	if s.count%256 == 0 && s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	if n.attr != sqNone && n.h.Typeflag != tar.TypeLink {
		if err := s.attributes(n); err != nil {
			return fmt.Errorf("%.200q: reading its attributes: %w", n.h.Name, err)
		}
	}
	if err := s.do(&n.h, r); err != nil {
		return fmt.Errorf("%.200q: %w", n.h.Name, err)
	}
	return nil
}

// maxLinked is how many names more than inodes a file system may have: hard links.
const maxLinked = 1_000_000

// maxAttrs bounds the attributes of a file.
const maxAttrs = 256

// attributes reads a file's extended attributes into its header.
func (s *squashReader) attributes(n *sqInode) error {
	if s.super.AttrTable == sqNoTable {
		return nil
	}
	b, err := s.read(s.super.AttrTable, 16)
	if err != nil {
		return err
	}
	pairs, sets := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	if n.attr >= sets {
		return errors.New("they are not in the table")
	}
	if b, err = s.entry(s.super.AttrTable+16, int(n.attr), 16); err != nil {
		return err
	}
	c, count := s.metaAt(pairs, binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint32(b[8:])
	if count > maxAttrs {
		return fmt.Errorf("there are %d", count)
	}
	for range count {
		k, v, err := s.attribute(c, pairs)
		if err != nil {
			return err
		}
		if k == "" || strings.HasPrefix(k, notePrefix) {
			continue
		}
		if n.h.PAXRecords == nil {
			n.h.PAXRecords = map[string]string{}
		}
		n.h.PAXRecords[xattrRecord+k] = v
	}
	return nil
}

// sqElsewhere marks an attribute whose value is a reference to the value.
const sqElsewhere = 0x100

// attribute reads one attribute. Its name is "" when it is of a kind not known.
func (s *squashReader) attribute(c *sqCursor, pairs uint64) (name, value string, err error) {
	v, err := c.numbers(2, 2)
	if err != nil {
		return "", "", err
	}
	b, err := c.take(int(v[1]))
	if err != nil {
		return "", "", err
	}
	size, err := c.numbers(4)
	if err != nil {
		return "", "", err
	}
	if size[0] > maxNote {
		return "", "", fmt.Errorf("a value of %d bytes", size[0])
	}
	val, err := c.take(int(size[0]))
	if err == nil && v[0]&sqElsewhere != 0 {
		if len(val) != 8 {
			return "", "", errors.New("a reference to a value that is none")
		}
		far := s.metaAt(pairs, binary.LittleEndian.Uint64(val))
		if size, err = far.numbers(4); err == nil && size[0] <= maxNote {
			val, err = far.take(int(size[0]))
		}
	}
	if space := v[0] &^ sqElsewhere; err == nil && space < uint64(len(sqAttrSpaces)) && !bytes.ContainsAny(b, "\x00=") {
		name = sqAttrSpaces[space] + string(b)
	}
	return name, string(val), err
}

// sqContent reads the bytes of a file.
type sqContent struct {
	s    *squashReader
	n    *sqInode
	at   uint64
	left int64  // not read from the file system yet
	buf  []byte // what of a block was not taken yet
}

func (r *sqContent) Read(p []byte) (int, error) {
	if len(r.buf) == 0 {
		if r.left == 0 {
			return 0, io.EOF
		}
		if err := r.s.ctx.Err(); err != nil {
			return 0, err
		}
		var err error
		if r.buf, err = r.next(int(min(r.left, int64(r.s.super.BlockSize)))); err != nil {
			// An end of what is packed is not the end of the file.
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		r.left -= int64(len(r.buf))
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

// next is the next block, of n bytes.
func (r *sqContent) next(n int) ([]byte, error) {
	s := r.s
	if n < int(s.super.BlockSize) && r.n.fragment != sqNone {
		b, err := s.fragmentBlock(r.n.fragment)
		if err != nil {
			return nil, err
		}
		if int64(r.n.offset)+int64(n) > int64(len(b)) {
			return nil, errors.New("its fragment is shorter than it should be")
		}
		return b[r.n.offset:][:n], nil
	}
	v, err := r.n.sizes.numbers(4)
	if err != nil {
		return nil, err
	}
	if v[0] == 0 {
		return make([]byte, n), nil
	}
	b, err := s.dataBlock(r.at, uint32(v[0]))
	if err != nil {
		return nil, err
	}
	if len(b) != n {
		return nil, fmt.Errorf("a block has %d bytes where %d were expected", len(b), n)
	}
	r.at += v[0] &^ sqPlain
	return b, nil
}

// dataBlock reads a block of the size that the file system gives it.
func (s *squashReader) dataBlock(at uint64, size uint32) ([]byte, error) {
	n := size &^ sqPlain
	if n > s.super.BlockSize {
		return nil, fmt.Errorf("a block of %d bytes", n)
	}
	b, err := s.read(at, int(n))
	if err != nil || size&sqPlain != 0 {
		return b, err
	}
	return s.un.block(b, int(s.super.BlockSize))
}

// fragmentBlock reads a block that holds the ends of files.
func (s *squashReader) fragmentBlock(i uint32) ([]byte, error) {
	if i >= s.super.Fragments {
		return nil, errors.New("its fragment is not in the table")
	}
	b, err := s.entry(s.super.FragmentTable, int(i), 16)
	if err != nil {
		return nil, err
	}
	at := binary.LittleEndian.Uint64(b)
	if s.tailBytes == nil || s.tail != at {
		data, err := s.dataBlock(at, binary.LittleEndian.Uint32(b[8:]))
		if err != nil {
			return nil, err
		}
		s.tail, s.tailBytes = at, data
	}
	return s.tailBytes, nil
}
