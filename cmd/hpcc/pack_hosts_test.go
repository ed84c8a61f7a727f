package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// gridEngineHosts are the two hosts of testdata/clusters/gridengine/up.sh: this machine, and a network namespace.
type gridEngineHosts struct{ job *packedRun }

// killNode kills the execution daemon of a host, and the processes of the job on it.
func (g *gridEngineHosts) killNode(t *testing.T, pid int) bool {
	t.Helper()
	host := networkOf(pid)
	if host == "" {
		return false
	}
	var all []int
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if networkOf(pid) != host {
			continue
		}
		name := nameOf(pid)
		if name == "sge_execd" || name == "sge_shepherd" || strings.HasSuffix(environOf(pid)["HPCC_JOB_DIR"], g.job.id) || g.isProcess(pid) {
			all = append(all, pid)
		}
	}
	killAtOnce(all)
	cmd := exec.Command("bash", "../../testdata/clusters/gridengine/up.sh")
	cmd.Env = append(os.Environ(), "GRIDENGINE_BASE="+testenv.ClusterVariable("SGE_ROOT"), "GRIDENGINE_PORT="+testenv.ClusterVariable("SGE_QMASTER_PORT"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("starting the host again: %v: %s", err, out)
	}
	return true
}

// isProcess reports whether a process has the name of the job in its arguments.
func (g *gridEngineHosts) isProcess(pid int) bool {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return strings.Contains(string(b), g.job.id)
}

// again clears the error state of jobs, and reports whether there is a job.
func (g *gridEngineHosts) again() bool {
	out, _ := testenv.SchedulerCommand("gridengine", "qstat", "-u", g.job.user.name).Output()
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 4 && strings.Contains(f[4], "E") {
			_ = testenv.SchedulerCommand("gridengine", "qmod", "-cj", f[0]).Run()
		}
	}
	return len(out) > 0
}

// networkOf returns the network namespace of a process.
func networkOf(pid int) string {
	s, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"))
	return s
}

// environOf returns the environment with which a process of this user began.
func environOf(pid int) map[string]string {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	env := map[string]string{}
	for e := range strings.SplitSeq(string(b), "\x00") {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	return env
}

// parentOf returns the parent of a process, or 0.
func parentOf(pid int) int {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, rest, _ := strings.Cut(string(b), ") ")
	if f := strings.Fields(rest); len(f) > 1 {
		pid, _ = strconv.Atoi(f[1])
		return pid
	}
	return 0
}

// nameOf returns the name of a process, of at most 15 bytes.
func nameOf(pid int) string {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	return strings.TrimSpace(string(b))
}
