package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/shellword"
	"hpcc/job/tunnel"
	"hpcc/store"
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
	return usagef("%q is not a port", f.name).hint("use a number from 1 to 65535, %s; or LOCAL:PORT for another local port", names)
}

func parsePort(arg string) (int, error) {
	n, err := strconv.Atoi(arg)
	if err != nil || n < 1 || n > 65535 {
		return 0, usagef("%q is not a port", arg).hint("use a number from 1 to 65535, tensorboard or jupyter; or LOCAL:PORT for another local port")
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
		return nil, usagef("--open is for ports: only the owner can connect to a socket")
	}
	return a, nil
}

func (a *forwardArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	sub, index, err := findTask(ctx, "forward", s.Jobs(), a.task)
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
	tunnel, err := sub.OpenTunnel(ctx, t, service.Port, program, a.via, sayLine)
	if err != nil {
		return quietly(ctx, err)
	}
	defer tunnel.Close()
	if sub.Target.Pods() && !a.open {
		say("warning: %s listens on a port of this machine that every local user can connect to", tunnel.Route)
	}
	l, err := f.listen(service.Port)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := a.announce(l, sub, t, service, tunnel); err != nil {
		return err
	}
	checks := 0
	runs := func() bool {
		checks++
		return sub.Goes(ctx, s.Jobs(), t, checks%askEvery == 0 && !tunnel.Ends)
	}
	return carry(ctx, l, &guard{open: a.open, advice: "; --open lets every user of this machine connect"}, tunnel, runs, fmt.Sprintf("port %d of %s", service.Port, t.Host))
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
			say("local port %d is not available (%v); using port %d", port, errors.Unwrap(errors.Unwrap(why)), l.Addr().(*net.TCPAddr).Port)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listening on this machine: %w", err)
	}
	return l, nil
}

// announce prints the address of the port, on this machine and on a laptop.
func (a *forwardArgs) announce(l net.Listener, sub *dispatch.Submission, t *job.Task, service *dispatch.Service, tunnel *tunnel.Tunnel) error {
	local, at := l.Addr().String(), l.Addr().String()
	if s, ok := l.(*socketListener); ok {
		local = s.path
		at = fmt.Sprintf("127.0.0.1:%d", cmp.Or(a.as, service.Port))
	}
	_, port, _ := net.SplitHostPort(at)
	url := service.At(at)
	ssh := fmt.Sprintf("ssh -N -L %s:%s %s", port, local, login())
	say("forwarding %s to port %d of %s for task %d of job %s (via %s); Ctrl-C ends it", local, service.Port, t.Host, t.Index, sub.ID, tunnel.Route)
	if !a.asSet {
		say("from a laptop: %s", ssh)
	}
	if a.json {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"type": "forward", "job": sub.ID, "task": t.Index, "host": t.Host, "port": service.Port,
			"local": local, "url": url, "ssh": ssh, "via": tunnel.Route})
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
func carry(ctx context.Context, l net.Listener, g *guard, tunnel *tunnel.Tunnel, runs func() bool, remote string) error {
	failed := make(chan error, 1)
	go func() { failed <- accept(ctx, l, g, tunnel, remote) }()
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("listening on this machine: %w", err)
		case <-tunnel.Ended():
			if stillRuns(ctx, runs) {
				return (&message{err: fmt.Errorf("lost the connection to %s: %s", remote, cmp.Or(tunnel.Messages(), "its command ended"))}).hint(`run "hpcc forward" again`)
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
		if socket, err = newSocketName(); err != nil {
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
	_, err = fmt.Println(shellword.Join([]string{"ssh", "-tt", "-L", fmt.Sprintf("%d:%s", port, socket), login(), shellword.Join(append(w, a.task, socket+":"+remote))}))
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

// The local end of "hpcc forward" is a port of the loopback interface or a socket. hpcc checks
// every connection to the port, and the directory of the socket.

// A socketListener listens on a socket in a directory that stays open. Close removes the socket.
type socketListener struct {
	net.Listener
	dir  *os.File
	path string
}

func (l *socketListener) Close() error { return errors.Join(l.Listener.Close(), l.dir.Close()) }

// listenSocket listens on a socket that only this user can connect to. It creates the socket's
// directory if needed, and removes a stale socket of this user.
func listenSocket(path string) (net.Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir, err := openSocketDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	// Use the checked directory, even if its name refers to another one by now.
	at := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	l, err := bindSocket(at)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err = removeStale(dir, at); err == nil {
			l, err = bindSocket(at)
		}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return &socketListener{l, dir, path}, nil
}

func bindSocket(at string) (net.Listener, error) {
	old := syscall.Umask(0o177) // no other user may ever connect
	defer syscall.Umask(old)
	return net.Listen("unix", at)
}

// openSocketDir opens a directory in which no other user can replace files of this user. It
// creates a missing one with mode 0700.
func openSocketDir(name string) (*os.File, error) {
	if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	link, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !trustedOwner(link) {
		return nil, foreignDir(name)
	}
	dir, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	fi, err := dir.Stat()
	switch {
	case err != nil:
	case !trustedOwner(fi):
		err = foreignDir(name)
	case fi.Mode()&0o022 != 0 && fi.Mode()&os.ModeSticky == 0:
		err = fmt.Errorf("other users may write to directory %s and could replace the socket; run chmod go-w %s", name, name)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func foreignDir(name string) error {
	return fmt.Errorf(`directory %s belongs to another user; run "hpcc forward --print" again for a new name`, name)
}

// trustedOwner reports whether a file belongs to this user or to root.
func trustedOwner(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && (int(st.Uid) == os.Geteuid() || st.Uid == 0)
}

// removeStale removes a socket of this user on which no process listens, such as one that a
// killed hpcc forward left behind.
func removeStale(dir *os.File, at string) error {
	fi, err := os.Lstat(at)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case fi.Mode()&os.ModeSocket == 0:
		return errors.New("a file of that name exists")
	case !ok || int(st.Uid) != os.Geteuid():
		return errors.New(`a socket of another user has that name; run "hpcc forward --print" again for a new name`)
	}
	c, err := net.DialTimeout("unix", at, time.Second)
	if err == nil {
		c.Close()
		return errors.New("another hpcc forward uses it; end that one, or use another name")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return unix.Unlinkat(int(dir.Fd()), filepath.Base(at), 0)
}

// newSocketName returns an unpredictable path for the socket of "hpcc forward --print". The
// directory is one that only this user can open: in XDG_RUNTIME_DIR, or else a new one in /tmp.
func newSocketName() (string, error) {
	name := func() string {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		return hex.EncodeToString(b[:])
	}
	if session := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(session) {
		fi, err := os.Lstat(session)
		if err == nil && fi.IsDir() && trustedOwner(fi) && fi.Mode()&0o077 == 0 {
			return filepath.Join(session, "hpcc-forward", name()), nil
		}
	}
	for {
		dir := "/tmp/hpcc-forward-" + name() // short, because the path of a socket has at most 107 bytes
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			return filepath.Join(dir, "socket"), nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("creating a directory for the socket: %w", err)
		}
	}
}

// refusalPause is the minimum time between warnings about refused connections.
const refusalPause = time.Minute

// A guard admits only connections of this user and of root, unless it is open.
type guard struct {
	open    bool   // admit all users
	advice  string // after a warning
	refused int    // since the last warning
	warned  time.Time
}

// admits reports whether to serve a connection. It warns about refused ones at most once per
// refusalPause.
func (g *guard) admits(conn net.Conn) bool {
	if g.open {
		return true
	}
	err := tunnel.CheckPeer(conn)
	if err == nil {
		return true
	}
	if errors.Is(err, tunnel.ErrPeerClosed) { // a client that has given up
		return false
	}
	g.refused++
	if g.warned.IsZero() || time.Since(g.warned) >= refusalPause {
		more := ""
		if g.refused > 1 {
			more = fmt.Sprintf(" (%d were refused since the last warning)", g.refused)
		}
		say("warning: refused a connection: %v%s%s", err, more, g.advice)
		g.refused, g.warned = 0, time.Now()
	}
	return false
}

// accept serves each connection that the guard admits. It prints an error only if it differs
// from the previous connection's.
func accept(ctx context.Context, l net.Listener, g *guard, tunnel *tunnel.Tunnel, remote string) error {
	var lock sync.Mutex
	last := ""
	for {
		conn, err := l.Accept()
		if errors.Is(err, syscall.EMFILE) && ctx.Err() == nil { // retry when connections have ended
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		if !g.admits(conn) {
			if c, ok := conn.(*net.TCPConn); ok {
				_ = c.SetLinger(0)
			}
			conn.Close()
			continue
		}
		go func() {
			text := ""
			if err := tunnel.Carry(conn); err != nil {
				text = err.Error()
			}
			lock.Lock()
			defer lock.Unlock()
			if text != last && text != "" {
				say("%s: %s", remote, text)
			}
			last = text
		}()
	}
}
