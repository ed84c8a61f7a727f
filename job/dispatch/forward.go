package dispatch

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/tunnel"
	"hpcc/text"
)

// A Forwarding is a port of a task's node and its local end: the second argument of "hpcc forward".
type Forwarding struct {
	Port   int    // on the node; 0 for the port of the service
	Name   string // of the service, such as jupyter; "" if the port is given
	Local  int    // local port; 0 for any free port, -1 for the same port as on the node
	Socket string // path of the local socket; "" for a port
}

// ParseForwarding reads PORT, NAME or LOCAL:PORT.
func ParseForwarding(arg string) (f Forwarding, err error) {
	f.Local = -1
	local, remote, both := strings.Cut(arg, ":")
	if i := strings.LastIndexByte(arg, ':'); strings.Contains(arg, "/") && i >= 0 {
		local, remote = arg[:i], arg[i+1:]
	}
	switch {
	case !both:
		remote = local
	case strings.Contains(local, "/"):
		f.Socket = local
	case local == "0":
		f.Local = 0
	default:
		if f.Local, err = ParsePort(local); err != nil {
			return f, err
		}
	}
	if _, err := job.ParsePort(remote + "=1"); err == nil { // a valid name for --port
		f.Name = remote
		return f, nil
	}
	f.Port, err = ParsePort(remote)
	return f, err
}

// Resolve replaces the name of a port of the job by its number.
func (f *Forwarding) Resolve(j *job.Job) error {
	if n := j.PortOf(f.Name); n > 0 {
		f.Port, f.Name = n, ""
	}
	if _, ok := job.UsualPort(f.Name); f.Name == "" || ok {
		return nil
	}
	names := "tensorboard or jupyter"
	for _, p := range j.Pod.Ports {
		names = p.Name + ", " + names
	}
	return text.Usagef("%q is not a port", f.Name).Hint("use a number from 1 to 65535, %s; or LOCAL:PORT for another local port", names)
}

// ParsePort reads the number of a port.
func ParsePort(arg string) (int, error) {
	n, err := strconv.Atoi(arg)
	if err != nil || n < 1 || n > 65535 {
		return 0, text.Usagef("%q is not a port", arg).
			Hint("use a number from 1 to 65535, tensorboard or jupyter; or LOCAL:PORT for another local port")
	}
	return n, nil
}

// addressTimeout is the time after its start in which a task's program should report its address.
const addressTimeout = 20 * time.Second

// awaitService finds the port of a service of a task, and waits for its address.
func (s *Submission) awaitService(ctx context.Context, dir string, t *job.Task, name string, report func(string)) (*Service, error) {
	service, err := s.Service(dir, t, name)
	for err == nil && service.URL == "" && time.Since(t.Start) < addressTimeout && ctx.Err() == nil {
		time.Sleep(tunnel.CheckInterval / 4)
		service, err = s.Service(dir, t, name)
	}
	if err == nil && service.URL == "" {
		report(fmt.Sprintf("task %d has not reported the address of %s; using its default port %d", t.Index, name, service.Port))
	}
	return service, err
}

// A Forward is a tunnel to a service of a task, and the listener for its clients.
type Forward struct {
	Task     *job.Task
	Service  *Service
	Tunnel   *tunnel.Tunnel
	Listener net.Listener

	sub *Submission
	dir string
}

// Close ends the tunnel, and stops listening.
func (w *Forward) Close() error {
	w.Tunnel.Close()
	return w.Listener.Close()
}

// Forward waits until a task runs, and opens a tunnel from its local end to its port on the task's node. dir is the
// directory of all jobs, index that of the task or [AnyTask]. via names the route to the node; "" for the first that
// works. With open every user of this machine may connect. Messages for the user go to report.
func (s *Submission) Forward(ctx context.Context, dir string, index int, f Forwarding, via string, open bool,
	report func(string)) (*Forward, error) {
	if index == AnyTask && f.Name != "" {
		index = s.serviceTask(dir, f.Name)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding hpcc itself: %w", err)
	}
	t, err := s.RunningTask(ctx, dir, index, report)
	if err != nil {
		return nil, err
	}
	service := &Service{Port: f.Port}
	if f.Name != "" {
		if service, err = s.awaitService(ctx, dir, t, f.Name, report); err != nil {
			return nil, err
		}
	}
	link, err := s.openTunnel(ctx, t, service.Port, program, via, report)
	if err != nil && ctx.Err() != nil { // which has ended the commands
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if s.Target.Pods() && !open {
		report(fmt.Sprintf("warning: %s listens on a port of this machine that every local user can connect to", link.Route))
	}
	port := service.Port
	if f.Local >= 0 {
		port = f.Local
	}
	l, err := tunnel.Listen(f.Socket, port, report)
	if err != nil {
		link.Close()
		return nil, err
	}
	return &Forward{t, service, link, l, s, dir}, nil
}

// askEvery is the number of checks that a task still runs until the scheduler is asked as well.
const askEvery = 8

// Serve serves the clients that the guard admits, until the task has ended or ctx is done.
func (w *Forward) Serve(ctx context.Context, g *tunnel.Guard) error {
	checks := 0
	runs := func() bool {
		checks++
		return w.sub.Goes(ctx, w.dir, w.Task, checks%askEvery == 0 && !w.Tunnel.Ends)
	}
	return w.Tunnel.ServeWhile(ctx, w.Listener, g, fmt.Sprintf("port %d of %s", w.Service.Port, w.Task.Host), runs)
}

// Laptop returns the command for a laptop that runs "hpcc forward" on this machine, and forwards a port of the laptop
// to it. Both meet at a socket that no other user can take or use. store is the absolute path of the store, task is
// JOB[.TASK], arg the Forwarding as the user wrote it, and via the route to the node, or "".
func (f *Forwarding) Laptop(store, via, task, arg string) (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding hpcc itself: %w", err)
	}
	port := f.Port
	if f.Name != "" {
		port, _ = job.UsualPort(f.Name)
	}
	if f.Local > 0 {
		port = f.Local
	}
	socket := f.Socket
	if socket == "" {
		if socket, err = tunnel.NewSocketName(); err != nil {
			return "", err
		}
	}
	remote := arg[strings.LastIndexByte(arg, ':')+1:]
	w := []string{program, "forward", "--store", store, "--as", strconv.Itoa(port)}
	if via != "" {
		w = append(w, "--via", via)
	}
	w = append(w, task, socket+":"+remote)
	// A terminal (-tt) makes the remote command end with ssh.
	return text.CommandLine([]string{"ssh", "-tt", "-L", fmt.Sprintf("%d:%s", port, socket), Login(), text.CommandLine(w)}), nil
}

// Login returns USER@HOST of this machine for ssh. If the host name has no domain, HOST is the
// address by which the user logged in.
func Login() string {
	host, _ := os.Hostname()
	if f := strings.Fields(os.Getenv("SSH_CONNECTION")); len(f) == 4 && !strings.Contains(host, ".") {
		host = f[2]
	}
	for _, name := range []string{"LOGNAME", "USER"} {
		if u := os.Getenv(name); u != "" {
			return u + "@" + host
		}
	}
	return host
}
