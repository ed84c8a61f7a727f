package node

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Grace is the time between SIGTERM and SIGKILL.
const Grace = 30 * time.Second

// ProcessID identifies a process uniquely: host, pid and start time, because pids are reused.
func ProcessID(pid int) string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d/%s", host, pid, startTime(pid))
}

// startTime returns field 22 of /proc/PID/stat (proc(5)): clock ticks since boot.
func startTime(pid int) string {
	if f := Stat(pid); len(f) >= 20 {
		return f[19]
	}
	return ""
}

// Stat returns the fields of /proc/PID/stat from the third, the state, because the second, a name, may contain
// blanks. It returns none if the process does not exist.
func Stat(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// SplitID returns the host and the pid in a result of [ProcessID]. The pid is 0 on another host than this one.
func SplitID(id string) (host string, pid int) {
	f := strings.Split(id, "/")
	if here, _ := os.Hostname(); len(f) != 3 || f[0] != here {
		return f[0], 0
	}
	pid, _ = strconv.Atoi(f[1])
	return f[0], pid
}

// Alive reports whether the process of a local job still runs. known is false if the job runs on another host.
func Alive(id string) (alive, known bool) {
	_, pid := SplitID(id)
	if pid == 0 {
		return false, false
	}
	s := Stat(pid)
	return len(s) >= 20 && s[19] == id[strings.LastIndexByte(id, '/')+1:] && s[0] != "Z", true // a zombie has ended
}

// stopGroup ends the process group of a command, by SIGKILL after a time, and waits until ended is closed.
func stopGroup(cmd *exec.Cmd, ended <-chan struct{}, grace time.Duration) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(grace):
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its children too
	<-ended
}

// How long EndChildren tries to kill the children, and how often it looks for more.
const (
	childrenLimit = 5 * time.Second
	childrenPoll  = 10 * time.Millisecond
)

// EndChildren kills the remaining children of this process. Their children become its own when
// their parents end, and are killed too.
func EndChildren() {
	self := strconv.Itoa(os.Getpid())
	for end := time.Now().Add(childrenLimit); time.Now().Before(end); time.Sleep(childrenPoll) {
		left := false
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			if s := Stat(pid); len(s) < 2 || s[1] != self {
				continue
			}
			left = true
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		if !left {
			return
		}
	}
}
