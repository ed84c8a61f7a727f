package process

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// TestLookPath finds programs as execvp(3) does, and explains why it finds none.
func TestLookPath(t *testing.T) {
	dir := testenv.Files(t, "a/tool", "", "b/tool", "", "b/both", "", "b/python3", "", "c/sub/", "", "c/tool/", "")
	for _, name := range []string{"b/tool", "b/both", "b/python3"} {
		testenv.Check(t, os.Chmod(filepath.Join(dir, name), 0o755))
	}
	t.Chdir(filepath.Join(dir, "b"))
	for _, c := range []struct {
		name, path, want string
		status           int
	}{
		{"tool", "D/a:D/b", "D/b/tool", 0},
		{"tool", "D/c:D/b", "D/b/tool", 0}, // a directory does not count
		{"tool", "D/none:", "./tool", 0},   // an empty element is the current directory
		{"sub/tool", "", "sub/tool", 0},
		{"sh", "", "/bin/sh", 0},
		{"tool", "D/a", "permission denied", ExitNotExecutable},
		{"pyhton3", "D/b", `did you mean "python3"?`, ExitNotFound},
		{"zzzz", "D/b", "no such program in the image's PATH (D/b)", ExitNotFound},
		{"--env", "D/b", "flags of hpcc come before IMAGE", ExitNotFound},
	} {
		expand := func(s string) string { return strings.ReplaceAll(s, "D/", dir+"/") }
		got, err := LookPath(c.name, expand(c.path))
		if c.status == 0 && (err != nil || got != expand(c.want)) {
			t.Errorf("LookPath(%q, %q) = %q, %v; want %q", c.name, c.path, got, err, c.want)
		}
		if c.status > 0 {
			checkError(t, err, c.status, expand(c.want))
		}
	}
}

// checkError compares an [Error].
func checkError(t *testing.T, err error, status int, want string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Status != status || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want status %d and %q", err, status, want)
	}
}

// TestExecError executes files that the kernel refuses.
func TestExecError(t *testing.T) {
	dir := testenv.Files(t, "lost", "#!/no/such/interpreter\n", "data", "x", "closed", "#!/bin/sh\n")
	for name, mode := range map[string]os.FileMode{"lost": 0o755, "data": 0o755, "closed": 0o644} {
		testenv.Check(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	for _, c := range []struct {
		name   string
		status int
		want   string
	}{
		{"lost", ExitNotFound, "its interpreter or dynamic loader is not in the image"},
		{"none", ExitNotFound, "no such file in the image"},
		{"data", ExitNotExecutable, "not a program that this machine"},
		{"closed", ExitNotExecutable, "permission denied"},
	} {
		file := filepath.Join(dir, c.name)
		_, err := syscall.ForkExec(file, []string{file}, nil)
		checkError(t, ExecError(file, file, err), c.status, c.want)
	}
}

// TestSetLimit sets limits in a separate process, also beyond what the user may have.
func TestSetLimit(t *testing.T) {
	if !testenv.Alone(t, &syscall.SysProcAttr{}) {
		return
	}
	for _, c := range []struct{ name, soft, hard, want string }{
		{"RLIMIT_NOFILE", "300", "400", ""}, {"RLIMIT_CORE", "0", "0", ""},
		{"RLIMIT_NONE", "1", "1", `unknown limit "RLIMIT_NONE"`}, {"RLIMIT_NOFILE", "5", "4", "the soft limit 5 is above the hard limit 4"},
	} {
		var soft, hard uint64
		testenv.Check(t, errors.Join(json.Unmarshal([]byte(c.soft), &soft), json.Unmarshal([]byte(c.hard), &hard)))
		if err := SetLimit(c.name, soft, hard); (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("SetLimit(%s, %d, %d): %v; want %q", c.name, soft, hard, err, c.want)
		}
	}
	var have unix.Rlimit
	testenv.Check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &have))
	if have.Cur != 300 || have.Max != 400 {
		t.Errorf("open files: %+v; want 300, 400", have)
	}
	if os.Getuid() == 0 {
		return // root may raise a limit
	}
	testenv.Check(t, SetLimit("RLIMIT_NOFILE", 350, 1<<20))
	testenv.Check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &have))
	if have.Cur != 350 || have.Max != 400 {
		t.Errorf("open files beyond the hard limit: %+v; want 350, 400", have)
	}
}

// readyLoop waits for signals, at most 20 seconds.
const readyLoop = `echo ready; n=0; while [ $n -lt 1000 ]; do n=$((n+1)); sleep 0.02; done`

// TestMain's copies of this program end in one of these ways.
var endings = map[string]func(){
	"as": func() {
		cmd := exec.Command("sh", "-c", os.Args[2])
		_ = cmd.Run()
		EndAs(cmd.ProcessState)
	},
	"by": func() { EndBy(syscall.SIGTERM) },
	"relay": func() {
		cmd := exec.Command("sh", "-c", `read x; trap 'echo USR1' USR1; trap 'echo TERM; exit 3' TERM; `+readyLoop)
		cmd.Stdout = os.Stdout
		in, err := cmd.StdinPipe()
		if err = errors.Join(err, cmd.Start()); err != nil {
			panic(err)
		}
		stop := RelaySignals(cmd.Process)
		in.Close() // ends the read
		_ = cmd.Wait()
		stop()
		EndAs(cmd.ProcessState)
	},
	"init": func() {
		panic(AsInit("/bin/sh", []string{"sh", "-c", `trap 'echo TERM; exit 4' TERM; ` + readyLoop}, os.Environ()))
	},
}

// TestEndings checks how this process ends when another has ended.
func TestEndings(t *testing.T) {
	for _, c := range []struct {
		argv   []string
		status int
		signal syscall.Signal
	}{
		{argv: []string{"as", "exit 0"}}, {argv: []string{"as", "exit 5"}, status: 5}, {argv: []string{"as", "kill -KILL $$"}, status: 137},
		{argv: []string{"by"}, signal: syscall.SIGTERM},
	} {
		cmd := exec.Command("/proc/self/exe", c.argv...)
		cmd.Env = append(os.Environ(), endingVariable+"=1")
		_ = cmd.Run()
		ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if c.signal != 0 && (!ws.Signaled() || ws.Signal() != c.signal || ws.CoreDump()) {
			t.Errorf("%q ends with %v; want signal %v", c.argv, cmd.ProcessState, c.signal)
		}
		if c.signal == 0 && ws.ExitStatus() != c.status {
			t.Errorf("%q ends with %v; want %d", c.argv, cmd.ProcessState, c.status)
		}
	}
}

// TestRelay sends signals to processes that pass them on to their child.
func TestRelay(t *testing.T) {
	for _, c := range []struct {
		way     string
		signals []syscall.Signal
		out     string
		status  int
	}{
		{"relay", []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM}, "ready\nUSR1\nTERM\n", 3},
		{"init", []syscall.Signal{syscall.SIGTERM}, "ready\nTERM\n", 4},
	} {
		cmd := exec.Command("/proc/self/exe", c.way)
		cmd.Env = append(os.Environ(), endingVariable+"=1")
		out, err := cmd.StdoutPipe()
		testenv.Check(t, err)
		testenv.Check(t, cmd.Start())
		buf, got := make([]byte, 64), ""
		for i := range c.signals {
			for strings.Count(got, "\n") <= i { // the child has handled the previous signal
				n, err := out.Read(buf)
				testenv.Check(t, err)
				got += string(buf[:n])
			}
			testenv.Check(t, cmd.Process.Signal(c.signals[i]))
		}
		for n := 0; err == nil; got += string(buf[:n]) {
			n, err = out.Read(buf)
		}
		_ = cmd.Wait()
		if got != c.out || cmd.ProcessState.ExitCode() != c.status {
			t.Errorf("%s: %q, %v; want %q, %d", c.way, got, cmd.ProcessState, c.out, c.status)
		}
	}
}

// TestStartTime distinguishes processes, also ended ones.
func TestStartTime(t *testing.T) {
	mine, err := StartTime(os.Getpid())
	testenv.Check(t, err)
	cmd := exec.Command("sleep", "100")
	time.Sleep(20 * time.Millisecond) // more than a tick
	testenv.Check(t, cmd.Start())
	if other, err := StartTime(cmd.Process.Pid); err != nil || other <= mine {
		t.Errorf("a new process started at %d, %v; this one at %d", other, err, mine)
	}
	testenv.Check(t, cmd.Process.Kill())
	for { // a zombie
		if _, err = StartTime(cmd.Process.Pid); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("of a zombie: %v", err)
	}
	_ = cmd.Wait()
	if _, err := StartTime(cmd.Process.Pid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no process: %v", err)
	}
}

// TestMemoryFile reads back a value, which no other program finds.
func TestMemoryFile(t *testing.T) {
	f, err := MemoryFile("test", map[string]int{"a": 1})
	testenv.Check(t, err)
	defer f.Close()
	var got map[string]int
	if err := json.NewDecoder(f).Decode(&got); err != nil || got["a"] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if link, err := os.Readlink("/proc/self/fd/" + filepath.Base(f.Name())); err == nil && !strings.HasPrefix(link, "/memfd:") {
		t.Errorf("the file is %s", link)
	}
	if _, err := MemoryFile("test", make(chan int)); err == nil {
		t.Error("a channel became JSON")
	}
}
