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

	"hpcc/job/message"
	"hpcc/testdata/testenv"
)

// service is a server on the loopback interface; serve gets each connection.
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

// tunnelTo carries what connects to the returned address to a port, through a tunnel.
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

// echoAll answers with all that it has read, when it has read all.
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
				t.Errorf("connection %d: got %d bytes of %d back, or others; %v", i, len(got), len(sent), err)
			}
		})
	}
	all.Wait()
}

// TestTunnelServerEndsFirst: a server may say that it has said all and still read.
func TestTunnelServerEndsFirst(t *testing.T) {
	read := make(chan string, 1)
	_, addr, _ := tunnelTo(t, serveLoopback(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "that is all")
		_ = c.CloseWrite()
		b, err := io.ReadAll(c)
		read <- fmt.Sprint(string(b), err)
	}))
	c := dial(t, addr)
	if b, err := io.ReadAll(c); err != nil || string(b) != "that is all" {
		t.Fatalf("read %q, %v", b, err)
	}
	time.Sleep(50 * time.Millisecond)
	_, _ = io.WriteString(c, "and I say this")
	_ = c.CloseWrite()
	if got := <-read; got != "and I say this<nil>" {
		t.Errorf("the server read %q", got)
	}
}

// TestTunnelReset: what was broken off does not look whole, on either side.
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
			t.Errorf("the server read to %v; want a reset", err)
		}
	})
	t.Run("client that has asked", func(t *testing.T) { // and does not want the answer any more
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
				t.Error("the server wrote for ever, and without an error")
			}
		case <-time.After(20 * time.Second):
			t.Error("the server is still kept")
		}
	})
}

type neverEnds struct{}

func (neverEnds) Read(p []byte) (int, error) { return len(p), nil }

// TestTunnelNobodyThere: the client gets an error, and there is a plain word.
func TestTunnelNobodyThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	_, addr, problems := tunnelTo(t, port)
	c, err := net.Dial("tcp", addr)
	if err == nil { // else it was reset before connect had returned
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

// TestTunnelBackPressure: one who does not read holds up itself, not the others,
// and its server does not fill the memory.
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
		t.Errorf("%d bytes are on their way to a client that does not read", n)
	}
	for range 20 {
		c := dial(t, addr)
		_, _ = c.Write([]byte("e"))
		if b, err := io.ReadAll(c); err != nil || string(b) != "e" {
			t.Fatalf("next to it: %q, %v", b, err)
		}
	}
}

// TestTunnelEnds: when the link ends, so do both ends and all connections.
func TestTunnelEnds(t *testing.T) {
	got, heard := make(chan error, 1), make(chan error, 1)
	tun, addr, _ := tunnelTo(t, serveLoopback(t, func(c *net.TCPConn) {
		_, err := c.Read(make([]byte, 1))
		got <- err
		_, err = io.ReadAll(c)
		heard <- err
	}))
	c := dial(t, addr)
	_, _ = io.WriteString(c, "x")
	testenv.Check(t, <-got)
	tun.Close()
	<-tun.Ended()
	if err := <-heard; err == nil {
		t.Error("the server took the end of the tunnel for the end of what was sent")
	}
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the client took the end of the tunnel for the end of what was sent")
	}
}

// TestAnswerTooLate: a server that was connected to for nobody, as the link has ended, does not take that for a
// client that had nothing to say.
func TestAnswerTooLate(t *testing.T) {
	heard := make(chan error, 1)
	port := serveLoopback(t, func(c *net.TCPConn) { _, err := io.ReadAll(c); heard <- err })
	gone, link := net.Pipe()
	gone.Close()
	answer(t.Context(), link, port)
	if err := <-heard; err == nil {
		t.Error("the server took it for the end of what was sent")
	}
}

// TestStartLink: a command carries the link; what it says on the way is harmless, and
// one that fails has its words in the error.
func TestStartLink(t *testing.T) {
	for _, tt := range []struct{ script, want string }{
		{`echo welcome to the site; printf 'hpcc relay 1\n'; cat >/dev/null`, ""},
		{`printf 'no newline hpcc relay 1\n'; cat >/dev/null`, ""},
		{"echo 'no such job' >&2; exit 1", "no such job"},
		{"echo said; exit 1", "said"},
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
		t.Error("a command that is not there was started")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	link, err := Start(ctx, os.Environ(), []string{"sleep", "100"})
	testenv.Check(t, err)
	if _, err := New(ctx, link); err == nil {
		t.Error("one that never greets has greeted")
	}
}

func FuzzReceiveChunks(f *testing.F) {
	f.Add([]byte{0, 3, 'a', 'b', 'c', 0, 0})
	f.Add([]byte{0xff, 0xff})
	f.Add([]byte{0, 3, 'a'})
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		err := receiveChunks(&out, bytes.NewReader(in))
		// The output is that of the complete chunks before the end.
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
			t.Errorf("receiveChunks(%x) = %x, %v; want %x, whole %v", in, out.Bytes(), err, want, complete)
		}
	})
}

func FuzzGreeting(f *testing.F) {
	f.Add([]byte("welcome\nhpcc relay 1\nrest"))
	f.Fuzz(func(t *testing.T, in []byte) {
		printed, err := awaitGreeting(bufio.NewReaderSize(bytes.NewReader(in), 4096))
		if err == nil && !bytes.Contains(in, []byte(greeting)) {
			t.Errorf("%q greeted", in)
		}
		if message.OneLine(printed) != printed {
			t.Errorf("%q is not fit to print", printed)
		}
		_ = readAnswer(bytes.NewReader(in))
	})
}

// FuzzRelay: whatever comes over the link, the relay ends with it and connects nowhere else.
func FuzzRelay(f *testing.F) {
	f.Add([]byte{0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}) // yamux: a window update that opens stream 1
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		here, there := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- Relay(t.Context(), there, 1) }() // nobody listens there
		go func() { _, _ = io.Copy(io.Discard, here) }()
		_ = here.SetWriteDeadline(time.Now().Add(5 * time.Second))
		_, _ = here.Write(in)
		here.Close()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatalf("the relay does not end after %x", in)
		}
	})
}
