package runtime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// mountinfo of a diskless node in a mount namespace of its own, and of a host that
// left its initramfs: there the root has a parent that is not listed.
const (
	disklessMounts = `80 80 0:2 / / rw - rootfs rootfs rw,size=1003524k
81 80 0:21 / /proc rw,relatime - proc p rw
82 80 0:22 / /sys rw,relatime - sysfs s rw
83 82 0:27 / /sys/fs/cgroup rw,relatime - cgroup2 c rw
84 80 0:21 / /my\040proc rw,relatime - proc p rw
90 80 0:30 / /usr rw,relatime - ext4 /dev/vda rw
91 90 0:21 / /usr/proc rw,relatime - proc p rw
`
	pivotedMounts = `24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
25 24 0:21 / /proc rw - proc proc rw
`
)

func TestLowestRoot(t *testing.T) {
	if !lowestRoot(disklessMounts) {
		t.Error("an initramfs is not recognised as the lowest mount")
	}
	for _, info := range []string{pivotedMounts, "", "1\n", "1 1 0:2 / /x rw - tmpfs t rw\n"} {
		if lowestRoot(info) {
			t.Errorf("taken for an initramfs: %q", info)
		}
	}
	if got, want := kernelMounts(disklessMounts), []string{"/proc", "/sys", "/my proc"}; !slices.Equal(got, want) {
		t.Errorf("kernelMounts gives %q; want %q", got, want)
	}
}

// A program that is root inside loses the capabilities that could uncover a lowest
// root, whatever the configuration of a container asks for.
func TestLeaveOutUncovering(t *testing.T) {
	names := func() []string { return []string{"CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_UNKNOWN", "CAP_SYS_PTRACE"} }
	c := &specs.LinuxCapabilities{Bounding: names(), Effective: names(), Inheritable: names(), Permitted: names(), Ambient: names()}
	leaveOut(c, uncovering)
	for _, set := range [][]string{c.Bounding, c.Effective, c.Inheritable, c.Permitted, c.Ambient} {
		if want := []string{"CAP_CHOWN", "CAP_UNKNOWN"}; !slices.Equal(set, want) {
			t.Errorf("a set is %q; want %q", set, want)
		}
	}
	leaveOut(nil, uncovering)
}

// The copy that -W makes where there is no overlay has modes, times, links and
// FIFOs, and its size is known beforehand.
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
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Chmod(at("d"), 0o755); os.Chmod(filepath.Join(to, "d"), 0o755) })
	if n, err := memorySize(from + "/."); err != nil || n != int64(2*page) {
		t.Errorf("memorySize gives %d, %v; want two pages", n, err)
	}
	if err := copyMemory(from+"/.", to); err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got, want := tree(to), tree(from); !slices.Equal(got, want) {
		t.Errorf("the copy is\n%q; want\n%q", got, want)
	}
	var a, b unix.Stat_t
	if unix.Stat(filepath.Join(to, "linked"), &a) != nil || unix.Stat(filepath.Join(to, "d/f"), &b) != nil || a.Ino != b.Ino {
		t.Error("two names of a file became two files")
	}
}
