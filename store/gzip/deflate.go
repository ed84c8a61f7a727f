package gzip

import (
	"encoding/binary"
	"math/bits"
)

// What the encoder finds matches with. Its aim is the speed of a layer's
// packing: one candidate for each place, taken when it is right.
const (
	hashBits  = 14        // the table, of 64 KB, stays near the processor
	checkBits = 11        // of a hash that are kept with a place, which has the other 21: what differs in them needs no look
	hashBytes = 6         // that are hashed; matches of fewer, far away, cost more than literals
	minMatch  = 4         // that is written, where two hashes were the same by chance
	partBytes = 128 << 10 // that share their codes
	tail      = 12        // bytes at the end where no match begins: more than the eight that are loaded at once
)

// A sequence is some literals and the match that follows them.
type sequence struct {
	lits   uint32
	length uint16 // 0: no match, the part ends
	dist   uint16 // less one
}

// A deflater packs blocks in the format of RFC 1951. Its zero value is ready; one
// at a time may use it.
type deflater struct {
	table [1 << hashBits]uint32 // where a hash stood last
	seqs  []sequence
	lit   [4][maxLit]uint32 // how often a symbol stands; four, so that equal literals one after the other do not wait for each other
	dist  [maxDist]uint32
	words [maxLit]word  // of literals and lengths
	far   [maxDist]word // of distances
	out   bitWriter
}

// block packs buf[from:] and appends it to out. What lies before it must be what the
// reader has before it; matches may point there. It ends at a whole byte, with an
// empty stored block, and is not marked as the last.
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

// parse finds the sequences of buf from at to limit, and counts their symbols. It returns where
// the last one ends, which may be behind limit.
func (d *deflater) parse(buf []byte, at, limit int) int {
	d.seqs = d.seqs[:0]
	clear(d.dist[:])
	for i := range d.lit {
		clear(d.lit[i][:])
	}
	lits := at // where they begin
	for s := at; s < min(limit, len(buf)-tail); {
		v := bytes8(buf, s) // in which three places begin
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
			s += 1 + (s-lits)>>6 // what does not match for long is passed quickly
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

// last is where the bytes that v begins with probably stood last, near enough for a
// match, else -1. Now they stand at s.
func (d *deflater) last(s int, v uint64) int {
	h := v << (64 - 8*hashBytes) * 0x9E3779B185EBCA87
	place := &d.table[h>>(64-hashBits)]
	e := *place
	*place = uint32(s)<<checkBits | uint32(h)>>(32-checkBits)
	if c := int(e >> checkBits); (e^*place)&(1<<checkBits-1) == 0 && uint(s-c-1) < windowSize {
		return c
	}
	return -1
}

// matchLen is how many bytes at s are those at c, which lies before.
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

// match notes literals and a match of any length.
func (d *deflater) match(lits []byte, n, dist int) {
	d.count(lits)
	before := uint32(len(lits))
	for n > 0 {
		m := min(n, maxMatch)
		if r := n - m; r > 0 && r < 3 { // shorter matches do not exist
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

// lengthSym is the symbol of a match's length, and what follows it: how many
// bits, and their value (RFC 1951, 3.2.5).
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

// distSym is the same of a distance less one.
func distSym(d uint) (sym int, extra uint, value uint64) {
	if d < 2 {
		return int(d), 0, 0
	}
	k := uint(bits.Len(d)) - 2
	return int(2*k + d>>k), k, uint64(d) & (1<<k - 1)
}

// bytes8 are the eight bytes at i, the first the lowest.
func bytes8(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
