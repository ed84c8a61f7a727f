package runtime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// TestCopyMemory checks that the copy that -W makes without an overlay keeps modes, times,
// links and FIFOs, and that memorySize predicts its size.
func TestCopyMemory(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	at := func(p string) string { return filepath.Join(from, p) }
	when := time.Unix(1e9, 0)
	page := os.Getpagesize()
	for _, err := range []error{
		os.Mkdir(at("d"), 0o755),
		os.WriteFile(at("d/f"), make([]byte, page+1), 0o644),
		os.Chmod(at("d/f"), 0o755|os.ModeSetuid),
		os.Link(at("d/f"), at("linked")),
		os.Symlink("d/f", at("link")),
		unix.Mkfifo(at("pipe"), 0o600),
		os.WriteFile(at("empty"), nil, 0o444),
		os.Chtimes(at("d/f"), when, when),
		os.Chtimes(at("d"), when, when),
		os.Chmod(at("d"), 0o555),
	} {
		testenv.Check(t, err)
	}
	t.Cleanup(func() { os.Chmod(at("d"), 0o755); os.Chmod(filepath.Join(to, "d"), 0o755) })
	if n, err := memorySize(from + "/."); err != nil || n != int64(2*page) {
		t.Errorf("memorySize = %d, %v; want %d (two pages)", n, err, 2*page)
	}
	testenv.Check(t, copyMemory(from+"/.", to))
	tree := func(dir string) (list []string) {
		err := filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
			if err != nil || p == dir {
				return err
			}
			line := strings.TrimPrefix(p, dir) + " " + fi.Mode().String()
			if fi.Mode()&os.ModeSymlink == 0 && strings.Contains(p, "/d") {
				line += fi.ModTime().UTC().String()
			}
			list = append(list, line)
			return nil
		})
		testenv.Check(t, err)
		return list
	}
	if got, want := tree(to), tree(from); !slices.Equal(got, want) {
		t.Errorf("the copy is\n%q; want\n%q", got, want)
	}
	var a, b unix.Stat_t
	if unix.Stat(filepath.Join(to, "linked"), &a) != nil || unix.Stat(filepath.Join(to, "d/f"), &b) != nil || a.Ino != b.Ino {
		t.Error("the copy has two files for a file with two hard links")
	}
}
