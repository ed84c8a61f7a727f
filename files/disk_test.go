package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestRemoveAll removes directories of any mode, many and deep ones, and nothing that links lead
// to.
func TestRemoveAll(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside/file")
	testenv.Write(t, outside, "stays")
	tree := filepath.Join(dir, "tree")
	for i := range 200 {
		testenv.Write(t, filepath.Join(tree, fmt.Sprint(i%20), fmt.Sprint(i)), "goes")
	}
	testenv.Check(t, os.MkdirAll(filepath.Join(tree, strings.Repeat("d/", 500)), 0o755))
	testenv.Check(t, os.Symlink(filepath.Dir(outside), filepath.Join(tree, "link")))
	testenv.Check(t, os.Symlink("../../outside", filepath.Join(tree, "3/link")))
	for _, locked := range []string{"5", "6"} {
		testenv.Check(t, os.Chmod(filepath.Join(tree, locked), 0))
	}
	testenv.Check(t, RemoveAll(tree))
	if _, err := os.Lstat(tree); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree is still there: %v", err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
	testenv.Check(t, RemoveAll(tree)) // no such directory
	testenv.Check(t, RemoveAll(outside))
}
