package unpack

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// checkShared makes the tree of an image in a store that has the tree lower. It compares the
// tree with one that shares nothing, and checks that lower did not change.
func checkShared(t *testing.T, s *store.Store, lower string, img v1.Image, text string) string {
	t.Helper()
	before := closely(t, lower)
	dir, _, err := Tree(t.Context(), s, img, Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	alone := t.TempDir()
	if _, err := Fill(t.Context(), img, alone, Options{}); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if got, want := closely(t, dir), closely(t, alone); got != want {
		t.Errorf("%s\n\ngives\n%s\n\nwant\n%s", text, got, want)
	}
	if after := closely(t, lower); after != before {
		t.Errorf("%s\n\nchanges the tree below from\n%s\n\nto\n%s", text, before, after)
	}
	if err := checkTree(t.Context(), img, dir); err != nil {
		t.Errorf("%s\n\n%v", text, err)
	}
	return dir
}

// sameInode reports whether a path is the same file in two trees.
func sameInode(t testing.TB, a, b, name string) bool {
	t.Helper()
	x, err := os.Lstat(filepath.Join(a, name))
	testenv.Check(t, err)
	y, err := os.Lstat(filepath.Join(b, name))
	testenv.Check(t, err)
	return os.SameFile(x, y)
}

// TestSharedTree makes trees above one with owners, links and closed directories.
func TestSharedTree(t *testing.T) {
	base := retouched(t, layerOf(t, "d dir", "f dir/old 1", "d dir/sub", "f dir/sub/x 2", "f file 3", "h dir/hard file", "l link dir",
		"d1777 tmp", "d0700 closed", "f0400 closed/k 4", "f4755 su 5", "d0500 sealed", "f sealed/s 6", "d owned", "l owned/l x", "f owned/f 7", "p pipe"), func(h *tar.Header) {
		if strings.HasPrefix(h.Name, "owned") {
			h.Uid, h.Gid = 7, 8
		}
	})
	s := storeOf(t)
	lower, _, err := Tree(t.Context(), s, imageOf(t, base), Options{})
	testenv.Check(t, err)
	for _, lines := range [][]string{
		{"f new 1"},
		{"f dir/old 8", "f owned/f 9", "f su 10"},
		{"d0711 closed", "d dir", "d0755 sealed", "d ."},
		{"h again file", "h owned/again su", "h dir/x owned/l"},
		{"l file dir", "l dir/old x", "l owned/l y", "f link 1"},
		{"f .wh.dir", "f owned/.wh.l", "f sealed/.wh..wh..opq"},
		{"f dir 1", "d link", "f link/a 2"},
		{"f link/a 1", "p dir/old", "f pipe 1"},
	} {
		later := retouched(t, layerOf(t, lines...), func(h *tar.Header) { h.ModTime = then.Add(time.Hour) })
		dir := checkShared(t, s, lower, imageOf(t, base, later), strings.Join(lines, "\n"))
		if !sameInode(t, lower, dir, "closed/k") {
			t.Errorf("%q: the trees do not share closed/k", lines)
		}
	}
	if dir := checkShared(t, s, lower, imageOf(t, base, layerOf(t)), "no entries"); !sameInode(t, lower, dir, "owned/l") {
		t.Error("the trees do not share a symbolic link")
	}
}

// TestSharedRandomTrees makes trees of random images above the tree of their lowest layers.
func TestSharedRandomTrees(t *testing.T) {
	r := seeded(t)
	for range 100 {
		img, _, text := randomImage(t, r)
		layers, err := img.Layers()
		testenv.Check(t, err)
		s := storeOf(t)
		lower, _, err := Tree(t.Context(), s, imageOf(t, layers[:1+r.Intn(len(layers))]...), Options{})
		testenv.Check(t, err)
		checkShared(t, s, lower, img, text)
	}
}

// TestUnsharedTree checks that an unusable tree of the lower layers is not needed.
func TestUnsharedTree(t *testing.T) {
	base, more := layerOf(t, "d dir", "f dir/f 1", "f g 2"), layerOf(t, "f new 1")
	for what, spoil := range map[string]func(tree string) error{
		"an unreadable directory": func(tree string) error { return os.Chmod(filepath.Join(tree, "dir"), 0) },
		"no configuration":        func(tree string) error { return os.Remove(filepath.Join(tree, ConfigFile)) },
		"a damaged configuration": func(tree string) error { return os.WriteFile(filepath.Join(tree, ConfigFile), []byte("{"), 0o644) },
		"a configuration that is a pipe": func(tree string) error {
			file := filepath.Join(tree, ConfigFile)
			if err := os.Remove(file); err != nil {
				return err
			}
			return unix.Mkfifo(file, 0o600)
		},
		"notes in a file": func(tree string) error {
			return os.WriteFile(filepath.Join(tree, NotesFile), []byte(notesHead), 0o644)
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := storeOf(t)
			lower, _, err := Tree(t.Context(), s, imageOf(t, base), Options{})
			testenv.Check(t, err)
			testenv.Check(t, spoil(lower))
			t.Cleanup(func() { _ = os.Chmod(filepath.Join(lower, "dir"), 0o755) })
			img := imageOf(t, base, more)
			dir, _, err := Tree(t.Context(), s, img, Options{})
			testenv.Check(t, err)
			testenv.Check(t, checkTree(t.Context(), img, dir))
			if readable := os.Geteuid() == 0 && what == "an unreadable directory"; !readable && sameInode(t, lower, dir, "g") {
				t.Error("it shares a file with the unusable tree")
			}
		})
	}
}
