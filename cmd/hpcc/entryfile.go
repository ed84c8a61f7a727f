package main

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// entryFiles returns the programs of "hpcc build --entry", one for each platform.
func entryFiles(platforms []*v1.Platform) ([][]byte, error) {
	var out [][]byte
	for _, p := range platforms {
		arch := goruntime.GOARCH
		if p != nil {
			arch = p.Architecture
		}
		file, err := entryFile(arch)
		if err != nil {
			return nil, err
		}
		out = append(out, file)
	}
	return out, nil
}

// maxEntryFile bounds a file of hpcc: releases have a quarter of that.
const maxEntryFile = 100 << 20

// entryFile is the program that becomes an entry point on an architecture: that of
// $HPCC_ENTRY_ARCH; else this one, or the release for the architecture beside it.
func entryFile(arch string) ([]byte, error) {
	variable := "HPCC_ENTRY_" + strings.ToUpper(arch)
	if arch == goruntime.GOARCH && os.Getenv(variable) == "" && embeddedEntry != "" {
		return entryPart([]byte(embeddedEntry), arch)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding hpcc's own file: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), "hpcc-linux-"+arch)
	name := cmp.Or(os.Getenv(variable), beside)
	if arch == goruntime.GOARCH && os.Getenv(variable) == "" {
		name = self
	}
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, (&message{err: fmt.Errorf("--entry: found no hpcc for %s: %w", arch, err)}).hint("put the release for %s there, or set %s=FILE", arch, variable)
	}
	if err == nil && (!st.Mode().IsRegular() || st.Size() > maxEntryFile) {
		err = fmt.Errorf("%s: no regular file of at most %d bytes", name, maxEntryFile)
	}
	var file []byte
	if err == nil {
		file, err = os.ReadFile(name)
	}
	if err == nil {
		file, err = entryPart(file, arch)
	}
	if err != nil {
		return nil, (&message{err: fmt.Errorf("--entry: reading %s: %w", name, err)}).hint("name another file with %s=FILE", variable)
	}
	return file, nil
}

// machines are architectures of images in the words of ELF files.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "ppc64le": elf.EM_PPC64}

// entryPart returns what an image needs of a file of hpcc: the small program that is
// embedded in it (cmd/start), without sections; or all of a file that has none.
func entryPart(file []byte, arch string) ([]byte, error) {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	if f.Machine != machines[arch] || f.ByteOrder != binary.ByteOrder(binary.LittleEndian) || f.Class != elf.ELFCLASS64 {
		return nil, fmt.Errorf("it is for %v, and not for %s", f.Machine, arch)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, errors.New("not a static program, so an image may lack the libraries that it needs")
		}
	}
	// The embedded program begins with the same identification, type and machine.
	head := file[:min(sameHeader, len(file))]
	for at := 1; ; at++ {
		next := bytes.Index(file[at:], head)
		if next < 0 {
			return file, nil
		}
		at += next
		if part, err := loaded(file[at:]); err == nil {
			return part, nil
		}
	}
}

// Places in the header of an ELF file for 64 bits (elf(5)): of the section headers.
const (
	sectionsAt      = 40
	sectionsCountAt = 60 // and behind it which of them has the names
	sameHeader      = 20 // e_ident, e_type and e_machine
	elfHeader       = 64
)

// loaded is what the kernel loads of the program at the head of file.
func loaded(file []byte) ([]byte, error) {
	if len(file) < elfHeader {
		return nil, errors.New("the program in it is cut off")
	}
	head := bytes.Clone(file[:elfHeader])
	binary.LittleEndian.PutUint64(head[sectionsAt:], 0)
	binary.LittleEndian.PutUint32(head[sectionsCountAt:], 0)
	f, err := elf.NewFile(bytes.NewReader(append(bytes.Clone(head), file[elfHeader:]...)))
	if err != nil {
		return nil, fmt.Errorf("the program in it: %w", err)
	}
	var end uint64
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			end = max(end, p.Off+p.Filesz)
		}
	}
	if end < elfHeader || end > uint64(len(file)) {
		return nil, errors.New("the program in it is cut off")
	}
	return append(head, file[elfHeader:end]...), nil
}
