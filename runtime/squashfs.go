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

// A FUSEError says why this process cannot mount a file by FUSE.
type FUSEError struct{ Err error }

func (e *FUSEError) Error() string { return fmt.Sprintf("mounting by FUSE: %v", e.Err) }
func (e *FUSEError) Unwrap() error { return e.Err }

// MountSquashFS shows a SquashFS file at the directory at, to this process and
// the program that it becomes, and to nobody else. Files belong to the caller.
// Every error is a [FUSEError].
//
// Since Linux 4.18 a user may mount FUSE in a user namespace of the user's own,
// so fusermount(1) is not needed, only /dev/fuse that opens and squashfuse(1).
// squashfuse becomes a background process of nobody's: not a child that the
// program could wait for. It lives in a mount namespace in which the mount is
// not; so the mount ends with the last process of the program, then the kernel
// ends the connection, and squashfuse ends with that. The mount is therefore
// made without a place (fsopen(2), Linux 5.2) and given one when squashfuse runs.
func MountSquashFS(file, at string) error {
	if asked, err := early(); err != nil || !asked {
		return &FUSEError{errors.New("this process has no mount namespace of its own")}
	}
	if err := mountSquashFS(file, at); err != nil {
		return &FUSEError{err}
	}
	return nil
}

// CanMountSquashFS says, as a [FUSEError], why [MountSquashFS] would fail with any
// file, as far as that can be seen beforehand.
func CanMountSquashFS() error {
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

func mountSquashFS(file, at string) error {
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
	if err := serve(file, dev); err != nil {
		return err
	}
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting at %q: %w", at, err)
	}
	return nil
}

// detachedFUSE makes a mount of FUSE that has no place yet.
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

// serve starts a server for an opened and mounted device and returns when it has
// looked at the file and gone to the background. Those that are likely to serve
// come first: one that does not has cost a start.
func serve(file string, dev *os.File) error {
	err := errNoServer
	for _, s := range servers() {
		// libfuse 3.3: the place may be /dev/fd/N, a device that is mounted already.
		cmd := exec.Command(s[0], "-o", s[1], file, "/dev/fd/3")
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

// servers are the commands that can serve, each with its options.
//
// squashfuse_ll is the faster one. Only since 0.2 it knows the options for the
// owner of files, without which they are nobody's here; a version that does has
// one of them in its text. squashfuse leaves these to libfuse, and also how long
// the kernel may remember names and attributes: a second, and not at all that a
// name was not there, although nothing in the file ever changes.
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
