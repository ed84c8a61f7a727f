package build

import (
	"context"
	"io"
	"io/fs"
	"os"
	"regexp"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
	"hpcc/unpack"
)

// anyGlibc is newer than every C library that a package asks for.
const anyGlibc = "2.999"

// maxLibc bounds how much of a C library is read; none has 4 MB.
const maxLibc = 16 << 20

// libcBanner is what every GNU C library says of itself (csu/version.c).
var libcBanner = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`GNU C Library \([^)]*\) [a-z]+ release version ([0-9]+\.[0-9]+)`)
})

// baseGlibc tells the version of an image's C library. Of an image without the
// GNU one nothing is known: the environment may bring its own, or be copied to
// where one is, so every package will do.
func baseGlibc(ctx context.Context, s *store.Store, img v1.Image) (string, error) {
	ls, err := img.Layers()
	if err != nil {
		return "", err
	}
	if len(ls) == 0 {
		return anyGlibc, nil
	}
	dir, _, err := unpack.Tree(ctx, s, img, unpack.Options{})
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	return treeGlibc(root), nil
}

// treeGlibc looks for a C library where distributions have it. No link leads out of root.
func treeGlibc(root *os.Root) string {
	for _, pattern := range []string{"lib/*/libc.so.6", "usr/lib/*/libc.so.6", "lib64/libc.so.6", "usr/lib64/libc.so.6", "lib/libc.so.6", "usr/lib/libc.so.6"} {
		found, _ := fs.Glob(root.FS(), pattern)
		for _, p := range found {
			f, err := root.Open(p)
			if err != nil {
				continue
			}
			b, _ := io.ReadAll(io.LimitReader(f, maxLibc))
			f.Close()
			if m := libcBanner().FindSubmatch(b); m != nil {
				return string(m[1])
			}
		}
	}
	return anyGlibc
}
