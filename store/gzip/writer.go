package gzip

import (
	"encoding/binary"
	"hash/crc32"
	"io"
)

// format fixes the size of a block, on which the output depends.
var format = BlockFormat{Size: 1 << 20, Keep: windowSize}

// A Writer compresses to one gzip member (RFC 1952, 2.3) on all cores. Blocks may refer back
// to the preceding block. The same input always gives the same file.
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

// pack compresses one block.
func pack(b *Block) {
	d, ok := b.State.(*deflater)
	if !ok {
		d = &deflater{}
		b.State = d
	}
	b.Out = d.block(b.Out[:0], b.In, b.From)
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
	end := bitWriter{}
	end.stored(nil, true)
	end.buf = binary.LittleEndian.AppendUint32(end.buf, z.crc)
	_, err := z.to.Write(binary.LittleEndian.AppendUint32(end.buf, z.size))
	return err
}
