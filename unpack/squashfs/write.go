package squashfs

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	goruntime "runtime"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// node is a file to be written.
type node struct {
	h        *tar.Header
	inode    uint32
	links    uint32 // number of names; for a directory, number of subdirectories
	children map[string]*node
	start    uint64
	sizes    []uint32
	sparse   uint64
	fragment uint32
	offset   uint32 // in the fragment
	ref      uint64 // reference of the inode, once written
	written  bool
}

// A Writer writes one file system. Files are added in the order of an archive. The caller
// must call Close.
type Writer struct {
	f      io.WriteSeeker
	at     uint64 // position of f
	err    error  // error of writing blocks
	root   *node
	nodes  map[string]*node
	count  uint32 // inodes
	newest time.Time

	enc     *zstd.Encoder
	pending chan *job // blocks in file order
	ended   chan bool

	tail      []byte                         // the fragment block being filled
	short     map[[sha256.Size]byte]position // short files by content
	fragments []*fragment

	ids   []uint32
	idOf  map[uint32]uint16
	attrs attrTable
}

// position is the location of a short file.
type position struct{ fragment, offset uint32 }

// job is a block to be compressed and written.
type job struct {
	raw, out []byte
	packed   chan bool
	wrote    func(at uint64, size uint32)
}

// NewWriter returns a Writer to f, which must be empty. root is the root directory. The same
// files give the same bytes: names are sorted, and blocks are compressed individually.
func NewWriter(f io.WriteSeeker, root *tar.Header) (*Writer, error) {
	// One goroutine compresses a block, and the window need not exceed a block.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithWindowSize(blockSize),
		zstd.WithEncoderCRC(false), zstd.WithEncoderConcurrency(goruntime.GOMAXPROCS(0)))
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(superSize, io.SeekStart); err != nil {
		return nil, err
	}
	w := &Writer{f: f, at: superSize, nodes: map[string]*node{}, count: 1, enc: enc, pending: make(chan *job, 4*goruntime.GOMAXPROCS(0)),
		ended: make(chan bool), short: map[[sha256.Size]byte]position{}, idOf: map[uint32]uint16{}}
	w.root = &node{h: root, inode: 1}
	w.nodes["."] = w.root
	go w.writeBlocks()
	return w, nil
}

// Close writes the tables after the content of the files. It does not close f.
func (w *Writer) Close() error {
	if err := w.endData(); err != nil {
		return err
	}
	return w.tables()
}

// Add adds a file. Its directory must be added first, and a hard link's target before the link.
// Add keeps h. A file other than a directory with a zero ModTime gets the newest time of the
// others; later times are reduced to it.
func (w *Writer) Add(h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	parent := w.nodes[path.Dir(name)]
	if parent == nil {
		return errors.New("its directory is missing or comes later")
	}
	if parent.children == nil {
		parent.children = map[string]*node{}
	}
	if h.Typeflag == tar.TypeLink {
		n := w.nodes[path.Clean(h.Linkname)]
		if n == nil {
			return fmt.Errorf("hard link target %q is missing or comes later", h.Linkname)
		}
		n.links++
		w.nodes[name], parent.children[path.Base(name)] = n, n
		return nil
	}
	w.count++
	n := &node{h: h, inode: w.count, fragment: none, links: 1}
	w.nodes[name], parent.children[path.Base(name)] = n, n
	switch {
	case h.Typeflag == tar.TypeDir:
		n.links = 0
		parent.links++
	case h.ModTime.IsZero():
		h.ModTime = time.Unix(math.MaxUint32, 0) // stamp reduces it to the newest
	case h.ModTime.After(w.newest):
		w.newest = h.ModTime
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	return w.content(n, content)
}

// content compresses a file's bytes: a short file into a fragment, others into blocks.
func (w *Writer) content(n *node, r io.Reader) error {
	size := n.h.Size
	if size > 0 && size < blockSize {
		b := make([]byte, size)
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		w.putShort(n, b)
		return nil
	}
	n.sizes = make([]uint32, (size+blockSize-1)/blockSize)
	for i := range n.sizes {
		b := make([]byte, min(blockSize, size-int64(i)*blockSize))
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		if isZero(b) { // a block of size 0 is a hole
			n.sparse += uint64(len(b))
			continue
		}
		w.submit(b, func(at uint64, size uint32) {
			if n.start == 0 {
				n.start = at
			}
			n.sizes[i] = size
		})
	}
	return nil
}

// putShort adds a short file to the current fragment, unless an earlier file has the same
// content.
func (w *Writer) putShort(n *node, b []byte) {
	sum := sha256.Sum256(b)
	t, have := w.short[sum]
	if !have {
		if len(w.tail)+len(b) > blockSize {
			w.endFragment()
		}
		t = position{uint32(len(w.fragments)), uint32(len(w.tail))}
		w.tail = append(w.tail, b...)
		w.short[sum] = t
	}
	n.fragment, n.offset = t.fragment, t.offset
}

// endFragment submits the current fragment.
func (w *Writer) endFragment() {
	if len(w.tail) == 0 {
		return
	}
	f := &fragment{}
	w.fragments = append(w.fragments, f)
	w.submit(w.tail, func(at uint64, size uint32) { f.Start, f.Size = at, size })
	w.tail = nil
}

// submit compresses a block in the background. Blocks are written in order.
func (w *Writer) submit(raw []byte, wrote func(uint64, uint32)) {
	j := &job{raw: raw, packed: make(chan bool), wrote: wrote}
	w.pending <- j // limits the number of unfinished blocks
	go func() {
		j.out = w.enc.EncodeAll(raw, make([]byte, 0, len(raw)))
		close(j.packed)
	}()
}

// writeBlocks writes the blocks in order.
func (w *Writer) writeBlocks() {
	defer close(w.ended)
	for j := range w.pending {
		<-j.packed
		out, size := j.out, uint32(len(j.out))
		if len(out) >= len(j.raw) {
			out, size = j.raw, uint32(len(j.raw))|plain
		}
		if w.err != nil {
			continue
		}
		j.wrote(w.at, size)
		_, w.err = w.f.Write(out)
		w.at += uint64(len(out))
	}
}

// endData waits until all blocks are written.
func (w *Writer) endData() error {
	w.endFragment()
	close(w.pending)
	<-w.ended
	return w.err
}

// tables writes the parts after the blocks, and the super block.
func (w *Writer) tables() error {
	inodes, dirs := &metaWriter{enc: w.enc}, &metaWriter{enc: w.enc}
	root, err := w.dir(w.root, w.count+1, inodes, dirs)
	if err != nil {
		return err
	}
	s := superBlock{Magic: magic, Inodes: w.count, Time: w.stamp(w.newest), BlockSize: blockSize, Fragments: uint32(len(w.fragments)),
		Compression: compZstd, BlockLog: 17, Flags: flags, Major: 4, Root: root, ExportTable: noTable, AttrTable: noTable}
	s.InodeTable = w.at
	w.write(inodes.end())
	s.DirTable = w.at
	w.write(dirs.end())
	var fragments, ids []byte
	for _, f := range w.fragments {
		fragments = pack(fragments, f.Start, f.Size, f.Unused)
	}
	s.FragmentTable = w.list(fragments, nil)
	for _, id := range w.ids {
		ids = pack(ids, id)
	}
	s.IDTable, s.IDs = w.list(ids, nil), uint16(len(w.ids))
	if len(w.attrs.sets) > 0 {
		at := w.at
		pairs := &metaWriter{enc: w.enc}
		var sets []byte
		for _, set := range w.attrs.sets {
			sets = pack(sets, pairs.put(set.data), set.count, uint32(len(set.data)))
		}
		w.write(pairs.end())
		s.AttrTable = w.list(sets, pack(nil, at, uint32(len(w.attrs.sets)), uint32(0)))
	}
	s.Bytes = w.at
	w.write(make([]byte, -w.at%4096)) // loop devices need whole pages
	if w.err != nil {
		return w.err
	}
	if _, err := w.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return binary.Write(w.f, binary.LittleEndian, &s)
}

func (w *Writer) write(b []byte) {
	if w.err == nil {
		_, w.err = w.f.Write(b)
	}
	w.at += uint64(len(b))
}

// list writes a table in metadata blocks, then head and the positions of the blocks. It
// returns the position of head.
func (w *Writer) list(data, head []byte) uint64 {
	m := &metaWriter{enc: w.enc}
	positions := head
	begin := w.at
	for ; len(data) > 0; data = data[min(len(data), metaSize):] {
		positions = pack(positions, begin+uint64(len(m.out)))
		m.put(data[:min(len(data), metaSize)])
	}
	w.write(m.end())
	at := w.at
	w.write(positions)
	return at
}

// dir writes a directory's contents, then the directory, and returns its reference.
func (w *Writer) dir(n *node, parent uint32, inodes, dirs *metaWriter) (uint64, error) {
	names := make([]string, 0, len(n.children))
	for k := range n.children {
		names = append(names, k)
	}
	sort.Strings(names)
	for _, k := range names {
		child := n.children[k]
		var err error
		switch {
		case child.written:
		case child.h.Typeflag == tar.TypeDir:
			child.ref, err = w.dir(child, n.inode, inodes, dirs)
		default:
			child.ref, err = w.file(child, inodes)
		}
		if err != nil {
			return 0, fmt.Errorf("%.200q: %w", child.h.Name, err)
		}
		child.written = true
	}
	listing := n.listing(names)
	at := dirs.put(listing)
	head, attr, err := w.head(n, kindDir, len(listing)+3 > math.MaxUint16)
	if err != nil {
		return 0, err
	}
	size, links := len(listing)+3, n.links+2 // "." and ".." count as three bytes
	if head.long {
		return inodes.put(pack(head.b, links, uint32(size), uint32(at>>16), parent, uint16(0), uint16(at), attr)), nil
	}
	return inodes.put(pack(head.b, uint32(at>>16), links, uint16(size), uint16(at), parent)), nil
}

// listing returns a directory's table: runs of entries whose inodes are in the same metadata
// block and have close numbers.
func (n *node) listing(names []string) []byte {
	var out []byte
	for len(names) > 0 {
		first := n.children[names[0]]
		var run []byte
		count := 0
		for _, k := range names {
			child := n.children[k]
			near := int64(child.inode) - int64(first.inode)
			if child.ref>>16 != first.ref>>16 || count == 256 || near != int64(int16(near)) {
				break
			}
			run = pack(run, uint16(child.ref), int16(near), child.kind(), uint16(len(k)-1), k)
			count++
		}
		out = append(pack(out, uint32(count-1), uint32(first.ref>>16), first.inode), run...)
		names = names[count:]
	}
	return out
}

// kind returns the inode's type, without kindLong.
func (n *node) kind() uint16 {
	switch n.h.Typeflag {
	case tar.TypeDir:
		return kindDir
	case tar.TypeSymlink:
		return kindSymlink
	case tar.TypeFifo:
		return kindFIFO
	}
	return kindFile
}

// file writes the inode of a file that is not a directory.
func (w *Writer) file(n *node, inodes *metaWriter) (uint64, error) {
	kind := n.kind()
	long := kind == kindFile && (n.links > 1 || n.sparse > 0 || n.start > math.MaxUint32 || n.h.Size > math.MaxUint32)
	head, attr, err := w.head(n, kind, long)
	if err != nil {
		return 0, err
	}
	b := head.b
	switch {
	case kind == kindSymlink:
		b = pack(b, n.links, uint32(len(n.h.Linkname)), n.h.Linkname)
		if head.long {
			b = pack(b, attr)
		}
	case kind == kindFIFO:
		b = pack(b, n.links)
		if head.long {
			b = pack(b, attr)
		}
	case head.long:
		b = pack(b, n.start, uint64(n.h.Size), n.sparse, n.links, n.fragment, n.offset, attr)
	default:
		b = pack(b, uint32(n.start), n.fragment, n.offset, uint32(n.h.Size))
	}
	for _, s := range n.sizes {
		b = pack(b, s)
	}
	return inodes.put(b), nil
}

type inodeHead struct {
	b    []byte
	long bool
}

// head returns the fields with which every inode starts, and the number of its attribute set.
// It uses the long variant if long is set or the file has attributes.
func (w *Writer) head(n *node, kind uint16, long bool) (inodeHead, uint32, error) {
	attr := w.attrs.add(n.h)
	if attr != none {
		long = true
	}
	uid, err := w.id(n.h.Uid)
	if err != nil {
		return inodeHead{}, 0, err
	}
	gid, err := w.id(n.h.Gid)
	if err != nil {
		return inodeHead{}, 0, err
	}
	if long {
		kind += kindLong
	}
	return inodeHead{pack(nil, kind, uint16(n.h.Mode&0o7777), uid, gid, w.stamp(n.h.ModTime), n.inode), long}, attr, nil
}

// stamp returns a time in seconds, at most that of the newest file.
func (w *Writer) stamp(t time.Time) uint32 {
	if t.After(w.newest) {
		t = w.newest
	}
	return uint32(min(max(t.Unix(), 0), math.MaxUint32))
}

// id returns the index of a user or group.
func (w *Writer) id(id int) (uint16, error) {
	if i, ok := w.idOf[uint32(id)]; ok {
		return i, nil
	}
	if len(w.ids) == math.MaxUint16 {
		return 0, errors.New("the image has more than 65,535 users and groups, the maximum of SquashFS")
	}
	w.ids = append(w.ids, uint32(id))
	w.idOf[uint32(id)] = uint16(len(w.ids) - 1)
	return uint16(len(w.ids) - 1), nil
}

// A metaWriter collects metadata blocks.
type metaWriter struct {
	enc *zstd.Encoder
	out []byte // complete blocks
	buf []byte // the current block, uncompressed
}

// put appends data and returns its reference.
func (m *metaWriter) put(data []byte) uint64 {
	ref := uint64(len(m.out))<<16 | uint64(len(m.buf))
	m.buf = append(m.buf, data...)
	for len(m.buf) >= metaSize {
		m.block(m.buf[:metaSize])
		m.buf = m.buf[metaSize:]
	}
	return ref
}

func (m *metaWriter) block(raw []byte) {
	out, head := m.enc.EncodeAll(raw, nil), uint16(0)
	if len(out) >= len(raw) {
		out, head = raw, metaPlain
	}
	m.out = append(pack(m.out, head|uint16(len(out))), out...)
}

// end returns all blocks.
func (m *metaWriter) end() []byte {
	if len(m.buf) > 0 {
		m.block(m.buf)
		m.buf = nil
	}
	return m.out
}

// attrTable holds sets of extended attributes without duplicates.
type attrTable struct {
	sets []attrSet
	seen map[string]uint32
}

type attrSet struct {
	data  []byte
	count uint32
}

// attrSpaces lists the prefixes of attribute names by their number on disk.
var attrSpaces = [...]string{"user.", "trusted.", "security."}

// add returns the number of a file's attribute set, or none.
func (a *attrTable) add(h *tar.Header) uint32 {
	var names []string
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, xattrRecord) {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	var set attrSet
	for _, k := range names {
		for i, space := range attrSpaces {
			if name, ok := strings.CutPrefix(k, xattrRecord+space); ok {
				v := h.PAXRecords[k]
				set.data = pack(set.data, uint16(i), uint16(len(name)), name, uint32(len(v)), v)
				set.count++
			}
		}
	}
	if set.count == 0 {
		return none
	}
	if i, ok := a.seen[string(set.data)]; ok {
		return i
	}
	if a.seen == nil {
		a.seen = map[string]uint32{}
	}
	a.seen[string(set.data)] = uint32(len(a.sets))
	a.sets = append(a.sets, set)
	return uint32(len(a.sets) - 1)
}

// isZero reports whether b, which is not empty, is all zeros.
func isZero(b []byte) bool { return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }
