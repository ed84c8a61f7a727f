package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"hpcc/text"
)

// refusalPause is the minimum time between warnings about refused connections.
const refusalPause = time.Minute

// A Guard admits only connections of this user and of root, unless it is open.
type Guard struct {
	Open    bool              // admit all users
	Advice  string            // after a warning
	Say     func(line string) // shows a line to the user
	refused int               // since the last warning
	warned  time.Time
}

// Admits reports whether to serve a connection. It warns about refused ones at most once per
// refusalPause.
func (g *Guard) Admits(conn net.Conn) bool {
	if g.Open {
		return true
	}
	err := CheckPeer(conn)
	if err == nil {
		return true
	}
	if errors.Is(err, ErrPeerClosed) { // a client that has given up
		return false
	}
	g.refused++
	if g.warned.IsZero() || time.Since(g.warned) >= refusalPause {
		more := ""
		if g.refused > 1 {
			more = fmt.Sprintf(" (%d were refused since the last warning)", g.refused)
		}
		g.Say(fmt.Sprintf("warning: refused a connection: %v%s%s", err, more, g.Advice))
		g.refused, g.warned = 0, time.Now()
	}
	return false
}

// Serve carries each connection that the guard admits. It shows an error only if it differs from
// the previous connection's. remote names the other end.
func (t *Tunnel) Serve(ctx context.Context, l net.Listener, g *Guard, remote string) error {
	var lock sync.Mutex
	last := ""
	for {
		conn, err := l.Accept()
		if errors.Is(err, syscall.EMFILE) && ctx.Err() == nil { // retry when connections have ended
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		if !g.Admits(conn) {
			if c, ok := conn.(*net.TCPConn); ok {
				_ = c.SetLinger(0)
			}
			conn.Close()
			continue
		}
		go func() {
			problem := ""
			if err := t.Carry(conn); err != nil {
				problem = err.Error()
			}
			lock.Lock()
			defer lock.Unlock()
			if problem != last && problem != "" {
				g.Say(remote + ": " + problem)
			}
			last = problem
		}()
	}
}

// Listen listens on a socket that only this user can connect to, if path is not empty. Else it listens on a port of
// the loopback interface, or on a free one if that is not available, which it reports.
func Listen(path string, port int, report func(line string)) (net.Listener, error) {
	if path != "" {
		l, err := ListenSocket(path)
		if err != nil {
			return nil, fmt.Errorf("listening on socket %q: %w", path, err)
		}
		return l, nil
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
		why := errors.Unwrap(errors.Unwrap(err))
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			report(fmt.Sprintf("local port %d is not available (%v); using port %d", port, why, l.Addr().(*net.TCPAddr).Port))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listening on this machine: %w", err)
	}
	return l, nil
}

// CheckInterval is the interval between checks that the task of a tunnel still runs.
const CheckInterval = 2 * time.Second

// ServeWhile is [Tunnel.Serve] until the task has ended or ctx is done. runs reports whether the task still runs.
func (t *Tunnel) ServeWhile(ctx context.Context, l net.Listener, g *Guard, remote string, runs func() bool) error {
	failed := make(chan error, 1)
	go func() { failed <- t.Serve(ctx, l, g, remote) }()
	ticker := time.NewTicker(CheckInterval)
	defer ticker.Stop()
	for going := true; going; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("listening on this machine: %w", err)
		case <-t.Ended():
			if stillRuns(ctx, runs) {
				err := fmt.Errorf("lost the connection to %s: %s", remote, cmp.Or(t.Messages(), "its command ended"))
				return text.Hint(err, `run "hpcc forward" again`)
			}
			going = false
		case <-ticker.C:
			going = runs()
		}
	}
	g.Say("the task has ended")
	return nil
}

// stillRuns reports whether a task still runs. It checks several times, because a task that the
// scheduler ended needs time to record its end.
func stillRuns(ctx context.Context, runs func() bool) bool {
	for range 4 {
		if !runs() {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(CheckInterval / 2):
		}
	}
	return runs()
}
