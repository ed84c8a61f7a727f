package sshd

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"hpcc/testdata/helpers/testenv"
)

// pair returns two connected sockets; net.Pipe has no buffer, but both ends of SSH write first.
func pair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	testenv.Check(t, err)
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		ends[i], err = net.FileConn(f)
		testenv.Check(t, err)
		f.Close()
	}
	return ends[0], ends[1]
}

// dial returns a client of a server in this process. Sessions start in an empty home directory.
func dial(t *testing.T) *ssh.Client {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	key, err := HostKey(filepath.Join(home, "key"))
	testenv.Check(t, err)
	near, far := pair(t)
	served := make(chan error, 1)
	go func() { served <- Serve(far, key) }()
	c, err := Dial(near)
	testenv.Check(t, err)
	t.Cleanup(func() {
		c.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c
}

func newSession(t *testing.T, c *ssh.Client) *ssh.Session {
	t.Helper()
	s, err := c.NewSession()
	testenv.Check(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// TestExec checks streams and environment of programs, and their exit statuses.
func TestExec(t *testing.T) {
	c := dial(t)
	t.Run("streams", func(t *testing.T) {
		s := newSession(t, c)
		var out, stderr bytes.Buffer
		s.Stdin, s.Stdout, s.Stderr = strings.NewReader("in\n"), &out, &stderr
		testenv.Check(t, s.Setenv("GREETING", "hello"))
		testenv.Check(t, s.Run(`cat; echo "$GREETING" "$(ls | tr '\n' ' ')"; echo problem >&2`))
		if out.String() != "in\nhello key \n" || stderr.String() != "problem\n" {
			t.Errorf("stdout %q, stderr %q", out.String(), stderr.String())
		}
	})
	t.Run("shell", func(t *testing.T) {
		s := newSession(t, c)
		var out bytes.Buffer
		s.Stdin, s.Stdout = strings.NewReader("echo $((40+2))\n"), &out
		testenv.Check(t, s.Shell())
		testenv.Check(t, s.Wait())
		if out.String() != "42\n" {
			t.Errorf("a shell without a terminal printed %q", out.String())
		}
	})
	for command, want := range map[string]string{"exit 7": "status 7", "kill -TERM $$": "signal TERM", "nosuchprogram": "status 127"} {
		err := newSession(t, c).Run(command)
		got, exit := "", new(ssh.ExitError)
		if errors.As(err, &exit) {
			if got = "status " + string('0'+rune(exit.ExitStatus())); exit.Signal() != "" {
				got = "signal " + exit.Signal()
			} else if exit.ExitStatus() == 127 {
				got = "status 127"
			}
		}
		if got != want {
			t.Errorf("%s: %v (%s); want %s", command, err, got, want)
		}
	}
	t.Run("large", func(t *testing.T) { // more than a window in both directions
		s, data := newSession(t, c), bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
		var out bytes.Buffer
		s.Stdin, s.Stdout = bytes.NewReader(data), &out
		testenv.Check(t, s.Run("cat"))
		if !bytes.Equal(out.Bytes(), data) {
			t.Errorf("%d of %d bytes came back", out.Len(), len(data))
		}
	})
	t.Run("one program", func(t *testing.T) {
		s := newSession(t, c)
		testenv.Check(t, s.Start("true"))
		if ok, _ := s.SendRequest("exec", true, ssh.Marshal(struct{ C string }{"echo second"})); ok {
			t.Error("a session ran a second program")
		}
	})
}

// TestSignal checks that signals reach all processes of a session, and that a session ends with its
// client.
func TestSignal(t *testing.T) {
	c := dial(t)
	start := func() (*ssh.Session, string) {
		s := newSession(t, c)
		out, err := s.StdoutPipe()
		testenv.Check(t, err)
		testenv.Check(t, s.Start("sleep 60 & echo $!; wait"))
		var pid [32]byte
		n, err := out.Read(pid[:])
		testenv.Check(t, err)
		return s, "/proc/" + strings.TrimSpace(string(pid[:n]))
	}
	gone := func(after, process string) {
		t.Helper()
		for range 100 {
			b, err := os.ReadFile(process + "/stat")
			if err != nil || strings.Contains(string(b), ") Z ") {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("%s: %s still runs", after, process)
	}
	s, child := start()
	testenv.Check(t, s.Signal(ssh.SIGTERM))
	if exit := new(ssh.ExitError); !errors.As(s.Wait(), &exit) || exit.Signal() != "TERM" {
		t.Errorf("after SIGTERM: %v", exit)
	}
	gone("SIGTERM", child)
	s, child = start()
	s.Close()
	gone("a closed channel", child)
}

// TestTerminal checks size, signals and TERM of a terminal.
func TestTerminal(t *testing.T) {
	s := newSession(t, dial(t))
	in, err := s.StdinPipe()
	testenv.Check(t, err)
	out, err := s.StdoutPipe()
	testenv.Check(t, err)
	testenv.Check(t, s.RequestPty("vt100", 24, 80, nil))
	testenv.Check(t, s.Start(`trap 'echo interrupted; stty size; exit 3' INT; stty size; echo "$TERM $(tty)"; while :; do sleep 0.1; done`))
	var text strings.Builder
	await := func(want string) {
		t.Helper()
		b := make([]byte, 1024)
		for !strings.Contains(text.String(), want) {
			n, err := out.Read(b)
			if text.Write(b[:n]); err != nil {
				t.Fatalf("printed %q; want %q", text.String(), want)
			}
		}
	}
	await("24 80\r\nvt100 /dev/pts/")
	testenv.Check(t, s.WindowChange(50, 132))
	testenv.Check(t, s.Setenv("NAME", "1")) // its answer follows the change, and input may not
	_, err = in.Write([]byte{3})
	testenv.Check(t, err)
	await("interrupted\r\n50 132\r\n")
	if exit := new(ssh.ExitError); !errors.As(s.Wait(), &exit) || exit.ExitStatus() != 3 {
		t.Errorf("ended with %v; want status 3", exit)
	}
}

// TestBackground checks that a process in the background does not keep a terminal's session open.
func TestBackground(t *testing.T) {
	s := newSession(t, dial(t))
	testenv.Check(t, s.RequestPty("vt100", 24, 80, nil))
	begin := time.Now()
	testenv.Check(t, s.Run("trap '' HUP; sleep 30 & exit 0"))
	if d := time.Since(begin); d > 20*time.Second {
		t.Errorf("the session took %s", d)
	}
}

// TestSFTP copies a file in both directions.
func TestSFTP(t *testing.T) {
	c, err := sftp.NewClient(dial(t))
	testenv.Check(t, err)
	defer c.Close()
	if wd, err := c.Getwd(); err != nil || wd != os.Getenv("HOME") {
		t.Errorf("sftp starts in %q, %v", wd, err)
	}
	f, err := c.Create("file")
	testenv.Check(t, err)
	data := bytes.Repeat([]byte("data"), 100_000)
	_, err = f.Write(data)
	testenv.Check(t, errors.Join(err, f.Chmod(0o640), f.Close()))
	b, err := os.ReadFile(filepath.Join(os.Getenv("HOME"), "file"))
	testenv.Check(t, err)
	if !bytes.Equal(b, data) {
		t.Errorf("%d of %d bytes arrived", len(b), len(data))
	}
	f, err = c.Open("file")
	testenv.Check(t, err)
	b, err = io.ReadAll(f)
	testenv.Check(t, err)
	if !bytes.Equal(b, data) {
		t.Errorf("%d of %d bytes came back", len(b), len(data))
	}
	if _, err := c.Stat("missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestForward connects to a port and to a socket, and ends each direction separately.
func TestForward(t *testing.T) {
	c := dial(t)
	for _, network := range []string{"tcp", "unix"} {
		address := "127.0.0.1:0"
		if network == "unix" {
			address = filepath.Join(t.TempDir(), "socket")
		}
		l, err := net.Listen(network, address)
		testenv.Check(t, err)
		defer l.Close()
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(conn) // until the client has ended its side
			_, _ = conn.Write(bytes.ToUpper(b))
			conn.Close()
		}()
		conn, err := c.Dial(network, l.Addr().String())
		testenv.Check(t, err)
		_, err = conn.Write([]byte("hello"))
		testenv.Check(t, errors.Join(err, conn.(HalfCloser).CloseWrite()))
		if b, err := io.ReadAll(conn); string(b) != "HELLO" || err != nil {
			t.Errorf("%s: received %q, %v", network, b, err)
		}
	}
	if _, err := c.Dial("unix", "/nonexistent/socket"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing socket: %v", err)
	}
}

// TestRefused checks the requests that the server does not support.
func TestRefused(t *testing.T) {
	c := dial(t)
	for _, kind := range []string{"tcpip-forward", "streamlocal-forward@openssh.com"} {
		if ok, _, err := c.SendRequest(kind, true, nil); ok || err != nil {
			t.Errorf("%s: %v, %v", kind, ok, err)
		}
	}
	s := newSession(t, c)
	for _, kind := range []string{"x11-req", "auth-agent-req@openssh.com", "window-change", "signal", "env", "break"} {
		if ok, err := s.SendRequest(kind, true, nil); ok || err != nil {
			t.Errorf("%s: %v, %v", kind, ok, err)
		}
	}
	if err := s.RequestSubsystem("netconf"); err == nil {
		t.Error("the server has an unknown subsystem")
	}
	if _, _, err := c.OpenChannel("x11", nil); err == nil {
		t.Error("the server has an unknown type of channel")
	}
}

// TestHostKey checks that the key stays the same, that only the user can read it, and that a key
// that others can read is refused.
func TestHostKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hpcc", "key")
	key, err := HostKey(file)
	testenv.Check(t, err)
	fi, err := os.Stat(file)
	testenv.Check(t, err)
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the key is %v", fi.Mode())
	}
	if again, err := HostKey(file); err != nil || !bytes.Equal(again, key) {
		t.Errorf("the second key differs: %v", err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(file)); len(entries) != 1 {
		t.Errorf("left %v", entries)
	}
	testenv.Check(t, os.Chmod(file, 0o640))
	if _, err := HostKey(file); err == nil || !strings.Contains(err.Error(), "other users may read it") {
		t.Errorf("a key with mode 0640: %v", err)
	}
	testenv.Check(t, os.Remove(file))
	testenv.Check(t, syscall.Mkfifo(file, 0o600))
	if _, err := HostKey(file); err == nil {
		t.Error("read a key from a pipe")
	}
}

// TestServeEnds checks that Serve returns for clients that speak another protocol, or none.
func TestServeEnds(t *testing.T) {
	key, err := HostKey(filepath.Join(t.TempDir(), "key"))
	testenv.Check(t, err)
	for _, input := range []string{"", "GET / HTTP/1.0\r\n\r\n", "SSH-2.0-x\r\n", "SSH-1.5-x\r\n", "SSH-2.0-x\r\n" + strings.Repeat("\xff", 4096)} {
		near, far := pair(t)
		ended := make(chan struct{})
		go func() { _ = Serve(far, key); close(ended) }()
		go func() { _, _ = io.Copy(io.Discard, near) }()
		_, _ = near.Write([]byte(input))
		near.Close()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Errorf("Serve did not end after %.20q", input)
		}
	}
}

// silent is the channel of a session without a client.
type silent struct{ ssh.Channel }

func (silent) Stderr() io.ReadWriter { return &bytes.Buffer{} }

// FuzzHandle checks that no request crashes the server. It does not run programs.
func FuzzHandle(f *testing.F) {
	for _, kind := range []string{"env", "pty-req", "window-change", "signal", "exec", "subsystem", "shell", "x11-req"} {
		f.Add(kind, ssh.Marshal(struct{ A, B string }{"NAME", "value"}), []byte{})
	}
	f.Add("pty-req", ssh.Marshal(struct {
		Term       string
		C, R, W, H uint32
		Modes      string
	}{"xterm", 80, 24, 0, 0, "\x00"}), ssh.Marshal(struct{ C, R, W, H uint32 }{1, 2, 3, 4}))
	f.Fuzz(func(t *testing.T, kind string, payload, size []byte) {
		s := &session{ch: silent{}}
		_, _ = s.handle(kind, payload)
		_, _ = s.handle("window-change", size)
		if s.terminal != nil {
			closeAll([]*os.File{s.terminal.master, s.terminal.slave})
		}
		for _, e := range s.env {
			if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.Contains(e, "\x00") {
				t.Errorf("set %q", e)
			}
		}
		if network, address, err := destination("direct-tcpip", payload); err == nil && (network != "tcp" || address == "") {
			t.Errorf("destination %q %q", network, address)
		}
		_, _, _ = destination("direct-streamlocal@openssh.com", payload)
	})
}
