package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// safeDir returns a new directory with a safe path. t.TempDir may be group-writable, depending
// on the umask.
func safeDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "owndir-")
	testenv.Check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	dir, err = filepath.EvalSymlinks(dir)
	testenv.Check(t, err)
	return dir
}

func mkdir(t *testing.T, dir string, mode fs.FileMode) string {
	t.Helper()
	testenv.Check(t, os.MkdirAll(dir, 0o755))
	testenv.Check(t, os.Chmod(dir, mode))
	return dir
}

func TestTrusted(t *testing.T) {
	dir := safeDir(t)
	for _, link := range [][2]string{{"own", "absolute"}, {"own", "relative"}, {"loop", "loop"}, {"group/inner", "through"}} {
		target := link[0]
		if link[1] == "absolute" {
			target = filepath.Join(dir, target)
		}
		testenv.Check(t, os.Symlink(target, filepath.Join(dir, link[1])))
	}
	mkdir(t, filepath.Join(dir, "own/deep"), 0o711)
	mkdir(t, filepath.Join(dir, "sticky/inner"), 0o755)
	mkdir(t, filepath.Join(dir, "sticky"), 0o777|fs.ModeSticky)
	mkdir(t, filepath.Join(dir, "group/inner"), 0o700)
	mkdir(t, filepath.Join(dir, "group"), 0o770|fs.ModeSetgid)
	mkdir(t, filepath.Join(dir, "world/inner"), 0o700)
	mkdir(t, filepath.Join(dir, "world"), 0o777)
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for _, c := range []struct{ path, want, refused string }{
		{".", ".", ""}, {"own", "own", ""}, {"own/deep", "own/deep", ""}, {"own/deep/../deep/", "own/deep", ""},
		{"absolute/deep", "own/deep", ""}, {"relative", "own", ""}, {"sticky", "sticky", ""}, {"sticky/inner", "sticky/inner", ""},
		{"group", "", "its group can replace"}, {"group/inner", "", "its group can replace"}, {"through", "", "its group can replace"},
		{"world", "", "every user can replace"}, {"world/inner", "", "every user can replace"}, {"world/missing", "", "every user can replace"},
		{"missing", "", "no such file"}, {"file", "", "not a directory"}, {"own/file/x", "", "no such file"}, {"loop", "", "too many levels"},
	} {
		got, err := Trusted(filepath.Join(dir, c.path))
		switch {
		case c.refused != "":
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("Trusted(%s) = %q, %v; want an error with %q", c.path, got, err, c.refused)
			}
		case err != nil || got != filepath.Join(dir, c.want):
			t.Errorf("Trusted(%s) = %q, %v; want %q", c.path, got, err, c.want)
		}
	}
	var exposed *ExposedError
	if _, err := Trusted(filepath.Join(dir, "world")); !errors.As(err, &exposed) || !exposed.World() || exposed.Path != filepath.Join(dir, "world") {
		t.Errorf("Place of a directory that everybody can write to: %v", err)
	}
}

// TestResolveGone checks that the error names the path if the working directory was removed.
func TestResolveGone(t *testing.T) {
	dir := safeDir(t)
	t.Chdir(dir)
	testenv.Check(t, os.Remove(dir))
	if _, _, err := Resolve("some/path"); err == nil || !strings.Contains(err.Error(), "some/path") {
		t.Errorf("Walk = %v; want an error that names the path", err)
	}
}

func TestPrivateDir(t *testing.T) {
	place := safeDir(t)
	if _, err := PrivateDir(place, "x", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of a missing directory: %v", err)
	}
	first, err := PrivateDir(place, "x", true)
	if err != nil || first != filepath.Join(place, "x") {
		t.Fatalf("Open = %q, %v", first, err)
	}
	if again, err := PrivateDir(place, "x", false); err != nil || again != first {
		t.Errorf("Open again = %q, %v", again, err)
	}
	// Entries that another user can create under the name.
	for name, take := range map[string]func(string) error{
		"dir":  func(p string) error { return os.Chmod(mkdir(t, p, 0o755), 0o755) },
		"file": func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"link": func(p string) error { return os.Symlink(first, p) },
	} {
		testenv.Check(t, take(filepath.Join(place, name)))
		if _, err := PrivateDir(place, name, false); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open of a %s: %v; want fs.ErrNotExist", name, err)
		}
		if dir, err := PrivateDir(place, name, true); err != nil || !isPrivate(dir) {
			t.Errorf("Open next to a %s = %q, %v; want a private directory", name, dir, err)
		}
		again, err := PrivateDir(place, name, false)
		if err != nil || !strings.HasPrefix(again, filepath.Join(place, name)+".") {
			t.Errorf("Open next to a %s = %q, %v; want another name", name, again, err)
		}
		if fi, err := os.Stat(again); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", again, fi.Mode(), err)
		}
		// Once the name is free again, the created directory stays in use.
		testenv.Check(t, os.RemoveAll(filepath.Join(place, name)))
		if got, err := PrivateDir(place, name, true); err != nil || got != again {
			t.Errorf("Open with the name free again = %q, %v; want %q", got, err, again)
		}
	}
	testenv.Check(t, os.Chmod(place, 0o500))
	if got, err := PrivateDir(place, "new", true); err == nil && os.Geteuid() != 0 {
		t.Errorf("Open in a directory that cannot be written = %q", got)
	}
	_ = os.Chmod(place, 0o700)
}

// TestPrivateDirConcurrent checks that all processes that create the directory at the same time get
// the same one, even if another user holds the name.
func TestPrivateDirConcurrent(t *testing.T) {
	place := safeDir(t)
	testenv.Check(t, os.Mkdir(filepath.Join(place, "left.new-1"), 0o700)) // by a process that was killed
	for i := range 200 {
		name := "taken" + strconv.Itoa(i)
		if i%10 == 0 {
			name = "left"
		}
		testenv.Check(t, os.WriteFile(filepath.Join(place, name), nil, 0o600))
		var got [8]string
		var wg sync.WaitGroup
		for j := range got {
			wg.Go(func() {
				dir, err := PrivateDir(place, name, true)
				if err != nil || !isPrivate(dir) || strings.Contains(dir, candidateInfix) {
					t.Errorf("Open = %q, %v", dir, err)
				}
				got[j] = dir
			})
		}
		wg.Wait()
		if len(slices.Compact(slices.Clone(got[:]))) > 1 {
			t.Fatalf("processes use different directories for %q: %q", name, got)
		}
		left, err := filepath.Glob(filepath.Join(place, name+".*"))
		testenv.Check(t, err)
		if name != "left" && len(left) != 1 {
			t.Errorf("%q remain; want one directory", left)
		}
		testenv.Check(t, os.RemoveAll(got[0]))
	}
}

// TestPrivateDirStopped checks that a process that was stopped while it chose a directory does not
// block other processes forever, and that their error says what to remove.
func TestPrivateDirStopped(t *testing.T) {
	place := safeDir(t)
	testenv.Check(t, os.WriteFile(filepath.Join(place, "x"), nil, 0o600))
	stopped, err := os.Open(mkdir(t, filepath.Join(place, "x.new-1"), 0o700))
	testenv.Check(t, err)
	defer stopped.Close()
	testenv.Check(t, unix.Flock(int(stopped.Fd()), unix.LOCK_EX))
	defer func(d time.Duration) { agreeTimeout = d }(agreeTimeout)
	agreeTimeout = 20 * time.Millisecond
	if dir, err := PrivateDir(place, "x", true); err == nil || !strings.Contains(err.Error(), "x.new-*") {
		t.Errorf("Open = %q, %v", dir, err)
	}
	if left, _ := filepath.Glob(filepath.Join(place, "x.*")); len(left) != 1 {
		t.Errorf("%q remain; want only the other process's candidate", left)
	}
}
