package job

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
)

// A Tunnel leads to one port of the loopback interface of a task's node.
type Tunnel struct {
	Way string // how the node is reached: "direct", "slurm", "ssh", …

	carry func(conn duplex) error // until it has ended
	ended <-chan struct{}
	room  chan struct{}
	end   func()        // ends the tunnel and what carries it
	said  func() string // what that had to say
}

// relayPatience is how long a way to a node may take until the relay greets;
// a scheduler may have to find a place for it first.
const relayPatience = 60 * time.Second

// OpenTunnel opens a tunnel to a port of the node of a task that runs, by the
// first way that works; via, when not "", is the one to take. program is hpcc, as it is called on the
// nodes. Words about what is tried go to tell.
func (s *Submission) OpenTunnel(ctx context.Context, t *Task, port int, program, via string, tell func(string)) (*Tunnel, error) {
	if s.Target.Pods() {
		return s.podTunnel(ctx, t, port)
	}
	ways, err := s.ways(t, via, false)
	if err != nil {
		return nil, err
	}
	var problems []string
	for _, w := range ways {
		var link *carriedLink
		if w.name == wayDirect {
			link = directLink(ctx, port)
		} else if link, err = startLink(s.Within(ctx), w.command([]string{program, "relay", strconv.Itoa(port)})); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", w.name, err))
			continue
		}
		tun, err := newTunnel(ctx, link)
		if err == nil {
			tun.Way = w.name
			return tun, nil
		}
		problems = append(problems, fmt.Sprintf("%s: %v", w.name, err))
		if ctx.Err() != nil {
			break
		}
		tell(fmt.Sprintf("%s does not lead to %s: %v", w.name, t.Host, err))
	}
	return nil, fmt.Errorf("reaching %s, where task %d runs: %s", t.Host, t.Index, strings.Join(problems, "; "))
}

// A carriedLink is the other side of a relay's standard streams.
type carriedLink struct {
	io.Reader
	io.Writer
	close func() // ends the carrier; it may be called twice
	said  func() string
}

func (l *carriedLink) Close() error { l.close(); return nil }

// directLink is a relay in this process, on the node itself.
func directLink(ctx context.Context, port int) *carriedLink {
	here, there := net.Pipe()
	go func() { _ = Relay(ctx, there, port) }()
	return &carriedLink{Reader: here, Writer: here, close: func() { here.Close() }, said: func() string { return "" }}
}

// startLink starts a command that carries a relay. It ends when its input does, so it
// outlives not even a kill of this process.
func startLink(ctx context.Context, words []string) (*carriedLink, error) {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = OutsideJob(environ(ctx))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for hpcc, which ends it
	said := &tail{}
	cmd.Stderr = said
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	gone := make(chan struct{})
	r, w := io.Pipe()
	end := func() {
		in.Close()
		r.Close()
		select {
		case <-gone:
		case <-time.After(cmd.WaitDelay):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
	}
	go func() { // Wait closes out, so all of it is read before
		_, err := io.Copy(w, out)
		w.CloseWithError(err)
		_ = cmd.Wait()
		close(gone)
	}()
	return &carriedLink{Reader: r, Writer: in, close: end, said: func() string { end(); return said.String() }}, nil
}

// OutsideJob is an environment without what would make a scheduler's command
// take itself for a part of the job that this process may stand in.
func OutsideJob(env []string) []string {
	var out []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if (strings.HasPrefix(name, "SLURM_") && name != "SLURM_CONF" && name != "SLURM_CLUSTERS") || strings.HasPrefix(name, "SRUN_") {
			continue
		}
		out = append(out, e)
	}
	return out
}

// newTunnel waits for the relay's greeting and takes the link over.
func newTunnel(ctx context.Context, link *carriedLink) (*Tunnel, error) {
	type greeted struct {
		said string
		err  error
	}
	r := bufio.NewReaderSize(link.Reader, 64<<10)
	heard := make(chan greeted, 1)
	go func() {
		said, err := awaitGreeting(r)
		heard <- greeted{said, err}
	}()
	var err error
	select {
	case g := <-heard:
		if err = g.err; errors.Is(err, io.EOF) {
			err = errors.New(strings.TrimSpace(oneLine(link.said()) + " " + g.said))
			if err.Error() == "" {
				err = errors.New("it ended without a word")
			}
		}
	case <-time.After(relayPatience):
		err = fmt.Errorf("no answer in %s", relayPatience)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		link.Close()
		return nil, err
	}
	session, err := yamux.Client(&carriedLink{Reader: r, Writer: link.Writer, close: link.close}, muxConfig())
	if err != nil {
		link.Close()
		return nil, err
	}
	end := func() { session.Close(); link.close() }
	carry := func(conn duplex) error { return carryStream(session, conn) }
	return &Tunnel{carry: carry, ended: session.CloseChan(), room: make(chan struct{}, maxConnections), end: end, said: link.said}, nil
}

// Carry carries one connection through the tunnel until it has ended, and closes
// it. That nothing answers at the port is an error; the connection is reset then.
func (t *Tunnel) Carry(conn net.Conn) error {
	defer conn.Close()
	t.room <- struct{}{}
	defer func() { <-t.room }()
	return t.carry(conn.(duplex))
}

// carryStream carries a connection through the relay.
func carryStream(session *yamux.Session, conn duplex) error {
	s, err := openStream(session)
	if err != nil {
		reset(conn)
		return err
	}
	defer s.Close()
	join(conn, s)
	return nil
}

// openStream asks the relay for one more connection to the port.
func openStream(session *yamux.Session) (net.Conn, error) {
	s, err := session.OpenStream()
	if err != nil {
		return nil, errors.New("the tunnel has ended")
	}
	if err := readAnswer(s); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Ended is closed when the tunnel has ended, from whichever side.
func (t *Tunnel) Ended() <-chan struct{} { return t.ended }

// Said is what the command that carried a tunnel had to say, in a line; "" mostly.
func (t *Tunnel) Said() string { return oneLine(t.said()) }

// Close ends the tunnel and what carries it.
func (t *Tunnel) Close() { t.end() }

// A tail keeps the last that a command wrote.
type tail struct {
	sync.Mutex
	b []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.Lock()
	defer t.Unlock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-maxReason):]
	return len(p), nil
}

func (t *tail) String() string {
	t.Lock()
	defer t.Unlock()
	return string(t.b)
}
