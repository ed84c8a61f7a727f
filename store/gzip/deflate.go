package gzip

import (
	"encoding/binary"
	"math/bits"
)

// Parameters of the match finder. It is optimized for speed: one candidate for each
// position, used if it matches.
const (
	hashBits  = 14        // the table, of 64 KB, stays in the cache
	checkBits = 11        // hash bits stored with a position of 21 bits, to reject candidates without reading them
	hashBytes = 6         // hashed bytes; shorter matches far away cost more than literals
	minMatch  = 4         // shortest match written, after a hash collision
	partBytes = 128 << 10 // bytes that share their codes
	tail      = 12        // last bytes, in which no match starts: the finder loads eight bytes at a time
)

// A sequence is a run of literals and the match that follows it.
type sequence struct {
	lits   uint32
	length uint16 // 0: no match, the end of the part
	dist   uint16 // distance minus one
}

// A deflater compresses blocks in the format of RFC 1951. The zero value is ready for use.
// It is not safe for concurrent use.
type deflater struct {
	table    [1 << hashBits]uint32 // last position of each hash
	seqs     []sequence
	lit      [4][maxLit]uint32 // symbol frequencies; four tables, so that equal literals are counted in parallel
	dist     [maxDist]uint32
	litCode  [maxLit]codeword // of literals and lengths
	distCode [maxDist]codeword
	out      bitWriter
}

// block compresses buf[from:] and appends it to out. Matches may refer to the bytes before
// from, which the decoder must have. It ends at a byte boundary with an empty stored block,
// which is not marked as the last.
func (d *deflater) block(out, buf []byte, from int) []byte {
	clear(d.table[:])
	for i := max(0, from-windowSize); i < from-tail; i += 3 {
		d.last(i, bytes8(buf, i))
	}
	d.out = bitWriter{buf: out}
	for at := from; at < len(buf); {
		end := d.parse(buf, at, min(at+partBytes, len(buf)))
		d.part(buf[at:end])
		at = end
	}
	d.out.stored(nil, false)
	return d.out.buf
}

// parse finds the sequences of buf from at to limit, and counts their symbols. It returns
// the end of the last one, which may exceed limit.
func (d *deflater) parse(buf []byte, at, limit int) int {
	d.seqs = d.seqs[:0]
	clear(d.dist[:])
	for i := range d.lit {
		clear(d.lit[i][:])
	}
	lits := at // start of the literals
	for s := at; s < min(limit, len(buf)-tail); {
		v := bytes8(buf, s) // bytes for three positions
		c := d.last(s, v)
		if c < 0 {
			s++
			c = d.last(s, v>>8)
		}
		if c < 0 {
			s++
			c = d.last(s, v>>16)
		}
		if c < 0 {
			s += 1 + (s-lits)>>6 // skip data without matches faster
			continue
		}
		n := 8
		if x := bytes8(buf, s) ^ bytes8(buf, c); x == 0 {
			n += matchLen(buf, s+8, c+8)
		} else if n = bits.TrailingZeros64(x) / 8; n < minMatch {
			s++
			continue
		}
		for s > lits && c > 0 && buf[s-1] == buf[c-1] {
			s, c, n = s-1, c-1, n+1
		}
		d.match(buf[lits:s], n, s-c)
		s += n
		if lits = s; s < len(buf)-tail {
			d.last(s-2, bytes8(buf, s-2))
		}
	}
	end := max(lits, limit)
	d.count(buf[lits:end])
	d.seqs = append(d.seqs, sequence{lits: uint32(end - lits)})
	return end
}

// last returns the probable last position of the first bytes of v if it is near enough for a
// match, else -1. It then records s as their last position.
func (d *deflater) last(s int, v uint64) int {
	h := v << (64 - 8*hashBytes) * 0x9E3779B185EBCA87
	slot := &d.table[h>>(64-hashBits)]
	e := *slot
	*slot = uint32(s)<<checkBits | uint32(h)>>(32-checkBits)
	if c := int(e >> checkBits); (e^*slot)&(1<<checkBits-1) == 0 && uint(s-c-1) < windowSize {
		return c
	}
	return -1
}

// matchLen returns the length of the common bytes at s and at the earlier position c.
func matchLen(buf []byte, s, c int) int {
	n := 0
	for ; s+n+8 <= len(buf); n += 8 {
		if x := bytes8(buf, s+n) ^ bytes8(buf, c+n); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
	}
	for s+n < len(buf) && buf[s+n] == buf[c+n] {
		n++
	}
	return n
}

// match records literals and a match of any length.
func (d *deflater) match(lits []byte, n, dist int) {
	d.count(lits)
	before := uint32(len(lits))
	for n > 0 {
		m := min(n, maxMatch)
		if r := n - m; r > 0 && r < 3 { // shorter matches are not possible
			m -= 3
		}
		l, _, _ := lengthSym(m)
		k, _, _ := distSym(uint(dist - 1))
		d.lit[0][l]++
		d.dist[k]++
		d.seqs = append(d.seqs, sequence{before, uint16(m), uint16(dist - 1)})
		n, before = n-m, 0
	}
}

func (d *deflater) count(lits []byte) {
	for len(lits) >= 4 {
		d.lit[0][lits[0]]++
		d.lit[1][lits[1]]++
		d.lit[2][lits[2]]++
		d.lit[3][lits[3]]++
		lits = lits[4:]
	}
	for _, b := range lits {
		d.lit[0][b]++
	}
}

// lengthSym returns the symbol of a match's length, and the number and value of its extra
// bits (RFC 1951, 3.2.5).
func lengthSym(n int) (sym int, extra uint, value uint64) {
	switch l := uint(n - 3); {
	case n == maxMatch:
		return 285, 0, 0
	case l < 8:
		return 257 + int(l), 0, 0
	default:
		k := uint(bits.Len(l)) - 3
		return 261 + int(4*k+l>>k&3), k, uint64(l) & (1<<k - 1)
	}
}

// distSym is like lengthSym for a distance. d is the distance minus one.
func distSym(d uint) (sym int, extra uint, value uint64) {
	if d < 2 {
		return int(d), 0, 0
	}
	k := uint(bits.Len(d)) - 2
	return int(2*k + d>>k), k, uint64(d) & (1<<k - 1)
}

// bytes8 returns the eight bytes at i, the first one lowest.
func bytes8(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
