package devices

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Layout of the cache that ldconfig(8) writes, from glibc's sysdeps/generic/dl-cache.h.
// Before glibc 2.32, the file begins with a table in the old format.
const (
	oldMagic  = "ld.so-1.7.0"
	oldHeader = 16
	oldEntry  = 12
	newMagic  = "glibc-ld.so.cache1.1"
	newHeader = 48
	newEntry  = 24
)

// maxCache bounds the size of a cache, maxPath that of a string in it, in bytes. Real caches
// have a few hundred KiB.
const (
	maxCache = 16 << 20
	maxPath  = 4096
)

// parseLDCache parses a dynamic loader's cache. The result maps each name to its files, in
// the loader's order. Variants for particular processors (glibc-hwcaps) are left out,
// because the generic ones work on all.
func parseLDCache(b []byte) (map[string][]string, error) {
	if bytes.HasPrefix(b, []byte(oldMagic)) && len(b) >= oldHeader {
		n := uint64(binary.NativeEndian.Uint32(b[12:]))
		at := (oldHeader + n*oldEntry + 7) &^ 7
		if at > uint64(len(b)) {
			return nil, errors.New("the table is longer than the file")
		}
		b = b[at:]
	}
	if !bytes.HasPrefix(b, []byte(newMagic)) || len(b) < newHeader {
		return nil, errors.New("not in the format of glibc 2.2 or newer")
	}
	n := uint64(binary.NativeEndian.Uint32(b[20:]))
	if n > uint64(len(b)-newHeader)/newEntry {
		return nil, errors.New("the table is longer than the file")
	}
	libs := map[string][]string{}
	for e := b[newHeader : newHeader+n*newEntry]; len(e) > 0; e = e[newEntry:] {
		if binary.NativeEndian.Uint64(e[16:]) != 0 {
			continue
		}
		name, path := cString(b, binary.NativeEndian.Uint32(e[4:])), cString(b, binary.NativeEndian.Uint32(e[8:]))
		if !isFileName(name) || !filepath.IsAbs(path) {
			return nil, fmt.Errorf("an entry names %q at %q", name, path)
		}
		libs[name] = append(libs[name], filepath.Clean(path))
	}
	return libs, nil
}

// cString returns the NUL-terminated string at an offset, or "" if there is none.
func cString(b []byte, at uint32) string {
	if uint64(at) >= uint64(len(b)) {
		return ""
	}
	b = b[at:]
	if n := bytes.IndexByte(b[:min(len(b), maxPath)], 0); n > 0 {
		return string(b[:n])
	}
	return ""
}

// isFileName reports whether s can be a file name.
func isFileName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00") && len(s) < 256
}

// readBounded reads a regular file of at most max bytes.
func readBounded(file string, max int64) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO would block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", file)
	}
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(b)) > max {
		err = fmt.Errorf("%s is larger than %d bytes", file, max)
	}
	return b, err
}

// sharedObject holds the metadata of a shared library.
type sharedObject struct {
	soname string
	needed []string
	glibc  glibcVersion // required version; zero: glibc is not required
}

// readShared reads the shared library at file, which must be for arch.
func readShared(file, arch string) (sharedObject, error) {
	f, err := elf.Open(file)
	if err != nil {
		return sharedObject{}, err
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Machine != elfMachines[arch] || f.Type != elf.ET_DYN {
		return sharedObject{}, fmt.Errorf("%s is not a shared library for %s", file, arch)
	}
	so := sharedObject{soname: filepath.Base(file)}
	if names, err := f.DynString(elf.DT_SONAME); err == nil && len(names) > 0 && isFileName(names[0]) {
		so.soname = names[0]
	}
	if so.needed, err = f.DynString(elf.DT_NEEDED); err != nil {
		return sharedObject{}, err
	}
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		return so, nil // no version table: it does not require a glibc version
	}
	for _, n := range needs {
		for _, v := range n.Needs {
			so.glibc = so.glibc.max(parseGlibc(v.Dep))
		}
	}
	return so, nil
}

// glibcVersion holds the two numbers of a version such as GLIBC_2.34.
type glibcVersion [2]int

func (v glibcVersion) String() string { return fmt.Sprintf("%d.%d", v[0], v[1]) }

func (v glibcVersion) max(w glibcVersion) glibcVersion {
	if v.less(w) {
		return w
	}
	return v
}

func (v glibcVersion) less(w glibcVersion) bool { return v[0] < w[0] || (v[0] == w[0] && v[1] < w[1]) }

// parseGlibc parses the name of a symbol version. It returns zero for symbol versions of
// other libraries.
func parseGlibc(s string) (v glibcVersion) {
	rest, ok := strings.CutPrefix(s, "GLIBC_")
	if !ok {
		return v
	}
	f := strings.Split(rest, ".")
	if len(f) < 2 {
		return v
	}
	major, err1 := strconv.Atoi(f[0])
	minor, err2 := strconv.Atoi(f[1])
	if err1 != nil || err2 != nil {
		return glibcVersion{}
	}
	return glibcVersion{major, minor}
}

// elfMachines maps architectures to the machines of ELF headers.
var elfMachines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64,
	"ppc64le": elf.EM_PPC64, "riscv64": elf.EM_RISCV, "s390x": elf.EM_S390}

// triplets maps architectures to Debian's names of library directories.
var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu",
	"ppc64le": "powerpc64le-linux-gnu", "riscv64": "riscv64-linux-gnu", "s390x": "s390x-linux-gnu"}

// imageGlibc returns the version of the C library in the image at root. ok is false if
// the image has no glibc, because it uses musl or has only static programs.
func imageGlibc(root, arch string) (v glibcVersion, ok bool) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return v, false
	}
	defer r.Close()
	for _, dir := range []string{"lib64", "usr/lib64", "lib/" + triplets[arch], "usr/lib/" + triplets[arch], "lib", "usr/lib"} {
		f, err := r.Open(dir + "/libc.so.6")
		if err != nil {
			continue
		}
		lib, err := elf.NewFile(f)
		if err == nil && lib.Machine == elfMachines[arch] {
			versions, _ := lib.DynamicVersions()
			for _, d := range versions {
				v = v.max(parseGlibc(d.Name))
			}
		}
		f.Close()
		if v != (glibcVersion{}) {
			return v, true
		}
	}
	return v, false
}
