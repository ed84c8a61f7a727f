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
	"hpcc/job/shellword"
	"hpcc/job/tunnel"
)

const forwardArgs = "JOB[.TASK] PORT|NAME|LOCAL:PORT"

func forwardCommand() *cli.Command {
	return &cli.Command{
		Name: "forward", Usage: "bring a port of a task's node here", ArgsUsage: forwardArgs,
		Description: `Listens on 127.0.0.1 of this machine and carries what connects there to 127.0.0.1 of the node on
which the task runs: through a step of the scheduler, or by ssh. Waits until the task runs; ends with it,
or by Ctrl-C. "tensorboard" and "jupyter" are found by what the job told of them; their address is printed.
Other names are those of --port. Of jobs in pods, kubectl brings the port.

   hpcc forward main-261121-090000 8888
   hpcc forward main.3 jupyter
   hpcc forward main 16006:tensorboard
   hpcc forward --print main jupyter     # one line for the laptop that does all of it

LOCAL is a port, 0 for any that is free, or the path of a socket that only you can open. A port takes
connections of your own processes and of root's; --open lets every user of this machine connect. What
listens on the node has to be yours or root's: else nothing is sent there.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "print", Usage: "only print the line of ssh that, on a laptop, forwards through this machine"},
			&cli.BoolFlag{Name: "open", Usage: "let every user of this machine connect (default: only you and root)"},
			&cli.IntFlag{Name: "as", Usage: "say the address with `PORT`, which a socket has on the laptop (--print uses it)"},
			viaFlag(),
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object when it is ready"},
			storeFlag(),
		},
		Action: forward,
	}
}

func viaFlag() cli.Flag {
	return &cli.StringFlag{Name: "via", Usage: "reach the node by `WAY`: direct, ssh, or the scheduler's name (default: the first that works)"}
}

// relayCommand is the node's end of a tunnel.
func relayCommand() *cli.Command {
	return &cli.Command{
		Name: "relay", Hidden: true, Usage: "carry connections between standard streams and a port of this machine (hpcc forward starts this)", ArgsUsage: "PORT",
		Action: func(c *cli.Context) error {
			a, err := parseArguments(c, 1, 1, "PORT")
			if err != nil {
				return err
			}
			port, err := readPort(a[0])
			if err != nil {
				return err
			}
			return tunnel.Relay(c.Context, stdio{os.Stdin, os.Stdout}, port)
		},
	}
}

// stdio are the standard streams as one.
type stdio struct{ in, out *os.File }

func (s stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s stdio) Close() error                { return errors.Join(s.in.Close(), s.out.Close()) }

// A forwarding is what the second word of "hpcc forward" asks for.
type forwarding struct {
	port   int    // of the node; 0: that of service
	name   string // tensorboard, jupyter; "" where the port is given
	local  int    // port here; -1: the same, where nobody has it
	socket string // path; "" for a port
}

func readForwarding(word string) (f forwarding, err error) {
	f.local = -1
	here, there, both := strings.Cut(word, ":")
	if i := strings.LastIndexByte(word, ':'); strings.Contains(word, "/") && i >= 0 {
		here, there = word[:i], word[i+1:]
	}
	switch {
	case !both:
		there = here
	case strings.Contains(here, "/"):
		f.socket = here
	case here == "0":
		f.local = 0
	default:
		if f.local, err = readPort(here); err != nil {
			return f, err
		}
	}
	if _, err := job.ParsePort(there + "=1"); err == nil { // a name, as --port has them
		f.name = there
		return f, nil
	}
	f.port, err = readPort(there)
	return f, err
}

// resolve finds the number of a port that the job has a name for.
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
	return usagef("%q is no port", f.name).hint("a number from 1 to 65535, %s; LOCAL:PORT for another port here", names)
}

func readPort(word string) (int, error) {
	n, err := strconv.Atoi(word)
	if err != nil || n < 1 || n > 65535 {
		return 0, usagef("%q is no port", word).hint("a number from 1 to 65535, tensorboard or jupyter; LOCAL:PORT for another port here")
	}
	return n, nil
}

func forward(c *cli.Context) error {
	a, err := parseArguments(c, 2, 2, forwardArgs)
	if err != nil {
		return err
	}
	f, err := readForwarding(a[1])
	if err != nil {
		return err
	}
	s, err := findStore(c)
	if err != nil {
		return err
	}
	sub, index, err := findTask(c, s.Jobs(), a[0])
	if err != nil {
		return err
	}
	if c.Bool("open") && (f.socket != "" || c.Bool("print")) {
		return usagef("--open is for a port: a socket is its owner's alone")
	}
	if err := f.resolve(sub.Job); err != nil {
		return err
	}
	if index == dispatch.AnyTask && f.name != "" {
		index = sub.ServiceTask(s.Jobs(), f.name)
	}
	if c.Bool("print") {
		return f.print(c, s.Dir(), a[0], a[1])
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding hpcc itself: %w", err)
	}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		var stop func()
		c.Context, stop = signal.NotifyContext(c.Context, syscall.SIGHUP) // the ssh that began this has gone
		defer stop()
	}
	t, err := sub.Running(c.Context, s.Jobs(), index, words)
	if err != nil {
		return quietly(c, err)
	}
	service := &dispatch.Service{Port: f.port}
	if f.name != "" {
		service, err = sub.Service(s.Jobs(), t, f.name)
		for err == nil && service.URL == "" && time.Since(t.Start) < tellPatience && c.Context.Err() == nil {
			time.Sleep(goesOn / 4)
			service, err = sub.Service(s.Jobs(), t, f.name)
		}
		if err != nil {
			return err
		}
		if service.URL == "" {
			say("task %d has told no address of %s so far; taking its usual port, %d", t.Index, f.name, service.Port)
		}
	}
	tunnel, err := sub.OpenTunnel(c.Context, t, service.Port, program, c.String("via"), words)
	if err != nil {
		return quietly(c, err)
	}
	defer tunnel.Close()
	if sub.Target.Pods() && !c.Bool("open") {
		say("warning: %s brings the port by a port of this machine that every user of it can connect to", tunnel.Way)
	}
	l, err := f.listen(service.Port)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := f.announce(c, l, sub, t, service, tunnel); err != nil {
		return err
	}
	looked := 0
	goes := func() bool {
		looked++
		return sub.Goes(c.Context, s.Jobs(), t, looked%asks == 0 && !tunnel.Ends)
	}
	return carry(c.Context, l, &guard{open: c.Bool("open")}, tunnel, goes, fmt.Sprintf("port %d of %s", service.Port, t.Host))
}

// words says what a room has to say.
func words(text string) { say("%s", text) }

// quietly makes an end by Ctrl-C no error.
func quietly(c *cli.Context, err error) error {
	if c.Context.Err() != nil {
		return nil
	}
	return err
}

// listen takes the port here that was asked for, or one that is free; or makes the socket.
func (f *forwarding) listen(port int) (net.Listener, error) {
	if f.socket != "" {
		l, err := listenSocket(f.socket)
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
			say("port %d here cannot be had (%v); taking port %d", port, errors.Unwrap(errors.Unwrap(why)), l.Addr().(*net.TCPAddr).Port)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listening on this machine: %w", err)
	}
	return l, nil
}

// announce says where the port is to be found, here and from a laptop.
func (f *forwarding) announce(c *cli.Context, l net.Listener, sub *dispatch.Submission, t *job.Task, service *dispatch.Service, tunnel *tunnel.Tunnel) error {
	here, at := l.Addr().String(), l.Addr().String()
	if s, ok := l.(*socketListener); ok {
		here = s.path
		at = fmt.Sprintf("127.0.0.1:%d", cmp.Or(c.Int("as"), service.Port))
	}
	_, port, _ := net.SplitHostPort(at)
	url := service.At(at)
	ssh := fmt.Sprintf("ssh -N -L %s:%s %s", port, here, login())
	say("port %d of %s, where task %d of job %s runs, is here: %s (by way of %s); Ctrl-C ends that", service.Port, t.Host, t.Index, sub.ID, here, tunnel.Way)
	if !c.IsSet("as") {
		say("from a laptop: %s", ssh)
	}
	if c.Bool("json") {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"type": "forward", "job": sub.ID, "task": t.Index, "host": t.Host, "port": service.Port,
			"local": here, "url": url, "ssh": ssh, "via": tunnel.Way})
	}
	if url == "" && c.IsSet("as") {
		url = at
	}
	if url == "" {
		url = here
	}
	_, err := fmt.Println(url)
	return err
}

// tellPatience is how long after a task began its program may take to tell its address.
const tellPatience = 20 * time.Second

// goesOn is how often a forwarding looks whether its task still runs; once in so many
// looks it asks the scheduler.
const (
	goesOn = 2 * time.Second
	asks   = 8
)

// carry carries connections until the task has ended, or the user ends it.
func carry(ctx context.Context, l net.Listener, g *guard, tunnel *tunnel.Tunnel, goes func() bool, what string) error {
	problem := make(chan error, 1)
	go func() { problem <- accept(ctx, l, g, tunnel, what) }()
	look := time.NewTicker(goesOn)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-problem:
			return fmt.Errorf("listening on this machine: %w", err)
		case <-tunnel.Ended():
			if goesStill(ctx, goes) {
				return (&message{err: fmt.Errorf("the way to %s broke off: %s", what, cmp.Or(tunnel.Said(), "its command ended"))}).hint(`"hpcc forward" again makes another`)
			}
			say("the task has ended")
			return nil
		case <-look.C:
			if !goes() {
				say("the task has ended")
				return nil
			}
		}
	}
}

// goesStill gives a task that a scheduler has ended the time to write that down.
func goesStill(ctx context.Context, goes func() bool) bool {
	for range 4 {
		if !goes() {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(goesOn / 2):
		}
	}
	return goes()
}

// print prints a line for a laptop that logs in here, forwards, and has the port there.
// Between the two lies a socket, which no other user can take or use.
func (f *forwarding) print(c *cli.Context, store, name, word string) error {
	port := f.port
	if f.name != "" {
		port, _ = job.UsualPort(f.name)
	}
	if f.local > 0 {
		port = f.local
	}
	socket, err := f.socket, error(nil)
	if socket == "" {
		if socket, err = newSocketName(); err != nil {
			return err
		}
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding hpcc itself: %w", err)
	}
	if store, err = filepath.Abs(store); err != nil {
		return err
	}
	there := word[strings.LastIndexByte(word, ':')+1:]
	w := []string{program, "forward", "--store", store, "--as", strconv.Itoa(port)}
	if via := c.String("via"); via != "" {
		w = append(w, "--via", via)
	}
	// With a terminal, the end of ssh is heard there.
	_, err = fmt.Println(shellword.Join([]string{"ssh", "-tt", "-L", fmt.Sprintf("%d:%s", port, socket), login(), shellword.Join(append(w, name, socket+":"+there))}))
	return err
}

// login is this machine as one would name it to ssh: by the address that was used
// to come here, where the host's name is none of the network.
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
