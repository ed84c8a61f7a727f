package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/tunnel"
	"hpcc/text"
)

// Forward opens a tunnel to a port of a task's pod with "kubectl port-forward", which listens on a free
// loopback port of this machine.
func (k System) Forward(ctx context.Context, t *job.Task, port int) (*tunnel.Tunnel, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &podForwarder{ctx: ctx, pod: t.Native, port: port,
		command: Argv(ctx, k.Target, "port-forward", "--address=127.0.0.1", "pod/"+t.Native, ":"+strconv.Itoa(port))}
	var err error
	if w.now, err = startPodForward(ctx, w.command); err != nil {
		cancel()
		return nil, fmt.Errorf("reaching pod %s, where task %d runs: %w", t.Native, t.Index, err)
	}
	ended := make(chan struct{})
	go func() { w.keep(); close(ended) }()
	end := func() {
		cancel()
		<-ended
	}
	return tunnel.ByCarrier(commandName(k.Target), w.carry, ended, end, w.messages), nil
}

// A podForwarder keeps "kubectl port-forward" running. kubectl exits at the first connection that the
// pod refuses, for example before the program listens; it is restarted while the pod runs.
type podForwarder struct {
	ctx     context.Context
	command []string
	pod     string
	port    int

	lock sync.Mutex
	now  *podForward
	err  error // why the last restart failed
}

// keep returns when forwarding has ended for good.
func (w *podForwarder) keep() {
	for {
		f, err := w.live()
		if err != nil {
			return
		}
		<-f.gone
	}
}

// live returns the running command, and restarts one that has ended.
func (w *podForwarder) live() (*podForward, error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	select {
	case <-w.now.gone:
	default:
		return w.now, nil
	}
	if w.err != nil {
		return nil, w.err
	}
	select { // limit the rate of restarts
	case <-w.ctx.Done():
	case <-time.After(batch.Poll - time.Since(w.now.begun)):
	}
	f, err := startPodForward(w.ctx, w.command)
	if w.err = err; err != nil {
		return nil, err
	}
	w.now = f
	return f, nil
}

func (w *podForwarder) messages() string {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.err != nil {
		return w.err.Error()
	}
	return w.now.messages()
}

// carry forwards a connection. It resets a connection that kubectl could not bring to the port.
func (w *podForwarder) carry(conn tunnel.Conn) error {
	f, err := w.live()
	if err != nil {
		tunnel.Reset(conn)
		return err
	}
	return tunnel.ToPort(w.ctx, conn, f.port, func() error {
		select {
		case <-f.gone:
		case <-time.After(batch.Poll): // the program itself may be silent
			return nil
		}
		if messages := f.messages(); !strings.Contains(messages, "connection refused") {
			return errors.New(text.OneLine(messages))
		}
		return fmt.Errorf("no program listens on port %d of pod %s", w.port, w.pod)
	})
}

// A podForward is one run of "kubectl port-forward".
type podForward struct {
	port     int // port on this machine
	begun    time.Time
	gone     <-chan struct{}
	messages func() string
}

// podTimeout limits how long kubectl may take until it listens.
const podTimeout = 60 * time.Second

// startPodForward starts the command and returns once it listens.
func startPodForward(ctx context.Context, command []string) (*podForward, error) {
	cmd := invoke.Command(ctx, "/", command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	messages := &tunnel.Tail{}
	cmd.Stderr = messages
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	heard, gone := make(chan int, 1), make(chan struct{})
	go func() {
		r := bufio.NewReader(out)
		line, _ := r.ReadString('\n') // Forwarding from 127.0.0.1:40001 -> 6006
		from, _, _ := strings.Cut(strings.TrimPrefix(line, "Forwarding from 127.0.0.1:"), " ")
		if n, err := strconv.Atoi(from); err == nil {
			heard <- n
		}
		_, _ = io.Copy(io.Discard, r)
		_ = cmd.Wait()
		close(gone)
	}()
	select {
	case local := <-heard:
		return &podForward{local, time.Now(), gone, messages.String}, nil
	case <-gone:
		return nil, readError([]byte(messages.String()), errors.New("it ended without a message"))
	case <-time.After(podTimeout):
		err = fmt.Errorf("no answer in %s", podTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = cmd.Process.Kill()
	return nil, err
}
