package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// listen starts a server whose socket belongs to the account, and returns the number of connections
// that it accepted. The server sends received data back.
func (a account) listen(t *testing.T, network, address string) (port string, came *atomic.Int64) {
	t.Helper()
	var l net.Listener
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // without unlock, so that the thread ends with the goroutine
		_ = unix.Setfsuid(int(a.uid))
		l, err = net.Listen(network, address)
	}()
	<-done
	testenv.Check(t, err)
	t.Cleanup(func() { l.Close() })
	came = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			came.Add(1)
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, came
}

// send connects to a port as the account, sends a line and returns the answer.
func (a account) send(t *testing.T, port string) string {
	t.Helper()
	out, _, _ := a.run(t, "/", nil, "timeout", "20", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/"+port+" && echo hello >&3 && head -n 1 <&3")
	return out
}

// userJob submits a job of the account on this machine, which runs until the test ends.
func (a account) userJob(t *testing.T, dir string, env []string) (id string) {
	t.Helper()
	script := filepath.Join(dir, "job.sh")
	testenv.Check(t, os.WriteFile(script, []byte("#!/bin/bash\n#SBATCH --job-name=served\nsleep 300\n"), 0o644))
	out, errs, status := a.run(t, dir, env, "hpcc", "submit", "--to", "local", "--from", script)
	if status != 0 {
		t.Fatalf("hpcc submit: %s", errs)
	}
	id = strings.TrimSpace(out)
	t.Cleanup(func() { a.run(t, dir, env, "hpcc", "cancel", id) })
	return id
}

// A forwarded is a running "hpcc forward" with its address.
type forwarded struct {
	address string
	errs    bytes.Buffer
	cmd     *exec.Cmd
}

func (a account) forward(t *testing.T, dir string, env []string, args ...string) *forwarded {
	t.Helper()
	f := &forwarded{cmd: a.command(dir, env, nil, append([]string{"hpcc", "forward"}, args...)...)}
	f.cmd.Stderr = &f.errs
	out, err := f.cmd.StdoutPipe()
	if err == nil {
		err = f.cmd.Start()
	}
	testenv.Check(t, err)
	t.Cleanup(func() { f.end() })
	f.address, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = f.cmd.Wait()
		t.Fatalf("hpcc forward %q: %v: %s", args, err, f.errs.String())
	}
	f.address = strings.TrimSpace(f.address)
	return f
}

// end ends the forwarding and returns its messages.
func (f *forwarded) end() string {
	if f.cmd.ProcessState == nil {
		_ = f.cmd.Process.Signal(syscall.SIGTERM)
		_ = f.cmd.Wait()
	}
	return f.errs.String()
}

func (f *forwarded) port() string { return f.address[strings.LastIndexByte(f.address, ':')+1:] }

// TestNeighbourForward checks that another user of the machine cannot use a forwarded port, and
// cannot receive data of its owner.
func TestNeighbourForward(t *testing.T) {
	victim, attacker := neighbours(t)
	dir := victim.ownDir(t)
	env := []string{"HPCC_STORE=" + filepath.Join(dir, "store")}
	id := victim.userJob(t, dir, env)

	port, came := victim.listen(t, "tcp", "127.0.0.1:0")
	f := victim.forward(t, dir, env, id, "0:"+port)
	if got := victim.send(t, f.port()); got != "hello\n" {
		t.Errorf("the owner's own connection: %q; %s", got, f.errs.String())
	}
	for range 20 {
		if got := attacker.send(t, f.port()); got != "" {
			t.Fatalf("another user's connection: %q", got)
		}
	}
	// A connection that is already closed has no owner when hpcc checks it.
	attacker.run(t, "/", nil, "bash", "-c", "for i in $(seq 300); do echo POST >/dev/tcp/127.0.0.1/"+f.port()+"; done 2>/dev/null")
	if got := victim.send(t, f.port()); got != "hello\n" {
		t.Errorf("the owner's connection after 320 of another user: %q", got)
	}
	if n := came.Load(); n != 2 {
		t.Errorf("the program accepted %d connections; the owner made 2", n)
	}
	said := f.end()
	if n := strings.Count(said, "warning: refused a connection"); n < 1 || n > 3 || !strings.Contains(said, attacker.name) {
		t.Errorf("%d warnings of refused connections: %s", n, said)
	}
	f = victim.forward(t, dir, env, "--open", id, "0:"+port)
	if got := attacker.send(t, f.port()); got != "hello\n" {
		t.Errorf("with --open, another user's connection: %q; %s", got, f.errs.String())
	}
	f.end()

	// hpcc must send nothing if the port on the node belongs to another user.
	for _, where := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0", "[::1]:0"} {
		squatted, came := attacker.listen(t, "tcp", where)
		f := victim.forward(t, dir, env, id, "0:"+squatted)
		if got := victim.send(t, f.port()); got != "" || came.Load() != 0 {
			t.Errorf("another user listens at %s: that user got %d connections, and the owner %q", where, came.Load(), got)
		}
		if said := f.end(); !strings.Contains(said, "belongs to "+attacker.name) {
			t.Errorf("another user listens at %s: %s", where, said)
		}
	}
	// A port of another user must not block the owner's program at another address.
	attacker.listen(t, "tcp6", "[::]:"+port)
	f = victim.forward(t, dir, env, id, "0:"+port)
	if got := victim.send(t, f.port()); got != "hello\n" {
		t.Errorf("another user listens at the same port of [::]: %q; %s", got, f.errs.String())
	}
	f.end()
}

// TestNeighbourForwardSocket checks that no other user can open, take or block the socket of "hpcc
// forward --print".
func TestNeighbourForwardSocket(t *testing.T) {
	victim, attacker := neighbours(t)
	dir := victim.ownDir(t)
	env := []string{"HPCC_STORE=" + filepath.Join(dir, "store")}
	id := victim.userJob(t, dir, env)
	port, _ := victim.listen(t, "tcp", "127.0.0.1:0")
	printed := func() string {
		out, errs, status := victim.run(t, dir, env, "hpcc", "forward", "--print", id, port)
		_, rest, _ := strings.Cut(out, port+":")
		socket, _, ok := strings.Cut(rest, " ")
		if status != 0 || !ok || !strings.HasPrefix(socket, "/tmp/hpcc-forward-") {
			t.Fatalf("hpcc forward --print: %s%s", out, errs)
		}
		t.Cleanup(func() { os.RemoveAll(filepath.Dir(socket)) })
		return socket
	}
	socket := printed()
	if _, _, status := attacker.run(t, "/", nil, "sh", "-c", "ls "+filepath.Dir(socket)+" || touch "+socket+" || mv "+filepath.Dir(socket)+" /tmp/hpcc-away || rmdir "+filepath.Dir(socket)); status == 0 {
		t.Error("another user can enter the socket's directory")
	}
	f := victim.forward(t, dir, env, "--as", "9", id, socket+":"+port)
	connect := `exec python3 -c "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b'hello\n'); print(s.recv(6).decode(), end='')" "$1"`
	if out, errs, _ := victim.run(t, dir, nil, "sh", "-c", connect, "sh", socket); out != "hello\n" {
		t.Errorf("the owner's own connection: %q %s; %s", out, errs, f.errs.String())
	}
	if out, _, status := attacker.run(t, "/", nil, "sh", "-c", connect, "sh", socket); status == 0 {
		t.Errorf("another user's connection: %q", out)
	}
	f.end()

	// Another user takes the name, as is possible after a clean-up of /tmp.
	testenv.Check(t, os.RemoveAll(filepath.Dir(socket)))
	for _, make := range []string{"mkdir -m 777 %s", "ln -s " + dir + " %s", "touch %s", "mkfifo %s"} {
		name := filepath.Dir(socket)
		if _, errs, status := attacker.run(t, "/", nil, "sh", "-c", fmt.Sprintf(make, name)); status != 0 {
			t.Fatal(errs)
		}
		_, errs, status := victim.run(t, dir, env, "timeout", "20", filepath.Join(bin, "hpcc"), "forward", id, socket+":"+port)
		if status != 1 || !strings.Contains(errs, "belongs to another user; run \"hpcc forward --print\" again") {
			t.Errorf(make+": status %d: %s", name, status, errs)
		}
		if again := printed(); again == socket {
			t.Errorf("a new --print uses the taken name %s", again)
		}
		testenv.Check(t, os.RemoveAll(name))
	}
}

// TestNeighbourValues checks that the values of --env and --set-env reach the program. No other user
// may be able to read them from files, /proc or the scheduler's commands.
func TestNeighbourValues(t *testing.T) {
	for name, c := range map[string]struct {
		facility string
		spy      string // commands of another user; $ID is the native job ID
	}{
		"local": {"busybox", "true"},
		"slurm": {"slurm", "scontrol show job -dd $ID; scontrol write batch_script $ID -; squeue -o %all; sacct -j $ID --format=ALL -P; sacct -j $ID --batch-script; sacct -j $ID --env-vars; grep -rs $P " +
			filepath.Dir(testenv.ClusterVariable("SLURM_CONF"))},
		"gridengine": {"gridengine", "qstat -j $ID; qstat -xml -j $ID; qstat -r -u '*'; grep -rs $P $SGE_ROOT"},
	} {
		t.Run(name, func(t *testing.T) {
			victim, attacker := neighbours(t)
			needs(t, "busybox")
			needs(t, c.facility)
			spyOnJob(t, victim, attacker, name, c.spy)
		})
	}
}

func spyOnJob(t *testing.T, victim, attacker account, target, spy string) {
	dir := victim.ownDir(t)
	box, err := testenv.Busybox()
	testenv.Check(t, err)
	// A careless user opens the directory to all users.
	testenv.Check(t, os.Chmod(dir, 0o755))
	env := []string{"HPCC_STORE=" + filepath.Join(dir, "store"), "TOKEN=s3cret-t"}
	if target != "local" {
		env = append(env, testenv.Scheduler(bin+":"+os.Getenv("PATH"), target)...)
	}
	if _, errs, status := victim.run(t, dir, nil, "sh", "-c", "umask 022; mkdir -p root/bin root/etc root/dev root/proc root/sys root/tmp root/usr; cp "+box+" root/bin/busybox; ln -s busybox root/bin/sh"); status != 0 {
		t.Fatal(errs)
	}
	job := `until busybox test -e go; do busybox sleep 0.2; done; echo "$A|$TOKEN|$B|$C"`
	out, errs, status := victim.run(t, dir, env, "hpcc", "submit", "--json", "--to", target, "--name", "spied", "--output", "said", "--env", "A=s3cret-a", "--env", "TOKEN",
		"--set-env", "B=s3cret-b", "--set-env", "C=s3cret:$A", "./root", "--", "sh", "-c", job)
	if status != 0 {
		t.Fatalf("hpcc submit: %s", errs)
	}
	id, native := jsonWord(out, "id"), jsonWord(out, "native")
	t.Cleanup(func() { victim.run(t, dir, env, "hpcc", "cancel", id) })
	waitUntil(t, "the program runs", func() bool {
		out, _, _ := victim.run(t, dir, env, "hpcc", "status", "--json", id)
		return strings.Contains(out, `"state":"running"`) && strings.Contains(out, `"pid":`)
	})
	everything := `P=s3; P=${P}cret; ID=` + native + `; { # its own command line must not hold the word
 ` + spy + `; for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline; tr '\0' ' ' <$p/environ; done; grep -rs $P ` + dir + `; find ` + dir + `/store/jobs/` + id + `; } 2>/dev/null`
	seen, _, _ := attacker.run(t, "/", env[2:], "sh", "-c", everything)
	if i := strings.Index(seen, "s3cret"); i >= 0 {
		t.Errorf("another user sees …%s…", seen[max(0, i-300):min(len(seen), i+100)])
	}
	if !strings.Contains(seen, "hpcc task --job") {
		t.Error("another user cannot see the command lines of the job, so the test is void")
	}
	if strings.Contains(seen, "/"+id+"/job.json") {
		t.Error("another user can list the job's directory")
	}
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o644))
	if _, errs, status := victim.run(t, dir, env, "hpcc", "wait", id); status != 0 {
		t.Errorf("hpcc wait: %s", errs)
	}
	said, err := os.ReadFile(filepath.Join(dir, "said"))
	if want := "s3cret-a|s3cret-t|s3cret-b|s3cret:s3cret-a\n"; err != nil || string(said) != want {
		t.Errorf("the program got %q (%v); want %q", said, err, want)
	}
}

// jsonWord returns the string value of a key of a JSON object.
func jsonWord(line, key string) string {
	_, rest, _ := strings.Cut(line, `"`+key+`":"`)
	word, _, _ := strings.Cut(rest, `"`)
	return word
}

// waitUntil waits until f returns true.
func waitUntil(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !f(); time.Sleep(300 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waiting until %s: not in 2 minutes", what)
		}
	}
}
