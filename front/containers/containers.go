// Package containers finds the user's running containers of "docker run" on this machine.
//
// No daemon and no file lists them. hpcc waits for the program of each container in a process whose
// arguments describe the container.
package containers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Container is a running container of the calling user.
type Container struct {
	ID   string // 64 hexadecimal digits
	Name string // of --name, or ""
	PID  int    // of the process of hpcc, which passes signals to the program and ends with it
}

// A NotFoundError reports that no running container has the name or ID.
type NotFoundError struct{ Name string }

func (e *NotFoundError) Error() string { return fmt.Sprintf("no running container %q", e.Name) }

// List returns the running containers of the calling user.
func List() ([]Container, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var list []Container
	for _, dir := range dirs {
		fi, err := os.Stat(dir)
		if err != nil || int(fi.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
			continue
		}
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue // it has ended
		}
		if c, ok := parse(line); ok {
			c.PID, _ = strconv.Atoi(filepath.Base(dir))
			list = append(list, c)
		}
	}
	return list, nil
}

// parse reads the arguments of a process, each of which ends with a zero byte. ok is false if it
// is not a run of docker.
func parse(line []byte) (c Container, ok bool) {
	args := strings.Split(string(bytes.TrimSuffix(line, []byte{0})), "\x00")
	end := slices.Index(args, "--")
	isHPCC := args[0] == "hpcc" || strings.HasPrefix(args[0], "hpcc+") // a run with other IDs executes hpcc again
	if end < 3 || !isHPCC || args[1] != "run" {
		return c, false
	}
	for _, a := range args[2 : end-1] {
		if id, found := strings.CutPrefix(a, "--docker-id="); found {
			c.ID = id
		}
		if name, found := strings.CutPrefix(a, "--docker-name="); found {
			c.Name = name
		}
	}
	return c, len(c.ID) == 64 && strings.Trim(c.ID, "0123456789abcdef") == ""
}

// Find returns the running container with a name, an ID or the beginning of an ID.
func Find(name string) (Container, error) {
	list, err := List()
	if err != nil {
		return Container{}, err
	}
	return find(list, name)
}

func find(list []Container, name string) (Container, error) {
	var found []Container
	for _, c := range list {
		switch {
		case c.Name == name || c.ID == name:
			return c, nil
		case name != "" && strings.HasPrefix(c.ID, name):
			found = append(found, c)
		}
	}
	switch len(found) {
	case 0:
		return Container{}, &NotFoundError{name}
	case 1:
		return found[0], nil
	}
	return Container{}, fmt.Errorf("%q is the beginning of the IDs of %d containers", name, len(found))
}

// Running reports whether the container has not ended.
func (c Container) Running() bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.PID))
	if err != nil {
		return false
	}
	now, ok := parse(line)
	return ok && now.ID == c.ID
}

// Signal sends a signal to the container's program. SIGKILL ends all its processes.
func (c Container) Signal(s syscall.Signal) error {
	if !c.Running() { // the number may belong to another process
		return &NotFoundError{c.ID}
	}
	if err := syscall.Kill(c.PID, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending a signal to container %.12s: %w", c.ID, err)
	}
	return nil
}

// Stop asks the program to end with a signal, and ends it after the time limit.
func (c Container) Stop(s syscall.Signal, limit time.Duration) error {
	if err := c.Signal(s); err != nil {
		return err
	}
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if !c.Running() {
			return nil
		}
	}
	if err := c.Signal(syscall.SIGKILL); err != nil && !errors.As(err, new(*NotFoundError)) {
		return err
	}
	for range 100 {
		if !c.Running() {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("container %.12s does not end", c.ID)
}
