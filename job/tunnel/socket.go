package tunnel

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Socket listens in a directory that stays open. Close removes the socket.
type Socket struct {
	net.Listener
	Path string // absolute
	dir  *os.File
}

func (l *Socket) Close() error { return errors.Join(l.Listener.Close(), l.dir.Close()) }

// ListenSocket listens on a socket that only this user can connect to. It creates the socket's
// directory if needed, and removes a stale socket of this user.
func ListenSocket(path string) (*Socket, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir, err := openSocketDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	// Use the checked directory, even if its name refers to another one by now.
	at := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	l, err := bindSocket(at)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err = removeStale(dir, at); err == nil {
			l, err = bindSocket(at)
		}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return &Socket{l, path, dir}, nil
}

func bindSocket(at string) (net.Listener, error) {
	old := syscall.Umask(0o177) // no other user may ever connect
	defer syscall.Umask(old)
	return net.Listen("unix", at)
}

// openSocketDir opens a directory in which no other user can replace files of this user. It
// creates a missing one with mode 0700.
func openSocketDir(name string) (*os.File, error) {
	if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	link, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !trustedOwner(link) {
		return nil, foreignDir(name)
	}
	dir, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	fi, err := dir.Stat()
	switch {
	case err != nil:
	case !trustedOwner(fi):
		err = foreignDir(name)
	case fi.Mode()&0o022 != 0 && fi.Mode()&os.ModeSticky == 0:
		err = fmt.Errorf("other users may write to directory %s and could replace the socket; run chmod go-w %s", name, name)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func foreignDir(name string) error {
	return fmt.Errorf(`directory %s belongs to another user; run "hpcc forward --print" again for a new name`, name)
}

// trustedOwner reports whether a file belongs to this user or to root.
func trustedOwner(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && (int(st.Uid) == os.Geteuid() || st.Uid == 0)
}

// removeStale removes a socket of this user on which no process listens, such as one that a
// killed hpcc forward left behind.
func removeStale(dir *os.File, at string) error {
	fi, err := os.Lstat(at)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case fi.Mode()&os.ModeSocket == 0:
		return errors.New("a file of that name exists")
	case !ok || int(st.Uid) != os.Geteuid():
		return errors.New(`a socket of another user has that name; run "hpcc forward --print" again for a new name`)
	}
	c, err := net.DialTimeout("unix", at, time.Second)
	if err == nil {
		c.Close()
		return errors.New("another hpcc forward uses it; end that one, or use another name")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return unix.Unlinkat(int(dir.Fd()), filepath.Base(at), 0)
}

// NewSocketName returns an unpredictable path for the socket of "hpcc forward --print". The
// directory is one that only this user can open: in XDG_RUNTIME_DIR, or else a new one in /tmp.
func NewSocketName() (string, error) {
	name := func() string {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		return hex.EncodeToString(b[:])
	}
	if session := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(session) {
		fi, err := os.Lstat(session)
		if err == nil && fi.IsDir() && trustedOwner(fi) && fi.Mode()&0o077 == 0 {
			return filepath.Join(session, "hpcc-forward", name()), nil
		}
	}
	for {
		dir := "/tmp/hpcc-forward-" + name() // short, because the path of a socket has at most 107 bytes
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			return filepath.Join(dir, "socket"), nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("creating a directory for the socket: %w", err)
		}
	}
}
