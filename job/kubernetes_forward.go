package job

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// podTunnel leads to a port of a pod by "kubectl port-forward", which listens on a port of this
// machine's loopback interface that the kernel chooses.
func (s *Submission) podTunnel(ctx context.Context, t *Task, port int) (*Tunnel, error) {
	w := kubeWords(s.Within(ctx), s.Target, "port-forward", "--address=127.0.0.1", "pod/"+t.Native, ":"+strconv.Itoa(port))
	cmd := command(s.Within(ctx), "/", w[0], w[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	said := &tail{}
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	end := func() { _ = cmd.Process.Kill() }
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
		carry := func(conn duplex) error { return carryLocal(conn, local) }
		return &Tunnel{Way: kubeCommand(s.Target), room: make(chan struct{}, maxConnections), carry: carry, ended: gone, end: end, said: said.String}, nil
	case <-gone:
		err = kubeWordsError([]byte(said.String()), errors.New("it ended without a word"))
	case <-time.After(relayPatience):
		err = fmt.Errorf("no answer in %s", relayPatience)
	case <-ctx.Done():
		err = ctx.Err()
	}
	end()
	return nil, fmt.Errorf("reaching pod %s, where task %d runs: %w", t.Native, t.Index, err)
}

// carryLocal carries a connection to a port of this machine, both ways, until both have ended.
func carryLocal(conn duplex, port int) error {
	to, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		reset(conn)
		return err
	}
	defer to.Close()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(to, conn)
		_ = to.(duplex).CloseWrite()
	}()
	_, err = io.Copy(conn, to)
	_ = conn.CloseWrite()
	<-over
	return err
}

// PortOf is the number of a port that the job has a name for; 0 where it has none.
func (j *Job) PortOf(name string) int {
	for _, p := range j.Pod.Ports {
		if p.Name == name {
			return p.Number
		}
	}
	return 0
}
