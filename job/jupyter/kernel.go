// Package jupyter runs the kernels of Jupyter in jobs.
//
//	Jupyter ─► connection file ─► hpcc: listeners ─► SSH to the task ─► sockets of the kernel
//
// Jupyter starts a kernel as a program of its own machine and connects to ports there. hpcc is that
// program: it submits a job whose task runs the kernel, and forwards the connections. On its node the
// kernel listens on sockets in a private directory, which other users cannot connect to.
package jupyter

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/sshd"
	"hpcc/job/tunnel"
	"hpcc/text"
)

// A Kernel is a kernel in a job of its own, which ends with it.
type Kernel struct {
	File       string            // the connection file that Jupyter wrote
	Dir        string            // of the kernel on its node, as in [TaskArgv]
	KeepOutput bool              // keep the output of a kernel that has ended without an error
	Say        func(line string) // shows a line to the user

	// Submit submits the job. jobs is the directory of the records of jobs.
	Submit func(ctx context.Context) (jobs string, sub *dispatch.Submission, err error)
}

// clientVariables name Jupyter's own process for kernels on the same machine.
var clientVariables = []string{"JPY_PARENT_PID", "JPY_INTERRUPT_EVENT"}

// Run submits the job, and forwards connections until the kernel has ended, or SIGTERM, SIGHUP or the
// end of ctx ends it. SIGINT interrupts the kernel's program.
func (k *Kernel) Run(ctx context.Context) error {
	for _, name := range clientVariables {
		os.Unsetenv(name)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // SIGINT does not end hpcc
	defer cancel()
	interrupts, ends := make(chan os.Signal, 8), make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-ends
		cancel()
	}()
	c, err := readConnection(k.File)
	if err != nil {
		return err
	}
	listeners, err := c.listen()
	if err != nil {
		return text.Hint(err, "start the kernel again")
	}
	defer closeAll(listeners)
	jobs, sub, err := k.Submit(context.WithoutCancel(ctx)) // to know the ID of a job that is then cancelled
	if err != nil {
		return err
	}
	t, err := k.serve(ctx, jobs, sub, c, listeners, interrupts)
	return k.end(context.WithoutCancel(ctx), jobs, sub, t, ctx.Err() != nil, err)
}

// serve waits for the kernel's task, forwards connections to its sockets, and returns when the kernel
// has ended, or ctx.
func (k *Kernel) serve(ctx context.Context, jobs string, sub *dispatch.Submission, c *connection, listeners []net.Listener,
	interrupts <-chan os.Signal) (*job.Task, error) {
	t, err := sub.RunningTask(ctx, jobs, dispatch.AnyTask, k.Say)
	if err != nil {
		return nil, err
	}
	store, err := filepath.Abs(filepath.Dir(jobs))
	if err != nil {
		return t, err
	}
	link, err := sub.StartSSH(ctx, t, store, "")
	if err != nil {
		return t, err
	}
	defer link.Close()
	client, err := sshd.Dial(link)
	if err != nil {
		return t, fmt.Errorf("reaching %s, where the kernel runs: %s", t.Host, cmp.Or(link.Messages(), err.Error()))
	}
	defer client.Close()
	r, err := c.start(client, k.Dir)
	if err != nil {
		return t, fmt.Errorf("starting the kernel on %s: %w", t.Host, err)
	}
	k.Say("the kernel runs on " + t.Host)
	for i, l := range listeners {
		go k.accept(r, l, i)
	}
	for len(interrupts) > 0 { // of a kernel that did not run yet
		<-interrupts
	}
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			r.end()
			return t, nil
		case <-ticker.C:
			if !sub.Goes(ctx, jobs, t, true) {
				return t, nil
			}
		case <-r.ended:
			return t, nil
		case <-interrupts:
			if err := r.signal(syscall.SIGINT); err != nil {
				k.Say(fmt.Sprintf("warning: interrupting the kernel: %v", err))
			}
		}
	}
}

// checkInterval is the interval of checks that the task still runs, for a node that has failed.
const checkInterval = 30 * time.Second

// accept forwards the connections of this user to port number i of the kernel.
func (k *Kernel) accept(r *remote, l net.Listener, i int) {
	g := &tunnel.Guard{Say: k.Say}
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		if !g.Admits(conn) {
			conn.Close()
			continue
		}
		go func() {
			defer conn.Close()
			_ = r.serve(conn.(sshd.HalfCloser), i) // after an error, ZeroMQ connects again
		}()
	}
}

// endTimeout is how long the job may take to record its end after its kernel's.
const endTimeout = 3 * time.Second

// end waits for the end of the job, or cancels it, and reports a kernel that has failed. t is the task of
// a kernel that ran, or nil.
func (k *Kernel) end(ctx context.Context, jobs string, sub *dispatch.Submission, t *job.Task, asked bool, err error) error {
	var last job.Task
	if t != nil && err == nil {
		last = lastRecord(ctx, jobs, sub, t.Index)
	}
	if !last.Ended() {
		if _, cerr := sub.Cancel(ctx, jobs); cerr != nil {
			k.Say(fmt.Sprintf("warning: cancelling job %s: %v", sub.ID, cerr))
		}
	}
	switch {
	case asked:
		return nil
	case err == nil && !last.Ended():
		err = fmt.Errorf("the connection to the kernel on %s has ended; its job %s was cancelled", t.Host, sub.ID)
	case err == nil && !last.OK():
		err = fmt.Errorf("the kernel on %s has ended: %s", t.Host, last.Ending())
	case err == nil:
		if !k.KeepOutput {
			os.Remove(last.Output)
		}
		return nil
	}
	return text.Hint(err, "hpcc logs %s", sub.ID)
}

// lastRecord returns the record of a task that ends within endTimeout, or an empty one.
func lastRecord(ctx context.Context, jobs string, sub *dispatch.Submission, index int) job.Task {
	for end := time.Now().Add(endTimeout); time.Now().Before(end); time.Sleep(endTimeout / 30) {
		st, err := sub.Status(ctx, jobs, sub.Target.Pods())
		if err != nil {
			continue
		}
		for _, t := range st.Tasks {
			if t.Index == index && t.Ended() {
				return t
			}
		}
	}
	return job.Task{}
}
