package unpack

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/store"
)

// inside, set in the environment, names the directory in which this process,
// root of its own namespaces, mounts the overlay and changes it.
const inside = "HPCC_TEST_OVERLAY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(inside); dir != "" {
		if err := changeOverlay(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// changes are what a build step may do to a tree; p gives a path in it.
var changes = []struct {
	name string
	do   func(p func(string) string) error
}{
	{"content", func(p func(string) string) error { return os.WriteFile(p("d/file"), []byte("other"), 0o644) }},
	{"mode", func(p func(string) string) error { return os.Chmod(p("d/file"), 0o600) }},
	{"mode of a directory", func(p func(string) string) error { return os.Chmod(p("d"), 0o700) }},
	{"nothing, by rewriting", func(p func(string) string) error {
		if err := os.WriteFile(p("d/file"), []byte("file"), 0o644); err != nil {
			return err
		}
		return os.Chtimes(p("d/file"), then, then)
	}},
	{"time", func(p func(string) string) error { return os.Chtimes(p("d/file"), then, then.Add(-time.Hour)) }},
	{"new", func(p func(string) string) error { return os.WriteFile(p("e/new"), []byte("new"), 0o755) }},
	{"removed", func(p func(string) string) error { return os.Remove(p("d/file")) }},
	{"directory removed", func(p func(string) string) error { return os.RemoveAll(p("d")) }},
	{"directory to file", func(p func(string) string) error {
		os.RemoveAll(p("d"))
		return os.WriteFile(p("d"), nil, 0o644)
	}},
	{"directory to link", func(p func(string) string) error { os.RemoveAll(p("d")); return os.Symlink("e", p("d")) }},
	{"file to directory", func(p func(string) string) error { os.Remove(p("d/file")); return os.MkdirAll(p("d/file/sub"), 0o755) }},
	{"removed and made again", func(p func(string) string) error {
		os.RemoveAll(p("d"))
		os.Mkdir(p("d"), 0o755)
		return os.WriteFile(p("d/other"), []byte("x"), 0o644)
	}},
	{"renamed", func(p func(string) string) error { return os.Rename(p("d/file"), p("e/file")) }},
	{"hard link", func(p func(string) string) error {
		os.WriteFile(p("e/one"), []byte("1"), 0o644)
		return os.Link(p("e/one"), p("d/two"))
	}},
	{"hard link to what was there", func(p func(string) string) error { return os.Link(p("d/file"), p("d/second")) }},
	{"link elsewhere", func(p func(string) string) error { os.Remove(p("link")); return os.Symlink("e", p("link")) }},
	{"deep", func(p func(string) string) error { return os.MkdirAll(p("d/1/2/3/4"), 0o755) }},
	{"made and removed", func(p func(string) string) error {
		os.WriteFile(p("d/short"), nil, 0o644)
		return os.Remove(p("d/short"))
	}},
	{"removed below a lower one", func(p func(string) string) error { return os.Remove(p("d/deep/x")) }},
}

// changeOverlay mounts lower1 and lower2 below upper and makes the change whose
// name is in the file "change", there and in the plain tree.
func changeOverlay(dir string) error {
	p := func(s string) string { return filepath.Join(dir, s) }
	data := fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s,userxattr", p("lower2"), p("lower1"), p("upper"), p("work"))
	if err := unix.Mount("overlay", p("merged"), "overlay", 0, data); err != nil {
		return fmt.Errorf("mounting an overlay: %w", err)
	}
	name, err := os.ReadFile(p("change"))
	if err != nil {
		return err
	}
	for _, c := range changes {
		if c.name == string(name) {
			if err := c.do(func(s string) string { return p("merged/" + s) }); err != nil {
				return err
			}
			return c.do(func(s string) string { return p("plain/" + s) })
		}
	}
	return fmt.Errorf("no change %q", name)
}

// TestUpperIsCompare makes each change on an overlay and in a plain copy: the
// overlay's upper directory and the comparison of trees give the same bytes.
func TestUpperIsCompare(t *testing.T) {
	low1 := layerOf(t, "d d", "f d/file file", "d d/deep", "f d/deep/x 1", "d e", "l link d", "f top 1")
	low2 := layerOf(t, "d d", "f d/file2 file", "d d/deep", "f d/deep/y 2")
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Cleanup(func() { store.RemoveAll(dir) }) // the kernel's work directory has mode 0
			p := func(s string) string { return filepath.Join(dir, s) }
			for name, img := range map[string][]int{"lower1": {1}, "lower2": {2}, "plain": {1, 2}, "before": {1, 2}} {
				layers := imageOf(t, low1)
				if len(img) == 2 {
					layers = imageOf(t, low1, low2)
				} else if img[0] == 2 {
					layers = imageOf(t, low2)
				}
				if _, err := Image(context.Background(), layers, p(name), Options{}); err != nil {
					t.Fatal(err)
				}
				os.RemoveAll(p(name + "/" + configDir))
			}
			for _, d := range []string{"upper", "work", "merged"} {
				if err := os.Mkdir(p(d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(p("change"), []byte(c.name), 0o644); err != nil {
				t.Fatal(err)
			}
			self := exec.Command("/proc/self/exe")
			self.Env = append(os.Environ(), inside+"="+dir)
			self.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
			if out, err := self.CombinedOutput(); err != nil {
				if os.Getenv("CI") != "" || !strings.Contains(string(out), "mounting an overlay") && len(out) > 0 {
					t.Fatalf("%v: %s", err, out)
				}
				t.Skipf("needs overlays for users: %v: %s", err, out)
			}
			o := DiffOptions{Newest: then.Add(time.Hour), Stamp: then}
			var upper, compared bytes.Buffer
			n, err := Upper(&upper, []string{p("lower1"), p("lower2")}, p("upper"), o)
			if err != nil {
				t.Fatal(err)
			}
			m, err := Compare(&compared, p("before"), p("plain"), o)
			if err != nil {
				t.Fatal(err)
			}
			if n != m || !bytes.Equal(upper.Bytes(), compared.Bytes()) {
				t.Errorf("the overlay gives %d entries:\n%s\nthe trees %d:\n%s", n, entries(t, upper.Bytes()), m, entries(t, compared.Bytes()))
			}
		})
	}
}

// entries lists a layer with tar.
func entries(t *testing.T, layer []byte) string {
	cmd := exec.Command("tar", "-tvf", "-")
	cmd.Stdin = bytes.NewReader(layer)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Logf("tar: %v", err)
	}
	return string(out)
}
