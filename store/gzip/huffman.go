package gzip

import "math/bits"

// Sizes of the decoding tables. The first level is indexed with that many bits of the
// stream; longer codes continue in subtables after it. No complete code needs more than
// 2,342 and 402 entries in total (computed by zlib's "enough"). The arrays are powers of two
// so that a masked index is provably in bounds.
const (
	litBits, litSize   = 11, 4096
	distBits, distSize = 8, 512
	preBits, preSize   = 7, 128
)

// maxCode is the length of the longest code word, in bits (RFC 1951, 3.2.7).
const maxCode = 15

// An entry of a decoding table describes the action for a code word:
//
//	literal    isLiteral · the byte << 16 · its code's length
//	length     base << 16 · its code's length << 8 · the same with the extra bits
//	distance   as length
//	subtable   isSpecial · isSub · index << 16 · bits of the subtable << 8 · bits of this one
//	end        isSpecial · isEnd · its code's length
//	unused     isSpecial · its code's length, 0 if no code word begins with these bits
//
// The lowest byte is the number of bits that the entry consumes.
type entry = uint32

const (
	isLiteral entry = 1 << 31
	isSpecial entry = 1 << 15
	isSub     entry = 1 << 14
	isEnd     entry = 1 << 13
)

// The symbols of a block (RFC 1951, 3.2.5). Two length codes and two distance codes are
// never used.
const (
	maxLit  = 286
	maxDist = 30
)

var (
	lengthBase = [29]uint16{3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51,
		59, 67, 83, 99, 115, 131, 163, 195, 227, 258}
	lengthExtra = [29]uint8{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0}
)

// litEntry returns the entry of a literal or length symbol with a code word of n bits.
func litEntry(sym int, n uint32) entry {
	switch {
	case sym < 256:
		return isLiteral | entry(sym)<<16 | n
	case sym == 256:
		return isSpecial | isEnd | n
	case sym < maxLit:
		return entry(lengthBase[sym-257])<<16 | n<<8 | (n + uint32(lengthExtra[sym-257]))
	}
	return isSpecial | n
}

// distEntry returns the entry of a distance symbol.
func distEntry(sym int, n uint32) entry {
	switch {
	case sym < 4:
		return entry(sym+1)<<16 | n<<8 | n
	case sym < maxDist:
		extra := uint32(sym-2) >> 1
		base := (2+uint32(sym&1))<<extra + 1
		return base<<16 | n<<8 | (n + extra)
	}
	return isSpecial | n
}

// preEntry returns the entry of a symbol of the code that encodes the other two.
func preEntry(sym int, n uint32) entry { return isLiteral | entry(sym)<<16 | n }

// wordBits returns the length of an entry's code word in bits, or 0 if there is none.
func wordBits(e entry) uint {
	if e&(isLiteral|isSpecial) != 0 {
		return uint(e & 0xff)
	}
	return uint(e >> 8 & 15)
}

// buildTable builds the decoding table of a code with the given word lengths (0: unused
// symbol). Like compress/flate it refuses over-subscribed and incomplete codes, except a
// single word of one bit and no words at all, which fail only when used.
func buildTable(table []entry, tableBits uint32, lengths []uint8, symbol func(sym int, n uint32) entry) bool {
	var count [maxCode + 1]int
	for _, n := range lengths {
		count[n]++
	}
	used := len(lengths) - count[0]
	count[0] = 0
	var next [maxCode + 2]int // start index of the symbols of each length
	space := 0
	for n := 1; n <= maxCode; n++ {
		next[n+1] = next[n] + count[n]
		space = space<<1 + count[n]
	}
	if space != 1<<maxCode {
		if used > 1 || (used == 1 && count[1] == 0) {
			return false
		}
		for i := range table[:1<<tableBits] {
			table[i] = isSpecial
		}
		for sym, n := range lengths {
			if n == 1 {
				for i := 0; i < 1<<tableBits; i += 2 {
					table[i] = symbol(sym, 1)
				}
			}
		}
		return true
	}
	var sorted [maxLit + 2]uint16
	for sym, n := range lengths {
		if n != 0 {
			sorted[next[n]] = uint16(sym)
			next[n]++
		}
	}
	fillTable(table, tableBits, &count, sorted[:used], symbol)
	return true
}

// fillTable enters the words of a complete code, sorted by length. The stream holds words
// from their highest bit on, so they are the index's lowest bits in reverse.
func fillTable(table []entry, tableBits uint32, count *[maxCode + 1]int, sorted []uint16, symbol func(sym int, n uint32) entry) {
	code, k, size := 0, 0, 1
	for n := uint32(1); n <= tableBits; n++ {
		// A table for words one bit longer consists of the shorter one twice.
		if n > 1 {
			copy(table[size:2*size], table[:size])
		}
		size = 1 << n
		for range count[n] {
			table[bits.Reverse16(uint16(code))>>(16-n)] = symbol(int(sorted[k]), n)
			k++
			code++
		}
		code <<= 1
	}
	end, prefix := size, -1
	var start int
	var subBits uint32
	for n := tableBits + 1; n <= maxCode; n++ {
		for left := count[n]; left > 0; left-- {
			word := int(bits.Reverse16(uint16(code)) >> (16 - n))
			if p := word & (size - 1); p != prefix {
				prefix, start = p, end
				// As many bits as the longest word with this prefix has.
				subBits = n - tableBits
				for room := left; subBits+tableBits < maxCode && room < 1<<subBits; {
					subBits++
					room = room<<1 + count[tableBits+subBits]
				}
				end += 1 << subBits
				table[p] = isSpecial | isSub | entry(start)<<16 | subBits<<8 | tableBits
			}
			e := symbol(int(sorted[k]), n-tableBits)
			for i := word >> tableBits; i < 1<<subBits; i += 1 << (n - tableBits) {
				table[start+i] = e
			}
			k++
			code++
		}
		code <<= 1
	}
}
