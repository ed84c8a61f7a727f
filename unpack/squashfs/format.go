// Package squashfs reads and writes SquashFS 4.0 file systems as Linux has them
// (Documentation/filesystems/squashfs.rst, fs/squashfs/squashfs_fs.h). Files go in and
// come out as entries of a tar archive. A file system is
//
//	super block · blocks of files · inodes · directories · fragments · ids · attributes
//
// where all but the first two are sequences of metadata blocks: a 16-bit head, then at
// most 8 KiB that are compressed or, by a bit of the head, plain. A reference to
// metadata is the position of its block in the table, shifted by 16, and the offset in
// the decompressed block. All numbers are little-endian.
//
// The same files give the same bytes, compressed with zstd. What is read is not trusted:
// every number is bounded by the length of the file. Files that are compressed with
// lzma, lzo, xz or lz4 cannot be read.
package squashfs

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

const (
	magic     = 0x73717368
	metaSize  = 8192
	metaPlain = 1 << 15 // in the head of a metadata block: it is not packed
	plain     = 1 << 24 // in the size of a block: it is not packed
	none      = 0xffffffff
	noTable   = 0xffffffffffffffff
	blockSize = 128 << 10 // what we write, mksquashfs's own
	maxBlock  = 1 << 20
)

// Kinds of compression. Of lzo, lz4 and xz there is nothing.
const (
	compGzip = 1
	compZstd = 6
)

// Kinds of inodes; those with kindLong added hold wider numbers and attributes.
const (
	kindDir, kindFile, kindSymlink, kindBlockDev, kindCharDev, kindFIFO, kindSocket, kindLong = 1, 2, 3, 4, 5, 6, 7, 7
)

// superBlock is the super block.
type superBlock struct {
	Magic, Inodes, Time, BlockSize, Fragments uint32
	Compression, BlockLog, Flags, IDs         uint16
	Major, Minor                              uint16
	Root, Bytes                               uint64
	IDTable, AttrTable, InodeTable            uint64
	DirTable, FragmentTable, ExportTable      uint64
}

// superSize is its length in bytes.
const superSize = 96

// flags says what we write: no fragment of files longer than a block,
// identical short files once.
const flags = 0x0040

// fragment is an entry of the fragment table.
type fragment struct {
	Start        uint64
	Size, Unused uint32
}

// An decompressor unpacks blocks of one kind.
type decompressor struct {
	zstd *zstd.Decoder
	zlib io.ReadCloser
}

func newDecompressor(kind uint16) (*decompressor, error) {
	switch kind {
	case compGzip:
		return &decompressor{}, nil
	case compZstd:
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlock), zstd.WithDecoderMaxWindow(8<<20))
		return &decompressor{zstd: d}, err
	}
	name, ok := map[uint16]string{2: "lzma", 3: "lzo", 4: "xz", 5: "lz4"}[kind]
	if !ok {
		name = fmt.Sprintf("compression %d", kind)
	}
	return nil, fmt.Errorf("it is packed with %s, of which hpcc knows nothing; make it again with mksquashfs -comp zstd or -comp gzip", name)
}

// block unpacks one block, of at most max bytes.
func (u *decompressor) block(in []byte, max int) ([]byte, error) {
	if u.zstd != nil {
		out, err := u.zstd.DecodeAll(in, make([]byte, 0, max))
		if err == nil && len(out) > max {
			err = errTooLong
		}
		return out, err
	}
	var err error
	if u.zlib == nil {
		u.zlib, err = zlib.NewReader(bytes.NewReader(in))
	} else {
		err = u.zlib.(zlib.Resetter).Reset(bytes.NewReader(in), nil)
	}
	if err != nil {
		return nil, err
	}
	out := make([]byte, max+1)
	n, err := io.ReadFull(u.zlib, out)
	switch {
	case err == nil:
		return nil, errTooLong
	case errors.Is(err, io.ErrUnexpectedEOF) && n > 0:
		// Also the end of a truncated stream; a block that is too short is noticed by its user.
		return out[:n], nil
	}
	return nil, err
}

var errTooLong = errors.New("a block unpacks to more than its size")

// pack appends numbers as they stand on disk.
func pack(b []byte, numbers ...any) []byte {
	for _, n := range numbers {
		switch n := n.(type) {
		case uint16:
			b = binary.LittleEndian.AppendUint16(b, n)
		case int16:
			b = binary.LittleEndian.AppendUint16(b, uint16(n))
		case uint32:
			b = binary.LittleEndian.AppendUint32(b, n)
		case uint64:
			b = binary.LittleEndian.AppendUint64(b, n)
		case string:
			b = append(b, n...)
		default:
			panic(fmt.Sprintf("sqPack of %T", n))
		}
	}
	return b
}

// close ends the unpacker.
func (u *decompressor) close() {
	if u.zstd != nil {
		u.zstd.Close()
	}
}
