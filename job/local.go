package job

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hpcc/job/atomicfile"
)

// local is this machine. It runs as many tasks at once as have processors: "hpcc
// task" has the loop.
type local struct{}

// here is true: the tasks can always run here.
func (local) here(context.Context) bool { return true }

func (local) render(j *Job) (string, []string, error) {
	switch {
	case len(j.After) > 0:
		return "", nil, fmt.Errorf("target local has no queue in which a job could wait for another; hand the first in with --wait")
	case len(j.Native) > 0:
		return "", nil, fmt.Errorf("target local has no options of its own: %s", strings.Join(j.Native, " "))
	}
	var notes []string
	for what, asked := range map[string]bool{"--queue": j.Queue != "", "--account": j.Account != "", "--mail": j.Mail != "", "--exclusive": j.Exclusive,
		"--nodes": j.Nodes > 1, "--mem": j.Memory > 0 && !j.Ray, "--gpus": j.GPUs > 0} {
		if asked {
			notes = append(notes, what+" means nothing on this machine and is left out")
		}
	}
	slices.Sort(notes)
	t := &text{}
	t.line("#!/bin/%s", localShell(j))
	if j.Interactive {
		t.interactive(j)
	} else {
		t.line("# Made by hpcc, for %s on this machine.", j.what())
	}
	if j.multi() {
		t.line("# Open MPI counts processors before it starts more processes.")
		t.line("export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe")
	}
	t.common(j)
	if j.Interactive {
		t.line("exec %s", j.interactiveWords(Local, `"$id"`))
		return t.String(), notes, nil
	}
	end := taskCall{to: Local, id: `"${1:-local-$$}"`, files: true, limit: true}
	if !j.Array.IsZero() {
		end.parallel = parallel(j)
	}
	t.task(j, end, mpirun(j)...)
	return t.String(), notes, nil
}

// localShell returns the shell that runs the script of a job on this machine. Only
// a job script of a scheduler and the command module need bash: small
// machines have only sh.
func localShell(j *Job) string {
	if j.Script != nil || len(j.Modules) > 0 {
		return "bash"
	}
	return "sh"
}

// parallel is how many tasks run at once on this machine.
func parallel(j *Job) int {
	n := max(1, goruntime.NumCPU()/max(1, j.CPUs))
	if j.Array.Limit > 0 {
		n = min(n, j.Array.Limit)
	}
	return n
}

// submit begins the script as a process group of its own that outlives hpcc.
func (local) submit(_ context.Context, r *request) error {
	log, err := atomicfile.Create(filepath.Join(filepath.Dir(r.Script), "log"), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(localShell(r.Job), r.Script, r.ID)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.Job.Dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting job %q on this machine: %w", r.Job.Name, err)
	}
	r.Native = processID(cmd.Process.Pid)
	ended := make(chan struct{})
	r.Ended = ended
	go func() { _ = cmd.Wait(); close(ended) }()
	return nil
}

func (local) ask(_ context.Context, ids []string) (map[string]standing, error) {
	out := map[string]standing{}
	for _, id := range ids {
		alive, known := localAlive(id)
		out[id] = standing{alive: alive || !known}
	}
	return out, nil
}

func (local) cancel(_ context.Context, id string) error {
	alive, known := localAlive(id)
	f := strings.Split(id, "/")
	if !known {
		return fmt.Errorf("ending job %s: it runs on %s; say it there", id, f[0])
	}
	if !alive {
		return nil
	}
	pid, err := strconv.Atoi(f[1])
	if err != nil {
		return err
	}
	_ = syscall.Kill(-pid, syscall.SIGTERM)
	for end := time.Now().Add(Grace); time.Now().Before(end); time.Sleep(poll / 20) {
		if alive, _ := localAlive(id); !alive {
			return nil
		}
	}
	return killSession(pid)
}

// killSession kills all processes of a session, and returns when there are none: the job is one, and
// each of its tasks a process group of its own.
func killSession(session int) error {
	for end := time.Now().Add(Grace / 10); ; time.Sleep(poll / 100) {
		found, err := killOnce(session)
		if err != nil || !found || time.Now().After(end) {
			return err
		}
	}
}

// killOnce kills the processes of a session that there are; false when there was none.
func killOnce(session int) (found bool, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false, fmt.Errorf("looking for the processes of the job: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := statFields(pid); len(f) > 3 && f[3] == strconv.Itoa(session) && f[0] != "Z" {
			found = syscall.Kill(pid, syscall.SIGKILL) == nil || found
		}
	}
	return found, nil
}

// Grace is how long what was told to end has before it is killed.
const Grace = 30 * time.Second

// processID names a process for good: host, pid and start time, since pids are
// used again.
func processID(pid int) string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d/%s", host, pid, startTime(pid))
}

// startTime is field 22 of /proc/PID/stat (proc(5)): clock ticks since boot.
func startTime(pid int) string {
	if f := statFields(pid); len(f) >= 20 {
		return f[19]
	}
	return ""
}

// statFields are those of /proc/PID/stat from the third on, the state: the second,
// a name, may have blanks. None are of a process that is not there.
func statFields(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// localAlive says whether the process of a local job still runs. known is false
// when the job runs on another host.
func localAlive(id string) (alive, known bool) {
	f := strings.Split(id, "/")
	host, _ := os.Hostname()
	if len(f) != 3 || f[0] != host {
		return false, false
	}
	pid, err := strconv.Atoi(f[1])
	return err == nil && f[2] != "" && startTime(pid) == f[2], true
}
