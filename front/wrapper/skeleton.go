package wrapper

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"hpcc/front/kernel"
	"hpcc/unpack"
	"hpcc/unpack/squashfs"
)

// Skeleton writes some files of a SquashFS file to a temporary directory: links, programs without most
// of their content, records of packages, and kernelspecs. done removes the directory.
func Skeleton(ctx context.Context, file string) (dir string, done func(), err error) {
	if dir, err = os.MkdirTemp("", "hpcc-wrap-"); err != nil {
		return "", nil, err
	}
	done = func() { os.RemoveAll(dir) }
	root, err := os.OpenRoot(dir)
	if err == nil {
		defer root.Close()
		err = squashfs.Walk(ctx, file, func(h *tar.Header, r io.Reader) error { return addToSkeleton(root, h, r) })
	}
	if err != nil {
		done()
		return "", nil, fmt.Errorf("reading the programs of %s: %w", file, err)
	}
	return dir, done, nil
}

func addToSkeleton(root *os.Root, h *tar.Header, r io.Reader) error {
	name := strings.Trim(path.Clean("/"+h.Name), "/")
	limit := int64(1 << 10)
	switch {
	case h.Typeflag == tar.TypeSymlink:
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		return root.Symlink(h.Linkname, name)
	case h.Typeflag != tar.TypeReg:
		return nil
	case name == unpack.ConfigFile, path.Base(path.Dir(name)) == "conda-meta":
		limit = 64 << 20
	case strings.Contains(name, kernel.Dir+"/"):
		limit = 1 << 20
	case h.Mode&0o111 == 0:
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, io.LimitReader(r, limit)); err != nil {
		return err
	}
	return f.Chmod(os.FileMode(h.Mode&0o111 | 0o600))
}
