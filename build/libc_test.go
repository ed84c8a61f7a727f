package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTreeGlibc(t *testing.T) {
	const banner = "\x00GNU C Library (Debian GLIBC 2.36-9+deb12u13) stable release version 2.36.\nCopyright\x00"
	outside := filepath.Join(t.TempDir(), "libc.so.6")
	if err := os.WriteFile(outside, []byte(banner), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dir  string
		link string
		want string
	}{
		"Debian":         {files(t, "usr/lib/powerpc64le-linux-gnu/libc.so.6", banner), "", "2.36"},
		"a Debian link":  {files(t, "lib/x86_64-linux-gnu/libc-2.31.so", "GNU C Library (Debian GLIBC 2.31-13) stable release version 2.31.\n"), "lib/x86_64-linux-gnu/libc.so.6>libc-2.31.so", "2.31"},
		"Red Hat":        {files(t, "usr/lib64/libc.so.6", "GNU C Library (GNU libc) stable release version 2.28.\n"), "", "2.28"},
		"musl":           {files(t, "lib/ld-musl-x86_64.so.1", "musl", "lib/libc.so.6", "something else"), "", anyGlibc},
		"none":           {files(t, "bin/sh", "x"), "", anyGlibc},
		"a link outside": {files(t, "lib64/x", ""), "lib64/libc.so.6>" + outside, anyGlibc},
	} {
		if from, to, ok := strings.Cut(c.link, ">"); ok {
			if err := os.Symlink(to, filepath.Join(c.dir, from)); err != nil {
				t.Fatal(err)
			}
		}
		root, err := os.OpenRoot(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := treeGlibc(root); got != c.want {
			t.Errorf("%s: the C library is %q; want %q", name, got, c.want)
		}
		root.Close()
	}
}
