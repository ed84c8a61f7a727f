package store

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	goruntime "runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// machines maps ELF architectures to the names in images.
var machines = map[elf.Machine]string{
	elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_PPC64: "ppc64le",
	elf.EM_S390: "s390x", elf.EM_RISCV: "riscv64", elf.EM_386: "386", elf.EM_ARM: "arm",
}

// rootArchitecture returns the architecture of a root file system's first program, or this
// machine's if there is none.
func rootArchitecture(l v1.Layer) (string, error) {
	r, err := l.Uncompressed()
	if err != nil {
		return "", err
	}
	defer r.Close()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return goruntime.GOARCH, nil
		}
		if err != nil {
			return "", err
		}
		if h.Typeflag != tar.TypeReg || h.Size < 64 || (!strings.Contains(h.Name, "bin/") && !strings.Contains(h.Name, "lib")) {
			continue
		}
		head := make([]byte, 64)
		if _, err := io.ReadFull(tr, head); err != nil {
			return "", err
		}
		if a, ok := elfArchitecture(head); ok {
			return a, nil
		}
	}
}

// elfArchitecture returns the architecture in an ELF header (e_machine), and whether it is a
// known one. Big-endian POWER is ppc64, not ppc64le.
func elfArchitecture(head []byte) (string, bool) {
	if !bytes.HasPrefix(head, []byte(elf.ELFMAG)) || len(head) < 20 {
		return "", false
	}
	m := elf.Machine(uint16(head[18]) | uint16(head[19])<<8)
	if head[5] == byte(elf.ELFDATA2MSB) {
		m = elf.Machine(uint16(head[19]) | uint16(head[18])<<8)
		if m == elf.EM_PPC64 {
			return "ppc64", true
		}
	}
	a, ok := machines[m]
	return a, ok
}
