package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"hpcc/job"
	"hpcc/job/atomicfile"
	"hpcc/job/tunnel"
	"hpcc/metrics"
)

// A companion is a program that runs beside one task of a job; no words: there is none.
type companion struct {
	index int
	name  string
	words []string
}

// companionGrace is how long it has to end when its task has.
const companionGrace = 5 * time.Second

// accompany starts the companion of task k, if that has one, and returns what ends it.
// Whatever becomes of it is told and recorded, and does not matter to the task.
func (r *taskRunner) accompany(k int, env []string) (end func()) {
	if len(r.beside.words) == 0 || k != r.beside.index {
		return func() {}
	}
	b := &job.Beside{Name: r.beside.name, Task: k, Start: time.Now(), Output: filepath.Join(r.dir, "beside."+r.beside.name+".out")}
	b.Host = tunnel.Host()
	ended, stop := make(chan struct{}), make(chan struct{})
	cmd, err := r.begin(b, env)
	if err != nil {
		r.endCompanion(b, err.Error())
		return func() {}
	}
	go func() {
		defer close(ended)
		err := cmd.Wait()
		select {
		case <-stop:
			r.endCompanion(b, "")
		default:
			problem := "status 0"
			if err != nil {
				problem = err.Error()
			}
			r.endCompanion(b, problem)
		}
	}()
	return func() {
		select {
		case <-ended:
			return
		default:
		}
		close(stop)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(companionGrace):
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // and what it started
		<-ended
	}
}

// begin starts the companion on a free port and records that.
func (r *taskRunner) begin(b *job.Beside, env []string) (*exec.Cmd, error) {
	ports, err := freePorts("127.0.0.1", 1)
	if err != nil {
		return nil, err
	}
	if b.Port, err = strconv.Atoi(ports[0]); err != nil {
		return nil, err
	}
	if err := atomicfile.MakeDir(r.dir); err != nil {
		return nil, err
	}
	out, err := atomicfile.Create(b.Output, os.O_WRONLY|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	words := job.FillPort(r.beside.words, b.Port)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	// Should hpcc be killed, it does not outlive it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := metrics.Start(cmd); err != nil {
		return nil, err
	}
	if err := b.Write(r.dir); err != nil {
		say("warning: %v", err)
	}
	return cmd, nil
}

// endCompanion records the end of a companion, and tells a problem.
func (r *taskRunner) endCompanion(b *job.Beside, problem string) {
	b.End, b.Problem = time.Now(), problem
	if problem != "" {
		say("warning: %s beside task %d ended: %s; what it wrote is in %s", b.Name, b.Task, problem, b.Output)
	}
	if err := b.Write(r.dir); err != nil {
		say("warning: %v", err)
	}
}
