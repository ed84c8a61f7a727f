package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
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
