package gzip

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// maxWord is the length of the longest code word that is written, in bits, of the
// 15 that the format has: four of them, and what is left of a byte, go into one
// register. Shorter words cost layers less than a thousandth.
const maxWord = 12

// A word is a code word as the stream has it: its bits << 8, and how many.
type word uint32

func (w word) len() uint    { return uint(w & 0xff) }
func (w word) bits() uint64 { return uint64(w >> 8) }

// A bitWriter writes bits, the lowest first, to the end of a buffer.
type bitWriter struct {
	buf []byte
	acc uint64 // bits that do not fill a byte yet
	n   uint   // how many
}

// put writes n bits, 48 at most.
func (w *bitWriter) put(v uint64, n uint) {
	w.acc |= v << w.n
	for w.n += n; w.n >= 8; w.n -= 8 {
		w.buf = append(w.buf, byte(w.acc))
		w.acc >>= 8
	}
}

// stored writes a block that holds its bytes as they are, 65,535 at most (RFC
// 1951, 3.2.4).
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

// part writes the sequences that were found in p as one block: with codes made for
// it, or stored where that is not longer.
func (d *deflater) part(p []byte) {
	lit := &d.lit[0]
	for i := range 256 {
		lit[i] += d.lit[1][i] + d.lit[2][i] + d.lit[3][i]
	}
	lit[256] = 1
	makeCode(d.words[:], lit[:], maxWord)
	makeCode(d.far[:], d.dist[:], maxWord)
	before := d.out
	d.out.put(0b100, 3) // not the last, with codes of its own (3.2.3)
	d.out.codes(d.words[:], d.far[:])
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

// bits is how long a block is whose codes took that many bytes, in bits.
func (d *deflater) bits(codes int) int {
	size := 8 * codes
	for i, n := range d.lit[0] {
		size += int(n) * int(d.words[i].len())
		if i > 256 {
			size += int(n) * int(lengthExtra[i-257])
		}
	}
	for i, n := range d.dist {
		size += int(n) * int(d.far[i].len()+uint(max(0, i/2-1)))
	}
	return size
}

// write writes the sequences of p and the end of the block.
func (d *deflater) write(p []byte) {
	buf := slices.Grow(d.out.buf, len(p)*maxWord/8+64)
	at, acc, n := len(buf), d.out.acc, d.out.n
	buf = buf[:cap(buf)]
	words, far := &d.words, &d.far
	for _, s := range d.seqs {
		lits := p[:s.lits]
		for len(lits) >= 4 {
			a, b, c, e := words[lits[0]], words[lits[1]], words[lits[2]], words[lits[3]]
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
			acc |= words[l].bits() << (n & 63)
			n += words[l].len()
		}
		p = p[s.lits:]
		if s.length > 0 { // three literals and a match are 36 bits and 42, at most
			binary.LittleEndian.PutUint64(buf[at:], acc)
			at += int(n >> 3)
			acc >>= n & 56
			n &= 7
			sym, extra, v := lengthSym(int(s.length))
			w := words[sym]
			acc |= (w.bits() | v<<(w.len()&63)) << (n & 63)
			n += w.len() + extra
			sym, extra, v = distSym(uint(s.dist))
			w = far[sym]
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
	d.out.put(words[256].bits(), words[256].len())
}

// makeCode makes the words of a code in which what stands often is short: Huffman's,
// with no word longer than that many bits. It has two words at least, as some
// decoders want it.
func makeCode(words []word, count []uint32, longest int) {
	clear(words)
	var keys [maxLit]uint64 // how often << 16 | symbol
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
	lengths := wordLengths(keys[:n], longest)
	for i, n := 0, len(lengths)-1; n > 0; n-- { // the rarest have the longest
		for range lengths[n] {
			words[keys[i]&0xffff] = word(n)
			i++
		}
	}
	fillWords(words, lengths)
}

// fillWords gives the symbols their words by their lengths (RFC 1951, 3.2.2).
func fillWords(words []word, lengths []int) {
	var next [maxCode + 1]uint16
	code := uint16(0)
	for n := 1; n < len(lengths); n++ {
		next[n] = code
		code = (code + uint16(lengths[n])) << 1
	}
	for sym, w := range words {
		if n := w.len(); n > 0 {
			words[sym] |= word(bits.Reverse16(next[n])>>(16-n)) << 8
			next[n]++
		}
	}
}

// wordLengths tells how many words of each length, longest at most, the code of sorted keys
// has. The tree is made in place, as Moffat and Katajainen do ("In-place calculation
// of minimum-redundancy codes", 1995).
func wordLengths(keys []uint64, longest int) []int {
	var tree [maxLit]uint64
	n := len(keys)
	for i, k := range keys {
		tree[i] = k >> 16
	}
	// Weights of inner nodes, each then replaced by the place of its parent.
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
	// Depths of the inner nodes, from the root down, and with them of the leaves.
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
	// What was too deep has been made short: others are made longer until it fits.
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

// codes writes the lengths of both codes' words, packed by a third code (RFC 1951, 3.2.7).
func (w *bitWriter) codes(lit, dist []word) {
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
	var pre [len(preOrder)]word
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

// inUse is how many words lead up to the last that is one; least at least.
func inUse(words []word, least int) int {
	n := len(words)
	for n > least && words[n-1] == 0 {
		n--
	}
	return n
}

// A preSym is a symbol of the packing code, and the bits that follow it.
type preSym struct{ sym, more, bits uint8 }

// runs packs lengths: equal ones, one after the other, by a count.
func runs(lengths []uint8) []preSym {
	syms := make([]preSym, 0, len(lengths))
	for i := 0; i < len(lengths); {
		l, n := lengths[i], 1
		for i+n < len(lengths) && lengths[i+n] == l {
			n++
		}
		i += n
		if l > 0 { // 16 repeats what stands before
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
