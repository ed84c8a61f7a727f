// Package gzip reads gzip files (RFC 1952) faster than other Go libraries, and writes them on
// all cores. Decompression dominates the time to unpack an image.
//
//	file → Reader: members → inflater: 56 bits at a time, one lookup for each symbol
//	layer → Writer: blocks of 1 MiB on all cores → klauspost's deflater → one member
//
// A Reader accepts exactly what compress/gzip accepts; fuzz targets compare the two. A
// Writer writes the same bytes on every machine. docs/libraries.md has the measurements.
package gzip

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// outBuffer is the size of the buffer from which small reads are served, in bytes.
const outBuffer = 256 << 10

var (
	errHeader   = errors.New("invalid gzip header")
	errChecksum = errors.New("gzip checksum or length mismatch")
)

// A Reader decompresses a gzip file with any number of members. Reads of at least 256 KiB
// are decoded in place, without a copy.
type Reader struct {
	f    inflater
	crc  uint32 // of the member so far
	size uint32 // of the member, modulo 2^32
	err  error
	buf  []byte
	rest []byte // unread bytes of buf
}

// NewReader returns a Reader of r. It reads the first header.
func NewReader(r io.Reader) (*Reader, error) {
	z := &Reader{}
	z.f.src = r
	if err := z.header(); err != nil {
		return nil, err
	}
	return z, nil
}

// Read may use all of p as scratch space, as [io.Reader] allows.
func (z *Reader) Read(p []byte) (int, error) {
	if len(p) >= outBuffer && len(z.rest) == 0 {
		return z.decode(p)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if len(z.rest) == 0 {
		if z.buf == nil {
			z.buf = make([]byte, outBuffer)
		}
		n, err := z.decode(z.buf)
		if z.rest = z.buf[:n]; n == 0 {
			return 0, err
		}
	}
	n := copy(p, z.rest)
	z.rest = z.rest[n:]
	return n, nil
}

// decode fills as much of p as possible. On an error, p holds no data.
func (z *Reader) decode(p []byte) (int, error) {
	for z.err == nil {
		n, err := z.f.inflate(p)
		z.f.remember(p[:n])
		z.crc = crc32.Update(z.crc, crc32.IEEETable, p[:n])
		z.size += uint32(n)
		if errors.Is(err, io.EOF) {
			if err = z.trailer(); err == nil {
				err = z.header()
			}
		}
		z.err = err
		if n > 0 {
			return n, nil
		}
	}
	return 0, z.err
}

// trailer reads and verifies a member's trailer.
func (z *Reader) trailer() error {
	var b [8]byte
	if err := z.f.readFull(b[:]); err != nil {
		return noEOF(err)
	}
	if binary.LittleEndian.Uint32(b[:]) != z.crc || binary.LittleEndian.Uint32(b[4:]) != z.size {
		return errChecksum
	}
	return nil
}

// Flags of a member's header (RFC 1952, 2.3.1).
const (
	flagHeaderCRC = 1 << 1
	flagExtra     = 1 << 2
	flagName      = 1 << 3
	flagComment   = 1 << 4
)

// maxString limits the name and the comment in a header, including their NUL, in bytes. It
// is the limit of compress/gzip.
const maxString = 512

// header reads a member's header. It returns [io.EOF] if there are no further members.
func (z *Reader) header() error {
	var b [10]byte
	if err := z.f.readFull(b[:]); err != nil {
		return err
	}
	if b[0] != 0x1f || b[1] != 0x8b || b[2] != 8 {
		return errHeader
	}
	crc, err := z.options(b[3], crc32.ChecksumIEEE(b[:]))
	if err != nil {
		return noEOF(err)
	}
	if b[3]&flagHeaderCRC != 0 {
		if err := z.f.readFull(b[:2]); err != nil {
			return noEOF(err)
		}
		if binary.LittleEndian.Uint16(b[:]) != uint16(crc) {
			return errHeader
		}
	}
	z.crc, z.size = 0, 0
	z.f.restart()
	return nil
}

// options skips the optional fields of a header. It returns crc, updated with their bytes.
func (z *Reader) options(flags byte, crc uint32) (uint32, error) {
	if flags&flagExtra != 0 {
		var b [2]byte
		if err := z.f.readFull(b[:]); err != nil {
			return 0, err
		}
		crc = crc32.Update(crc, crc32.IEEETable, b[:])
		extra := make([]byte, binary.LittleEndian.Uint16(b[:]))
		if err := z.f.readFull(extra); err != nil {
			return 0, err
		}
		crc = crc32.Update(crc, crc32.IEEETable, extra)
	}
	for _, flag := range []byte{flagName, flagComment} {
		for n := 0; flags&flag != 0; n++ {
			if n == maxString {
				return 0, errHeader
			}
			var b [1]byte
			if err := z.f.readFull(b[:]); err != nil {
				return 0, err
			}
			if crc = crc32.Update(crc, crc32.IEEETable, b[:]); b[0] == 0 {
				break
			}
		}
	}
	return crc, nil
}
