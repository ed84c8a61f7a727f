// Package squashfs reads and writes SquashFS 4.0 file systems in Linux's format
// (Documentation/filesystems/squashfs.rst, fs/squashfs/squashfs_fs.h). Files are represented
// as entries of a tar archive. A file system is
//
//	super block · blocks of files · inodes · directories · fragments · ids · attributes
//
// where all parts except the first two are sequences of metadata blocks: a 16-bit header,
// then at most 8 KiB, compressed or, according to a bit of the header, uncompressed. A
// reference to metadata is the position of its block in the table, shifted by 16, plus the
// offset in the decompressed block. All numbers are little-endian.
//
// The same files give the same bytes, compressed with zstd. Input is untrusted: every number
// is checked against the length of the file. lzma, lzo, lz4 and the filters of xz are not
// supported.
package squashfs

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz/lzma"
)

const (
	magic     = 0x73717368
	metaSize  = 8192
	metaPlain = 1 << 15 // in the header of a metadata block: not compressed
	plain     = 1 << 24 // in the size of a block: not compressed
	none      = 0xffffffff
	noTable   = 0xffffffffffffffff
	blockSize = 128 << 10 // size that hpcc writes, the default of mksquashfs
	maxBlock  = 1 << 20
)

// Supported compressions.
const (
	compGzip = 1
	compXZ   = 4
	compZstd = 6
)

// Inode types. Adding kindLong gives the variants with wider numbers and attributes.
const (
	kindDir, kindFile, kindSymlink, kindBlockDev, kindCharDev, kindFIFO, kindSocket, kindLong = 1, 2, 3, 4, 5, 6, 7, 7
)

// superBlock is the super block as it is on disk.
type superBlock struct {
	Magic, Inodes, Time, BlockSize, Fragments uint32
	Compression, BlockLog, Flags, IDs         uint16
	Major, Minor                              uint16
	Root, Bytes                               uint64
	IDTable, AttrTable, InodeTable            uint64
	DirTable, FragmentTable, ExportTable      uint64
}

// superSize is the length of the super block in bytes.
const superSize = 96

// flags are the flags of files that hpcc writes: no fragments for files longer than a block,
// duplicate short files stored once.
const flags = 0x0040

// fragment is an entry of the fragment table.
type fragment struct {
	Start        uint64
	Size, Unused uint32
}

// A decompressor decompresses blocks of one compression.
type decompressor struct {
	xz   bool
	zstd *zstd.Decoder
	zlib io.ReadCloser
}

func newDecompressor(kind uint16) (*decompressor, error) {
	switch kind {
	case compGzip:
		return &decompressor{}, nil
	case compXZ:
		return &decompressor{xz: true}, nil
	case compZstd:
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlock), zstd.WithDecoderMaxWindow(8<<20))
		return &decompressor{zstd: d}, err
	}
	name, ok := map[uint16]string{2: "lzma", 3: "lzo", 5: "lz4"}[kind]
	if !ok {
		name = fmt.Sprintf("compression %d", kind)
	}
	return nil, fmt.Errorf("it is compressed with %s, which hpcc does not support; recreate it with mksquashfs -comp zstd or -comp gzip", name)
}

// block decompresses one block of at most max bytes.
func (u *decompressor) block(in []byte, max int) ([]byte, error) {
	if u.zstd != nil {
		out, err := u.zstd.DecodeAll(in, make([]byte, 0, max))
		if err == nil && len(out) > max {
			err = errTooLong
		}
		return out, err
	}
	if u.xz {
		r, err := xzBlock(in)
		if err != nil {
			return nil, err
		}
		return readBlock(r, max)
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
	return readBlock(u.zlib, max)
}

// readBlock reads a decompressed block of at most max bytes.
func readBlock(r io.Reader, max int) ([]byte, error) {
	out := make([]byte, max+1)
	n, err := io.ReadFull(r, out)
	switch {
	case err == nil:
		return nil, errTooLong
	case errors.Is(err, io.ErrUnexpectedEOF) && n > 0:
		// The stream may be truncated. The caller checks the length.
		return out[:n], nil
	}
	return nil, err
}

var errXZ = errors.New("not a stream of xz with one block")

// xzBlock returns a reader of the block of an xz stream (the .xz file format, 1.0.4). It
// reads the block's header itself, because the xz package allocates a dictionary of the size
// that the stream asks for, up to 4 GiB. The stream's checksum is not verified, as with the
// other compressions.
func xzBlock(in []byte) (io.Reader, error) {
	const streamHeader = 12
	if len(in) < streamHeader+2 || string(in[:6]) != "\xfd7zXZ\x00" || in[streamHeader] == 0 {
		return nil, errXZ
	}
	end := streamHeader + 4*(int(in[streamHeader])+1)
	if len(in) < end {
		return nil, errXZ
	}
	flags, header := in[streamHeader+1], in[streamHeader+2:end]
	if flags&3 != 0 {
		return nil, errors.New("it uses filters of xz, which hpcc does not support; recreate it with mksquashfs -comp zstd or -comp gzip")
	}
	for _, size := range []byte{0x40, 0x80} { // the compressed and uncompressed sizes
		if flags&size == 0 {
			continue
		}
		_, n := binary.Uvarint(header)
		if n <= 0 {
			return nil, errXZ
		}
		header = header[n:]
	}
	if len(header) < 2 || header[0] != 0x21 || header[1] != 1 {
		return nil, errXZ
	}
	return lzma.Reader2Config{DictCap: maxBlock}.NewReader2(bytes.NewReader(in[end:]))
}

var errTooLong = errors.New("a block decompresses to more than its size")

// pack appends numbers in their on-disk format.
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
			panic(fmt.Sprintf("packing a %T", n))
		}
	}
	return b
}

// close closes the decompressor.
func (u *decompressor) close() {
	if u.zstd != nil {
		u.zstd.Close()
	}
}
