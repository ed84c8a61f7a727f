package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
	"hpcc/text"
)

// serveLoopback starts a server on the loopback interface. serve handles each connection.
func serveLoopback(t *testing.T, serve func(*net.TCPConn)) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); serve(c.(*net.TCPConn)) }()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// tunnelTo starts a tunnel to a port, and forwards the connections to the returned address through
// it. It sends the result of each connection to the channel.
func tunnelTo(t *testing.T, port int) (*Tunnel, string, <-chan error) {
	t.Helper()
	tun, err := New(t.Context(), Direct(t.Context(), port))
	testenv.Check(t, err)
	t.Cleanup(tun.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	t.Cleanup(func() { l.Close() })
	problems := make(chan error, 1000)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { problems <- tun.Carry(c) }()
		}
	}()
	return tun, l.Addr().String(), problems
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	testenv.Check(t, err)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c.(*net.TCPConn)
}

// echoAll reads until the end of the data, and sends all of it back.
func echoAll(c *net.TCPConn) {
	b, err := io.ReadAll(c)
	if err == nil {
		_, _ = c.Write(b)
	}
}

func TestTunnelParallel(t *testing.T) {
	_, addr, _ := tunnelTo(t, serveLoopback(t, echoAll))
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			sent := make([]byte, 1<<20+i)
			r := rand.NewChaCha8([32]byte{byte(i)})
			_, _ = r.Read(sent)
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			go func() {
				_, _ = c.Write(sent)
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(sent) {
				t.Errorf("connection %d: got %d bytes of %d back, or other data; %v", i, len(got), len(sent), err)
			}
		})
	}
	all.Wait()
}

// TestTunnelServerEndsFirst checks that a server can close its sending side and still read.
func TestTunnelServerEndsFirst(t *testing.T) {
	read := make(chan string, 1)
	_, addr, _ := tunnelTo(t, serveLoopback(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "from server")
		_ = c.CloseWrite()
		b, err := io.ReadAll(c)
		read <- fmt.Sprint(string(b), err)
	}))
	c := dial(t, addr)
	if b, err := io.ReadAll(c); err != nil || string(b) != "from server" {
		t.Fatalf("read %q, %v", b, err)
	}
	time.Sleep(50 * time.Millisecond)
	_, _ = io.WriteString(c, "from client")
	_ = c.CloseWrite()
	if got := <-read; got != "from client<nil>" {
		t.Errorf("the server read %q", got)
	}
}

// TestTunnelReset checks that an abort on one side is a reset on the other, so that truncated data
// does not look complete.
func TestTunnelReset(t *testing.T) {
	t.Run("server", func(t *testing.T) {
		_, addr, _ := tunnelTo(t, serveLoopback(t, func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "half of")
			time.Sleep(50 * time.Millisecond)
			_ = c.SetLinger(0)
		}))
		if b, err := io.ReadAll(dial(t, addr)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read %q, %v; want a reset", b, err)
		}
	})
	t.Run("client", func(t *testing.T) {
		heard := make(chan error, 1)
		_, addr, _ := tunnelTo(t, serveLoopback(t, func(c *net.TCPConn) { _, err := io.ReadAll(c); heard <- err }))
		c := dial(t, addr)
		_, _ = io.WriteString(c, "half of")
		time.Sleep(50 * time.Millisecond)
		_ = c.SetLinger(0)
		c.Close()
		if err := <-heard; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("reading in the server ended with %v; want a reset", err)
		}
	})
	t.Run("client before the end of the answer", func(t *testing.T) {
		heard := make(chan error, 1)
		_, addr, _ := tunnelTo(t, serveLoopback(t, func(c *net.TCPConn) {
			_, _ = io.ReadAll(c)
			_, err := io.Copy(c, neverEnds{})
			heard <- err
		}))
		c := dial(t, addr)
		_ = c.CloseWrite()
		_, _ = io.ReadFull(c, make([]byte, 1<<20))
		c.Close()
		select {
		case err := <-heard:
			if err == nil {
				t.Error("writing in the server ended without an error")
			}
		case <-time.After(20 * time.Second):
			t.Error("the server is still writing")
		}
	})
}

type neverEnds struct{}

func (neverEnds) Read(p []byte) (int, error) { return len(p), nil }

// TestTunnelNoListener checks that the client gets a reset, and Carry an error, if nothing listens on
// the port.
func TestTunnelNoListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	_, addr, problems := tunnelTo(t, port)
	c, err := net.Dial("tcp", addr)
	if err == nil { // else the reset came before connect returned
		_, err = io.ReadAll(c)
		c.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client got %v; want a reset", err)
	}
	if err := <-problems; err == nil || !strings.Contains(err.Error(), fmt.Sprintf("nothing listens on port %d of %s", port, Host())) {
		t.Errorf("Carry: %v", err)
	}
}

// TestTunnelBackPressure checks that a client that does not read only delays itself, and that its
// server does not fill the memory.
func TestTunnelBackPressure(t *testing.T) {
	var wrote atomic.Int64
	_, addr, _ := tunnelTo(t, serveLoopback(t, func(c *net.TCPConn) {
		b := make([]byte, 1)
		if _, err := c.Read(b); err != nil {
			return
		}
		if b[0] == 'e' {
			_, _ = c.Write(b)
			return
		}
		for block := make([]byte, 64<<10); ; {
			n, err := c.Write(block)
			wrote.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	lazy := dial(t, addr)
	_, _ = lazy.Write([]byte("x"))
	for last := int64(0); last == 0 || last != wrote.Load(); time.Sleep(500 * time.Millisecond) {
		last = wrote.Load()
	}
	if n := wrote.Load(); n > 64<<20 {
		t.Errorf("the server sent %d bytes to a client that does not read", n)
	}
	for range 20 {
		c := dial(t, addr)
		_, _ = c.Write([]byte("e"))
		if b, err := io.ReadAll(c); err != nil || string(b) != "e" {
			t.Fatalf("another client read %q, %v; want e", b, err)
		}
	}
}

// TestTunnelEnds checks that the end of a tunnel aborts all its connections on both sides.
func TestTunnelEnds(t *testing.T) {
	first, rest := make(chan error, 1), make(chan error, 1)
	tun, addr, _ := tunnelTo(t, serveLoopback(t, func(c *net.TCPConn) {
		_, err := c.Read(make([]byte, 1))
		first <- err
		_, err = io.ReadAll(c)
		rest <- err
	}))
	c := dial(t, addr)
	_, _ = io.WriteString(c, "x")
	testenv.Check(t, <-first)
	tun.Close()
	<-tun.Ended()
	if err := <-rest; err == nil {
		t.Error("the server took the end of the tunnel for the end of the data")
	}
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the client took the end of the tunnel for the end of the data")
	}
}

// TestAnswerAfterEnd checks that a connection that the relay opened after the link had ended is reset: the server must
// not see a client without data.
func TestAnswerAfterEnd(t *testing.T) {
	heard := make(chan error, 1)
	port := serveLoopback(t, func(c *net.TCPConn) { _, err := io.ReadAll(c); heard <- err })
	gone, link := net.Pipe()
	gone.Close()
	answer(t.Context(), link, port)
	if err := <-heard; err == nil {
		t.Error("the server took the reset for the end of the data")
	}
}

// TestStartLink checks that output of the command before the greeting is ignored, and that the
// error for a command that fails has its messages.
func TestStartLink(t *testing.T) {
	for _, tt := range []struct{ script, want string }{
		{`echo welcome to the site; printf 'hpcc relay 1\n'; cat >/dev/null`, ""},
		{`printf 'no newline hpcc relay 1\n'; cat >/dev/null`, ""},
		{"echo 'no such job' >&2; exit 1", "no such job"},
		{"echo message; exit 1", "message"},
		{"exec >&-; echo no output >&2; sleep 100", "no output"},
		{"exit 1", "it ended without a message"},
		{"yes", "before the greeting of hpcc's relay"},
		{`printf '\033[31mred\n' >&2`, "[31mred"},
	} {
		link, err := Start(t.Context(), os.Environ(), []string{"sh", "-c", tt.script})
		testenv.Check(t, err)
		tun, err := New(t.Context(), link)
		switch {
		case err == nil:
			tun.Close()
			fallthrough
		default:
			if got := fmt.Sprint(err); (tt.want == "" && err != nil) || (tt.want != "" && !strings.Contains(got, tt.want)) || strings.Contains(got, "\033") {
				t.Errorf("%s: %v; want %q", tt.script, err, tt.want)
			}
		}
	}
	if _, err := Start(t.Context(), os.Environ(), []string{"/no/such/srun"}); err == nil {
		t.Error("Start succeeded for a command that does not exist")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	link, err := Start(ctx, os.Environ(), []string{"sleep", "100"})
	testenv.Check(t, err)
	if _, err := New(ctx, link); err == nil {
		t.Error("New succeeded for a command that never sends the greeting")
	}
}

func FuzzReceiveChunks(f *testing.F) {
	f.Add([]byte{0, 3, 'a', 'b', 'c', 0, 0})
	f.Add([]byte{0xff, 0xff})
	f.Add([]byte{0, 3, 'a'})
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		err := receiveChunks(&out, bytes.NewReader(in))
		// The output must be the complete chunks before the end mark.
		rest, want := in, []byte{}
		complete := false
		for len(rest) >= 2 {
			n := int(binary.BigEndian.Uint16(rest))
			if n == 0 {
				complete = true
				break
			}
			if n > maxChunk || len(rest) < 2+n {
				break
			}
			want, rest = append(want, rest[2:2+n]...), rest[2+n:]
		}
		if (err == nil) != complete || !bytes.Equal(out.Bytes(), want) {
			t.Errorf("receiveChunks(%x) = %x, %v; want %x, complete %v", in, out.Bytes(), err, want, complete)
		}
	})
}

func FuzzGreeting(f *testing.F) {
	f.Add([]byte("welcome\nhpcc relay 1\nrest"))
	f.Fuzz(func(t *testing.T, in []byte) {
		printed, err := awaitGreeting(bufio.NewReaderSize(bytes.NewReader(in), 4096))
		if err == nil && !bytes.Contains(in, []byte(greeting)) {
			t.Errorf("awaitGreeting accepted %q", in)
		}
		if text.OneLine(printed) != printed {
			t.Errorf("awaitGreeting(%q) returned unprintable text %q", in, printed)
		}
		_ = readAnswer(bytes.NewReader(in))
	})
}

// FuzzRelay checks that the relay ends with its link, whatever it receives.
func FuzzRelay(f *testing.F) {
	f.Add([]byte{0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}) // yamux: a window update that opens stream 1
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		near, far := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- Relay(t.Context(), far, 1) }() // nothing listens on port 1
		go func() { _, _ = io.Copy(io.Discard, near) }()
		_ = near.SetWriteDeadline(time.Now().Add(5 * time.Second))
		_, _ = near.Write(in)
		near.Close()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatalf("the relay did not end after %x", in)
		}
	})
}
