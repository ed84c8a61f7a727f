// Command weld puts two programs into one file: FULL, and LEAN, which FULL's
// entry point (runtime/entry_*.s) jumps to for "hpcc run".
//
//	go run ./cmd/weld FULL LEAN OUT
//
// Both are static programs at addresses of their own, so the kernel can map
// both: OUT is FULL with LEAN appended, LEAN's segments added to its program
// headers, and LEAN's entry point written where FULL looks for it. A command
// that goes one way never touches a page of the other.
package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: weld FULL LEAN OUT")
		os.Exit(2)
	}
	if err := weld(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintf(os.Stderr, "weld: %v\n", err)
		os.Exit(1)
	}
}

// slot is what FULL has before the eight bytes for LEAN's entry point (runtime/entry_lean.s).
var slot = []byte("hhpcc-we" + "eld-lean")

func weld(full, lean, out string) error {
	f, err := os.ReadFile(full)
	if err != nil {
		return err
	}
	l, err := os.ReadFile(lean)
	if err != nil {
		return err
	}
	b, err := join(f, l)
	if err != nil {
		return fmt.Errorf("adding %s to %s: %w", lean, full, err)
	}
	tmp := out + ".tmp"
	if err := os.WriteFile(tmp, b, 0o755); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}

// The places in an ELF header and its program headers that are changed, for 64 bits (elf(5)).
const (
	headerSize  = 64
	phoffAt     = 32
	shoffAt     = 40
	phnumAt     = 56
	shnumAt     = 60
	segmentSize = 56
	sectionSize = 64
	// headersEnd is where Go's linker begins to put a program's bytes
	// (cmd/link/internal/ld, ELFRESERVE); its notes end there.
	headersEnd = 4096 - 512
)

// join returns full with lean in it.
func join(full, lean []byte) ([]byte, error) {
	f, err := program(full)
	if err != nil {
		return nil, err
	}
	l, err := program(lean)
	if err != nil {
		return nil, err
	}
	if f.Machine != l.Machine || f.ByteOrder != binary.ByteOrder(binary.LittleEndian) {
		return nil, fmt.Errorf("one is for %v, the other for %v; both must be for one little-endian machine", f.Machine, l.Machine)
	}
	// Offsets in the file and addresses must agree modulo the page size.
	align, end := uint64(1), uint64(0)
	for _, p := range append(loads(f), loads(l)...) {
		align = max(align, p.Align)
	}
	for _, p := range loads(f) {
		end = max(end, p.Vaddr+p.Memsz)
	}
	for _, p := range loads(l) {
		if p.Vaddr < end {
			return nil, fmt.Errorf("the second begins at %#x, within the first, which ends at %#x; link it with -ldflags -T", p.Vaddr, end)
		}
	}
	start := (uint64(len(full)) + align - 1) / align * align

	// The kernel wants segments to load in the order of their addresses.
	var headers []elf.ProgHeader
	var rest []elf.ProgHeader
	for _, p := range f.Progs {
		if h := p.ProgHeader; h.Type == elf.PT_PHDR || h.Type == elf.PT_LOAD || h.Type == elf.PT_NOTE {
			headers = append(headers, h)
		} else {
			rest = append(rest, h)
		}
	}
	headers = append(append(headers, loadsAt(l, start)...), rest...)

	out := make([]byte, start, start+uint64(len(lean)))
	copy(out, full)
	out = append(out, lean...)
	out = moveSections(out, loadsAt(l, start))
	if err := writeHeaders(out, headers); err != nil {
		return nil, err
	}
	at := bytes.Index(full, slot)
	if at < 0 || bytes.LastIndex(full, slot) != at {
		return nil, errors.New("the first has no single place for the second's entry point; link it with -ldflags '-E hpcc_entry'")
	}
	binary.LittleEndian.PutUint64(out[at+len(slot):], l.Entry)
	return out, nil
}

// program reads an ELF file that is a static program at fixed addresses.
func program(b []byte) (*elf.File, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	if f.Class != elf.ELFCLASS64 || f.Type != elf.ET_EXEC || len(loads(f)) == 0 {
		return nil, fmt.Errorf("%v %v is no 64-bit program at fixed addresses", f.Class, f.Type)
	}
	return f, nil
}

func loads(f *elf.File) []elf.ProgHeader {
	var out []elf.ProgHeader
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			out = append(out, p.ProgHeader)
		}
	}
	return out
}

// loadsAt are the segments of f when its file begins at an offset of another.
func loadsAt(f *elf.File, start uint64) []elf.ProgHeader {
	ps := loads(f)
	for i := range ps {
		ps[i].Off += start
	}
	return ps
}

// moveSections moves the section headers, which only tools read, from behind
// the program headers, which need the room, to the end of the file. There, the
// segments that were added get some too: strip(1) would drop them without.
func moveSections(file []byte, added []elf.ProgHeader) []byte {
	from := binary.LittleEndian.Uint64(file[shoffAt:])
	size := uint64(binary.LittleEndian.Uint16(file[shnumAt:])) * sectionSize
	for len(file)%8 != 0 {
		file = append(file, 0)
	}
	binary.LittleEndian.PutUint64(file[shoffAt:], uint64(len(file)))
	file = append(file, file[from:from+size]...)
	if from < headersEnd {
		clear(file[from : from+size])
	}
	section := func(kind elf.SectionType, p elf.ProgHeader, skip, size uint64) {
		flags := elf.SHF_ALLOC
		if p.Flags&elf.PF_W != 0 {
			flags |= elf.SHF_WRITE
		}
		if p.Flags&elf.PF_X != 0 {
			flags |= elf.SHF_EXECINSTR
		}
		if size > 0 {
			h := elf.Section64{Type: uint32(kind), Flags: uint64(flags), Addr: p.Vaddr + skip, Off: p.Off + skip, Size: size, Addralign: 1}
			file, _ = binary.Append(file, binary.LittleEndian, h)
			binary.LittleEndian.PutUint16(file[shnumAt:], binary.LittleEndian.Uint16(file[shnumAt:])+1)
		}
	}
	for _, p := range added {
		section(elf.SHT_PROGBITS, p, 0, p.Filesz)
		section(elf.SHT_NOBITS, p, p.Filesz, p.Memsz-p.Filesz)
	}
	return file
}

// writeHeaders replaces the program headers of file, which stand behind its
// header.
func writeHeaders(file []byte, headers []elf.ProgHeader) error {
	had := headerSize + int(binary.LittleEndian.Uint16(file[phnumAt:]))*segmentSize
	end := headerSize + len(headers)*segmentSize
	if binary.LittleEndian.Uint64(file[phoffAt:]) != headerSize || end > headersEnd || len(bytes.Trim(file[had:end], "\x00")) > 0 {
		return errors.New("the first has no room for more program headers")
	}
	for i, h := range headers {
		if h.Type == elf.PT_PHDR {
			h.Filesz, h.Memsz = uint64(end-headerSize), uint64(end-headerSize)
		}
		raw := elf.Prog64{Type: uint32(h.Type), Flags: uint32(h.Flags), Off: h.Off, Vaddr: h.Vaddr, Paddr: h.Paddr, Filesz: h.Filesz, Memsz: h.Memsz, Align: h.Align}
		if _, err := binary.Encode(file[headerSize+i*segmentSize:], binary.LittleEndian, raw); err != nil {
			return err
		}
	}
	binary.LittleEndian.PutUint16(file[phnumAt:], uint16(len(headers)))
	return nil
}
