package build

import (
	"context"
	"io"
	"io/fs"
	"os"
	"regexp"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"hpcc/conda"
	"hpcc/store"
	"hpcc/unpack"
)

// maxLibc limits the bytes that are read of a C library. C libraries are below 4 MB.
const maxLibc = 16 << 20

// libcBanner matches the version text in every GNU C library (csu/version.c).
var libcBanner = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`GNU C Library \([^)]*\) [a-z]+ release version ([0-9]+\.[0-9]+)`)
})

// muslVersion matches the version that musl's loader prints when run directly; it is a
// string of its own (ldso/dynlink.c).
var muslVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\x00(1\.[0-9]{1,2})\.[0-9]{1,2}[^\x00]{0,40}\x00`) })

// baseLibc returns the version of an image's C library.
func baseLibc(ctx context.Context, s *store.Store, img v1.Image) (conda.Libc, error) {
	ls, err := img.Layers()
	if err != nil || len(ls) == 0 {
		return conda.Libc{}, err
	}
	dir, _, err := unpack.Tree(ctx, s, img, unpack.Options{})
	if err != nil {
		return conda.Libc{}, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return conda.Libc{}, err
	}
	defer root.Close()
	return treeLibc(root), nil
}

// treeLibc searches the usual paths of C libraries. No link leads out of root.
func treeLibc(root *os.Root) conda.Libc {
	return conda.Libc{
		Glibc: findText(root, libcBanner(), "lib/*/libc.so.6", "usr/lib/*/libc.so.6", "lib64/libc.so.6", "usr/lib64/libc.so.6", "lib/libc.so.6", "usr/lib/libc.so.6"),
		Musl:  findText(root, muslVersion(), "lib/ld-musl-*.so.1", "usr/lib/ld-musl-*.so.1"),
	}
}

// findText returns the first group of a pattern's match in the first file that has one.
func findText(root *os.Root, text *regexp.Regexp, files ...string) string {
	for _, pattern := range files {
		found, _ := fs.Glob(root.FS(), pattern)
		for _, p := range found {
			f, err := root.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would block
			if err != nil {
				continue
			}
			b, _ := io.ReadAll(io.LimitReader(f, maxLibc))
			f.Close()
			if m := text.FindSubmatch(b); m != nil {
				return string(m[1])
			}
		}
	}
	return ""
}
