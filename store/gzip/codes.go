package gzip

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// maxCodeword is the maximum length of written code words, in bits; the format allows 15.
// Four such code words and a partial byte fit into one register. The shorter limit increases
// the size of layers by less than a thousandth.
const maxCodeword = 12

// A codeword holds its length in the low 8 bits and its bits above.
type codeword uint32

func (w codeword) len() uint    { return uint(w & 0xff) }
func (w codeword) bits() uint64 { return uint64(w >> 8) }

// A bitWriter appends bits to a buffer, the lowest first.
type bitWriter struct {
	buf []byte
	acc uint64 // bits that do not fill a byte
	n   uint   // number of these bits
}

// put writes n bits, at most 48.
func (w *bitWriter) put(v uint64, n uint) {
	w.acc |= v << w.n
	for w.n += n; w.n >= 8; w.n -= 8 {
		w.buf = append(w.buf, byte(w.acc))
		w.acc >>= 8
	}
}

// stored writes an uncompressed block of at most 65,535 bytes (RFC 1951, 3.2.4).
func (w *bitWriter) stored(p []byte, last bool) {
	head := uint64(0)
	if last {
		head = 1
	}
	w.put(head, 3)
	if w.n > 0 {
		w.put(0, 8-w.n)
	}
	n := uint16(len(p))
	w.buf = binary.LittleEndian.AppendUint16(w.buf, n)
	w.buf = binary.LittleEndian.AppendUint16(w.buf, ^n)
	w.buf = append(w.buf, p...)
}

// part writes the sequences of p as one block with its own codes, or as stored blocks if
// those are not longer.
func (d *deflater) part(p []byte) {
	lit := &d.lit[0]
	for i := range 256 {
		lit[i] += d.lit[1][i] + d.lit[2][i] + d.lit[3][i]
	}
	lit[256] = 1
	makeCode(d.litCode[:], lit[:], maxCodeword)
	makeCode(d.distCode[:], d.dist[:], maxCodeword)
	before := d.out
	d.out.put(0b100, 3) // not the last block; dynamic codes (RFC 1951, 3.2.3)
	d.out.codes(d.litCode[:], d.distCode[:])
	if d.bits(len(d.out.buf)-len(before.buf)) >= 8*len(p) {
		d.out = before
		for len(p) > 0 {
			n := min(len(p), 1<<16-1)
			d.out.stored(p[:n], false)
			p = p[n:]
		}
		return
	}
	d.write(p)
}

// bits returns the length of a block in bits, given the size of its codes in bytes.
func (d *deflater) bits(codes int) int {
	size := 8 * codes
	for i, n := range d.lit[0] {
		size += int(n) * int(d.litCode[i].len())
		if i > 256 {
			size += int(n) * int(lengthExtra[i-257])
		}
	}
	for i, n := range d.dist {
		size += int(n) * int(d.distCode[i].len()+uint(max(0, i/2-1)))
	}
	return size
}

// write writes the sequences of p and the end of the block.
func (d *deflater) write(p []byte) {
	buf := slices.Grow(d.out.buf, len(p)*maxCodeword/8+64)
	at, acc, n := len(buf), d.out.acc, d.out.n
	buf = buf[:cap(buf)]
	litCode, distCode := &d.litCode, &d.distCode
	for _, s := range d.seqs {
		lits := p[:s.lits]
		for len(lits) >= 4 {
			a, b, c, e := litCode[lits[0]], litCode[lits[1]], litCode[lits[2]], litCode[lits[3]]
			lits = lits[4:]
			ab, abn := a.bits()|b.bits()<<(a.len()&63), a.len()+b.len()
			ce, cen := c.bits()|e.bits()<<(c.len()&63), c.len()+e.len()
			acc |= (ab | ce<<(abn&63)) << (n & 63)
			n += abn + cen
			binary.LittleEndian.PutUint64(buf[at:], acc)
			at += int(n >> 3)
			acc >>= n & 56
			n &= 7
		}
		for _, l := range lits {
			acc |= litCode[l].bits() << (n & 63)
			n += litCode[l].len()
		}
		p = p[s.lits:]
		if s.length > 0 { // three literals and a match take at most 36 and 42 bits
			binary.LittleEndian.PutUint64(buf[at:], acc)
			at += int(n >> 3)
			acc >>= n & 56
			n &= 7
			sym, extra, v := lengthSym(int(s.length))
			w := litCode[sym]
			acc |= (w.bits() | v<<(w.len()&63)) << (n & 63)
			n += w.len() + extra
			sym, extra, v = distSym(uint(s.dist))
			w = distCode[sym]
			acc |= (w.bits() | v<<(w.len()&63)) << (n & 63)
			n += w.len() + extra
			p = p[s.length:]
		}
		binary.LittleEndian.PutUint64(buf[at:], acc)
		at += int(n >> 3)
		acc >>= n & 56
		n &= 7
	}
	d.out.buf, d.out.acc, d.out.n = buf[:at], acc, n
	d.out.put(litCode[256].bits(), litCode[256].len())
}

// makeCode computes a Huffman code whose code words have at most longest bits. It has at
// least two code words, as some decoders require.
func makeCode(codewords []codeword, count []uint32, longest int) {
	clear(codewords)
	var keys [maxLit]uint64 // frequency << 16 | symbol
	n := 0
	for sym, c := range count {
		if c > 0 {
			keys[n] = uint64(c)<<16 | uint64(sym)
			n++
		}
	}
	for sym := 0; n < 2; sym++ {
		if count[sym] == 0 {
			keys[n] = 1<<16 | uint64(sym)
			n++
		}
	}
	slices.Sort(keys[:n])
	lengths := countLengths(keys[:n], longest)
	for i, n := 0, len(lengths)-1; n > 0; n-- { // the rarest symbols get the longest code words
		for range lengths[n] {
			codewords[keys[i]&0xffff] = codeword(n)
			i++
		}
	}
	assignBits(codewords, lengths)
}

// assignBits sets the bits of code words according to their lengths (RFC 1951, 3.2.2).
// lengths has the number of code words of each length.
func assignBits(codewords []codeword, lengths []int) {
	var next [maxCode + 1]uint16
	code := uint16(0)
	for n := 1; n < len(lengths); n++ {
		next[n] = code
		code = (code + uint16(lengths[n])) << 1
	}
	for sym, w := range codewords {
		if n := w.len(); n > 0 {
			codewords[sym] |= codeword(bits.Reverse16(next[n])>>(16-n)) << 8
			next[n]++
		}
	}
}

// countLengths returns the number of code words of each length, at most longest, for sorted
// keys. It builds the tree in place, after Moffat and Katajainen ("In-place calculation of
// minimum-redundancy codes", 1995).
func countLengths(keys []uint64, longest int) []int {
	var tree [maxLit]uint64
	n := len(keys)
	for i, k := range keys {
		tree[i] = k >> 16
	}
	// Weights of inner nodes, then replaced by the index of their parent.
	leaf, root := 0, 0
	for i := range n - 1 {
		take := func() uint64 {
			if leaf >= n || (root < i && tree[root] < tree[leaf]) {
				w := tree[root]
				tree[root] = uint64(i)
				root++
				return w
			}
			leaf++
			return tree[leaf-1]
		}
		a := take()
		tree[i] = a + take()
	}
	// Depths of the inner nodes, from the root down, and from these the depths of the leaves.
	lengths := make([]int, longest+1)
	tree[n-2] = 0
	for i := n - 3; i >= 0; i-- {
		tree[i] = tree[tree[i]] + 1
	}
	free, depth := 1, 0
	for i := n - 2; free > 0; depth++ {
		inner := 0
		for i >= 0 && tree[i] == uint64(depth) {
			inner++
			i--
		}
		lengths[min(depth, longest)] += free - inner
		free = 2 * inner
	}
	// Code words that were too long were shortened. Lengthen others until the code is valid.
	space := 0
	for l, c := range lengths[1:] {
		space += c << (longest - l - 1)
	}
	for ; space > 1<<longest; space-- {
		l := longest - 1
		for lengths[l] == 0 {
			l--
		}
		lengths[longest]--
		lengths[l]--
		lengths[l+1] += 2
	}
	return lengths
}

// codes writes the lengths of the code words of both codes, compressed with a code length
// code (RFC 1951, 3.2.7).
func (w *bitWriter) codes(lit, dist []codeword) {
	nlit, ndist := inUse(lit, 257), inUse(dist, 1)
	var lengths [maxLit + maxDist]uint8
	for i, x := range lit[:nlit] {
		lengths[i] = uint8(x.len())
	}
	for i, x := range dist[:ndist] {
		lengths[nlit+i] = uint8(x.len())
	}
	syms := runs(lengths[:nlit+ndist])
	var count [len(preOrder)]uint32
	for _, s := range syms {
		count[s.sym]++
	}
	var pre [len(preOrder)]codeword
	makeCode(pre[:], count[:], preBits)
	npre := len(preOrder)
	for npre > 4 && pre[preOrder[npre-1]] == 0 {
		npre--
	}
	w.put(uint64(nlit-257)|uint64(ndist-1)<<5|uint64(npre-4)<<10, 14)
	for _, i := range preOrder[:npre] {
		w.put(uint64(pre[i].len()), 3)
	}
	for _, s := range syms {
		w.put(pre[s.sym].bits(), pre[s.sym].len())
		w.put(uint64(s.more), uint(s.bits))
	}
}

// inUse returns the number of code words up to the last one in use, but at least minimum.
func inUse(codewords []codeword, minimum int) int {
	n := len(codewords)
	for n > minimum && codewords[n-1] == 0 {
		n--
	}
	return n
}

// A preSym is a symbol of the code length code, and the extra bits that follow it.
type preSym struct{ sym, more, bits uint8 }

// runs run-length encodes lengths.
func runs(lengths []uint8) []preSym {
	syms := make([]preSym, 0, len(lengths))
	for i := 0; i < len(lengths); {
		l, n := lengths[i], 1
		for i+n < len(lengths) && lengths[i+n] == l {
			n++
		}
		i += n
		if l > 0 { // 16 repeats the previous length
			syms = append(syms, preSym{sym: l})
			n--
		}
		for n > 0 {
			m := 1
			switch {
			case l == 0 && n >= 11:
				m = min(n, 138)
				syms = append(syms, preSym{18, uint8(m - 11), 7})
			case l == 0 && n >= 3:
				m = n
				syms = append(syms, preSym{17, uint8(m - 3), 3})
			case n >= 3:
				m = min(n, 6)
				syms = append(syms, preSym{16, uint8(m - 3), 2})
			default:
				syms = append(syms, preSym{sym: l})
			}
			n -= m
		}
	}
	return syms
}
