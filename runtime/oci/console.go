package oci

import (
	"fmt"
	"net"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

// The console is a pseudo-terminal in the container. The engine receives its master over a
// socket (runc's terminals.md).

// dialConsole connects to the engine's socket. It must run before the container's root hides
// the path.
func dialConsole(path string) (*os.File, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil, fmt.Errorf("connecting to console socket %q: %w", path, err)
	}
	defer c.Close()
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		return nil, fmt.Errorf("connecting to console socket %q: %w", path, err)
	}
	return f, nil
}

// console opens a pseudo-terminal and sends its master over the socket. The slave becomes
// the controlling terminal and the standard streams. The terminal belongs to the container's
// devpts, or to the host's if the container has none.
func (r *newRoot) console(socket int, size *specs.Box) error {
	fail := func(err error) error { return fmt.Errorf("opening a console: %w", err) }
	path := "/dev/ptmx"
	if fd, err := r.Lookup("/dev/pts/ptmx"); err == nil {
		defer unix.Close(fd)
		path = rawfile.Path(fd)
	}
	master, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(master)
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fail(err)
	}
	slave, err := peer(master)
	if err != nil {
		return fail(err)
	}
	if size != nil {
		if err := unix.IoctlSetWinsize(master, unix.TIOCSWINSZ,
			&unix.Winsize{Row: uint16(size.Height), Col: uint16(size.Width)}); err != nil {
			return fail(err)
		}
	}
	if err := unix.Sendmsg(socket, []byte("/dev/ptmx"), unix.UnixRights(master), nil, 0); err != nil {
		return fmt.Errorf("sending the console to the engine: %w", err)
	}
	unix.Close(socket)
	if err := r.bindConsole(slave); err != nil {
		return fmt.Errorf("binding the console at /dev/console: %w", err)
	}
	_, _ = unix.Setsid() // fails harmlessly for a session leader
	if err := unix.IoctlSetInt(slave, unix.TIOCSCTTY, 0); err != nil {
		return fail(err)
	}
	for fd := range 3 {
		if err := unix.Dup3(slave, fd, 0); err != nil {
			return fail(err)
		}
	}
	return unix.Close(slave)
}

// peer opens the slave through the master's descriptor, because its path may not exist in
// this root.
func peer(master int) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// bindConsole binds the terminal at /dev/console if the container has its own /dev.
func (r *newRoot) bindConsole(slave int) error {
	for _, m := range r.spec.Mounts {
		if m.Destination != "/dev" || m.Type != "tmpfs" {
			continue
		}
		to, _, err := r.OpenMountPoint("/dev/console", false)
		if err != nil {
			return err
		}
		defer unix.Close(to)
		return unix.Mount(rawfile.Path(slave), rawfile.Path(to), "", unix.MS_BIND, "")
	}
	return nil
}
