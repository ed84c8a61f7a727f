package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/site"
	"hpcc/job/tunnel"
	"hpcc/store"
	"hpcc/text"
)

const forwardUsage = "JOB[.TASK] PORT|NAME|LOCAL:PORT"

func forwardCommand() *cli.Command {
	return &cli.Command{
		Name: "forward", Usage: "forward a port of a task's node to this machine", ArgsUsage: forwardUsage,
		Description: `Forwards a local port to a port of the node on which a task runs, through the scheduler or ssh.
Waits until the task runs, and ends with it. NAME is "tensorboard", "jupyter" or a name of --port.

   hpcc forward main 8888
   hpcc forward main.3 jupyter
   hpcc forward main 16006:tensorboard
   hpcc forward --print main jupyter     # an ssh command for your laptop

LOCAL is a port, 0 for any free port, or the path of a Unix socket. Only your own processes and
root's can connect, unless --open is given. The program on the node must be yours or root's.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "print", Usage: "print the ssh command for your laptop and exit"},
			&cli.BoolFlag{Name: "open", Usage: "let every user of this machine connect"},
			&cli.IntFlag{Name: "as", Usage: "print the address with `PORT` (used by --print)"},
			viaFlag(),
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object when ready"},
			storeFlag(),
		},
		Action: action(parseForward),
	}
}

func viaFlag() cli.Flag {
	return &cli.StringFlag{Name: "via", Usage: "reach the node by `ROUTE`: direct, ssh or a scheduler's name"}
}

// A forwarding is the second argument of "hpcc forward".
type forwarding struct {
	port   int    // on the node; 0 for the port of the service
	name   string // of the service, such as jupyter; "" if the port is given
	local  int    // local port; 0 for any free port, -1 for the same port as on the node
	socket string // path of the local socket; "" for a port
}

func parseForwarding(arg string) (f forwarding, err error) {
	f.local = -1
	local, remote, both := strings.Cut(arg, ":")
	if i := strings.LastIndexByte(arg, ':'); strings.Contains(arg, "/") && i >= 0 {
		local, remote = arg[:i], arg[i+1:]
	}
	switch {
	case !both:
		remote = local
	case strings.Contains(local, "/"):
		f.socket = local
	case local == "0":
		f.local = 0
	default:
		if f.local, err = parsePort(local); err != nil {
			return f, err
		}
	}
	if _, err := job.ParsePort(remote + "=1"); err == nil { // a valid name for --port
		f.name = remote
		return f, nil
	}
	f.port, err = parsePort(remote)
	return f, err
}

// resolve replaces the name of a port of the job by its number.
func (f *forwarding) resolve(j *job.Job) error {
	if n := j.PortOf(f.name); n > 0 {
		f.port, f.name = n, ""
	}
	if _, ok := job.UsualPort(f.name); f.name == "" || ok {
		return nil
	}
	names := "tensorboard or jupyter"
	for _, p := range j.Pod.Ports {
		names = p.Name + ", " + names
	}
	return text.Usagef("%q is not a port", f.name).Hint("use a number from 1 to 65535, %s; or LOCAL:PORT for another local port", names)
}

func parsePort(arg string) (int, error) {
	n, err := strconv.Atoi(arg)
	if err != nil || n < 1 || n > 65535 {
		return 0, text.Usagef("%q is not a port", arg).Hint("use a number from 1 to 65535, tensorboard or jupyter; or LOCAL:PORT for another local port")
	}
	return n, nil
}

type forwardArgs struct {
	task       string // JOB[.TASK]
	arg        string // PORT, NAME or LOCAL:PORT, as given
	f          forwarding
	print      bool // only print the ssh command
	open, json bool
	as         int // port on the laptop, with asSet
	asSet      bool
	via, store string
}

func parseForward(c *cli.Context) (*forwardArgs, error) {
	args, err := parseArguments(c, 2, 2, forwardUsage)
	if err != nil {
		return nil, err
	}
	f, err := parseForwarding(args[1])
	if err != nil {
		return nil, err
	}
	a := &forwardArgs{task: args[0], arg: args[1], f: f, print: c.Bool("print"), open: c.Bool("open"), json: c.Bool("json"), as: c.Int("as"), asSet: c.IsSet("as"),
		via: c.String("via"), store: c.String("store")}
	if a.open && (f.socket != "" || a.print) {
		return nil, text.Usagef("--open is for ports: only the owner can connect to a socket")
	}
	return a, nil
}

func (a *forwardArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	sub, index, err := site.FindTask(ctx, "forward", false, s.Jobs(), a.task)
	if err != nil {
		return err
	}
	f := &a.f
	if err := f.resolve(sub.Job); err != nil {
		return err
	}
	if index == dispatch.AnyTask && f.name != "" {
		index = sub.ServiceTask(s.Jobs(), f.name)
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding hpcc itself: %w", err)
	}
	if a.print {
		return a.printLine(program, s.Dir())
	}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP) // the ssh session has ended
		defer stop()
	}
	t, err := sub.Running(ctx, s.Jobs(), index, sayLine)
	if err != nil {
		return quietly(ctx, err)
	}
	service := &dispatch.Service{Port: f.port}
	if f.name != "" {
		service, err = sub.Service(s.Jobs(), t, f.name)
		for err == nil && service.URL == "" && time.Since(t.Start) < addressTimeout && ctx.Err() == nil {
			time.Sleep(checkInterval / 4)
			service, err = sub.Service(s.Jobs(), t, f.name)
		}
		if err != nil {
			return err
		}
		if service.URL == "" {
			say("task %d has not reported the address of %s; using its default port %d", t.Index, f.name, service.Port)
		}
	}
	link, err := sub.OpenTunnel(ctx, t, service.Port, program, a.via, sayLine)
	if err != nil {
		return quietly(ctx, err)
	}
	defer link.Close()
	if sub.Target.Pods() && !a.open {
		say("warning: %s listens on a port of this machine that every local user can connect to", link.Route)
	}
	l, err := f.listen(service.Port)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := a.announce(l, sub, t, service, link); err != nil {
		return err
	}
	checks := 0
	runs := func() bool {
		checks++
		return sub.Goes(ctx, s.Jobs(), t, checks%askEvery == 0 && !link.Ends)
	}
	return carry(ctx, l, &tunnel.Guard{Open: a.open, Advice: "; --open lets every user of this machine connect", Say: sayLine}, link, runs, fmt.Sprintf("port %d of %s", service.Port, t.Host))
}

// sayLine prints a message that another package composed.
func sayLine(text string) { say("%s", text) }

// quietly drops an error that Ctrl-C caused.
func quietly(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// listen listens on the socket, on the requested local port, or on a free one if that is taken.
func (f *forwarding) listen(port int) (net.Listener, error) {
	if f.socket != "" {
		l, err := tunnel.ListenSocket(f.socket)
		if err != nil {
			return nil, fmt.Errorf("listening on socket %q: %w", f.socket, err)
		}
		return l, nil
	}
	if f.local >= 0 {
		port = f.local
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
		why := err
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			say("local port %d is not available (%v); using port %d", port, errors.Unwrap(errors.Unwrap(why)), l.Addr().(*net.TCPAddr).Port)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listening on this machine: %w", err)
	}
	return l, nil
}

// announce prints the address of the port, on this machine and on a laptop.
func (a *forwardArgs) announce(l net.Listener, sub *dispatch.Submission, t *job.Task, service *dispatch.Service, link *tunnel.Tunnel) error {
	local, at := l.Addr().String(), l.Addr().String()
	if s, ok := l.(*tunnel.Socket); ok {
		local = s.Path
		at = fmt.Sprintf("127.0.0.1:%d", cmp.Or(a.as, service.Port))
	}
	_, port, _ := net.SplitHostPort(at)
	url := service.At(at)
	ssh := fmt.Sprintf("ssh -N -L %s:%s %s", port, local, login())
	say("forwarding %s to port %d of %s for task %d of job %s (via %s); Ctrl-C ends it", local, service.Port, t.Host, t.Index, sub.ID, link.Route)
	if !a.asSet {
		say("from a laptop: %s", ssh)
	}
	if a.json {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"type": "forward", "job": sub.ID, "task": t.Index, "host": t.Host, "port": service.Port,
			"local": local, "url": url, "ssh": ssh, "via": link.Route})
	}
	if url == "" && a.asSet {
		url = at
	}
	if url == "" {
		url = local
	}
	_, err := fmt.Println(url)
	return err
}

// addressTimeout is the time after its start in which a task's program should report its address.
const addressTimeout = 20 * time.Second

// checkInterval is the interval between checks that the task still runs. Every askEvery checks,
// hpcc asks the scheduler.
const (
	checkInterval = 2 * time.Second
	askEvery      = 8
)

// carry serves connections until the task has ended or the user ends hpcc. runs reports whether
// the task still runs, and remote names the forwarded port.
func carry(ctx context.Context, l net.Listener, g *tunnel.Guard, to *tunnel.Tunnel, runs func() bool, remote string) error {
	failed := make(chan error, 1)
	go func() { failed <- to.Serve(ctx, l, g, remote) }()
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("listening on this machine: %w", err)
		case <-to.Ended():
			if stillRuns(ctx, runs) {
				return text.Hint(fmt.Errorf("lost the connection to %s: %s", remote, cmp.Or(to.Messages(), "its command ended")), `run "hpcc forward" again`)
			}
			say("the task has ended")
			return nil
		case <-ticker.C:
			if !runs() {
				say("the task has ended")
				return nil
			}
		}
	}
}

// stillRuns reports whether a task still runs. It checks several times, because a task that the
// scheduler ended needs time to record its end.
func stillRuns(ctx context.Context, runs func() bool) bool {
	for range 4 {
		if !runs() {
			return false
		}
		if pause(ctx, checkInterval/2) != nil {
			return false
		}
	}
	return runs()
}

// printLine prints an ssh command for a laptop. It runs hpcc forward on this machine and forwards
// the port to the laptop. Both meet at a socket that no other user can take or use. dir is the
// directory of the store.
func (a *forwardArgs) printLine(program, dir string) error {
	f, port := &a.f, a.f.port
	if f.name != "" {
		port, _ = job.UsualPort(f.name)
	}
	if f.local > 0 {
		port = f.local
	}
	socket, err := f.socket, error(nil)
	if socket == "" {
		if socket, err = tunnel.NewSocketName(); err != nil {
			return err
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	remote := a.arg[strings.LastIndexByte(a.arg, ':')+1:]
	w := []string{program, "forward", "--store", dir, "--as", strconv.Itoa(port)}
	if a.via != "" {
		w = append(w, "--via", a.via)
	}
	// A terminal (-tt) makes the remote command end with ssh.
	_, err = fmt.Println(text.CommandLine([]string{"ssh", "-tt", "-L", fmt.Sprintf("%d:%s", port, socket), login(), text.CommandLine(append(w, a.task, socket+":"+remote))}))
	return err
}

// login returns USER@HOST of this machine for ssh. If the host name has no domain, HOST is the
// address by which the user logged in.
func login() string {
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
