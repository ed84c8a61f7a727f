package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// FUSEError reports why this process cannot mount a file through FUSE.
type FUSEError struct{ Err error }

func (e *FUSEError) Error() string { return fmt.Sprintf("mounting by FUSE: %v", e.Err) }
func (e *FUSEError) Unwrap() error { return e.Err }

// MountSquashFS mounts the SquashFS file system at an offset of a file, in bytes, at the
// directory at. Only this process and the
// program that it becomes see the mount. The files belong to the caller. Every error is a
// [FUSEError].
//
// Since Linux 4.18 users can mount FUSE in their own user namespace, so this needs only
// access to /dev/fuse and squashfuse(1), not fusermount(1). squashfuse becomes a background
// process that is not the program's child. It lives in a mount namespace without the mount.
// So the mount ends with the program's last process, which closes the connection and ends
// squashfuse. For this, the mount is created detached (fsopen(2), Linux 5.2) and attached
// once squashfuse runs.
func MountSquashFS(file string, offset int64, at string) error {
	if requested, err := earlyNamespaces(); err != nil || !requested {
		return errNoMounts
	}
	if err := mountSquashFS(file, offset, at); err != nil {
		return &FUSEError{err}
	}
	return nil
}

var errNoMounts = &FUSEError{errors.New("this process does not have its own mount namespace")}

// CanMountSquashFS returns, as a [FUSEError], the reason why [MountSquashFS] would fail with
// any file, if it is known in advance. A run that joins the namespaces of others cannot mount.
func CanMountSquashFS() error {
	if entered == later {
		return errNoMounts
	}
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &FUSEError{&os.PathError{Op: "open", Path: "/dev/fuse", Err: err}}
	}
	unix.Close(dev)
	if len(servers()) == 0 {
		return &FUSEError{errNoServer}
	}
	return nil
}

var errNoServer = errors.New("squashfuse is not on PATH")

func mountSquashFS(file string, offset int64, at string) error {
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	mnt, err := detachedFUSE(int(dev.Fd()))
	if err != nil {
		return err
	}
	defer unix.Close(mnt)
	if err := serve(file, offset, dev); err != nil {
		return err
	}
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting at %q: %w", at, err)
	}
	return nil
}

// detachedFUSE creates a FUSE mount that is not attached to a path yet.
func detachedFUSE(dev int) (int, error) {
	fs, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	for _, o := range [][2]string{
		{"source", "squashfuse"}, {"subtype", "squashfuse"}, {"fd", strconv.Itoa(dev)}, {"rootmode", "40000"},
		{"user_id", strconv.Itoa(unix.Getuid())}, {"group_id", strconv.Itoa(unix.Getgid())},
	} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return -1, fmt.Errorf("option %s=%s: %w", o[0], o[1], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// serve starts a server for an open and mounted device. It returns when the server has read
// the file and gone to the background. The most promising server comes first, because each
// failure costs a start.
func serve(file string, offset int64, dev *os.File) error {
	err := errNoServer
	for _, s := range servers() {
		// libfuse 3.3: the mount point may be /dev/fd/N, a device that is already mounted.
		options := s[1]
		if offset != 0 {
			options += ",offset=" + strconv.FormatInt(offset, 10)
		}
		cmd := exec.Command(s[0], "-o", options, file, "/dev/fd/3")
		cmd.ExtraFiles = []*os.File{dev}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		out, cerr := cmd.CombinedOutput()
		if cerr == nil {
			return nil
		}
		err = fmt.Errorf("%s: %w: %s", s[0], cerr, strings.TrimSpace(string(out)))
	}
	return err
}

// servers returns the commands that can serve, each with its options.
//
// squashfuse_ll is faster, but supports the options for the owner of files only since 0.2;
// such versions contain an option's name in their text. Without these options, files belong
// to nobody here. squashfuse leaves the options to libfuse, which also decides how long the
// kernel caches names and attributes: one second, and never the absence of a name, although
// the file never changes.
func servers() (out [][2]string) {
	owner := fmt.Sprintf("uid=%d,gid=%d", unix.Getuid(), unix.Getgid())
	if s, err := exec.LookPath("squashfuse"); err == nil {
		out = append(out, [2]string{s, owner + ",entry_timeout=86400,attr_timeout=86400,negative_timeout=86400"})
	}
	if s, err := exec.LookPath("squashfuse_ll"); err == nil {
		low := [2]string{s, owner}
		if text, err := os.ReadFile(s); err == nil && bytes.Contains(text, []byte("uid=%")) {
			return append([][2]string{low}, out...)
		}
		out = append(out, low)
	}
	return out
}
