package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"hpcc/job/message"
)

// A tunnel carries many connections over one link, the standard streams of a
// program on another node. That program is [Relay]; it greets, after which yamux
// has the link: streams, each with a window, so that who does not read holds up
// itself alone, and a pulse, so that neither end outlives the other for long.
//
// Each stream is one connection. The relay answers a byte, connected or refused,
// the latter with a reason. Then both sides send chunks: two bytes of length and
// so many of data. A chunk of none is the end of what one side sends; a stream
// that ends without it was broken off, and so is the connection there: what was
// cut short must not look whole. The stream itself is closed when both have
// said all, or by the one who breaks off.
const (
	greeting  = "hpcc relay 1\n"
	connected = 0
	refused   = 1

	maxChunk  = 32 << 10
	maxNoise  = 64 << 10 // before the greeting: what shells of a site say, in bytes
	maxReason = 1 << 10
	// maxConnections is how many a tunnel has at once. Each may hold two windows of 256 KiB.
	maxConnections = 512

	dialPatience = 10 * time.Second
	// pulse is how often each end asks whether the other lives; stall is how long
	// it may take to answer, or to take a chunk.
	pulse = 15 * time.Second
	stall = 45 * time.Second
)

func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.KeepAliveInterval, c.ConnectionWriteTimeout = pulse, stall
	c.StreamCloseTimeout = 0 // one who has said all may listen for hours
	c.AcceptBacklog = maxConnections
	c.LogOutput = io.Discard
	return c
}

// Relay is the end of a tunnel on the task's node: for each stream in link it
// connects to a port of this machine's loopback interface, and to nothing else.
// It returns when the link ends, or ctx; link is closed then.
func Relay(ctx context.Context, link io.ReadWriteCloser, port int) error {
	defer link.Close()
	if _, err := io.WriteString(link, greeting); err != nil {
		return fmt.Errorf("greeting the other end of the tunnel: %w", err)
	}
	session, err := yamux.Server(link, muxConfig())
	if err != nil {
		return err
	}
	defer session.Close()
	defer context.AfterFunc(ctx, func() { session.Close() })()
	var open sync.WaitGroup
	defer open.Wait()
	room := make(chan struct{}, maxConnections)
	for {
		room <- struct{}{}
		s, err := session.AcceptStream()
		if err != nil {
			session.Close()
			return nil // the other end is gone, or has ended the tunnel
		}
		open.Go(func() {
			defer func() { <-room }()
			defer s.Close()
			answer(ctx, s, port)
		})
	}
}

// answer connects one stream to the port.
func answer(ctx context.Context, s net.Conn, port int) {
	conn, err := dialLoopback(ctx, port)
	if err != nil {
		why := err.Error()
		if foreign := new(foreignSocketError); errors.As(err, &foreign) {
			why += ", so nothing is sent to it; have your program listen on another port"
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			why = fmt.Sprintf("nothing listens on port %d of %s", port, Host())
		}
		_, _ = s.Write(append([]byte{refused}, why...))
		return
	}
	defer conn.Close()
	if _, err := s.Write([]byte{connected}); err != nil { // the other end is gone
		Reset(conn)
		return
	}
	join(conn, s)
}

// dialLoopback connects to a port of this machine, whichever loopback address
// its server has taken. A server of another user is refused.
func dialLoopback(ctx context.Context, port int) (*net.TCPConn, error) {
	var first error
	for _, host := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		c, err := dialOwn(ctx, netip.AddrPortFrom(host, uint16(port)))
		if err == nil {
			return c, nil
		}
		if foreign := new(foreignSocketError); first == nil || errors.As(err, &foreign) {
			first = err
		}
	}
	return nil, first
}

// A Conn is a connection of which each direction ends by itself.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// join carries a connection over a stream, both ways, until both have ended. One
// that is broken off on one side is broken off on the other.
func join(conn Conn, s net.Conn) {
	abort := func() {
		Reset(conn)
		s.Close()
	}
	var said atomic.Bool // all that conn had to say
	over := make(chan struct{})
	go func() {
		defer close(over)
		if sendChunks(s, conn, &said) != nil {
			abort()
		}
	}()
	if receiveChunks(conn, s) != nil || conn.CloseWrite() != nil {
		abort()
	} else {
		go func() { // the other side says no more; that it goes away is still heard
			_, _ = s.Read(make([]byte, 1))
			if said.Load() {
				s.Close()
			} else {
				abort()
			}
		}()
	}
	<-over
	s.Close()
}

// Reset ends a connection so that its peer does not take what it got for all.
func Reset(conn net.Conn) {
	if l, ok := conn.(*net.TCPConn); ok {
		_ = l.SetLinger(0)
	}
	conn.Close()
}

// sendChunks sends what r has, to its end, and says that it was the end, which
// it notes in said before.
func sendChunks(s net.Conn, r io.Reader, said *atomic.Bool) error {
	buf := make([]byte, 2+maxChunk)
	for {
		n, err := r.Read(buf[2:])
		if n > 0 {
			binary.BigEndian.PutUint16(buf, uint16(n))
			if _, err := s.Write(buf[:2+n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			said.Store(true)
			_, err := s.Write([]byte{0, 0})
			return err
		}
		if err != nil {
			return err
		}
	}
}

// receiveChunks writes to w what the other side sends, until it says that this
// was all. A stream that ends before is io.ErrUnexpectedEOF.
func receiveChunks(w io.Writer, r io.Reader) error {
	buf := make([]byte, maxChunk)
	for {
		if _, err := io.ReadFull(r, buf[:2]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		n := int(binary.BigEndian.Uint16(buf))
		switch {
		case n == 0:
			return nil
		case n > maxChunk:
			return fmt.Errorf("the other end of the tunnel sent a chunk of %d bytes; the most is %d", n, maxChunk)
		}
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return io.ErrUnexpectedEOF
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// awaitGreeting reads a link until the relay has greeted. Prologues and shells of a site
// may say something before; said is that, for an error's words.
func awaitGreeting(r *bufio.Reader) (said string, err error) {
	var noise bytes.Buffer
	for {
		line, err := r.ReadSlice('\n')
		if noise.Write(line); bytes.HasSuffix(noise.Bytes(), []byte(greeting)) {
			return "", nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return message.OneLine(noise.String()), err
		}
		if noise.Len() > maxNoise {
			return message.OneLine(noise.String()[:maxReason]), fmt.Errorf("it says other things than hpcc's relay, more than %d bytes", maxNoise)
		}
	}
}

// readAnswer reads what the relay says of a new stream: nil when it is connected.
func readAnswer(r io.Reader) error {
	var b [1]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return errors.New("the tunnel has ended")
	}
	if b[0] == connected {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(r, maxReason))
	return fmt.Errorf("no connection there: %s", message.OneLine(string(text)))
}
