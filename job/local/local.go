// Package local runs the tasks of a job on this machine.
//
// It is used on hosts without a batch system. Jobs start immediately and run as many tasks in parallel as the CPUs allow.
package local

import (
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

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/jobscript"
	"hpcc/job/node"
	"hpcc/runtime/inherit"
)

// System runs jobs on this machine. "hpcc task" runs as many tasks in parallel as the CPUs allow.
type System struct{}

// Detect returns true: tasks can always run on this machine.
func (System) Detect(context.Context) bool { return true }

// Render returns the job script; see [batch.System].
func (System) Render(j *job.Job) (string, []string, error) {
	switch {
	case len(j.After) > 0:
		return "", nil, fmt.Errorf("target local has no queue in which a job could wait for another; submit the first job with --wait")
	case len(j.Native) > 0:
		return "", nil, fmt.Errorf("target local does not take native options: %s", strings.Join(j.Native, " "))
	case j.Mail != "":
		return "", nil, fmt.Errorf("target local does not send mail; leave out --mail")
	}
	var notes []string
	for flag, present := range map[string]bool{"--queue": j.Queue != "", "--account": j.Account != "", "--exclusive": j.Exclusive,
		"--nodes": j.Nodes > 1 && !j.StartsProcesses(), "--cpus": ignoresCPUs(j), "--gpu-type": j.GPUType != "",
		"--mem": j.Memory > 0, "--gpus": j.GPUs > 0} {
		if present {
			notes = append(notes, flag+" has no effect on this machine and is left out")
		}
	}
	if j.Nodes > 1 && j.StartsProcesses() {
		notes = append(notes, fmt.Sprintf("--nodes %d: all %d processes run on this machine", j.Nodes, j.Processes()))
	}
	slices.Sort(notes)
	t := &jobscript.Writer{}
	t.Line("#!/bin/%s", localShell(j))
	if j.Interactive {
		t.Interactive(j)
	} else {
		t.Line("# Written by hpcc for %s on this machine.", j.Title())
	}
	if j.StartsProcesses() {
		t.Line("# Open MPI counts processors before it starts more processes.")
		t.Line("export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe")
	}
	t.Common(j)
	if j.Interactive {
		t.Line("exec %s", jobscript.InteractiveCommand(j, &scripts, `"$id"`))
		return t.String(), notes, nil
	}
	end := jobscript.TaskCall{To: &scripts, ID: `"${1:-local-$$}"`, Files: true, Limit: true}
	if !j.Array.IsZero() {
		end.Parallel = parallel(j)
	}
	t.Task(j, end, jobscript.Mpirun(j)...)
	return t.String(), notes, nil
}

// ignoresCPUs reports whether nothing reads the number of CPUs: hpcc runs as many tasks at once as the CPUs allow.
func ignoresCPUs(j *job.Job) bool {
	return j.CPUs > 0 && j.Array.IsZero() && j.Pack == nil
}

// localShell returns the shell that runs the script of a job on this machine. Only
// translated scripts and the module command need bash; minimal machines have only sh.
func localShell(j *job.Job) string {
	if j.Script != nil || len(j.Modules) > 0 {
		return "bash"
	}
	return "sh"
}

// parallel returns the number of tasks that run simultaneously on this machine.
func parallel(j *job.Job) int {
	n := max(1, goruntime.NumCPU()/max(1, j.CPUs))
	if j.Array.Limit > 0 {
		n = min(n, j.Array.Limit)
	}
	return n
}

// Submit starts the script in a new session that outlives hpcc. It does not inherit descriptors, such as
// locks and pipes of the caller's script.
func (System) Submit(_ context.Context, r *batch.Request) error {
	log, err := files.Create(filepath.Join(filepath.Dir(r.Script), "log"), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := inherit.CloseFrom(3); err != nil {
		return err
	}
	cmd := exec.Command(localShell(r.Job), r.Script, r.ID)
	cmd.Path, cmd.Args = inherit.Command(cmd.Path, cmd.Args)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.Job.Dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting job %q on this machine: %w", r.Job.Name, err)
	}
	r.Native = node.ProcessID(cmd.Process.Pid)
	ended := make(chan struct{})
	r.Ended = ended
	go func() { _ = cmd.Wait(); close(ended) }()
	return nil
}

// Query reports which of the jobs are alive. The programs of a job go on if its process is killed.
func (System) Query(_ context.Context, ids []string) (map[string]batch.State, error) {
	out := map[string]batch.State{}
	for _, id := range ids {
		alive, here := node.Alive(id)
		out[id] = batch.State{Alive: alive || !here || len(members(id)) > 0}
	}
	return out, nil
}

// Cancel ends the tasks of the job.
func (System) Cancel(_ context.Context, id string) error {
	alive, here := node.Alive(id)
	host, pid := node.SplitID(id)
	if !here {
		return fmt.Errorf("cancelling job %s: it runs on host %s; cancel it on that host", id, host)
	}
	ask := members(id)
	if alive { // its process asks the programs to stop, and records their ends
		ask = []int{-pid}
	}
	for _, p := range ask {
		_ = syscall.Kill(p, syscall.SIGTERM)
	}
	for end := time.Now().Add(node.Grace); time.Now().Before(end) && len(members(id)) > 0; time.Sleep(batch.Poll / 20) {
		if still, _ := node.Alive(id); alive && !still {
			break
		}
	}
	for end := time.Now().Add(node.Grace / 10); time.Now().Before(end); time.Sleep(batch.Poll / 100) {
		left := members(id)
		if len(left) == 0 {
			break
		}
		for _, p := range left {
			_ = syscall.Kill(p, syscall.SIGKILL)
		}
	}
	return nil
}

// members returns the processes of a job of this host. The job is a session, and each task a process group in it.
// The kernel does not give its number to another process before all have ended.
func members(id string) (pids []int) {
	_, leader := node.SplitID(id)
	if leader == 0 {
		return nil
	}
	if alive, _ := node.Alive(id); !alive {
		if f := node.Stat(leader); len(f) > 0 && f[0] != "Z" { // another process
			return nil
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := node.Stat(pid); len(f) > 3 && f[3] == strconv.Itoa(leader) && f[0] != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}
