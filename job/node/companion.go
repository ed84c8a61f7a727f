package node

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/tunnel"
	"hpcc/metrics"
)

// A Companion is a program, such as TensorBoard, that runs on the node of one task until
// the task ends.
type Companion struct {
	Task int // index of the task
	Name string
	Argv []string // empty: no companion
}

// companionGrace is how long a companion may take to end after its task.
const companionGrace = 5 * time.Second

// startCompanion starts the companion of task k, if it has one, and returns a function that ends it. A failure of the
// companion is reported and recorded, but does not fail the task.
func (r *Runner) startCompanion(k int, env []string) (end func()) {
	if len(r.Companion.Argv) == 0 || k != r.Companion.Task {
		return func() {}
	}
	b := &job.Companion{Name: r.Companion.Name, Task: k, Start: time.Now(), Output: filepath.Join(r.Dir, "beside."+r.Companion.Name+".out")}
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
			problem := "exit status 0"
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
		stopGroup(cmd, ended, companionGrace)
	}
}

// begin starts the companion on a free port, and writes its record.
func (r *Runner) begin(b *job.Companion, env []string) (*exec.Cmd, error) {
	var err error
	if b.Port, err = freePort(); err != nil {
		return nil, err
	}
	if err := files.MakeDir(r.Dir); err != nil {
		return nil, err
	}
	out, err := files.Create(b.Output, os.O_WRONLY|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	argv := job.FillPort(r.Companion.Argv, b.Port)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	// The kernel kills the companion if hpcc is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := metrics.Start(cmd); err != nil {
		return nil, err
	}
	if err := b.Write(r.Dir); err != nil {
		r.Logf("warning: %v", err)
	}
	return cmd, nil
}

// freePort returns a TCP port that is free at the loopback address of this machine.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("finding a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// endCompanion records the end of a companion, and reports a problem.
func (r *Runner) endCompanion(b *job.Companion, problem string) {
	b.End, b.Problem = time.Now(), problem
	if problem != "" {
		r.Logf("warning: %s next to task %d ended: %s; its output is in %s", b.Name, b.Task, problem, b.Output)
	}
	if err := b.Write(r.Dir); err != nil {
		r.Logf("warning: %v", err)
	}
}
