package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// An ownSlurm is a Slurm of this user with three nodes, for tests that kill its parts.
type ownSlurm struct {
	base, conf string
	env        []string
}

// startOwnSlurm starts a Slurm, and ends it with the test.
func startOwnSlurm(t *testing.T) *ownSlurm {
	t.Helper()
	port, err := freePorts()
	testenv.Check(t, err)
	s := &ownSlurm{base: filepath.Join(t.TempDir(), "slurm")}
	s.conf = filepath.Join(s.base, "slurm.conf")
	s.env = append(os.Environ(), testenv.Scheduler(os.Getenv("PATH"), "slurm")...)
	s.env = append(s.env, "SLURM_CONF="+s.conf, "SLURM_BASE="+s.base, "SLURM_PORT="+strconv.Itoa(port), "SLURM_NODES=3", "SLURM_MESSAGE_TIMEOUT=3")
	t.Cleanup(func() { _, _ = s.run("bash", "../../testdata/clusters/slurm/down.sh") })
	if out, err := s.run("bash", "../../testdata/clusters/slurm/up.sh"); err != nil {
		t.Fatalf("starting a Slurm: %v: %s", err, out)
	}
	return s
}

func (s *ownSlurm) run(argv ...string) (string, error) {
	cmd := exec.Command("env", argv...) // finds the command on the PATH of s.env
	cmd.Env = s.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// killNode kills the node on which a process of a job runs, with all its processes, and starts it again
// as after a reboot.
func (s *ownSlurm) killNode(t *testing.T, pid int) bool {
	t.Helper()
	node := environOf(pid)["SLURMD_NODENAME"]
	if node == "" {
		return false
	}
	file := filepath.Join(s.base, "run", "slurmd."+node+".pid")
	all := s.processes(node)
	if daemon, err := strconv.Atoi(strings.TrimSpace(contentOf(t, file))); err == nil {
		all = append(all, daemon)
	}
	killAtOnce(all)
	for _, argv := range [][]string{ // otherwise, Slurm would notice later
		{"scontrol", "update", "nodename=" + node, "state=down", "reason=killed"},
		{"bash", "../../testdata/clusters/slurm/up.sh"},
	} {
		if out, err := s.run(argv...); err != nil {
			t.Fatalf("killing node %s: %v: %s", node, err, out)
		}
	}
	return true
}

// processes returns the processes that a node runs for jobs, and the daemons of their steps.
func (s *ownSlurm) processes(node string) (list []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		env := environOf(pid)
		if env["SLURMD_NODENAME"] != node || env["SLURM_CONF"] != s.conf {
			continue
		}
		list = append(list, pid)
		if parent := parentOf(pid); nameOf(parent) == "slurmstepd" {
			list = append(list, parent)
		}
	}
	return list
}

// again lets a job that Slurm has put back into its queue start now, and reports whether one is left.
func (s *ownSlurm) again() bool {
	out, _ := s.run("squeue", "--noheader", "--format=%A %T")
	for line := range strings.Lines(out) {
		if id, state, _ := strings.Cut(strings.TrimSpace(line), " "); state == "PENDING" {
			_, _ = s.run("scontrol", "release", id)
			_, _ = s.run("scontrol", "update", "jobid="+id, "starttime=now")
		}
	}
	return strings.TrimSpace(out) != ""
}

// killAtOnce kills processes like a power failure: none of them can react to the end of another. It kills
// the newest first, because the kernel continues stopped processes whose parent ends.
func killAtOnce(pids []int) {
	slices.Sort(pids)
	slices.Reverse(pids)
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		for _, pid := range pids {
			_ = syscall.Kill(pid, signal)
		}
	}
}
