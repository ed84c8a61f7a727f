package sshd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// drain is how long the terminal of a program that has ended may deliver the rest of its output.
const drain = 500 * time.Millisecond

// A terminal is a pseudo-terminal; see pty(7). The program has its other end.
type terminal struct {
	master, slave *os.File
	kind          string // value of TERM
}

// A windowSize is the payload of window-change.
type windowSize struct{ Columns, Rows, Width, Height uint32 }

// openTerminal creates the terminal of the session.
func (s *session) openTerminal(payload []byte) bool {
	var r struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	if s.started || s.terminal != nil || ssh.Unmarshal(payload, &r) != nil {
		return false
	}
	t, err := newTerminal()
	if err != nil {
		fmt.Fprintf(s.ch.Stderr(), "hpcc: opening a terminal: %v\r\n", err)
		return false
	}
	t.kind, s.terminal = r.Term, t
	t.resize(windowSize{r.Columns, r.Rows, r.Width, r.Height})
	return true
}

// newTerminal opens a terminal of the container's /dev/pts.
func newTerminal() (*terminal, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	var number int
	err = control(master, func(fd int) (err error) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		}
		return err
	})
	if err == nil {
		var slave *os.File
		if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err == nil {
			return &terminal{master: master, slave: slave}, nil
		}
	}
	master.Close()
	return nil, err
}

// control calls f with the descriptor of a file, and keeps the file in non-blocking mode, which
// os.File.Fd would end.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}

// resize sets the size of the terminal's window.
func (t *terminal) resize(w windowSize) {
	size := &unix.Winsize{Row: uint16(w.Rows), Col: uint16(w.Columns), Xpixel: uint16(w.Width), Ypixel: uint16(w.Height)}
	_ = control(t.master, func(fd int) error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size) })
}

// resize handles window-change.
func (s *session) resize(payload []byte) bool {
	var w windowSize
	if s.terminal == nil || ssh.Unmarshal(payload, &w) != nil {
		return false
	}
	s.terminal.resize(w)
	return true
}

// attach makes the terminal the program's controlling terminal and standard streams.
func (t *terminal) attach(cmd *exec.Cmd) (finish func(io.ReadWriter) (wait func()), err error) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.slave, t.slave, t.slave
	cmd.SysProcAttr.Setctty = true
	cmd.Env = append(cmd.Env, "TERM="+t.kind, "SSH_TTY="+t.slave.Name())
	return func(ch io.ReadWriter) func() {
		t.slave.Close()
		go func() { _, _ = io.Copy(t.master, ch) }()
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = io.Copy(ch, t.master) // until the last process has closed the terminal
		}()
		return func() {
			select {
			case <-over:
			case <-time.After(drain): // a process in the background holds the terminal
			}
			t.master.Close()
		}
	}, nil
}
