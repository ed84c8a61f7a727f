// Package tunnel forwards connections to a port of a task's node over the standard streams of one command.
//
//	client ─► Carry ─► yamux over the command's streams ─► Relay ─► port
//
// Any command that runs a program on the node works: srun, qrsh, ssh. On the node [Relay] only connects to the
// loopback interface, and only to programs of this user or of root (see [checkListener]). An aborted connection
// is reset at the other end. The tunnel ends with the command, and the command with the tunnel.
package tunnel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"hpcc/text"
)

// A Tunnel forwards to one loopback port of a task's node.
type Tunnel struct {
	Route string // how the node is reached, for example "ssh"
	Ends  bool   // the tunnel ends with the task

	carry    func(conn Conn) error // forwards a connection until it has ended
	ended    <-chan struct{}
	slots    chan struct{}
	end      func()        // ends the tunnel and its carrier
	messages func() string // messages of the carrier
}

// relayTimeout limits the time until the relay's greeting. The batch system may first have to find a free slot.
const relayTimeout = 60 * time.Second

// A Link is this end of a relay's standard streams.
type Link struct {
	io.Reader
	io.Writer
	end      func() // ends the carrier; it may be called twice
	messages func() string
}

// Close ends the command that carries the link.
func (l *Link) Close() error { l.end(); return nil }

// Messages ends the command that carries the link, and returns its messages as one line.
func (l *Link) Messages() string { return text.OneLine(l.messages()) }

// Direct returns a link to a relay in this process, for a port of this machine.
func Direct(ctx context.Context, port int) *Link {
	near, far := net.Pipe()
	go func() { _ = Relay(ctx, far, port) }()
	return &Link{Reader: near, Writer: near, end: func() { near.Close() }, messages: func() string { return "" }}
}

// Start starts argv with the environment env, and returns a link over its standard streams. argv
// must run a relay. The command ends with its input, so it does not outlive this process, even if
// that is killed.
func Start(ctx context.Context, env, argv []string) (*Link, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // shield the command from Ctrl-C; hpcc ends it
	messages := &Tail{}
	cmd.Stderr = messages
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
	go func() { // Wait closes out, so read all of it first
		_, err := io.Copy(w, out)
		w.CloseWithError(err)
		_ = cmd.Wait()
		close(gone)
	}()
	return &Link{Reader: r, Writer: in, end: end, messages: func() string { end(); return messages.String() }}, nil
}

// New waits for the relay's greeting, and returns a tunnel over the link. After an error the link is
// closed.
func New(ctx context.Context, link *Link) (*Tunnel, error) {
	type greeted struct {
		messages string
		err      error
	}
	r := bufio.NewReaderSize(link.Reader, 64<<10)
	heard := make(chan greeted, 1)
	go func() {
		messages, err := awaitGreeting(r)
		heard <- greeted{messages, err}
	}()
	var err error
	select {
	case g := <-heard:
		if err = g.err; errors.Is(err, io.EOF) {
			err = errors.New(strings.TrimSpace(text.OneLine(link.messages()) + " " + g.messages))
			if err.Error() == "" {
				err = errors.New("it ended without a message")
			}
		}
	case <-time.After(relayTimeout):
		err = fmt.Errorf("no answer in %s", relayTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		link.Close()
		return nil, err
	}
	session, err := yamux.Client(&Link{Reader: r, Writer: link.Writer, end: link.end}, muxConfig())
	if err != nil {
		link.Close()
		return nil, err
	}
	end := func() { session.Close(); link.end() }
	carry := func(conn Conn) error { return carryStream(session, conn) }
	return &Tunnel{carry: carry, ended: session.CloseChan(), slots: make(chan struct{}, maxConnections),
		end: end, messages: link.messages}, nil
}

// ByCarrier returns a tunnel that calls carry for each connection. ended is closed when the carrier
// has ended, end ends the carrier, and messages returns its messages.
func ByCarrier(route string, carry func(Conn) error, ended <-chan struct{}, end func(), messages func() string) *Tunnel {
	return &Tunnel{Route: route, carry: carry, ended: ended, slots: make(chan struct{}, maxConnections), end: end, messages: messages}
}

// Carry forwards one connection until it has ended, and closes it. If nothing answers at the port, it resets the
// connection and returns an error.
func (t *Tunnel) Carry(conn net.Conn) error {
	defer conn.Close()
	t.slots <- struct{}{}
	defer func() { <-t.slots }()
	return t.carry(conn.(Conn))
}

// carryStream forwards a connection through the relay.
func carryStream(session *yamux.Session, conn Conn) error {
	s, err := openStream(session)
	if err != nil {
		Reset(conn)
		return err
	}
	defer s.Close()
	join(conn, s)
	return nil
}

// openStream requests another connection to the port from the relay.
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

// Ended is closed when either side has ended the tunnel.
func (t *Tunnel) Ended() <-chan struct{} { return t.ended }

// Messages returns the messages of the command that carried the tunnel, as one line.
func (t *Tunnel) Messages() string { return text.OneLine(t.messages()) }

// Close ends the tunnel and its carrier.
func (t *Tunnel) Close() { t.end() }

// A Tail keeps the end of a command's output.
type Tail struct {
	sync.Mutex
	b []byte
}

// Write appends p, and keeps the last maxReason bytes.
func (t *Tail) Write(p []byte) (int, error) {
	t.Lock()
	defer t.Unlock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-maxReason):]
	return len(p), nil
}

func (t *Tail) String() string {
	t.Lock()
	defer t.Unlock()
	return string(t.b)
}
