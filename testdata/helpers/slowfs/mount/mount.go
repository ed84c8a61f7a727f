// Package mount mounts directories with the program slowfs (testdata/helpers/slowfs).
package mount

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A Mount is a directory that slowfs serves.
type Mount struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	socket string // reports the counts
}

// Possible returns the reason why users of this machine cannot mount file systems by FUSE.
func Possible() error {
	if _, err := exec.LookPath("fusermount3"); err != nil {
		return fmt.Errorf("%w (Debian: fuse3)", err)
	}
	return unix.Access("/dev/fuse", unix.R_OK|unix.W_OK)
}

// New mounts dir at the directory at, with flags of slowfs and empty caches. program is the path
// of slowfs.
func New(program, dir, at string, flags ...string) (*Mount, error) {
	sockets, err := os.MkdirTemp("", "slowfs-") // the path of a socket is short
	if err != nil {
		return nil, err
	}
	m := &Mount{socket: filepath.Join(sockets, "counts")}
	m.cmd = exec.Command(program, append(append([]string{"-stats", m.socket}, flags...), dir, at)...)
	var messages strings.Builder
	m.cmd.Stderr = &messages
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		_ = m.Close()
		return nil, fmt.Errorf("slowfs: %s", messages.String())
	}
	return m, nil
}

// Counts returns the number of operations by kind and in total ("total"), and resets them.
func (m *Mount) Counts() (map[string]int, error) {
	c, err := net.Dial("unix", m.socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var counts map[string]int
	return counts, json.NewDecoder(c).Decode(&counts)
}

// Close unmounts the directory, and waits until no program uses it.
func (m *Mount) Close() error {
	m.stdin.Close()
	err := m.cmd.Wait()
	if rerr := os.RemoveAll(filepath.Dir(m.socket)); err == nil {
		err = rerr
	}
	return err
}
