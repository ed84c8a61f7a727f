package gzip

import (
	"encoding/binary"
	"errors"
	"io"
	"unsafe"
)

// windowSize is the maximum distance of a match, in bytes (RFC 1951, 2).
const windowSize = 32 << 10

// inBuffer is the size of reads of the compressed stream, in bytes.
const inBuffer = 256 << 10

const (
	maxMatch = 258
	// outSlack is the output space of one round of the fast loop: three literals, the longest
	// match, and the overrun of its word-wise copy.
	outSlack = 3 + maxMatch + 32
	// inSlack is the maximum input of one round of the fast loop, in bytes.
	inSlack = 32
)

var errCorrupt = errors.New("the deflate stream is corrupt")

// part is the current part of a deflate stream.
type part uint8

const (
	atHeader part = iota // of a block
	inStored
	inCodes
	atEnd
)

// An inflater decodes deflate streams (RFC 1951) into the caller's buffers. It accepts what
// compress/flate accepts.
type inflater struct {
	src      io.Reader
	srcErr   error
	in       []byte
	pos, end int    // range of unread bytes of in
	bits     uint64 // bit buffer, next bit lowest; bits above count are the following ones or 0
	count    uint   // number of bits in the buffer

	part  part
	last  bool // the block is the stream's last
	left  int  // remaining bytes of a stored block
	fixed bool // the tables are those of fixed blocks
	lit   [litSize]entry
	dist  [distSize]entry

	history [windowSize]byte // the most recent output, aligned to the end
	known   int              // number of bytes in history that belong to this stream
}

// restart prepares for the next stream, which starts at the next byte of the source.
func (f *inflater) restart() {
	f.part, f.last, f.known = atHeader, false, 0
}

// fill reads more of the source after moving the unread bytes to the front.
func (f *inflater) fill() error {
	f.giveBack()
	if f.srcErr != nil {
		return f.srcErr
	}
	if f.in == nil {
		f.in = make([]byte, inBuffer)
	}
	f.end = copy(f.in, f.in[f.pos:f.end])
	f.pos = 0
	for tries := 0; tries < 100; tries++ {
		var n int
		n, f.srcErr = f.src.Read(f.in[f.end:])
		f.end += n
		if n > 0 {
			return nil
		}
		if f.srcErr != nil {
			return f.srcErr
		}
	}
	f.srcErr = io.ErrNoProgress
	return f.srcErr
}

// giveBack returns the full bytes in the bit buffer to the input.
func (f *inflater) giveBack() {
	f.pos -= int(f.count >> 3)
	f.count &= 7
	f.bits &= 1<<f.count - 1
}

// readFull fills p with the bytes that follow a stream. It returns [io.EOF] if the source has
// ended.
func (f *inflater) readFull(p []byte) error {
	f.giveBack()
	for n := 0; n < len(p); {
		if f.pos == f.end {
			if err := f.fill(); err != nil {
				if n > 0 {
					err = noEOF(err)
				}
				return err
			}
		}
		k := copy(p[n:], f.in[f.pos:f.end])
		n, f.pos = n+k, f.pos+k
	}
	return nil
}

// need reads until the bit buffer has n bits (at most 48).
func (f *inflater) need(n uint) error {
	for f.count < n {
		if f.pos == f.end {
			if err := f.fill(); err != nil {
				return noEOF(err)
			}
		}
		f.bits = f.bits&(1<<f.count-1) | uint64(f.in[f.pos])<<f.count
		f.pos++
		f.count += 8
	}
	return nil
}

// take consumes n bits, which need has provided.
func (f *inflater) take(n uint) int {
	v := f.bits & (1<<n - 1)
	f.bits >>= n
	f.count -= n
	return int(v)
}

// noEOF replaces [io.EOF] with [io.ErrUnexpectedEOF] where the stream must not end.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// inflate decompresses to out, which must be larger than outSlack, and returns the number of
// bytes. It does not use the end of out. It returns [io.EOF] at the end of the stream. The
// caller must call remember before the next call.
func (f *inflater) inflate(out []byte) (n int, err error) {
	for n < len(out)-outSlack {
		switch f.part {
		case atHeader:
			err = f.blockHeader()
		case inStored:
			n, err = f.stored(out, n)
		case inCodes:
			if f.end-f.pos <= inSlack && f.srcErr == nil {
				_ = f.fill() // an error is reported only after the buffered bytes are used
			}
			if n, err = f.fast(out, n); err == nil && f.part == inCodes && n < len(out)-outSlack {
				n, err = f.slow(out, n)
			}
		case atEnd:
			return n, io.EOF
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// remember keeps the end of inflate's output, to which later matches refer.
func (f *inflater) remember(out []byte) {
	if len(out) < windowSize {
		copy(f.history[:], f.history[len(out):])
	}
	out = out[max(0, len(out)-windowSize):]
	copy(f.history[windowSize-len(out):], out)
	f.known = min(f.known+len(out), windowSize)
}

// endBlock is called after the last bit of a block.
func (f *inflater) endBlock() {
	f.part = atHeader
	if f.last {
		f.giveBack()
		f.bits, f.count = 0, 0 // the rest of the byte
		f.part = atEnd
	}
}

func (f *inflater) blockHeader() error {
	if err := f.need(3); err != nil {
		return err
	}
	f.last = f.take(1) == 1
	switch f.take(2) {
	case 0:
		f.giveBack()
		f.bits, f.count = 0, 0
		if err := f.need(32); err != nil {
			return err
		}
		n, inverse := f.take(16), f.take(16)
		if n != inverse^0xffff {
			return errCorrupt
		}
		f.part, f.left = inStored, n
	case 1:
		f.fixedTables()
		f.part = inCodes
	case 2:
		if err := f.dynamicTables(); err != nil {
			return err
		}
		f.part = inCodes
	default:
		return errCorrupt
	}
	return nil
}

// fixedTables builds the tables of the fixed codes (RFC 1951, 3.2.6).
func (f *inflater) fixedTables() {
	if f.fixed {
		return
	}
	var lengths [maxLit + 2]uint8
	for i := range lengths {
		switch {
		case i < 144:
			lengths[i] = 8
		case i < 256:
			lengths[i] = 9
		case i < 280:
			lengths[i] = 7
		default:
			lengths[i] = 8
		}
	}
	buildTable(f.lit[:], litBits, lengths[:], litEntry)
	for i := range maxDist + 2 {
		lengths[i] = 5
	}
	buildTable(f.dist[:], distBits, lengths[:maxDist+2], distEntry)
	f.fixed = true
}

// preOrder is the order of the lengths of the code length code (RFC 1951, 3.2.7).
var preOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// dynamicTables reads the codes of a block and builds their tables.
func (f *inflater) dynamicTables() error {
	if err := f.need(14); err != nil {
		return err
	}
	nlit, ndist, npre := f.take(5)+257, f.take(5)+1, f.take(4)+4
	if nlit > maxLit || ndist > maxDist {
		return errCorrupt
	}
	var pre [len(preOrder)]uint8
	for _, i := range preOrder[:npre] {
		if err := f.need(3); err != nil {
			return err
		}
		pre[i] = uint8(f.take(3))
	}
	var table [preSize]entry
	if !buildTable(table[:], preBits, pre[:], preEntry) {
		return errCorrupt
	}
	var lengths [maxLit + maxDist]uint8
	for i, n := 0, nlit+ndist; i < n; {
		e, err := f.symbol(table[:], preBits)
		if err != nil {
			return err
		}
		sym := uint8(e >> 16)
		if sym < 16 {
			lengths[i] = sym
			i++
			continue
		}
		repeat, bits, value := 3, uint(2), uint8(0)
		switch sym {
		case 16:
			if i == 0 {
				return errCorrupt
			}
			value = lengths[i-1]
		case 17:
			bits = 3
		case 18:
			repeat, bits = 11, 7
		}
		if err := f.need(bits); err != nil {
			return err
		}
		repeat += f.take(bits)
		if i+repeat > n {
			return errCorrupt
		}
		for range repeat {
			lengths[i] = value
			i++
		}
	}
	f.fixed = false
	if !buildTable(f.lit[:], litBits, lengths[:nlit], litEntry) || !buildTable(f.dist[:], distBits, lengths[nlit:nlit+ndist], distEntry) {
		return errCorrupt
	}
	return nil
}

// symbol decodes a code word without reading ahead. It consumes the bits of the code word and
// leaves extra bits to the caller.
func (f *inflater) symbol(table []entry, tableBits uint) (entry, error) {
	for {
		// Missing bits are 0. If the code word includes any of them, read more bits first.
		b := f.bits & (1<<f.count - 1)
		e, used := table[b&(1<<tableBits-1)], uint(0)
		if e&(isLiteral|isSub) == isSub {
			used = tableBits
			e = table[uint64(e>>16)+b>>tableBits&(1<<(e>>8&15)-1)]
		}
		n := wordBits(e)
		if n == 0 {
			return 0, errCorrupt
		}
		if used+n <= f.count {
			f.take(used + n)
			return e, nil
		}
		if err := f.need(f.count + 1); err != nil {
			return 0, err
		}
	}
}

// value reads the extra bits of a length or distance.
func (f *inflater) value(e entry) (int, error) {
	extra := uint(e&0xff) - wordBits(e)
	if err := f.need(extra); err != nil {
		return 0, err
	}
	return int(e>>16) + f.take(extra), nil
}

// slow decodes one symbol. It can decode up to the last byte of the source.
func (f *inflater) slow(out []byte, n int) (int, error) {
	e, err := f.symbol(f.lit[:], litBits)
	if err != nil {
		return n, err
	}
	switch {
	case e&isLiteral != 0:
		out[n] = byte(e >> 16)
		return n + 1, nil
	case e&isEnd != 0:
		f.endBlock()
		return n, nil
	case e&isSpecial != 0:
		return n, errCorrupt
	}
	length, err := f.value(e)
	if err != nil {
		return n, err
	}
	if e, err = f.symbol(f.dist[:], distBits); err != nil {
		return n, err
	}
	if e&isSpecial != 0 {
		return n, errCorrupt
	}
	dist, err := f.value(e)
	if err != nil {
		return n, err
	}
	return f.match(out, n, length, dist)
}

// match copies length bytes from distance dist.
func (f *inflater) match(out []byte, n, length, dist int) (int, error) {
	if back := dist - n; back > 0 {
		if back > f.known {
			return n, errCorrupt
		}
		k := copy(out[n:n+min(length, back)], f.history[windowSize-back:])
		n, length = n+k, length-k
	}
	for range length {
		out[n] = out[n-dist]
		n++
	}
	return n, nil
}

// stored copies bytes of a stored block.
func (f *inflater) stored(out []byte, n int) (int, error) {
	for f.left > 0 && n < len(out)-outSlack {
		f.giveBack()
		if f.pos == f.end {
			if err := f.fill(); err != nil {
				return n, noEOF(err)
			}
		}
		k := copy(out[n:len(out)-outSlack], f.in[f.pos:min(f.end, f.pos+f.left)])
		n, f.pos, f.left = n+k, f.pos+k, f.left-k
	}
	if f.left == 0 {
		f.endBlock()
	}
	return n, nil
}

// load64, store64 and store8 are unchecked: with bounds checks, [inflater.fast] takes a
// third longer. Only fast may use them; its comment shows why they stay in bounds. Tests
// with -race check them (-d=checkptr).
func load64(b []byte, i int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), i))[:])
}

func store64(b []byte, i int, v uint64) {
	binary.LittleEndian.PutUint64((*[8]byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), i))[:], v)
}

func store8(b []byte, i int, v byte) {
	*(*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), i)) = v
}

// refill fills the bit buffer with whole bytes; it then holds at least 56 bits. Only the
// lowest 6 bits of count are significant.
func refill(in []byte, pos int, bits, count uint64) (int, uint64, uint64) {
	return pos + int(^count&63>>3), bits | load64(in, pos)<<(count&63), count | 56
}

// fast decodes symbols while neither in nor out can end within a round. A round consumes at
// most 2 × 7 input bytes and reads 8 beyond, less than inSlack. It writes at most three
// literals and a match, whose word-wise copy writes at most 15 bytes beyond it, less than
// outSlack. No match starts before out. A match needs at most 48 bits: 15 + 5 for its length
// and 15 + 13 for its distance.
func (f *inflater) fast(out []byte, n int) (int, error) {
	in, lastIn, lastOut := f.in, f.end-inSlack, len(out)-outSlack
	if f.pos >= lastIn || n >= lastOut {
		return n, nil
	}
	pos, bits, count := refill(in, f.pos, f.bits, uint64(f.count))
	e := f.lit[bits&(1<<litBits-1)]
	var err error
	for pos < lastIn && n < lastOut {
		// The bit buffer has at least 56 bits, and e is the entry of its first code word.
		if e&isLiteral != 0 {
			bits, count = bits>>(e&63), count-uint64(e)
			store8(out, n, byte(e>>16))
			n++
			e = f.lit[bits&(1<<litBits-1)]
			if e&isLiteral != 0 {
				bits, count = bits>>(e&63), count-uint64(e)
				store8(out, n, byte(e>>16))
				n++
				e = f.lit[bits&(1<<litBits-1)]
				if e&isLiteral != 0 {
					bits, count = bits>>(e&63), count-uint64(e)
					store8(out, n, byte(e>>16))
					n++
					e = f.lit[bits&(1<<litBits-1)]
					pos, bits, count = refill(in, pos, bits, count)
					continue
				}
			}
		}
		if e&isSpecial != 0 {
			if e&isSub != 0 {
				bits, count = bits>>litBits, count-litBits
				e = f.lit[(uint64(e>>16)+bits&(1<<(e>>8&15)-1))&(litSize-1)]
			}
			if e&isLiteral != 0 {
				bits, count = bits>>(e&63), count-uint64(e)
				store8(out, n, byte(e>>16))
				n++
				pos, bits, count = refill(in, pos, bits, count)
				e = f.lit[bits&(1<<litBits-1)]
				continue
			}
			if e&isEnd != 0 {
				f.pos, f.bits, f.count = pos, bits>>(e&63), uint((count-uint64(e))&63)
				f.endBlock()
				return n, nil
			}
			if e&isSpecial != 0 {
				err = errCorrupt
				break
			}
		}
		length := int(e>>16) + int(bits&(1<<(e&63)-1)>>(e>>8&15))
		bits, count = bits>>(e&63), count-uint64(e)
		e = f.dist[bits&(1<<distBits-1)]
		if count&63 < 28 {
			pos, bits, count = refill(in, pos, bits, count)
			e = f.dist[bits&(1<<distBits-1)]
		}
		if e&isSub != 0 {
			bits, count = bits>>distBits, count-distBits
			e = f.dist[(uint64(e>>16)+bits&(1<<(e>>8&15)-1))&(distSize-1)]
		}
		if e&isSpecial != 0 {
			err = errCorrupt
			break
		}
		dist := int(e>>16) + int(bits&(1<<(e&63)-1)>>(e>>8&15))
		bits, count = bits>>(e&63), count-uint64(e)

		// The next entry is loaded from the table while the match is copied.
		pos, bits, count = refill(in, pos, bits, count)
		e = f.lit[bits&(1<<litBits-1)]
		if dist > n {
			if n, err = f.match(out, n, length, dist); err != nil {
				break
			}
			continue
		}
		to := n + length
		if dist >= 8 {
			store64(out, n, load64(out, n-dist))
			store64(out, n+8, load64(out, n+8-dist))
			for i := n + 16; i < to; i += 8 {
				store64(out, i, load64(out, i-dist))
			}
		} else {
			copyNear(out, n, to, dist)
		}
		n = to
	}
	f.pos, f.bits, f.count = pos, bits, uint(count&63)
	return n, err
}

// copyNear copies a match with a distance of less than eight bytes.
func copyNear(out []byte, n, to, dist int) {
	if dist == 1 {
		v := uint64(out[n-1]) * 0x0101010101010101
		for i := n; i < to; i += 8 {
			store64(out, i, v)
		}
		return
	}
	// The first dist bytes of each word are correct, and the next word starts with them.
	for i := n; i < to; i += dist {
		store64(out, i, load64(out, i-dist))
	}
}
