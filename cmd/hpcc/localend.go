package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/job/tunnel"
)

// The local end of "hpcc forward": a port of the loopback interface, of which
// every connection is checked, or a socket in a directory that is checked.

// A socketListener listens on a socket in a directory that stays open. The
// socket goes away with it.
type socketListener struct {
	net.Listener
	dir  *os.File
	path string
}

func (l *socketListener) Close() error { return errors.Join(l.Listener.Close(), l.dir.Close()) }

// listenSocket listens on a socket that only this user can connect to. It makes
// the socket's directory where there is none, and takes away a socket of this
// user to which nobody listens any more.
func listenSocket(path string) (net.Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir, err := openSocketDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	// The directory is the one that was checked, whatever its name leads to by now.
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
	return &socketListener{l, dir, path}, nil
}

func bindSocket(at string) (net.Listener, error) {
	old := syscall.Umask(0o177) // nobody else may connect, from the first moment on
	defer syscall.Umask(old)
	return net.Listen("unix", at)
}

// openSocketDir opens a directory in which no other user can replace what this
// user makes. A missing one is made, for this user alone.
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
		err = fmt.Errorf("other users may write to directory %s, and could put a socket of theirs in its place; chmod go-w %s", name, name)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func foreignDir(name string) error {
	return fmt.Errorf(`directory %s belongs to another user; take another name (a new "hpcc forward --print" has one)`, name)
}

// trustedOwner reports whether a file belongs to this user or to root.
func trustedOwner(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && (int(st.Uid) == os.Geteuid() || st.Uid == 0)
}

// removeStale removes a socket of this user to which nobody listens, as a
// forwarding that was killed leaves it.
func removeStale(dir *os.File, at string) error {
	fi, err := os.Lstat(at)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case fi.Mode()&os.ModeSocket == 0:
		return errors.New("a file of that name is there already")
	case !ok || int(st.Uid) != os.Geteuid():
		return errors.New(`a socket of another user has that name; take another name (a new "hpcc forward --print" has one)`)
	}
	c, err := net.DialTimeout("unix", at, time.Second)
	if err == nil {
		c.Close()
		return errors.New("another hpcc forward listens there; end that one, or take another name")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return unix.Unlinkat(int(dir.Fd()), filepath.Base(at), 0)
}

// newSocketName returns a path for the socket of "hpcc forward --print", in a
// directory that only this user can open: that of the login session, else a new
// one in /tmp. Nobody can guess the name before it is used.
func newSocketName() (string, error) {
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
		dir := "/tmp/hpcc-forward-" + name() // a short path: a socket's may have 107 bytes
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			return filepath.Join(dir, "socket"), nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("making a directory for the socket: %w", err)
		}
	}
}

// refusalPause is the least time between two warnings of refused connections.
const refusalPause = time.Minute

// A guard lets connections of this user and of root in, and no others.
type guard struct {
	open    bool // all users
	refused int  // since the last warning
	warned  time.Time
}

// admits reports whether a connection may be carried. It warns of others, not
// more often than once in refusalPause.
func (g *guard) admits(conn net.Conn) bool {
	if g.open {
		return true
	}
	err := tunnel.CheckPeer(conn)
	if err == nil {
		return true
	}
	g.refused++
	if g.warned.IsZero() || time.Since(g.warned) >= refusalPause {
		more := ""
		if g.refused > 1 {
			more = fmt.Sprintf(" (%d were refused since the last warning)", g.refused)
		}
		say("warning: refused a connection: %v%s; --open lets every user of this machine connect", err, more)
		g.refused, g.warned = 0, time.Now()
	}
	return false
}

// accept carries each connection that the guard admits. A problem is told once,
// until there is another, or none.
func accept(ctx context.Context, l net.Listener, g *guard, tunnel *tunnel.Tunnel, what string) error {
	var lock sync.Mutex
	told := ""
	for {
		conn, err := l.Accept()
		if errors.Is(err, syscall.EMFILE) && ctx.Err() == nil { // until connections end
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		if !g.admits(conn) {
			if c, ok := conn.(*net.TCPConn); ok {
				_ = c.SetLinger(0)
			}
			conn.Close()
			continue
		}
		go func() {
			text := ""
			if err := tunnel.Carry(conn); err != nil {
				text = err.Error()
			}
			lock.Lock()
			defer lock.Unlock()
			if text != told && text != "" {
				say("%s: %s", what, text)
			}
			told = text
		}()
	}
}
