package build

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

	"hpcc/text"
)

// maxEntryFile is the maximum size of an hpcc binary, in bytes. Releases have a quarter of that.
const maxEntryFile = 100 << 20

// EntryPrograms returns [EntryProgram] for each platform; nil is this machine's.
func EntryPrograms(platforms []*v1.Platform, embedded string) (list [][]byte, err error) {
	for _, p := range platforms {
		arch := goruntime.GOARCH
		if p != nil {
			arch = p.Architecture
		}
		file, err := EntryProgram(arch, embedded)
		if err != nil {
			return nil, err
		}
		list = append(list, file)
	}
	return list, nil
}

// EntryProgram returns the program that becomes the entry point of images of an architecture, for
// [Options.Entry]. It comes from $HPCC_ENTRY_ARCH, or else from this hpcc, which may embed it for its
// own architecture, or else from the release for the architecture in the same directory.
func EntryProgram(arch, embedded string) ([]byte, error) {
	variable := "HPCC_ENTRY_" + strings.ToUpper(arch)
	if arch == goruntime.GOARCH && os.Getenv(variable) == "" && embedded != "" {
		return entryPart([]byte(embedded), arch)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding hpcc's own file: %w", err)
	}
	release := filepath.Join(filepath.Dir(self), "hpcc-linux-"+arch)
	name := cmp.Or(os.Getenv(variable), release)
	if arch == goruntime.GOARCH && os.Getenv(variable) == "" {
		name = self
	}
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, text.Hint(fmt.Errorf("--entry: found no hpcc for %s: %w", arch, err),
			"copy the release for %s to that path, or set %s=FILE", arch, variable)
	}
	if err == nil && (!st.Mode().IsRegular() || st.Size() > maxEntryFile) {
		err = fmt.Errorf("%s: not a regular file of at most %d bytes", name, maxEntryFile)
	}
	var file []byte
	if err == nil {
		file, err = os.ReadFile(name)
	}
	if err == nil {
		file, err = entryPart(file, arch)
	}
	if err != nil {
		return nil, text.Hint(fmt.Errorf("--entry: reading %s: %w", name, err), "name another file with %s=FILE", variable)
	}
	return file, nil
}

// elfMachines maps image architectures to ELF machine types.
var elfMachines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "ppc64le": elf.EM_PPC64}

// entryPart returns the part of an hpcc binary that an image needs. It is the embedded small
// program (cmd/start) without sections, or the full file if it embeds no program.
func entryPart(file []byte, arch string) ([]byte, error) {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	if f.Machine != elfMachines[arch] || f.ByteOrder != binary.ByteOrder(binary.LittleEndian) || f.Class != elf.ELFCLASS64 {
		return nil, fmt.Errorf("the file is for %v, not for %s", f.Machine, arch)
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
		if part, err := loadedPart(file[at:]); err == nil {
			return part, nil
		}
	}
}

// Offsets and sizes in the header of a 64-bit ELF file (elf(5)).
const (
	sectionsAt      = 40 // e_shoff
	sectionsCountAt = 60 // e_shnum, followed by e_shstrndx
	sameHeader      = 20 // e_ident, e_type and e_machine
	elfHeader       = 64
)

// loadedPart returns the part of the program at the start of file that the kernel loads.
func loadedPart(file []byte) ([]byte, error) {
	if len(file) < elfHeader {
		return nil, errors.New("the embedded program is truncated")
	}
	head := bytes.Clone(file[:elfHeader])
	binary.LittleEndian.PutUint64(head[sectionsAt:], 0)
	binary.LittleEndian.PutUint32(head[sectionsCountAt:], 0)
	f, err := elf.NewFile(bytes.NewReader(append(bytes.Clone(head), file[elfHeader:]...)))
	if err != nil {
		return nil, fmt.Errorf("reading the embedded program: %w", err)
	}
	var end uint64
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			end = max(end, p.Off+p.Filesz)
		}
	}
	if end < elfHeader || end > uint64(len(file)) {
		return nil, errors.New("the embedded program is truncated")
	}
	return append(head, file[elfHeader:end]...), nil
}
