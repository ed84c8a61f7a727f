package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/conda"
	"hpcc/testdata/helpers/testenv"
)

func TestTreeLibc(t *testing.T) {
	const banner = "\x00GNU C Library (Debian GLIBC 2.36-9+deb12u13) stable release version 2.36.\nCopyright\x00"
	outside := filepath.Join(t.TempDir(), "libc.so.6")
	testenv.Check(t, os.WriteFile(outside, []byte(banner), 0o644))
	for name, c := range map[string]struct {
		dir  string
		link string
		want conda.Libc
	}{
		"Debian":         {testenv.Files(t, "usr/lib/powerpc64le-linux-gnu/libc.so.6", banner), "", conda.Libc{Glibc: "2.36"}},
		"a Debian link":  {testenv.Files(t, "lib/x86_64-linux-gnu/libc-2.31.so", "GNU C Library (Debian GLIBC 2.31-13) stable release version 2.31.\n"), "lib/x86_64-linux-gnu/libc.so.6>libc-2.31.so", conda.Libc{Glibc: "2.31"}},
		"Red Hat":        {testenv.Files(t, "usr/lib64/libc.so.6", "GNU C Library (GNU libc) stable release version 2.28.\n"), "", conda.Libc{Glibc: "2.28"}},
		"musl":           {testenv.Files(t, "lib/ld-musl-x86_64.so.1", "ELF\x001.2\x00libc\x001.2.4\x00musl libc (x86_64)\nVersion %s\x00", "lib/libc.so.6", "something else"), "", conda.Libc{Musl: "1.2"}},
		"none":           {testenv.Files(t, "bin/sh", "x"), "", conda.Libc{}},
		"a link outside": {testenv.Files(t, "lib64/x", ""), "lib64/libc.so.6>" + outside, conda.Libc{}},
	} {
		if from, to, ok := strings.Cut(c.link, ">"); ok {
			testenv.Check(t, os.Symlink(to, filepath.Join(c.dir, from)))
		}
		root, err := os.OpenRoot(c.dir)
		testenv.Check(t, err)
		if got := treeLibc(root); got != c.want {
			t.Errorf("%s: the C library is %q; want %q", name, got, c.want)
		}
		root.Close()
	}
}
