package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/testdata/testenv"
)

// TestInteractive sits at a terminal: on each target the program has its size
// and is told of a new one, what is typed reaches it, Ctrl-C interrupts it and nothing else, and
// its status is that of hpcc and of the record.
func TestInteractive(t *testing.T) {
	needs(t, "busybox", "userns")
	bb, err := testenv.Busybox()
	testenv.Check(t, err)
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	data, err := os.ReadFile(bb)
	if err == nil {
		err = os.MkdirAll(filepath.Join(root, "bin"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "bin/busybox"), data, 0o755)
	}
	for _, name := range []string{"sh", "stty", "sleep"} {
		if err == nil {
			err = os.Symlink("busybox", filepath.Join(root, "bin", name))
		}
	}
	testenv.Check(t, err)
	for _, target := range []string{"local", "slurm", "gridengine"} {
		t.Run(target, func(t *testing.T) {
			if target != "local" {
				needs(t, target)
			}
			store := filepath.Join(dir, "store-"+target)
			const program = `n=0; trap 'n=$((n+1)); echo "interrupt $n"' INT; echo "size $(stty size)"; read -r line; echo "read <$line>"; stty -echo
sleep 30 & wait $!; [ $n = 1 ] || exit 9; read -r line; echo "size $(stty size)"; exit 7`
			s := sit(t, store, "submit", "--to", target, "--interactive", "--name", "sit", root, "--", "sh", "-c", program)
			s.expect(`size 24 91\s`)
			s.typed("hello\n")
			s.expect(`read <hello>`)
			time.Sleep(time.Second) // sleep has begun
			if out := hpccOut(t, store, "status", "sit-"); !strings.Contains(out, " running ") {
				t.Errorf("while it runs: %s", out)
			}
			s.typed("\x03")
			s.expect(`interrupt 1\s`)
			testenv.Check(t, unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 132}))
			time.Sleep(time.Second)
			s.typed("\n")
			s.expect(`size 50 132\s`)
			if status := s.end(); status != 7 {
				t.Errorf("status %d; want the program's, 7", status)
			}
			out := hpccOut(t, store, "status", "sit-")
			if !regexp.MustCompile(`sit-\S+ +`+target+` +failed +1 +0 +1 +0 +0`).MatchString(out) || !strings.Contains(out, ": status 7") {
				t.Errorf("afterwards: %s", out)
			}

			// hung up from elsewhere
			s = sit(t, store, "submit", "--to", target, "--interactive", "--name", "hang", root, "--", "sh", "-c", "echo ready; sleep 300")
			s.expect("ready")
			hpccOut(t, store, "cancel", "hang-")
			if status := s.end(); status == 0 {
				t.Error("a job that was cancelled ended with status 0")
			}
			if out := hpccOut(t, store, "status", "hang-"); !strings.Contains(out, " cancelled ") {
				t.Errorf("after it was cancelled: %s", out)
			}
		})
	}
}

// hpccOut is what hpcc says.
func hpccOut(t *testing.T, store string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "hpcc"), args...)
	cmd.Env = append(os.Environ(), "HPCC_STORE="+store)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("hpcc %s: %v: %s", args, err, out)
	}
	return string(out)
}

// A sitter is somebody at a terminal at which hpcc runs.
type sitter struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd
	mu     sync.Mutex
	seen   bytes.Buffer
	closed chan struct{}
}

func sit(t *testing.T, store string, args ...string) *sitter {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "hpcc"), args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "HPCC_STORE="+store, "TERM=xterm")
	return sitAt(t, cmd)
}

// sitAt starts a command on a terminal.
func sitAt(t *testing.T, cmd *exec.Cmd) *sitter {
	t.Helper()
	master, slave, err := openPTY(&unix.Winsize{Row: 24, Col: 91})
	testenv.Check(t, err)
	s := &sitter{t: t, master: master, cmd: cmd, closed: make(chan struct{})}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = slave, slave, slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	testenv.Check(t, s.cmd.Start())
	slave.Close()
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); master.Close() })
	go func() {
		defer close(s.closed)
		for b := make([]byte, 4096); ; {
			n, err := master.Read(b)
			s.mu.Lock()
			s.seen.Write(b[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *sitter) typed(text string) {
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// expect waits until the screen has something.
func (s *sitter) expect(pattern string) {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		s.mu.Lock()
		found := re.Match(s.seen.Bytes())
		s.mu.Unlock()
		if found {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.t.Fatalf("no %q on the screen:\n%s", pattern, s.seen.String())
}

// end waits for the end of hpcc.
func (s *sitter) end() int {
	select {
	case <-s.closed:
	case <-time.After(time.Minute):
		s.t.Error("the terminal is still in use a minute later")
	}
	_ = s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}
