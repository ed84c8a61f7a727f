package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestWalk checks that Walk finds the same files as [filepath.WalkDir], in the same order, with
// the same modes, sizes and links.
func TestWalk(t *testing.T) {
	dir := t.TempDir()
	var err error
	put := func(name, text string) {
		p := filepath.Join(dir, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o640))
	}
	for i := range 3*walkPart + 7 {
		put(fmt.Sprintf("many/f%d", i), strings.Repeat("x", i%50))
	}
	for i := range 100 {
		put(fmt.Sprintf("wide/%d/deep/%d/f", i, i%7), "")
	}
	for _, name := range []string{"a", "a.b/c", "a-b", "a b/c", "skip/no/x", "skip/yes/x"} {
		put(name, name)
	}
	err = errors.Join(err, os.Symlink("a", filepath.Join(dir, "link")), os.Symlink("many", filepath.Join(dir, "dirlink")),
		os.Chmod(filepath.Join(dir, "a"), 0o755|fs.ModeSetuid), os.Mkdir(filepath.Join(dir, "empty"), 0o700|fs.ModeSticky), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	testenv.Check(t, err)
	for _, ignore := range []string{"", "skip\nmany/f1*\n", "skip\n!skip/yes\nwide\n!wide/4*/deep\n"} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, ".dockerignore"), []byte(ignore), 0o644))
		c, err := Open(dir, "")
		testenv.Check(t, err)
		set, err := c.Walk(".", nil)
		testenv.Check(t, err)
		var got []string
		for _, it := range set.Items {
			got = append(got, fmt.Sprint(it.Rel, " ", it.Mode, " ", it.stat.size, " ", it.Link))
		}
		if want := walkedDir(t, c); !slices.Equal(got, want) {
			t.Errorf("ignoring %q: %d files, want %d\n%.600q\n%.600q", ignore, len(got), len(want), got, want)
		}
	}
}

// walkedDir lists the files of the context with [filepath.WalkDir].
func walkedDir(t *testing.T, c *Dir) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(c.Dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeNamedPipe != 0 {
			return err
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p, c.Dir), "/")
		if ignored, err := c.ignored(rel); err != nil || (ignored && rel != "") {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		link, _ := os.Readlink(p)
		out = append(out, fmt.Sprint(rel, " ", fi.Mode(), " ", fi.Size(), " ", link))
		return nil
	})
	testenv.Check(t, err)
	return out
}
