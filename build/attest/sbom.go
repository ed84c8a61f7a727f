package attest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// Scan returns the packages that package managers have recorded in dir, the tree
// that the image was unpacked to. It finds the records of conda, pip, dpkg, rpm and apk
// anywhere in the tree. The document depends only on the image's digest, its files and
// created. The notes name records that could not be read; the document contains them too.
func Scan(ctx context.Context, dir string, image v1.Hash, created time.Time) (doc *Document, notes []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("listing the packages of the image: %w", err)
	}
	defer root.Close()
	in := &inventory{root: root, os: readOS(root)}
	if err := in.walk(ctx); err != nil {
		return nil, nil, fmt.Errorf("listing the packages of the image: %w", err)
	}
	slices.SortStableFunc(in.list, func(a, b software) int {
		return strings.Compare(a.purl+"\x00"+a.record, b.purl+"\x00"+b.record)
	})
	return spdx(image, created, in.list, in.notes), in.notes, nil
}

// Limits on the records of an image.
const (
	maxRecord   = 64 << 20 // bytes of one record of packages, except databases of rpm
	maxSoftware = 500_000  // packages
	maxNotes    = 20
)

// An inventory collects the packages of a tree. It opens all files inside the root: no
// link leads out of it.
type inventory struct {
	root  *os.Root
	os    osRelease
	list  []software
	notes []string
}

// walk searches the full tree, because environments of conda and Python can be in any
// directory. It does not follow links to directories: the walk reaches their targets
// anyway.
func (in *inventory) walk(ctx context.Context) error {
	return fs.WalkDir(in.root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			in.note(p, err)
			return nil
		}
		if d.IsDir() {
			if in.skip(p) {
				return fs.SkipDir
			}
			return nil
		}
		read := reader(p)
		if read == nil || d.Type()&^fs.ModeSymlink != 0 {
			return nil
		}
		if len(in.list) > maxSoftware {
			return fmt.Errorf("more than %d packages", maxSoftware)
		}
		if err := in.read(p, read); err != nil {
			in.note(p, err)
		}
		return nil
	})
}

// skip reports whether a directory holds no installed packages: the kernel's, hpcc's own,
// and conda's cache of unpacked packages.
func (in *inventory) skip(p string) bool {
	switch p {
	case "proc", "sys", "dev", ".hpcc":
		return true
	}
	if path.Base(p) != "pkgs" {
		return false
	}
	_, err := in.root.Stat(path.Join(path.Dir(p), "conda-meta"))
	return err == nil
}

// A recordReader reads one record of packages.
type recordReader func(in *inventory, p string, f *os.File) error

// reader returns the function that reads the file with this path, or nil for most files.
func reader(p string) recordReader {
	dir, base := path.Dir(p), path.Base(p)
	switch {
	case base == "METADATA" && strings.HasSuffix(dir, ".dist-info"),
		base == "PKG-INFO" && strings.HasSuffix(dir, ".egg-info"), strings.HasSuffix(base, ".egg-info"):
		return (*inventory).python
	case path.Base(dir) == "conda-meta" && strings.HasSuffix(base, ".json"):
		return (*inventory).conda
	case p == "var/lib/dpkg/status", dir == "var/lib/dpkg/status.d" && !strings.HasSuffix(base, ".md5sums"):
		return (*inventory).dpkg
	case p == "lib/apk/db/installed", p == "usr/lib/apk/db/installed":
		return (*inventory).apk
	}
	switch dir {
	case "var/lib/rpm", "usr/lib/sysimage/rpm", "usr/share/rpm":
		switch base {
		case "rpmdb.sqlite", "Packages.db", "Packages":
			return (*inventory).rpm
		}
	}
	return nil
}

func (in *inventory) read(p string, read recordReader) error {
	f, err := openRegular(in.root, p)
	if err != nil {
		return err
	}
	defer f.Close()
	return read(in, p, f)
}

// openRegular opens a regular file of the tree, and returns an error for devices and
// FIFOs. It resolves links as in the image, also absolute ones, which [os.Root] refuses.
func openRegular(root *os.Root, p string) (*os.File, error) {
	top, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer top.Close()
	handle, err := pathrs.OpenatInRoot(top, p)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	if fi, err := handle.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a regular file"))
	}
	return pathrs.Reopen(handle, unix.O_RDONLY|unix.O_CLOEXEC)
}

// add adds a package if its name and version are valid text.
func (in *inventory) add(s software) {
	if s.name == "" || len(s.name)+len(s.version) > 1024 || strings.ContainsFunc(s.name+s.version, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		in.note(s.record, fmt.Errorf("a package without a proper name or version: %q %q", short(s.name), short(s.version)))
		return
	}
	in.list = append(in.list, s)
}

// note records that the file p could not be read.
func (in *inventory) note(p string, err error) {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	switch n := len(in.notes); {
	case n < maxNotes:
		in.notes = append(in.notes, fmt.Sprintf("reading /%s: %v", short(p), short(err.Error())))
	case n == maxNotes:
		in.notes = append(in.notes, "and more")
	}
}

// osRelease identifies the image's distribution (os-release(5)).
type osRelease struct{ id, version, codename string }

func readOS(root *os.Root) (o osRelease) {
	for _, p := range []string{"etc/os-release", "usr/lib/os-release"} {
		f, err := openRegular(root, p)
		if err != nil {
			continue
		}
		defer f.Close()
		return parseOS(io.LimitReader(f, 1<<20))
	}
	return o
}

func parseOS(r io.Reader) (o osRelease) {
	for sc := bufio.NewScanner(r); sc.Scan(); {
		k, v, _ := strings.Cut(strings.TrimSpace(sc.Text()), "=")
		v = short(strings.Trim(v, `"'`))
		switch k {
		case "ID":
			o.id = strings.ToLower(v)
		case "VERSION_ID":
			o.version = v
		case "VERSION_CODENAME":
			o.codename = v
		}
	}
	return o
}

// distro returns the qualifier of package URLs by which scanners find the distribution.
func (o osRelease) distro() string {
	switch {
	case o.id == "":
		return ""
	case o.version != "":
		return o.id + "-" + o.version
	case o.codename != "":
		return o.id + "-" + o.codename
	}
	return o.id
}

// vendor returns the namespace of package URLs, or unknown if the image has no os-release.
func (o osRelease) vendor(unknown string) string {
	if o.id == "" {
		return unknown
	}
	return o.id
}

// upstream returns the source package and its version for scanners, because many
// advisories name the source package.
func upstream(source, version string) string {
	if source != "" && version != "" {
		return source + "@" + version
	}
	return source
}
