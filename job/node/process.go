package node

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Grace is how long what was told to end has before it is killed.
const Grace = 30 * time.Second

// ProcessID names a process for good: host, pid and start time, since pids are
// used again.
func ProcessID(pid int) string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d/%s", host, pid, startTime(pid))
}

// startTime is field 22 of /proc/PID/stat (proc(5)): clock ticks since boot.
func startTime(pid int) string {
	if f := Stat(pid); len(f) >= 20 {
		return f[19]
	}
	return ""
}

// Stat are those of /proc/PID/stat from the third on, the state: the second,
// a name, may have blanks. None are of a process that is not there.
func Stat(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// Alive says whether the process of a local job still runs. known is false
// when the job runs on another host.
func Alive(id string) (alive, known bool) {
	f := strings.Split(id, "/")
	host, _ := os.Hostname()
	if len(f) != 3 || f[0] != host {
		return false, false
	}
	pid, err := strconv.Atoi(f[1])
	return err == nil && f[2] != "" && startTime(pid) == f[2], true
}
