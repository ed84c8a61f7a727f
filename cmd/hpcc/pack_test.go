package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// TestPackKilled kills processes of a packed job at random moments: workers, their supervisors, the
// coordinator, and at last the keeper. All tasks must succeed, some of them after a rerun, and none may
// run twice at the same time. HPCC_TEST_KILLS is the number of kills.
func TestPackKilled(t *testing.T) {
	t.Parallel()
	testenv.Slow(t)
	needs(t, "userns")
	p := packedRun{target: []string{"--to", "local", "--tasks-per-node", "6"}, roles: []string{"coordinator", "node", "worker", "worker"}, slots: 6}
	p.test(t)
}

// TestPackNodesKilled does the same on a Slurm of its own, whose nodes die too: with the daemon and all
// processes of the job. Slurm takes such a node from the job, or starts the job again if it was its
// first node.
func TestPackNodesKilled(t *testing.T) {
	t.Parallel()
	testenv.Slow(t)
	needs(t, "userns", "own-slurm")
	slurm := startOwnSlurm(t)
	p := packedRun{
		env:    append(testenv.Scheduler(os.Getenv("PATH"), "slurm"), "SLURM_CONF="+slurm.conf),
		target: []string{"--to", "slurm", "--nodes", "3", "--tasks-per-node", "2", "--mem", "50M"},
		roles:  []string{"coordinator", "node", "worker", "machine"},
		slots:  6,
		site:   slurm,
	}
	p.test(t)
}

// TestPackHostsKilled does the same on a Grid Engine with two hosts, which die too. It needs root, and a
// Grid Engine for itself.
func TestPackHostsKilled(t *testing.T) {
	testenv.Slow(t)
	victim, _ := neighbours(t)
	needs(t, "gridengine")
	p := packedRun{
		user:   &victim,
		env:    testenv.Scheduler(bin+":"+os.Getenv("PATH"), "gridengine"),
		target: []string{"--to", "gridengine", "--nodes", "2", "--tasks-per-node", "3"},
		roles:  []string{"coordinator", "node", "worker", "machine"},
		slots:  6,
	}
	p.site = &gridEngineHosts{job: &p}
	p.test(t)
}

// A packedRun is a packed job whose processes are killed.
type packedRun struct {
	user   *account // nil: that of the test
	env    []string // of hpcc
	target []string // flags of hpcc submit
	roles  []string // one of which is killed each time; machine: a node
	slots  int      // tasks that run at once
	site   packSite // nil: this machine

	store, dir, id string
	random         *rand.Rand
}

// A packSite has nodes that can be killed.
type packSite interface {
	// killNode kills the node on which a process of the job runs, and starts it again as after a
	// reboot. It returns false if it does not find the node.
	killNode(t *testing.T, pid int) bool
	// again lets a job that waits start now, and reports whether there is a job.
	again() bool
}

// hpcc runs hpcc in the directory of the job, and returns its output.
func (p *packedRun) hpcc(args ...string) (string, error) {
	cmd := hpcc(p.store, args...)
	if p.user != nil {
		cmd = p.user.command(p.dir, []string{"HPCC_STORE=" + p.store}, nil, append([]string{"hpcc"}, args...)...)
	}
	cmd.Dir = p.dir
	cmd.Env = append(cmd.Env, p.env...)
	out, err := cmd.Output() // without notes
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		out = append(out, failed.Stderr...)
	}
	return string(out), err
}

// runs reports whether the job has not ended.
func (p *packedRun) runs() bool {
	return len(packProcesses(p.id, "")) > 0 || (p.site != nil && p.site.again())
}

// cancelAbandoned cancels a running job that has no processes: its first node was killed just before its
// other processes started again. seen is the time at which the job last had processes.
func (p *packedRun) cancelAbandoned(seen *time.Time) {
	if len(packProcesses(p.id, "")) > 0 {
		*seen = time.Now()
	}
	if time.Since(*seen) > 30*time.Second {
		_, _ = p.hpcc("cancel", p.id)
	}
}

func (p *packedRun) test(t *testing.T) {
	kills := 8
	if n, err := strconv.Atoi(os.Getenv("HPCC_TEST_KILLS")); err == nil {
		kills = n
	}
	if p.user != nil {
		p.dir, p.store = p.user.ownDir(t), filepath.Join(p.user.ownDir(t), "store")
	} else {
		p.dir, p.store = t.TempDir(), filepath.Join(t.TempDir(), "store")
	}
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	p.random = rand.New(rand.NewSource(seed))
	// Tests find the processes by the job's ID, which has its name and time.
	name := strings.ToLower(t.Name())
	tasks := 10 * p.slots * kills
	// The lock is held until the program and its children have ended.
	script := `flock -n {task}.lock sh -c 'echo {task} $SLURMD_NODENAME $(date +%T.%N) >>begun; sleep 0.2; echo {task} >>ended' || echo {task} $SLURMD_NODENAME $(date +%T.%N) >>twice`
	submit := append([]string{"submit"}, p.target...)
	submit = append(submit, "--pack", "--env", "HPCC_PACK_LEASE=3s", "--retry", "100", "--array", fmt.Sprintf("1-%d", tasks), "--name", name, "/", "--", "sh", "-c", script)
	out, err := p.hpcc(submit...)
	if err != nil {
		t.Fatalf("submitting: %v: %s", err, out)
	}
	p.id = strings.TrimSpace(out)
	log := filepath.Join(p.store, "jobs", p.id, "log")

	killed, reruns, before := map[string]int{}, 0, 0
	seen := time.Now() // when processes of the job ran
	for n := 0; n < kills; {
		time.Sleep(time.Duration(200+p.random.Intn(1500)) * time.Millisecond)
		// Most kills need running tasks, the others hit a job that recovers.
		if begun := p.begun(); begun == before && p.random.Intn(20) != 0 && len(packProcesses(p.id, "")) > 0 {
			continue
		} else if role := p.roles[n%len(p.roles)]; len(packProcesses(p.id, "worker")) > 0 && p.kill(t, role, killed[role] == 0) {
			killed[role]++
			n++
			seen, before = time.Now(), begun
			continue
		}
		p.cancelAbandoned(&seen)
		if !p.runs() { // with its first node
			seen = time.Now()
			if out, err := p.hpcc("rerun", p.id); err != nil || p.site == nil {
				b, _ := os.ReadFile(log)
				t.Fatalf("the job ended after %d kills; rerun: %v: %s\n%s", n, err, out, b)
			}
			reruns++
		}
	}
	for _, pid := range packProcesses(p.id, "") { // the keeper, last
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	t.Logf("killed %v and the keeper, with %d reruns, and %d of %d tasks begun", killed, reruns, p.begun(), tasks)
	for end := time.Now().Add(time.Minute); len(packProcesses(p.id, "")) > 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("processes outlive the keeper: %v", packProcesses(p.id, ""))
		}
	}
	p.finish(t, tasks)
}

// kill kills a process of a role, or a node, and reports whether there was one. The first node
// that it kills is the first of the job.
func (p *packedRun) kill(t *testing.T, role string, first bool) bool {
	list := packProcesses(p.id, role)
	if role == "machine" {
		list = packProcesses(p.id, map[bool]string{true: "coordinator", false: "worker"}[first])
	}
	if len(list) == 0 {
		return false
	}
	pid := list[p.random.Intn(len(list))]
	if role == "machine" {
		return p.site.killNode(t, pid)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	return true
}

// finish runs the tasks that are left, and checks what became of all.
func (p *packedRun) finish(t *testing.T, tasks int) {
	state, _ := p.hpcc("status", p.id)
	for end := time.Now().Add(5 * time.Second); p.site == nil && strings.Contains(state, " running ") && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond) // the children of killed programs
		state, _ = p.hpcc("status", p.id)
	}
	if p.site == nil && !strings.Contains(state, "lost") && !strings.Contains(state, "failed") && !strings.Contains(state, " done ") {
		t.Errorf("state after the end of the keeper: %s", state)
	}
	seen := time.Now()                                                                         // when processes of the job ran
	for end := time.Now().Add(5 * time.Minute); p.runs(); time.Sleep(200 * time.Millisecond) { // it may start again
		p.cancelAbandoned(&seen)
		if time.Now().After(end) {
			t.Fatal("the job whose keeper was killed does not end")
		}
	}
	if state, _ = p.hpcc("status", p.id); !strings.Contains(state, " done ") {
		if out, err := p.hpcc("rerun", p.id); err != nil {
			t.Errorf("rerun: %v: %s", err, out)
		}
	}
	if out, err := p.hpcc("wait", p.id); err != nil {
		t.Errorf("wait: %v: %s", err, out)
	}
	if out, _ := p.hpcc("status", p.id); !strings.Contains(strings.Join(strings.Fields(out), " "), fmt.Sprintf("done %d %d 0 0 0", tasks, tasks)) {
		t.Errorf("state at the end: %s", out)
	}
	if twice, err := os.ReadFile(filepath.Join(p.dir, "twice")); err == nil {
		t.Errorf("tasks that ran twice at the same time: %s", bytes.ReplaceAll(twice, []byte("\n"), []byte("; ")))
	}
	ended := map[string]bool{}
	for line := range strings.Lines(contentOf(t, filepath.Join(p.dir, "ended"))) {
		ended[line] = true
	}
	if len(ended) != tasks {
		t.Errorf("%d of %d tasks have ended", len(ended), tasks)
	}
}

// begun returns the number of times that a task has begun.
func (p *packedRun) begun() int {
	b, _ := os.ReadFile(filepath.Join(p.dir, "begun")) // created by the first task
	return bytes.Count(b, []byte("\n"))
}

// contentOf returns the content of a file.
func contentOf(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	testenv.Check(t, err)
	return string(b)
}

// packProcesses returns the processes of a packed job that have a role: coordinator, node or worker; "" for the
// keeper and all others.
func packProcesses(id, role string) (list []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(b, []byte("task\x00--job")) || !bytes.Contains(b, []byte(id)) || (role != "" && !bytes.Contains(b, []byte("--role="+role))) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			list = append(list, pid)
		}
	}
	return list
}
