// Package ready finds the tree of an image that is there to be run, with two
// small reads and two stats. It knows as much of the layout of a store as that
// takes, and imports nothing that a start would wait for; package store knows
// the rest. What it is not sure of it does not answer. Functions of names and
// contents alone serve cmd/start/bare too, and so allocate nothing.
package ready

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Version is the content of a store's file "version".
const Version = "1\n"

// Shared are the permission bits that no store's directory has: whoever can
// write to it can change what its users run. Package store refuses such a store.
const Shared = 0o022

// Default is where the store is unless the user says otherwise: $HPCC_STORE,
// else hpcc below $XDG_DATA_HOME, else ~/.local/share/hpcc.
func Default() (string, error) {
	if d := os.Getenv("HPCC_STORE"); d != "" {
		return filepath.Abs(d)
	}
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "hpcc"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding the store: %w; set HPCC_STORE", err)
	}
	return filepath.Join(home, ".local/share/hpcc"), nil
}

// Tree returns the directory that the image was unpacked to, as
// store.Store.TreeOf does, when name is that of an image for one platform in
// its shortest spelling. Otherwise ok is false: ask package store.
func Tree(dir, name string) (tree string, ok bool) {
	if !Short(name) {
		return "", false
	}
	dir, err := place(dir)
	if err != nil {
		return "", false
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Mode&Shared != 0 {
		return "", false
	}
	if v, err := readFile(filepath.Join(dir, "version")); err != nil || string(v) != Version {
		return "", false
	}
	b, err := readFile(filepath.Join(dir, "refs", strings.ReplaceAll(name, ":", "%3A")))
	if err != nil {
		return "", false
	}
	hex, ok := Manifest(string(b))
	if !ok {
		return "", false
	}
	tree = filepath.Join(dir, "trees", hex)
	_, err = os.Stat(tree)
	return tree, err == nil
}

// Absent says that surely no image has this name, as [Tree] takes them: a
// directory of that name may be meant.
func Absent(dir, name string) bool {
	if !Short(name) || DigestLike(name) {
		return false
	}
	dir, err := place(dir)
	if err != nil {
		return false
	}
	v, err := readFile(filepath.Join(dir, "version"))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist) // no store has no image
	}
	if err != nil || string(v) != Version {
		return false
	}
	_, err = os.Lstat(filepath.Join(dir, "refs", strings.ReplaceAll(name, ":", "%3A")))
	return errors.Is(err, fs.ErrNotExist)
}

// DigestLike says whether a name may be the head of a digest, which names
// images too.
func DigestLike(name string) bool {
	return len(name) >= 12 && of(name, "0123456789abcdef")
}

// place is the store's directory, the default one for "".
func place(dir string) (string, error) {
	if dir == "" {
		return Default()
	}
	return filepath.Abs(dir)
}

// Manifest returns the digest, in hexadecimal, of the manifest that a file of
// refs names, when the file is as package store writes it.
func Manifest(ref string) (string, bool) {
	rest, ok := strings.CutPrefix(ref, `{"mediaType":"`)
	kind, rest, _ := strings.Cut(rest, `","size":`)
	size, rest, _ := strings.Cut(rest, `,"digest":"sha256:`)
	hex, rest, found := strings.Cut(rest, `"`)
	ok = ok && found && strings.HasSuffix(rest, "}\n") && (kind == "application/vnd.oci.image.manifest.v1+json" || kind == "application/vnd.docker.distribution.manifest.v2+json") &&
		size != "" && of(size, "0123456789") && len(hex) == 64 && of(hex, "0123456789abcdef")
	return hex, ok
}

// maxFile bounds what is read of a file, in bytes. Those that are read are a
// hundredth of it.
const maxFile = 64 << 10

// readFile reads a small file. os.ReadFile would ask the kernel to poll it first.
func readFile(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 1024)
	for len(b) < maxFile {
		if len(b) == cap(b) {
			b = append(b, make([]byte, len(b))...)[:len(b)]
		}
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return b, err
		}
		b = b[:len(b)+n]
	}
	return nil, unix.EFBIG
}

// Short says whether name is NAME or NAME:TAG, with no registry and no digest,
// and surely the spelling under which the store keeps it.
func Short(name string) bool {
	name, tag, tagged := strings.Cut(name, ":")
	return plain(name) && (!tagged || plain(tag) && tag != "latest")
}

// of says whether s has these characters alone.
func of(s, characters string) bool {
	for i := range len(s) {
		if strings.IndexByte(characters, s[i]) < 0 {
			return false
		}
	}
	return true
}

// plain says whether s is of lower-case letters, digits, and dashes and
// underscores between them, and short.
func plain(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || (c == '-' || c == '_' || c == '.') && i > 0 && i < len(s)-1) {
			return false
		}
	}
	return s != "" && len(s) <= 100
}
