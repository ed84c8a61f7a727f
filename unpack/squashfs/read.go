package squashfs

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

// Is reports whether a regular file starts with the SquashFS magic. It does not open pipes,
// which would block.
func Is(file string) bool {
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
	return err == nil && binary.LittleEndian.Uint32(b) == magic
}

// Walk calls do for each file of the file system in an image file, directories before their
// contents. Headers are tar headers, with extended attributes as PAX records; names are
// clean and relative, and the root is ".". The reader returns the content of a regular file
// and is nil for other types. Sockets are skipped.
func Walk(ctx context.Context, file string, do func(*tar.Header, io.Reader) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	return WalkAt(ctx, f, fi.Size(), do)
}

// WalkAt is like [Walk] for the file system in r, which has size bytes.
func WalkAt(ctx context.Context, r io.ReaderAt, size int64, do func(*tar.Header, io.Reader) error) error {
	s, err := newReader(r, size)
	if err != nil {
		return err
	}
	defer s.dec.close()
	s.ctx, s.do, s.links, s.dirs = ctx, do, map[uint32]string{}, map[uint64]bool{s.super.Root: true}
	n, err := s.inode(s.super.Root)
	if err != nil {
		return fmt.Errorf("reading the root directory: %w", err)
	}
	if n.kind != kindDir {
		return errors.New("the root is not a directory")
	}
	return s.walk(n, ".", 0)
}

// Limits for untrusted input.
const (
	maxPath    = 4096       // bytes of a path, and of a link's target
	maxNesting = 4096       // nesting depth of directories
	maxEntries = 20_000_000 // names
	maxValue   = 64 << 10   // bytes of an extended attribute
)

// xattrRecord is the prefix of PAX records that hold extended attributes.
const xattrRecord = "SCHILY.xattr."

// A reader reads one file system. Its content is untrusted: every number is checked against
// the file's length.
type reader struct {
	f     io.ReaderAt
	size  int64
	super superBlock
	dec   *decompressor
	meta  map[uint64]metaBlock // metadata blocks by position

	ids   []uint32
	ctx   context.Context
	do    func(*tar.Header, io.Reader) error
	links map[uint32]string // first names of files with hard links, by inode
	dirs  map[uint64]bool   // directories that were visited
	count int
	bytes int64 // of content so far

	tail      uint64 // position of the most recent fragment block
	tailBytes []byte
}

type metaBlock struct {
	data []byte
	next uint64
}

// maxUnpacked returns the maximum decompressed size of a file of n bytes: zstd and gzip
// compress real data at most a hundredfold.
func maxUnpacked(n int64) int64 { return 1<<30 + 1000*n }

func newReader(f io.ReaderAt, size int64) (*reader, error) {
	s := &reader{f: f, size: size, meta: map[uint64]metaBlock{}}
	if err := binary.Read(io.NewSectionReader(f, 0, superSize), binary.LittleEndian, &s.super); err != nil || s.super.Magic != magic {
		return nil, errors.New("not a SquashFS file")
	}
	p := &s.super
	switch {
	case p.Major != 4 || p.Minor != 0:
		return nil, fmt.Errorf("the format is SquashFS %d.%d; hpcc supports 4.0", p.Major, p.Minor)
	case p.BlockSize < 4096 || p.BlockSize > maxBlock || bits.OnesCount32(p.BlockSize) != 1:
		return nil, fmt.Errorf("the block size is %d bytes", p.BlockSize)
	case p.Bytes > uint64(size):
		return nil, fmt.Errorf("truncated: expected %d bytes, have %d", p.Bytes, size)
	case p.IDs == 0 || p.InodeTable >= p.DirTable || p.DirTable >= p.Bytes:
		return nil, errors.New("its tables have invalid positions")
	}
	var err error
	if s.dec, err = newDecompressor(p.Compression); err != nil {
		return nil, err
	}
	for i := range int(p.IDs) {
		b, err := s.entry(p.IDTable, i, 4)
		if err != nil {
			s.dec.close()
			return nil, fmt.Errorf("reading the owner table: %w", err)
		}
		s.ids = append(s.ids, binary.LittleEndian.Uint32(b))
	}
	return s, nil
}

// read reads n bytes of the file.
func (s *reader) read(at uint64, n int) ([]byte, error) {
	if at > uint64(s.size) || uint64(n) > uint64(s.size)-at {
		return nil, fmt.Errorf("%d bytes at %d are beyond the end of the file", n, at)
	}
	b := make([]byte, n)
	_, err := s.f.ReadAt(b, int64(at))
	return b, err
}

// maxMetaBlocks bounds the number of cached metadata blocks.
const maxMetaBlocks = 512

// metaBlock reads the metadata block at a position of the file.
func (s *reader) metaBlock(at uint64) (metaBlock, error) {
	if m, ok := s.meta[at]; ok {
		return m, nil
	}
	head, err := s.read(at, 2)
	if err != nil {
		return metaBlock{}, err
	}
	h := binary.LittleEndian.Uint16(head)
	n := int(h &^ metaPlain)
	if n == 0 || n > metaSize {
		return metaBlock{}, fmt.Errorf("invalid metadata block of %d bytes", n)
	}
	data, err := s.read(at+2, n)
	if err == nil && h&metaPlain == 0 {
		data, err = s.dec.block(data, metaSize)
	}
	if err != nil {
		return metaBlock{}, fmt.Errorf("the metadata block at %d: %w", at, err)
	}
	if len(s.meta) >= maxMetaBlocks {
		clear(s.meta)
	}
	m := metaBlock{data, at + 2 + uint64(n)}
	s.meta[at] = m
	return m, nil
}

// A cursor reads sequentially through metadata blocks.
type cursor struct {
	s      *reader
	at     uint64
	offset int
}

// metaAt returns a cursor at the metadata of a reference into a table.
func (s *reader) metaAt(table, ref uint64) *cursor {
	return &cursor{s, table + ref>>16, int(ref & 0xffff)}
}

// take returns the next n bytes.
func (c *cursor) take(n int) ([]byte, error) {
	out := make([]byte, 0, n)
	for len(out) < n {
		m, err := c.s.metaBlock(c.at)
		if err != nil {
			return nil, err
		}
		if c.offset > len(m.data) {
			return nil, errors.New("a reference is beyond its block")
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

// numbers reads numbers with the given widths in bytes.
func (c *cursor) numbers(widths ...int) ([]uint64, error) {
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

// entry returns entry i of a table with entries of width bytes. positions is the position of
// the table's list of blocks, see Writer.list.
func (s *reader) entry(positions uint64, i, width int) ([]byte, error) {
	per := metaSize / width
	b, err := s.read(positions+uint64(i/per)*8, 8)
	if err != nil {
		return nil, err
	}
	c := &cursor{s, binary.LittleEndian.Uint64(b), i % per * width}
	return c.take(width)
}

// inode is an inode read from disk.
type inode struct {
	kind     int
	h        tar.Header // without a name
	number   uint32
	links    uint64
	start    uint64 // of blocks; for a directory a reference
	size     uint64
	fragment uint32
	offset   uint32
	attr     uint32
	sizes    *cursor // of blocks
}

// inode reads the inode of a reference.
func (s *reader) inode(ref uint64) (*inode, error) {
	c := s.metaAt(s.super.InodeTable, ref)
	v, err := c.numbers(2, 2, 2, 2, 4, 4)
	if err != nil {
		return nil, err
	}
	kind := int(v[0])
	if kind < 1 || kind > kindSocket+kindLong {
		return nil, fmt.Errorf("invalid inode type %d", kind)
	}
	if v[2] >= uint64(len(s.ids)) || v[3] >= uint64(len(s.ids)) {
		return nil, errors.New("the owner is not in the table")
	}
	n := &inode{kind: kind, number: uint32(v[5]), fragment: none, attr: none}
	n.h.Mode, n.h.ModTime = int64(v[1]&0o7777), time.Unix(int64(v[4]), 0)
	n.h.Uid, n.h.Gid = int(s.ids[v[2]]), int(s.ids[v[3]])
	long := kind > kindLong
	if long {
		n.kind -= kindLong
	}
	return n, n.body(c, long)
}

// body reads the part of an inode that depends on its type.
func (n *inode) body(c *cursor, long bool) error {
	var v []uint64
	var err error
	switch {
	case n.kind == kindDir && long:
		if v, err = c.numbers(4, 4, 4, 4, 2, 2, 4); err == nil {
			n.size, n.start, n.attr = v[1], v[2]<<16|v[5], uint32(v[6])
		}
	case n.kind == kindDir:
		if v, err = c.numbers(4, 4, 2, 2, 4); err == nil {
			n.size, n.start = v[2], v[0]<<16|v[3]
		}
	case n.kind == kindFile && long:
		if v, err = c.numbers(8, 8, 8, 4, 4, 4, 4); err == nil {
			n.start, n.size, n.links, n.fragment, n.offset, n.attr = v[0], v[1], v[3], uint32(v[4]), uint32(v[5]), uint32(v[6])
		}
		n.sizes = c
	case n.kind == kindFile:
		if v, err = c.numbers(4, 4, 4, 4); err == nil {
			n.start, n.size, n.fragment, n.offset = v[0], v[3], uint32(v[1]), uint32(v[2])
		}
		n.sizes = c
	case n.kind == kindSymlink:
		if v, err = c.numbers(4, 4); err != nil {
			return err
		}
		if v[1] > maxPath {
			return fmt.Errorf("the link target has %d bytes; want at most %d", v[1], maxPath)
		}
		to, err := c.take(int(v[1]))
		n.h.Linkname = string(to)
		return err
	}
	return err
}

// walk calls do for a directory and everything below it.
func (s *reader) walk(dir *inode, name string, depth int) error {
	if depth > maxNesting || len(name) > maxPath {
		return fmt.Errorf("%.200q: directories are nested too deeply", name)
	}
	dir.h.Name, dir.h.Typeflag = name, tar.TypeDir
	if err := s.emit(dir, nil); err != nil {
		return err
	}
	if dir.size < 3 {
		return fmt.Errorf("%.200q: invalid directory size of %d bytes", name, dir.size)
	}
	left := int64(dir.size) - 3 // "." and ".." count as three bytes
	c := s.metaAt(s.super.DirTable, dir.start)
	for left > 0 {
		head, err := c.numbers(4, 4, 4)
		if err != nil {
			return fmt.Errorf("%.200q: %w", name, err)
		}
		if head[0] > 255 {
			return fmt.Errorf("%.200q: invalid run of %d names", name, head[0]+1)
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
				return fmt.Errorf("%.200q: the directory is longer than its size", name)
			}
			if err := s.child(name, string(b), head[1]<<16|v[0], depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// child calls do for one name of a directory.
func (s *reader) child(dir, base string, ref uint64, depth int) error {
	name := path.Join(dir, base)
	if base == "." || base == ".." || strings.ContainsAny(base, "/\x00") {
		return fmt.Errorf("%.200q: not a valid file name: %.200q", dir, base)
	}
	n, err := s.inode(ref)
	if err != nil {
		return fmt.Errorf("%.200q: %w", name, err)
	}
	if n.kind == kindDir {
		if s.dirs[ref] {
			return fmt.Errorf("%.200q: the directory appears twice", name)
		}
		s.dirs[ref] = true
		return s.walk(n, name, depth+1)
	}
	n.h.Name = name
	var r io.Reader
	switch n.kind {
	case kindFile:
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
			return fmt.Errorf("%.200q: the files have more than %d bytes, too many for the compressed size", name, limit)
		}
		s.bytes += int64(n.size)
		r = &content{s: s, n: n, left: int64(n.size), at: n.start}
	case kindSymlink:
		n.h.Typeflag = tar.TypeSymlink
	case kindBlockDev:
		n.h.Typeflag = tar.TypeBlock
	case kindCharDev:
		n.h.Typeflag = tar.TypeChar
	case kindFIFO:
		n.h.Typeflag = tar.TypeFifo
	default:
		return nil // sockets do not outlive their program
	}
	return s.emit(n, r)
}

// emit reads the attributes of a file and calls do. It checks the number of names.
func (s *reader) emit(n *inode, r io.Reader) error {
	if s.count++; s.count > maxEntries || s.count > int(s.super.Inodes)+len(s.links)+maxLinked {
		return fmt.Errorf("it has more file names than its %d inodes allow", s.super.Inodes)
	}
	if s.count%256 == 0 && s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	if n.attr != none && n.h.Typeflag != tar.TypeLink {
		if err := s.attributes(n); err != nil {
			return fmt.Errorf("%.200q: reading its attributes: %w", n.h.Name, err)
		}
	}
	if err := s.do(&n.h, r); err != nil {
		return fmt.Errorf("%.200q: %w", n.h.Name, err)
	}
	return nil
}

// maxLinked is the maximum number of names, of hard links, beyond the number of inodes.
const maxLinked = 1_000_000

// maxAttrs bounds the number of a file's attributes.
const maxAttrs = 256

// attributes reads a file's extended attributes into its header.
func (s *reader) attributes(n *inode) error {
	if s.super.AttrTable == noTable {
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
		return fmt.Errorf("the file has %d attributes; hpcc supports %d", count, maxAttrs)
	}
	for range count {
		k, v, err := s.attribute(c, pairs)
		if err != nil {
			return err
		}
		if k == "" {
			continue
		}
		if n.h.PAXRecords == nil {
			n.h.PAXRecords = map[string]string{}
		}
		n.h.PAXRecords[xattrRecord+k] = v
	}
	return nil
}

// outOfLine marks an attribute whose value is a reference to another value.
const outOfLine = 0x100

// attribute reads one attribute. name is "" if its prefix is unknown.
func (s *reader) attribute(c *cursor, pairs uint64) (name, value string, err error) {
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
	if size[0] > maxValue {
		return "", "", fmt.Errorf("invalid value of %d bytes", size[0])
	}
	val, err := c.take(int(size[0]))
	if err == nil && v[0]&outOfLine != 0 {
		if len(val) != 8 {
			return "", "", errors.New("invalid reference to a value")
		}
		target := s.metaAt(pairs, binary.LittleEndian.Uint64(val))
		if size, err = target.numbers(4); err != nil {
			return "", "", err
		}
		if size[0] > maxValue {
			return "", "", fmt.Errorf("invalid value of %d bytes", size[0])
		}
		val, err = target.take(int(size[0]))
	}
	if space := v[0] &^ outOfLine; err == nil && space < uint64(len(attrSpaces)) && !bytes.ContainsAny(b, "\x00=") {
		name = attrSpaces[space] + string(b)
	}
	return name, string(val), err
}

// content reads the bytes of a file.
type content struct {
	s    *reader
	n    *inode
	at   uint64
	left int64  // bytes that were not read from the file system yet
	buf  []byte // unread bytes of a block
}

func (r *content) Read(p []byte) (int, error) {
	if len(r.buf) == 0 {
		if r.left == 0 {
			return 0, io.EOF
		}
		if err := r.s.ctx.Err(); err != nil {
			return 0, err
		}
		var err error
		if r.buf, err = r.next(int(min(r.left, int64(r.s.super.BlockSize)))); err != nil {
			// The end of the compressed data is not the end of the file.
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

// next returns the next block, of n bytes.
func (r *content) next(n int) ([]byte, error) {
	s := r.s
	if n < int(s.super.BlockSize) && r.n.fragment != none {
		b, err := s.fragmentBlock(r.n.fragment)
		if err != nil {
			return nil, err
		}
		if int64(r.n.offset)+int64(n) > int64(len(b)) {
			return nil, errors.New("the fragment is too short")
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
	r.at += v[0] &^ plain
	return b, nil
}

// dataBlock reads a block. size is its size on disk, with the flag plain.
func (s *reader) dataBlock(at uint64, size uint32) ([]byte, error) {
	n := size &^ plain
	if n > s.super.BlockSize {
		return nil, fmt.Errorf("invalid block of %d bytes", n)
	}
	b, err := s.read(at, int(n))
	if err != nil || size&plain != 0 {
		return b, err
	}
	return s.dec.block(b, int(s.super.BlockSize))
}

// fragmentBlock reads a block that holds the last parts of files.
func (s *reader) fragmentBlock(i uint32) ([]byte, error) {
	if i >= s.super.Fragments {
		return nil, errors.New("the fragment is not in the table")
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
