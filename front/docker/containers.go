package docker

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

// A container is a running container of "docker run" of the calling user. No daemon and no file lists
// them: hpcc waits for the program of each container in a process whose arguments describe it.
type container struct {
	id   string // 64 hexadecimal digits
	name string // of --name, or ""
	pid  int    // of the process of hpcc, which passes signals to the program and ends with it
}

// A notFoundError reports that no running container has the name or ID.
type notFoundError struct{ name string }

func (e *notFoundError) Error() string { return fmt.Sprintf("no running container %q", e.name) }

// running returns the running containers of the calling user.
func running() ([]container, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var list []container
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
			c.pid, _ = strconv.Atoi(filepath.Base(dir))
			list = append(list, c)
		}
	}
	return list, nil
}

// parse reads the arguments of a process, each of which ends with a zero byte. ok is false if it
// is not a run of docker.
func parse(line []byte) (c container, ok bool) {
	args := strings.Split(string(bytes.TrimSuffix(line, []byte{0})), "\x00")
	end := slices.Index(args, "--")
	isHPCC := args[0] == "hpcc" || strings.HasPrefix(args[0], "hpcc+") // a run with other IDs executes hpcc again
	if end < 3 || !isHPCC || args[1] != "run" {
		return c, false
	}
	for _, a := range args[2 : end-1] {
		if id, found := strings.CutPrefix(a, "--docker-id="); found {
			c.id = id
		}
		if name, found := strings.CutPrefix(a, "--docker-name="); found {
			c.name = name
		}
	}
	return c, len(c.id) == 64 && strings.Trim(c.id, "0123456789abcdef") == ""
}

// find returns the container of a list with a name, an ID or the beginning of an ID.
func find(list []container, name string) (container, error) {
	var found []container
	for _, c := range list {
		switch {
		case c.name == name || c.id == name:
			return c, nil
		case name != "" && strings.HasPrefix(c.id, name):
			found = append(found, c)
		}
	}
	switch len(found) {
	case 0:
		return container{}, &notFoundError{name}
	case 1:
		return found[0], nil
	}
	return container{}, fmt.Errorf("%q is the beginning of the IDs of %d containers", name, len(found))
}

// isRunning reports whether the container has not ended.
func (c container) isRunning() bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.pid))
	if err != nil {
		return false
	}
	now, ok := parse(line)
	return ok && now.id == c.id
}

// signal sends a signal to the container's program. SIGKILL ends all its processes.
func (c container) signal(s syscall.Signal) error {
	if !c.isRunning() { // the number may belong to another process
		return &notFoundError{c.id}
	}
	if err := syscall.Kill(c.pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending a signal to container %.12s: %w", c.id, err)
	}
	return nil
}

// stop asks the program to end with a signal, and ends it after the time limit.
func (c container) stop(s syscall.Signal, limit time.Duration) error {
	if err := c.signal(s); err != nil {
		return err
	}
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if !c.isRunning() {
			return nil
		}
	}
	if err := c.signal(syscall.SIGKILL); err != nil && !errors.As(err, new(*notFoundError)) {
		return err
	}
	for range 100 {
		if !c.isRunning() {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("container %.12s does not end", c.id)
}
