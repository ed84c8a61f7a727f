package gzip

import (
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/flate"
)

// level is the level of klauspost's encoder. docs/libraries.md compares the levels.
const level = 1

// format fixes the size of a block, on which the output depends. No block refers back to the
// preceding one, which would make a layer 0.1 % smaller.
var format = BlockFormat{Size: 1 << 20}

// A Writer compresses to one gzip member (RFC 1952, 2.3) on all cores. The same input always
// gives the same file.
type Writer struct {
	blocks    *BlockWriter
	to        io.Writer
	crc, size uint32
}

// NewWriter returns a Writer after writing the header to w.
func NewWriter(w io.Writer) (*Writer, error) {
	// No time, name or system, so that equal layers are equal files.
	_, err := w.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255})
	return &Writer{blocks: format.NewWriter(w, pack), to: w}, err
}

// pack compresses one block. It ends at a byte boundary with an empty stored block.
func pack(b *Block) {
	z, ok := b.State.(*flate.Writer)
	if !ok {
		z, _ = flate.NewWriter(nil, level) // fails only for an invalid level
		b.State = z
	}
	out := appender(b.Out[:0])
	z.Reset(&out)
	_, _ = z.Write(b.In) // an appender never fails
	_ = z.Flush()
	b.Out = out
}

// An appender appends written data to itself.
type appender []byte

func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}

// Write compresses p.
func (z *Writer) Write(p []byte) (int, error) {
	z.crc = crc32.Update(z.crc, crc32.IEEETable, p)
	z.size += uint32(len(p))
	return z.blocks.Write(p)
}

// Close writes the remaining data and the trailer. It does not close the underlying writer.
func (z *Writer) Close() error {
	if err := z.blocks.Close(); err != nil {
		return err
	}
	end := []byte{1, 0, 0, 0xff, 0xff} // the last block, which is stored and empty (RFC 1951, 3.2.4)
	end = binary.LittleEndian.AppendUint32(end, z.crc)
	_, err := z.to.Write(binary.LittleEndian.AppendUint32(end, z.size))
	return err
}
