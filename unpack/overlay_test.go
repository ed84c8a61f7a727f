package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// inside runs the current test again as root of its own user and mount namespace, in which
// overlays can be mounted. It reports whether this is that run.
func inside(t *testing.T) bool {
	t.Helper()
	if !testenv.Alone(t, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}) {
		return false
	}
	d := t.TempDir()
	testenv.Check(t, os.Mkdir(filepath.Join(d, "l"), 0o755))
	testenv.Need(t, "overlays in user namespaces (Linux 5.11)", mountOverlay([]string{filepath.Join(d, "l")}, filepath.Join(d, "u"), filepath.Join(d, "w"), filepath.Join(d, "m")))
	testenv.Check(t, unix.Unmount(filepath.Join(d, "m"), 0))
	return true
}

// mountOverlay mounts an overlay of lowers (lowest first) with changes in upper.
func mountOverlay(lowers []string, upper, work, merged string) error {
	for _, d := range []string{upper, work, merged} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	top := slices.Clone(lowers)
	slices.Reverse(top)
	return unix.Mount("overlay", merged, "overlay", 0,
		fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,userxattr", strings.Join(top, ":"), upper, work))
}

// change makes the change that line describes in the tree at root: "w FILE TEXT", "mkdir DIR",
// "rm PATH", "mv FROM TO", "ln FROM TO", "sym TARGET LINK", "mode OCTAL PATH", "time SECONDS
// PATH", "own UID GID PATH" or "pair NEW NEW", which creates a file with two names. Random
// changes must not use "ln" on files of lower layers: the two names have different inode
// numbers in the mounted overlay (Linux 6.18), but the same one in its upper directory.
func change(root, line string) error {
	f := strings.Fields(line)
	at := func(n int) string { return filepath.Join(root, f[n]) }
	switch f[0] {
	case "w":
		return os.WriteFile(at(1), []byte(f[2]), 0o644)
	case "mkdir":
		return os.Mkdir(at(1), 0o755)
	case "rm":
		return os.RemoveAll(at(1))
	case "mv":
		return os.Rename(at(1), at(2))
	case "ln":
		return os.Link(at(1), at(2))
	case "pair":
		if err := os.Remove(at(1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return errors.Join(os.WriteFile(at(1), []byte("pair"), 0o644), os.Link(at(1), at(2)))
	case "sym":
		return os.Symlink(f[1], at(2))
	case "mode":
		m, err := strconv.ParseUint(f[1], 8, 32)
		if err != nil {
			return err
		}
		return unix.Chmod(at(2), uint32(m))
	case "own":
		uid, uerr := strconv.Atoi(f[1])
		gid, gerr := strconv.Atoi(f[2])
		return errors.Join(uerr, gerr, new(Notes).setOwner(at(3), uid, gid))
	case "time":
		s, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return err
		}
		return os.Chtimes(at(2), time.Unix(s, 0), time.Unix(s, 0))
	}
	return fmt.Errorf("%q is not a change", line)
}

// overlayBase is the lower image in the tests of Upper.
var overlayBase = []string{"d d", "f d/a 1", "f d/b 2", "d d/s", "f d/s/x 3", "d d/s/t", "f d/s/t/y 4", "f file 5", "f600 secret 6",
	"l link file", "l dirlink d", "d empty", "f h1 linked", "h h2 h1", "d1777 tmp", "d deep", "d deep/1", "d deep/1/2", "d deep/1/2/3", "f deep/1/2/3/z 7"}

// TestUpperMatchesCompare checks that Upper, from an overlay's upper directory, and Compare,
// from two trees, write the same bytes, and that applying this layer produces the changed tree.
func TestUpperMatchesCompare(t *testing.T) {
	if !inside(t) {
		return
	}
	for _, c := range []struct {
		name  string
		steps [][]string // the changes of each build step, which is an overlay on the earlier ones
		want  [][]string // names in the layer of each step
	}{
		{"content", [][]string{{"w d/a changed"}}, [][]string{{"d/", "d/a"}}},
		{"same size", [][]string{{"w d/a 9", "time 1580702706 d/a"}}, [][]string{{"d/", "d/a"}}},
		{"same content and another time", [][]string{{"w d/a 1"}}, [][]string{{"d/", "d/a"}}},
		{"rewritten with the same content and time", [][]string{{"w d/a 1", "time 1580702706 d/a"}}, [][]string{nil}},
		{"mode only", [][]string{{"mode 755 d/a", "mode 700 empty", "mode 4755 file", "mode 1777 deep"}},
			[][]string{{"d/", "d/a", "deep/", "empty/", "file"}}},
		{"owner", [][]string{{"own 5 6 d/a", "own 5 0 empty", "own 0 7 file", "own 0 0 h1"}}, [][]string{{"d/", "d/a", "empty/", "file"}}},
		{"owner of a link", [][]string{{"own 5 6 link"}, {"own 5 7 link"}, {"own 0 0 link"}}, [][]string{{"link"}, {"link"}, {"link"}}},
		{"owner changed and restored", [][]string{{"own 5 6 d/a", "own 5 6 d"}, {"own 0 0 d/a", "own 5 7 d"}}, [][]string{{"d/", "d/a"}, {"d/", "d/a"}}},
		{"same owner again", [][]string{{"own 5 6 d/a", "own 5 6 d"}, {"own 0 0 d/a", "own 5 6 d/a"}}, [][]string{{"d/", "d/a"}, nil}},
		{"mode of a directory with changes", [][]string{{"mode 700 d", "w d/a x"}}, [][]string{{"d/", "d/a"}}},
		{"unreadable", [][]string{{"w d/n x", "mode 0 d/n", "mode 0 d/b"}}, [][]string{{"d/", "d/b", "d/n"}}},
		{"new", [][]string{{"w new x", "mkdir nd", "mkdir nd/e", "w nd/e/f y"}}, [][]string{{"nd/", "nd/e/", "nd/e/f", "new"}}},
		{"deleted file", [][]string{{"rm d/a", "rm file"}}, [][]string{{"d/", "d/.wh.a", ".wh.file"}}},
		{"deleted directory", [][]string{{"rm d"}}, [][]string{{".wh.d"}}},
		{"deleted subdirectory", [][]string{{"rm d/s/t"}}, [][]string{{"d/", "d/s/", "d/s/.wh.t"}}},
		{"created and deleted", [][]string{{"w new x", "rm new", "mkdir nd", "rm nd"}}, [][]string{nil}},
		{"directory to file", [][]string{{"rm d", "w d x"}}, [][]string{{"d"}}},
		{"directory to link", [][]string{{"rm d", "sym empty d"}}, [][]string{{"d"}}},
		{"file to directory", [][]string{{"rm file", "mkdir file", "w file/in x"}}, [][]string{{"file/", "file/in"}}},
		{"link to directory", [][]string{{"rm dirlink", "mkdir dirlink", "w dirlink/in x"}}, [][]string{{"dirlink/", "dirlink/in"}}},
		{"link to file", [][]string{{"rm link", "w link x"}}, [][]string{{"link"}}},
		{"directory recreated", [][]string{{"rm d", "mkdir d", "w d/new x"}}, [][]string{{"d/", "d/.wh.a", "d/.wh.b", "d/new", "d/.wh.s"}}},
		{"recreated with equal content", [][]string{{"rm d", "mkdir d", "mkdir d/s", "w d/s/x 3", "time 1580702706 d/s/x", "w d/s/n 8"}},
			[][]string{{"d/", "d/.wh.a", "d/.wh.b", "d/s/", "d/s/n", "d/s/.wh.t"}}},
		{"recreated with another mode", [][]string{{"rm d", "mkdir d", "mode 700 d"}}, [][]string{{"d/", "d/.wh.a", "d/.wh.b", "d/.wh.s"}}},
		{"renamed file", [][]string{{"mv d/a d/c"}}, [][]string{{"d/", "d/.wh.a", "d/c"}}},
		{"renamed over another", [][]string{{"mv d/a d/b"}}, [][]string{{"d/", "d/.wh.a", "d/b"}}},
		{"renamed new directory", [][]string{{"mkdir n1", "w n1/f x", "mv n1 n2"}}, [][]string{{"n2/", "n2/f"}}},
		{"hard link to an old file", [][]string{{"ln d/a l1"}}, [][]string{{"l1"}}},
		{"hard links to a new file", [][]string{{"w n x", "ln n o", "ln n d/p"}}, [][]string{{"d/", "d/p", "n", "o"}}},
		{"one of two hard links changed", [][]string{{"rm h1", "w h1 other"}}, [][]string{{"h1"}}},
		{"link retargeted", [][]string{{"rm link", "sym d link"}}, [][]string{{"link"}}},
		{"link recreated", [][]string{{"rm link", "sym file link"}}, [][]string{nil}},
		{"deep", [][]string{{"w deep/1/2/3/z changed"}}, [][]string{{"deep/", "deep/1/", "deep/1/2/", "deep/1/2/3/", "deep/1/2/3/z"}}},
		{"several steps", [][]string{{"rm d", "mkdir d", "w d/a new"}, {"w d/b again", "mkdir d/s"}, {"rm d/a", "w d/s/x 9"}, {"rm d"}, {"mkdir d", "w d/a 1"}},
			[][]string{{"d/", "d/a", "d/.wh.b", "d/.wh.s"}, {"d/", "d/b", "d/s/"}, {"d/", "d/.wh.a", "d/s/", "d/s/x"}, {".wh.d"}, {"d/", "d/a"}}},
		{"file to directory to file", [][]string{{"rm file", "mkdir file", "w file/x 1"}, {"rm file", "w file 5"}, {"rm file", "mkdir file"}},
			[][]string{{"file/", "file/x"}, {"file"}, {"file/"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i, names := range runSteps(t, c.steps, false) {
				if !slices.Equal(names, c.want[i]) {
					t.Errorf("step %d %q records %q; want %q", i, c.steps[i], names, c.want[i])
				}
			}
		})
	}
}

// TestUpperMatchesCompareRandom does the same with random changes.
func TestUpperMatchesCompareRandom(t *testing.T) {
	if !inside(t) {
		return
	}
	random := seeded(t)
	for range 25 {
		steps := make([][]string, 1+random.Intn(4))
		for i := range steps {
			steps[i] = randomChanges(random)
		}
		runSteps(t, steps, true)
		if t.Failed() {
			t.Fatalf("with the steps %q", steps)
		}
	}
}

// randomChanges returns changes to a tree of overlayBase, some of which fail.
func randomChanges(r *rand.Rand) (lines []string) {
	dirs := []string{"", "d/", "d/s/", "d/s/t/", "deep/1/", "deep/1/2/", "empty/"}
	leaves := []string{"a", "b", "s", "t", "x", "n", "1", "2", "d", "file", "h1", "h2"}
	p := func() string { return dirs[r.Intn(len(dirs))] + leaves[r.Intn(len(leaves))] }
	for range 1 + r.Intn(12) {
		lines = append(lines, []string{
			"w " + p() + " " + strconv.Itoa(r.Intn(12)), "rm " + p(), "rm " + p(), "mkdir " + p(), "mkdir " + p(),
			"mv " + p() + " " + p(), "pair " + p() + " " + p(), "sym " + leaves[r.Intn(len(leaves))] + " " + p(),
			"mode 750 " + p(), "time 1580702706 " + p(),
			"own 5 6 " + p(), "own 0 0 " + p(),
		}[r.Intn(12)])
	}
	return lines
}

// runSteps makes the changes of each step on an overlay of all earlier steps and checks its
// layer. It returns the names in the layers. Random changes may fail.
func runSteps(t *testing.T, steps [][]string, random bool) (names [][]string) {
	t.Helper()
	top := t.TempDir()
	base := filepath.Join(top, "base")
	_, err := Image(context.Background(), imageOf(t, layerOf(t, overlayBase...)), base, Options{})
	testenv.Check(t, err)
	lowers, before := []string{base}, base
	for i, lines := range steps {
		dir := filepath.Join(top, strconv.Itoa(i))
		upper, merged, after := filepath.Join(dir, "upper"), filepath.Join(dir, "merged"), filepath.Join(dir, "after")
		testenv.Check(t, mountOverlay(lowers, upper, filepath.Join(dir, "work"), merged))
		t.Cleanup(func() { unix.Unmount(merged, unix.MNT_DETACH) })
		for _, line := range lines {
			if err := change(merged, line); err != nil && !(random && expected(err)) {
				t.Fatalf("%s: %v", line, err)
			}
		}
		if out, err := exec.Command("cp", "-a", merged, after).CombinedOutput(); err != nil {
			t.Fatalf("copying the tree: %v: %s", err, out)
		}
		names = append(names, checkStep(t, lowers, upper, before, merged, after))
		lowers, before = append(lowers, upper), after
	}
	return names
}

// expected reports whether a random change may fail with the error.
func expected(err error) bool {
	for _, e := range []error{fs.ErrNotExist, fs.ErrExist, syscall.ENOTDIR, syscall.EISDIR, syscall.ENOTEMPTY, syscall.EXDEV, syscall.EINVAL, syscall.EPERM, syscall.ELOOP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// checkStep compares the layers that Upper and Compare produce for one change, and the
// results of applying them.
func checkStep(t *testing.T, lowers []string, upper, before, merged, after string) []string {
	t.Helper()
	skip := []string{configDir}
	var layer []byte
	dated := DiffOptions{Skip: skip, Newest: then.Add(time.Minute), Stamp: then.Add(time.Second)}
	setting := dated
	setting.SetTimes = true
	for _, o := range []DiffOptions{{Skip: skip}, dated, setting} {
		var u, m, c bytes.Buffer
		n, err := Upper(&u, lowers, upper, o)
		testenv.Check(t, err)
		if o.SetTimes { // merged differs from the layer no more where a file only got the time that it had
			m.Write(u.Bytes())
			for _, h := range headers(t, u.Bytes()) {
				fi, err := os.Lstat(filepath.Join(upper, h.Name))
				if !strings.HasPrefix(path.Base(h.Name), ".wh.") && (err != nil || !fi.ModTime().Equal(h.ModTime)) {
					t.Errorf("the tree has %v, %v for %s; want the time %v", fi, err, h.Name, h.ModTime)
				}
			}
		} else {
			_, err = Compare(&m, before, merged, o)
			testenv.Check(t, err)
		}
		_, err = Compare(&c, before, after, o)
		testenv.Check(t, err)
		if !bytes.Equal(u.Bytes(), m.Bytes()) || !bytes.Equal(u.Bytes(), c.Bytes()) {
			t.Errorf("Upper writes\n%s\nCompare writes, for the mounted tree,\n%s\nand, for a copy of it,\n%s", members(t, u.Bytes()), members(t, m.Bytes()), members(t, c.Bytes()))
		}
		if got := len(members(t, u.Bytes())); n != got {
			t.Errorf("Upper returns %d entries, but writes %d", n, got)
		}
		for _, h := range headers(t, u.Bytes()) {
			if !o.Newest.IsZero() && h.ModTime.After(o.Newest) {
				t.Errorf("%s has the time %v; want at most %v", h.Name, h.ModTime, o.Newest)
			}
		}
		layer = u.Bytes()
	}
	applied := filepath.Join(t.TempDir(), "applied")
	if out, err := exec.Command("cp", "-a", before, applied).CombinedOutput(); err != nil {
		t.Fatalf("copying the tree: %v: %s", err, out)
	}
	_, err := Apply(context.Background(), static.NewLayer(layer, types.OCIUncompressedLayer), applied, &Notes{}, nil)
	testenv.Check(t, err)
	if got, want := modes(t, applied), modes(t, after); got != want {
		t.Errorf("applying the layer %q produces\n%s\nwant\n%s", members(t, layer), got, want)
	}
	var names []string
	for _, h := range headers(t, layer) {
		names = append(names, h.Name)
	}
	return names
}

// headers lists the entries of a layer.
func headers(t *testing.T, layer []byte) (out []*tar.Header) {
	t.Helper()
	for tr := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		testenv.Check(t, err)
		out = append(out, h)
	}
}

// members describes the entries of a layer.
func members(t *testing.T, layer []byte) (out []string) {
	t.Helper()
	for tr := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		testenv.Check(t, err)
		b, err := io.ReadAll(tr)
		testenv.Check(t, err)
		out = append(out, fmt.Sprintf("%c %s %o %d %d:%d %q %q", h.Typeflag, h.Name, h.Mode, h.ModTime.UnixNano(), h.Uid, h.Gid, h.Linkname, b))
	}
}

// modes lists a tree with the modes and owners that unpacking produces.
func modes(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		m := fi.Mode() &^ (fs.ModeSetuid | fs.ModeSetgid)
		if m.IsRegular() {
			m |= 0o400
		}
		n := new(Notes).of(p, m)
		fmt.Fprintln(&out, m, n.uid, n.gid, strings.TrimPrefix(p, dir))
		return nil
	})
	testenv.Check(t, err)
	return out.String() + listing(t, dir)
}

// TestCompareTimesAndLockedFiles checks that times are exact, and that a file whose mode
// denies reading is read and keeps its mode.
func TestCompareTimesAndLockedFiles(t *testing.T) {
	top := t.TempDir()
	lower, upper := filepath.Join(top, "lower"), filepath.Join(top, "upper")
	for _, d := range []string{lower, upper} {
		testenv.Check(t, os.Mkdir(d, 0o755))
		testenv.Check(t, os.WriteFile(filepath.Join(d, "both"), []byte(d[len(top):]), 0))
		testenv.Check(t, os.Chtimes(filepath.Join(d, "both"), then, then))
	}
	testenv.Check(t, os.WriteFile(filepath.Join(upper, "locked"), []byte("text"), 0))
	late := then.Add(700 * time.Millisecond)
	testenv.Check(t, os.Chtimes(filepath.Join(upper, "locked"), late, late))
	var layer bytes.Buffer
	_, err := Compare(&layer, lower, upper, DiffOptions{})
	testenv.Check(t, err)
	want := []string{fmt.Sprintf("0 both 0 %d 0:0 %q %q", then.UnixNano(), "", "/upper"), fmt.Sprintf("0 locked 0 %d 0:0 %q %q", late.UnixNano(), "", "text")}
	if got := members(t, layer.Bytes()); !slices.Equal(got, want) {
		t.Errorf("Compare writes %q; want %q", got, want)
	}
	for _, p := range []string{"lower/both", "upper/both", "upper/locked"} {
		if fi, err := os.Stat(filepath.Join(top, p)); err != nil || fi.Mode() != 0 {
			t.Errorf("%s has mode %v (error %v); want 0", p, fi.Mode(), err)
		}
	}
}

// TestCompareSpecialFiles checks what becomes of sockets and of names that layers cannot hold.
func TestCompareSpecialFiles(t *testing.T) {
	top := t.TempDir()
	lower, upper := filepath.Join(top, "lower"), filepath.Join(top, "upper")
	for _, d := range []string{lower, upper} {
		testenv.Check(t, os.Mkdir(d, 0o755))
	}
	testenv.Check(t, os.WriteFile(filepath.Join(lower, "old"), nil, 0o644))
	for _, name := range []string{"new", "old"} {
		testenv.Check(t, unix.Mknod(filepath.Join(upper, name), unix.S_IFSOCK|0o644, 0))
	}
	var layer bytes.Buffer
	var left []string
	o := DiffOptions{LeftOut: func(p string) { left = append(left, p) }}
	_, err := Compare(&layer, lower, upper, o)
	testenv.Check(t, err)
	if h := headers(t, layer.Bytes()); len(h) != 1 || h[0].Name != ".wh.old" || !slices.Equal(left, []string{"new", "old"}) {
		t.Errorf("the layer has %q and leaves out %q; want .wh.old, new and old", members(t, layer.Bytes()), left)
	}
	testenv.Check(t, os.WriteFile(filepath.Join(upper, ".wh.old"), nil, 0o644))
	if _, err := Compare(&layer, lower, upper, o); err == nil || !strings.Contains(err.Error(), "/.wh.old: layers cannot hold") {
		t.Errorf("Compare of a tree with .wh.old: %v", err)
	}
}
