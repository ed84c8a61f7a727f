// Command escape tries from inside an image to reach the root of the host, with methods
// that work if the root was only covered by a mount or changed with chroot(2). It prints
// each method, and exits with status 1 if one of them worked.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// mark is a file in the host's root directory that no image has.
const mark = "/host-root"

// again lets a child process of this program complete a method.
const again = "HPCC_ESCAPE"

var ways = []struct {
	name string
	try  func() error
}{
	{"climb with ..", func() error { return climb() }},
	{"chroot below an open directory", func() error {
		top, err := unix.Open("/", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		dir, err := os.MkdirTemp("/tmp", "escape-")
		if err != nil {
			return err
		}
		defer os.Remove(dir)
		if err := unix.Chroot(dir); err != nil {
			return err
		}
		if err := unix.Fchdir(top); err != nil {
			return err
		}
		return climb()
	}},
	{"openat .. of an open directory", func() error {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		for range 5 {
			if err != nil {
				return err
			}
			fd, err = unix.Openat(fd, "..", unix.O_PATH|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			return err
		}
		return found(fmt.Sprintf("/proc/self/fd/%d", fd))
	}},
	{"roots of other processes", func() error {
		list, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return err
		}
		for _, p := range list {
			for _, dir := range []string{p + "/root", p + "/cwd", p + "/task/" + filepath.Base(p) + "/root"} {
				if err := found(dir); err == nil {
					return nil
				}
			}
		}
		return errors.New("none shows it")
	}},
	{"memory of other processes", func() error {
		list, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, p := range list {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(p)))
			if pid == os.Getpid() || unix.PtraceSeize(pid) != nil {
				continue
			}
			_ = unix.PtraceDetach(pid)
			if exe, err := os.Readlink(p); err == nil && filepath.Base(exe) == "hpcc" && filepath.Dir(exe) != "/" {
				return nil // a process of hpcc itself, which can be made to do anything
			}
		}
		return errors.New("no process of hpcc can be traced")
	}},
	{"enter the own mount namespace", func() error { return enter("/proc/self/ns/mnt") }},
	{"unmount the root", func() error {
		if err := unix.Unmount("/", unix.MNT_DETACH); err != nil {
			return err
		}
		return enter("/proc/self/ns/mnt")
	}},
	{"move the root away", func() error {
		if err := unix.Mount("/", "/tmp", "", unix.MS_MOVE, ""); err != nil {
			return err
		}
		return climb()
	}},
	{"new namespaces, climb", func() error { return inNew("climb") }},
	{"new namespaces, unmount the root", func() error { return inNew("unmount") }},
	{"new namespaces, move the root", func() error { return inNew("move") }},
	{"new namespaces, pivot the root", func() error { return inNew("pivot") }},
	{"enter the parent's user namespace", func() error {
		fd, err := unix.Open("/proc/self/ns/user", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		up, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		if err != nil {
			return err
		}
		return unix.Setns(up, unix.CLONE_NEWUSER)
	}},
}

// found returns nil if dir is the root of the host.
func found(dir string) error {
	_, err := os.Lstat(dir + mark)
	return err
}

func climb() error {
	for range 5 {
		if err := unix.Chdir(".."); err != nil {
			return err
		}
	}
	return found(".")
}

// enter enters a mount namespace, which changes root and working directory to its root.
func enter(file string) error {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
		return err
	}
	return found("/")
}

// inNew tries a method in a new user and mount namespace, with all capabilities.
func inNew(way string) error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{again + "=" + way}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// tried runs a method in the child process of inNew.
func tried(way string) error {
	switch way {
	case "unmount":
		if err := unix.Unmount("/", unix.MNT_DETACH); err != nil {
			return err
		}
		return enter("/proc/self/ns/mnt")
	case "move":
		if err := unix.Mount("/", "/tmp", "", unix.MS_MOVE, ""); err != nil {
			return err
		}
	case "pivot":
		if err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, ""); err != nil {
			return err
		}
		if err := os.Mkdir("/tmp/old", 0o755); err != nil {
			return err
		}
		if err := unix.PivotRoot("/tmp", "/tmp/old"); err != nil {
			return err
		}
		if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
			return err
		}
		// The root of the namespace is now this tmpfs.
		if err := unix.Unmount("/", unix.MNT_DETACH); err != nil {
			return err
		}
		return enter("/proc/self/ns/mnt")
	}
	return climb()
}

func main() {
	runtime.LockOSThread()
	if way := os.Getenv(again); way != "" {
		if err := tried(way); err != nil {
			fmt.Fprint(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Each method runs in a separate process, because it may change the root.
	if len(os.Args) == 2 {
		i, err := strconv.Atoi(os.Args[1])
		if err == nil {
			err = ways[i].try()
		}
		if err != nil {
			fmt.Print(err)
			os.Exit(1)
		}
		return
	}
	escaped := 0
	for i, w := range ways {
		out, err := exec.Command("/proc/self/exe", strconv.Itoa(i)).CombinedOutput()
		if err == nil {
			escaped = 1
			fmt.Printf("ESCAPED: %s\n", w.name)
			continue
		}
		fmt.Printf("held: %s: %s\n", w.name, out)
	}
	os.Exit(escaped)
}
