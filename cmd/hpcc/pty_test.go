package main

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/screen"
)

// pty implements "pty COLUMNSxROWS COMMAND [ARG...]": it runs a command on a new terminal. It writes
// the final text of the screen, with times replaced, to the file "screen".
func pty(ts *testscript.TestScript, neg bool, args []string) {
	var size unix.Winsize
	if _, err := fmt.Sscanf(args[0], "%dx%d", &size.Col, &size.Row); err != nil {
		ts.Fatalf("pty %s: %v", args[0], err)
	}
	master, slave, err := openPTY(&size)
	ts.Check(err)
	defer master.Close()
	cmd := commandOf(ts, args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	slave.Close()
	ts.Check(err)
	s := &screen.Screen{Columns: int(size.Col), Rows: int(size.Row), Wrong: func(format string, a ...any) { ts.Logf(format, a...); err = fmt.Errorf(format, a...) }}
	_, _ = io.Copy(s, master) // ends with EIO when all processes have closed the terminal
	ts.Check(err)
	err = cmd.Wait()
	ts.Logf("%s", s.Text())
	ts.Check(os.WriteFile(ts.MkAbs("screen"), []byte(s.Text()+"\n"), 0o644))
	if (err != nil) != neg {
		ts.Fatalf("%v: %v", args[1:], err)
	}
}

// openPTY creates a terminal, as posix_openpt(3) does.
func openPTY(size *unix.Winsize) (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	fd := int(master.Fd())
	err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	var n uint32
	if err == nil {
		n, err = unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
	}
	return master, slave, err
}
