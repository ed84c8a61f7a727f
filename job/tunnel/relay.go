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

	"hpcc/text"
)

// A tunnel multiplexes connections over one link: the standard streams of a [Relay] on another node. After the
// relay's greeting yamux runs on the link. Its streams have separate windows, so a slow reader only
// blocks itself; its keepalive detects a dead peer.
//
// Each stream is one connection. The relay answers with a byte, connected or refused; a refusal has a reason.
// Then both sides send chunks with a length of two bytes. An empty chunk ends a direction. A stream that ends
// without one was aborted, and the connection is reset, so that truncated data does not look complete.
// The stream is closed when both directions have ended, or by the side that aborts.
const (
	greeting  = "hpcc relay 1\n"
	connected = 0
	refused   = 1

	maxChunk  = 32 << 10
	maxNoise  = 64 << 10 // limits the output of a site's shells before the greeting, in bytes
	maxReason = 1 << 10
	// maxConnections limits the concurrent connections of a tunnel. Each may hold two windows of 256 KiB.
	maxConnections = 512

	dialTimeout = 10 * time.Second
	// pulse is the keepalive interval; stall is the timeout for an answer, or for writing a chunk.
	pulse = 15 * time.Second
	stall = 45 * time.Second
)

func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.KeepAliveInterval, c.ConnectionWriteTimeout = pulse, stall
	c.StreamCloseTimeout = 0 // a finished sender may receive for hours
	c.AcceptBacklog = maxConnections
	c.LogOutput = io.Discard
	return c
}

// Relay is the tunnel's end on the task's node. For each stream in link it connects to the port of this machine's
// loopback interface. It closes link and returns when the link or ctx ends.
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
	slots := make(chan struct{}, maxConnections)
	for {
		slots <- struct{}{}
		s, err := session.AcceptStream()
		if err != nil {
			session.Close()
			return nil // the peer is gone, or has closed the tunnel
		}
		open.Go(func() {
			defer func() { <-slots }()
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

// dialLoopback connects to a port on a loopback address of this machine. It refuses another user's server.
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

// A Conn is a connection whose directions can be closed separately.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// join forwards a connection over a stream until both directions have ended. An abort on one side aborts the other.
func join(conn Conn, s net.Conn) {
	abort := func() {
		Reset(conn)
		s.Close()
	}
	var sentAll atomic.Bool // conn has sent everything
	over := make(chan struct{})
	go func() {
		defer close(over)
		if sendChunks(s, conn, &sentAll) != nil {
			abort()
		}
	}()
	if receiveChunks(conn, s) != nil || conn.CloseWrite() != nil {
		abort()
	} else {
		go func() { // the peer has sent everything; notice when it closes the stream
			_, _ = s.Read(make([]byte, 1))
			if sentAll.Load() {
				s.Close()
			} else {
				abort()
			}
		}()
	}
	<-over
	s.Close()
}

// Reset aborts a connection, so that its peer does not take the data for complete.
func Reset(conn net.Conn) {
	if l, ok := conn.(*net.TCPConn); ok {
		_ = l.SetLinger(0)
	}
	conn.Close()
}

// sendChunks sends the data of r and an end mark. It sets sentAll before it writes the mark.
func sendChunks(s net.Conn, r io.Reader, sentAll *atomic.Bool) error {
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
			sentAll.Store(true)
			_, err := s.Write([]byte{0, 0})
			return err
		}
		if err != nil {
			return err
		}
	}
}

// receiveChunks copies the peer's data to w until the end mark. A stream that ends earlier is io.ErrUnexpectedEOF.
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
			return fmt.Errorf("the other end of the tunnel sent a chunk of %d bytes; the limit is %d", n, maxChunk)
		}
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return io.ErrUnexpectedEOF
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// awaitGreeting reads a link until the relay's greeting. A site's prologues and shells may print text before it;
// printed is that text, for an error message.
func awaitGreeting(r *bufio.Reader) (printed string, err error) {
	var noise bytes.Buffer
	for {
		line, err := r.ReadSlice('\n')
		if noise.Write(line); bytes.HasSuffix(noise.Bytes(), []byte(greeting)) {
			return "", nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return text.OneLine(noise.String()), err
		}
		if noise.Len() > maxNoise {
			return text.OneLine(noise.String()[:maxReason]),
				fmt.Errorf("more than %d bytes of other output before the greeting of hpcc's relay", maxNoise)
		}
	}
}

// readAnswer reads the relay's answer for a new stream: nil if it is connected.
func readAnswer(r io.Reader) error {
	var b [1]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return errors.New("the tunnel has ended")
	}
	if b[0] == connected {
		return nil
	}
	reply, _ := io.ReadAll(io.LimitReader(r, maxReason))
	return fmt.Errorf("no connection to the port: %s", text.OneLine(string(reply)))
}
