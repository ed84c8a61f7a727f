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

	"hpcc/testdata/helpers/testenv"
)

// TestInteractive uses a terminal on each target. The program gets its size, changes of the size and
// the typed text. Ctrl-C interrupts only the program. Its exit status is that of hpcc and of the
// record.
func TestInteractive(t *testing.T) {
	t.Parallel()
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
			var env []string
			if target != "local" {
				needs(t, target)
				env = testenv.Scheduler(os.Getenv("PATH"), target)
			}
			store := filepath.Join(dir, "store-"+target)
			hpccOut := func(args ...string) string {
				cmd := hpcc(store, args...)
				cmd.Env = append(cmd.Env, env...)
				return outputOf(t, cmd)
			}
			const program = `n=0; trap 'n=$((n+1)); echo "interrupt $n"' INT; echo "size $(stty size)"; read -r line; echo "read <$line>"; stty -echo
sleep 30 & wait $!; [ $n = 1 ] || exit 9; read -r line; echo "size $(stty size)"; exit 7`
			s := startHpcc(t, store, env, "submit", "--to", target, "--interactive", "--name", "sit", root, "--", "sh", "-c", program)
			s.expect(`size 24 91\s`)
			s.typeText("hello\n")
			s.expect(`read <hello>`)
			time.Sleep(time.Second) // until sleep runs
			if out := hpccOut("status", "sit-"); !strings.Contains(out, " running ") {
				t.Errorf("status of the running job: %s", out)
			}
			s.typeText("\x03")
			s.expect(`interrupt 1\s`)
			testenv.Check(t, unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 132}))
			time.Sleep(time.Second)
			s.typeText("\n")
			s.expect(`size 50 132\s`)
			if status := s.end(); status != 7 {
				t.Errorf("status %d; want the program's, 7", status)
			}
			out := hpccOut("status", "sit-")
			if !regexp.MustCompile(`sit-\S+ +`+target+` +failed +1 +0 +1 +0 +0`).MatchString(out) || !strings.Contains(out, ": status 7") {
				t.Errorf("status of the ended job: %s", out)
			}

			// Cancel the job from another process.
			s = startHpcc(t, store, env, "submit", "--to", target, "--interactive", "--name", "hang", root, "--", "sh", "-c", "echo ready; sleep 300")
			s.expect("ready")
			hpccOut("cancel", "hang-")
			if status := s.end(); status == 0 {
				t.Error("a job that was cancelled ended with status 0")
			}
			if out := hpccOut("status", "hang-"); !strings.Contains(out, " cancelled ") {
				t.Errorf("status of the cancelled job: %s", out)
			}
		})
	}
}

// hpccOut runs hpcc and returns its output.
func hpccOut(t *testing.T, store string, args ...string) string {
	t.Helper()
	return outputOf(t, hpcc(store, args...))
}

// outputOf runs a command and returns its output.
func outputOf(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", cmd.Args, err, out)
	}
	return string(out)
}

// A terminalUser uses a terminal on which a command runs.
type terminalUser struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd
	mu     sync.Mutex
	seen   bytes.Buffer
	closed chan struct{}
}

// startHpcc starts hpcc, with the variables env as well, on a new terminal.
func startHpcc(t *testing.T, store string, env []string, args ...string) *terminalUser {
	t.Helper()
	cmd := hpcc(store, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(append(cmd.Env, env...), "TERM=xterm")
	return startOnTerminal(t, cmd)
}

// startOnTerminal starts a command on a new terminal.
func startOnTerminal(t *testing.T, cmd *exec.Cmd) *terminalUser {
	t.Helper()
	master, slave, err := openPTY(&unix.Winsize{Row: 24, Col: 91})
	testenv.Check(t, err)
	s := &terminalUser{t: t, master: master, cmd: cmd, closed: make(chan struct{})}
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

// typeText types text on the terminal.
func (s *terminalUser) typeText(text string) {
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// expect waits until the screen matches a pattern.
func (s *terminalUser) expect(pattern string) {
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

// end waits for the end of the command and returns its exit status.
func (s *terminalUser) end() int {
	select {
	case <-s.closed:
	case <-time.After(time.Minute):
		s.t.Error("the terminal is still in use a minute later")
	}
	_ = s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}
