package jupyter

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

const connectionFile = `{"shell_port": 5001, "iopub_port": 5002, "stdin_port": 5003, "control_port": 5004, "hb_port": 5005,
 "ip": "127.0.0.1", "key": "secret", "transport": "tcp", "signature_scheme": "hmac-sha256", "kernel_name": "sci"}`

// TestConnection checks the connection file of the node: private sockets, the same key.
func TestConnection(t *testing.T) {
	c, err := parseConnection([]byte(connectionFile))
	testenv.Check(t, err)
	b, err := c.onNode("/tmp/k")
	testenv.Check(t, err)
	const want = `{"control_port":4,"hb_port":5,"iopub_port":2,"ip":"/tmp/k/kernel","kernel_name":"sci","key":"secret","shell_port":1,"signature_scheme":"hmac-sha256","stdin_port":3,"transport":"ipc"}`
	if string(b) != want {
		t.Errorf("onNode = %s; want %s", b, want)
	}
	if got := socket("/tmp/k", 4); got != "/tmp/k/kernel-5" {
		t.Errorf("socket 4 is %s", got)
	}
	for from, want := range map[string]string{
		`"tcp"`:        "only tcp can be forwarded",
		`"127.0.0.1"`:  "is not a loopback address",
		`5003`:         "stdin_port is",
		`"shell_port"`: "shell_port is <nil>",
		`{`:            "invalid character",
	} {
		bad := strings.Replace(connectionFile, from, map[string]string{`"tcp"`: `"ipc"`, `"127.0.0.1"`: `"0.0.0.0"`, `5003`: `1.5`, `"shell_port"`: `"shell"`, `{`: `x`}[from], 1)
		if _, err := parseConnection([]byte(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", bad, err, want)
		}
	}
	if _, err := readConnection(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestListen checks that the ports are on the loopback interface, and what a taken port reports.
func TestListen(t *testing.T) {
	c, err := parseConnection([]byte(connectionFile))
	testenv.Check(t, err)
	c.ports = []int{0, 0, 0, 0, 0}
	list, err := c.listen()
	testenv.Check(t, err)
	for _, l := range list {
		defer l.Close()
		if !strings.HasPrefix(l.Addr().String(), "127.0.0.1:") {
			t.Errorf("listens on %s", l.Addr())
		}
	}
	c.ports[1] = list[0].Addr().(*net.TCPAddr).Port
	if _, err := c.listen(); err == nil || !strings.Contains(err.Error(), "is in use by now") {
		t.Errorf("a taken port: %v", err)
	}
}

// TestTaskArgv checks that the connection file of the client is replaced, and does not appear.
func TestTaskArgv(t *testing.T) {
	argv := TaskArgv("/tmp/k", "/run/kernel-1.json", []string{"python", "-f", "/run/kernel-1.json", "--x=/run/kernel-1.json"})
	if got := strings.Join(argv[3:], " "); got != "/tmp/k python -f /tmp/k/connection.json --x=/tmp/k/connection.json" {
		t.Errorf("argv %q", got)
	}
}

// TestKernelSignalledAtEnd checks that a signal for a kernel that has just ended, as by a client that
// also closes its connection, does not leave the kernel's directory behind.
func TestKernelSignalledAtEnd(t *testing.T) {
	dir, bin := filepath.Join(t.TempDir(), "kernel"), t.TempDir()
	testenv.Write(t, filepath.Join(bin, "rm"), "#!/bin/sh\n: >"+bin+"/began\nsleep 1\nPATH=${PATH#*:}; exec rm \"$@\"\n")
	testenv.Check(t, os.Chmod(filepath.Join(bin, "rm"), 0o755))
	argv := TaskArgv(dir, "none", []string{"true"})
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testenv.Check(t, cmd.Start())
	await := func(file string) {
		for end := time.Now().Add(time.Minute); !exists(file); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s does not appear", file)
			}
		}
	}
	await(dir)
	testenv.Write(t, filepath.Join(dir, connectionName), "{}\n")
	await(filepath.Join(bin, "began"))
	testenv.Check(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM))
	if err := cmd.Wait(); err != nil || exists(dir) {
		t.Errorf("the task: %v; its directory is left: %t", err, exists(dir))
	}
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

func FuzzConnection(f *testing.F) {
	f.Add([]byte(connectionFile))
	f.Add([]byte(`{"ip": "::1", "transport": "tcp", "shell_port": 1e999}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseConnection(b)
		if err != nil {
			return
		}
		if !c.ip.IsLoopback() || len(c.ports) != len(channels) {
			t.Errorf("%q: %+v", b, c)
		}
		if _, err := c.onNode("/tmp/k"); err != nil {
			t.Errorf("%q: %v", b, err)
		}
	})
}
