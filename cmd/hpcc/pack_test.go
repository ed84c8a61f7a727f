package main

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/testenv"
)

// TestPackKilled kills processes of a packed job at random moments: workers, what keeps them, the
// process that hands out, and at last the keeper. All tasks must succeed, after a rerun those that the
// keeper left, and none may run twice at the same time. HPCC_TEST_KILLS is the number of kills.
func TestPackKilled(t *testing.T) {
	t.Parallel()
	testenv.Slow(t)
	needs(t, "userns")
	kills := 8
	if n, err := strconv.Atoi(os.Getenv("HPCC_TEST_KILLS")); err == nil {
		kills = n
	}
	dir, store := t.TempDir(), filepath.Join(t.TempDir(), "store")
	tasks := 60 * kills
	// The lock belongs to the program and what it starts, until all of them have ended.
	script := `flock -n {task}.lock sh -c 'echo {task} >>begun; sleep 0.2; echo {task} >>ended' || echo {task} >>twice`
	cmd := hpcc(store, "submit", "--to", "local", "--pack", "--tasks-per-node", "6", "--retry", "100", "--array", fmt.Sprintf("1-%d", tasks), "--name", "packed", "/", "--", "sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, "HPCC_PACK_LEASE=2s")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("submitting: %v: %s", err, out)
	}
	id := strings.TrimSpace(string(out))
	log := filepath.Join(store, "jobs", id, "log")
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	killed := map[string]int{}
	for n := 0; n < kills; {
		time.Sleep(time.Duration(200+random.Intn(1500)) * time.Millisecond)
		role := []string{"hand", "node", "work", "work"}[random.Intn(4)]
		list := packProcesses(id, role)
		if len(list) == 0 {
			if len(packProcesses(id, "")) == 0 {
				t.Fatalf("the job ended after %d kills: %s", n, contentOf(t, log))
			}
			continue
		}
		_ = syscall.Kill(list[random.Intn(len(list))], syscall.SIGKILL)
		killed[role]++
		n++
	}
	for _, pid := range packProcesses(id, "") { // the keeper, last
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	t.Logf("killed %v and the keeper, with %d of %d tasks begun", killed, strings.Count(contentOf(t, filepath.Join(dir, "begun")), "\n"), tasks)
	for end := time.Now().Add(time.Minute); len(packProcesses(id, "")) > 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("processes outlive the keeper: %v", packProcesses(id, ""))
		}
	}
	status := func(args ...string) string {
		t.Helper()
		cmd := hpcc(store, args...)
		cmd.Env = append(cmd.Env, "HPCC_PACK_LEASE=2s")
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	state := status("status", "packed")
	if !strings.Contains(state, "lost") && !strings.Contains(state, "failed") && !strings.Contains(state, " done ") {
		t.Errorf("state after the end of the keeper: %s", state)
	}
	if !strings.Contains(state, " done ") {
		if out := status("rerun", "packed"); !strings.Contains(out, "run again") {
			t.Errorf("rerun: %s", out)
		}
	}
	if out := status("wait", "packed"); strings.Contains(out, "error") {
		t.Errorf("wait: %s", out)
	}
	if out := status("status", "packed"); !strings.Contains(out, fmt.Sprintf("done   %d", tasks)) && !strings.Contains(strings.Join(strings.Fields(out), " "), fmt.Sprintf("done %d %d 0 0 0", tasks, tasks)) {
		t.Errorf("state at the end: %s\n%s", out, contentOf(t, log))
	}
	if twice, err := os.ReadFile(filepath.Join(dir, "twice")); err == nil {
		t.Errorf("tasks that ran twice at the same time: %s\n%s", bytes.ReplaceAll(twice, []byte("\n"), []byte(" ")), contentOf(t, log))
	}
	ended := map[string]bool{}
	for line := range strings.Lines(contentOf(t, filepath.Join(dir, "ended"))) {
		ended[line] = true
	}
	if len(ended) != tasks {
		t.Errorf("%d of %d tasks have ended", len(ended), tasks)
	}
}

// contentOf returns the content of a file.
func contentOf(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	testenv.Check(t, err)
	return string(b)
}

// packProcesses returns the processes of a packed job that have a role: hand, node or work; "" for the
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
