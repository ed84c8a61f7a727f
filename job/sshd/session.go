package sshd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// A session is a channel that runs one program (RFC 4254, section 6).
type session struct {
	ch       ssh.Channel
	env      []string // variables that the client sets
	terminal *terminal
	started  bool // a session runs one program only

	lock    sync.Mutex
	process *os.Process // nil before it has started, and after its end
}

// grace is how long a program may run after the client has closed its channel, or the connection.
const grace = 5 * time.Second

// serve answers the requests of the client until it has closed the channel. Then it sends SIGHUP to the
// program, and waits for its end at most grace.
func (s *session) serve(requests <-chan *ssh.Request) {
	ended := make(chan struct{})
	for r := range requests {
		run, ok := s.handle(r.Type, r.Payload)
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
		if run != nil {
			go func() {
				defer close(ended)
				defer s.ch.Close()
				run()
			}()
		}
	}
	s.signal(syscall.SIGHUP)
	if s.started {
		select {
		case <-ended:
		case <-time.After(grace):
		}
	}
	if s.terminal != nil && !s.started {
		closeAll([]*os.File{s.terminal.master, s.terminal.slave})
	}
}

// handle handles one request. run is the program that the request starts, or nil.
func (s *session) handle(kind string, payload []byte) (run func(), ok bool) {
	switch kind {
	case "env":
		return nil, s.setEnv(payload)
	case "pty-req":
		return nil, s.openTerminal(payload)
	case "window-change":
		return nil, s.resize(payload)
	case "signal":
		return nil, s.signalNamed(payload)
	case "shell", "exec", "subsystem":
		if s.started {
			return nil, false
		}
		run = s.program(kind, payload)
		s.started = run != nil
		return run, s.started
	}
	return nil, false // x11-req, auth-agent-req@openssh.com and others
}

// program returns the program that a request starts, or nil if the server does not have it.
func (s *session) program(kind string, payload []byte) func() {
	var arg struct{ Text string }
	if kind != "shell" && ssh.Unmarshal(payload, &arg) != nil {
		return nil
	}
	switch {
	case kind == "shell":
		return func() { s.run(exec.Command(shell())) }
	case kind == "exec":
		return func() { s.run(exec.Command(shell(), "-c", arg.Text)) }
	case arg.Text == "sftp":
		return s.sftp
	}
	return nil
}

// maxVariables limits the variables that a client sets.
const maxVariables = 1000

// setEnv sets a variable. All are accepted: the client already runs any program as this user.
func (s *session) setEnv(payload []byte) bool {
	var v struct{ Name, Value string }
	if ssh.Unmarshal(payload, &v) != nil || v.Name == "" || strings.ContainsAny(v.Name, "=\x00") ||
		strings.Contains(v.Value, "\x00") || len(s.env) == maxVariables {
		return false
	}
	s.env = append(s.env, v.Name+"="+v.Value)
	return true
}

// sftp serves files until the client closes the channel.
func (s *session) sftp() {
	server, err := sftp.NewServer(s.ch, sftp.WithServerWorkingDirectory(home()))
	if err == nil {
		err = server.Serve()
	}
	status := 0
	if err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintf(s.ch.Stderr(), "hpcc: sftp: %v\n", err)
		status = 1
	}
	s.exit(status)
}

// Exit statuses of a shell for a program that it cannot execute, or does not find.
const (
	statusNotExecutable = 126
	statusNotFound      = 127
)

// run runs a program until it has ended, with the channel as its standard streams.
func (s *session) run(cmd *exec.Cmd) {
	cmd.Dir = home()
	cmd.Env = slices.Concat(os.Environ(), s.env, []string{"SHELL=" + shell()})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	streams := s.pipes
	if s.terminal != nil {
		streams = s.terminal.attach
	}
	finish, err := streams(cmd)
	if err == nil {
		s.lock.Lock()
		if err = cmd.Start(); err == nil {
			s.process = cmd.Process
		}
		s.lock.Unlock()
	}
	if err != nil {
		fmt.Fprintf(s.ch.Stderr(), "hpcc: starting %s: %v\n", cmd.Path, err)
		s.exit(statusOf(err))
		return
	}
	wait := finish(s.ch)
	_ = cmd.Wait()
	s.lock.Lock()
	s.process = nil
	s.lock.Unlock()
	wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		s.exitSignal(status)
		return
	}
	s.exit(cmd.ProcessState.ExitCode())
}

func statusOf(err error) int {
	if errors.Is(err, fs.ErrNotExist) {
		return statusNotFound
	}
	return statusNotExecutable
}

// pipes gives the program three pipes. As in sshd(8), the session lasts until all processes that
// hold its output have closed it.
func (s *session) pipes(cmd *exec.Cmd) (finish func(io.ReadWriter) (wait func()), err error) {
	var files [6]*os.File // pairs of read and write ends
	for i := 0; i < len(files); i += 2 {
		if files[i], files[i+1], err = os.Pipe(); err != nil {
			closeAll(files[:i])
			return nil, err
		}
	}
	in, out, stderr := files[0:2], files[2:4], files[4:6]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in[0], out[1], stderr[1]
	return func(ch io.ReadWriter) func() {
		closeAll([]*os.File{in[0], out[1], stderr[1]})
		go func() {
			_, _ = io.Copy(in[1], ch)
			in[1].Close()
		}()
		var output sync.WaitGroup
		output.Go(func() { copyClose(ch, out[0]) })
		output.Go(func() { copyClose(s.ch.Stderr(), stderr[0]) })
		return output.Wait
	}, nil
}

// copyClose copies the output of a program, and closes it when the client is gone: the program
// then gets SIGPIPE.
func copyClose(to io.Writer, from *os.File) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 64<<10))
	from.Close()
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// exit reports the exit status of the program.
func (s *session) exit(status int) {
	_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(status)}))
}

// exitSignal reports the signal that ended the program.
func (s *session) exitSignal(status syscall.WaitStatus) {
	name := strings.TrimPrefix(unix.SignalName(status.Signal()), "SIG")
	_, _ = s.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
		Name     string
		Core     bool
		Text, At string
	}{Name: name, Core: status.CoreDump()}))
}

// signalNamed sends the signal that the client names, such as TERM.
func (s *session) signalNamed(payload []byte) bool {
	var v struct{ Name string }
	if ssh.Unmarshal(payload, &v) != nil {
		return false
	}
	n := unix.SignalNum("SIG" + v.Name)
	return n != 0 && s.signal(n)
}

// signal sends a signal to the program and its children, and reports whether it runs.
func (s *session) signal(n syscall.Signal) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.process != nil && syscall.Kill(-s.process.Pid, n) == nil
}
