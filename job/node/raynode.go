package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/job/tunnel"
	"hpcc/metrics"
)

// A rayNode is one node of a Ray cluster: a process outside the image, with Ray's processes as its children inside.
// It is their subreaper (prctl(2)), so that orphans of Ray become its children, and it can end them. It does not use
// "ray stop", which would end all of the user's Ray clusters.
type rayNode struct {
	shared rayDir
	plan   RayPlan
	rank   int
	host   string
	peer   string // another node's host; "" if unknown
	log    string // name of the file for the output of "ray start"
	logf   func(format string, args ...any)
	rayAddress
}

// A rayAddress is the address of the head, and the directory of Ray's files.
type rayAddress struct {
	Address string // IP:PORT
	Temp    string // same on all nodes; short, because socket paths may have 107 bytes (unix(7))
}

// How often a node polls the shared directory, and how long it waits for the other nodes by default.
const (
	rayPoll    = 200 * time.Millisecond
	rayTimeout = 5 * time.Minute
)

// JoinRay runs one node of the Ray cluster with the shared directory dir until the cluster ends, and returns the exit
// status for the launcher. rank is the node's number; if negative, a variable of the launcher has it. peer is another
// node of the job, with which rank 0 finds its own address; "" for none.
func (known Schedulers) JoinRay(ctx context.Context, dir string, rank int, peer string,
	logf func(format string, args ...any)) (int, error) {
	n := &rayNode{shared: rayDir(dir), rank: rank, peer: peer, log: "head.log", logf: logf}
	if !n.shared.get("plan", &n.plan) {
		return 0, fmt.Errorf("joining the Ray cluster in %s: its plan cannot be read; all nodes must share the store", n.shared)
	}
	var err error
	if rank < 0 {
		name, value := known.Rank(os.Getenv)
		if n.rank, err = strconv.Atoi(value); err != nil {
			return 0, fmt.Errorf("joining the Ray cluster in %s: neither --rank nor %s has the number of this node", n.shared, name)
		}
	} else if n.rank > 0 {
		known.TakeEnvironment(n.plan.Env)
	}
	n.host = tunnel.Host()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("becoming the subreaper of Ray's processes: %w", err)
	}
	defer EndChildren()
	raiseFileLimit()
	if n.rank > 0 {
		n.log = fmt.Sprintf("worker.%d.log", n.rank)
		return n.work(ctx), nil
	}
	return n.lead(ctx), nil
}

// TakeEnvironment sets the variables of the task in this process, except those that a launcher has
// set for this node.
func (known Schedulers) TakeEnvironment(env []string) {
	perNode := strings.Fields("HOSTNAME TMPDIR CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK GPU_DEVICE_ORDINAL NVIDIA_VISIBLE_DEVICES")
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		_, set := os.LookupEnv(name)
		if set && (known.Differs(name) || slices.Contains(perNode, name)) {
			continue
		}
		_ = os.Setenv(name, value)
	}
}

// raiseFileLimit raises the limit of open files to the maximum, because Ray needs thousands.
func raiseFileLimit() {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil {
		r.Cur = r.Max
		_ = syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: r.Cur, Max: r.Max}) // children inherit it
	}
}

// lead runs the node with the head and the program.
func (n *rayNode) lead(ctx context.Context) int {
	dir, err := os.MkdirTemp("/tmp", "ray-") // on the node, never on NFS
	if err != nil {
		return n.done(n.fail("creating a temporary directory for Ray: %v", err))
	}
	n.Temp = dir
	defer os.RemoveAll(dir)
	markTemp(dir)
	head, err := n.startHead(ctx)
	if err != nil {
		return n.done(n.fail("%v", err))
	}
	defer head.stop(rayGrace) // last, so that the workers first see the result
	if err = n.shared.put("address", n.rayAddress); err == nil {
		err = n.gather(ctx, head)
	}
	if err != nil {
		return n.done(n.fail("%v", err))
	}
	n.logf("ray: %d nodes at %s, dashboard at %s of %s", n.plan.Nodes, n.Address, head.dashboard, n.host)
	return n.done(n.drive(ctx, head))
}

// done records the job's exit status. It returns 0 for the launcher, which would print
// an error for any other status.
func (n *rayNode) done(status int) int {
	if err := n.shared.put("done", status); err != nil {
		n.logf("ray: %v", err)
		return status
	}
	return 0
}

// fail prints why the Ray cluster failed, and returns rayFailed.
func (n *rayNode) fail(format string, a ...any) int {
	n.logf("ray: node %d on %s: "+format, append([]any{n.rank, n.host}, a...)...)
	return rayFailed
}

// startHead starts the head and returns when it listens. It uses free ports, because the node may run other Ray
// clusters, and retries if another process takes one.
func (n *rayNode) startHead(ctx context.Context) (*rayProcess, error) {
	ip, err := n.hostIP()
	if err != nil {
		return nil, err
	}
	for tries := 1; ; tries++ {
		ports, err := freePorts("", 3)
		if err != nil {
			return nil, err
		}
		n.Address = net.JoinHostPort(ip, ports[0])
		head, err := n.start("--head", "--node-ip-address="+ip, "--port="+ports[0], "--temp-dir="+n.Temp,
			"--dashboard-host=127.0.0.1", "--dashboard-port="+ports[1], "--ray-client-server-port="+ports[2])
		if err != nil {
			return nil, err
		}
		head.dashboard = "127.0.0.1:" + ports[1]
		err = n.until(ctx, head, func() bool { return listensOwn(n.Address) })
		if err == nil {
			return head, nil
		}
		head.stop(rayGrace)
		if tries == 3 || !strings.Contains(n.tail(), "in use") {
			return nil, fmt.Errorf("starting the head: %w%s", err, n.tail())
		}
	}
}

// listensOwn reports whether this user's program listens at an address of this node. Another user may have taken
// the free port in the meantime, and would receive the cluster's token from the workers.
func listensOwn(address string) bool {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return false
	}
	sockets, err := tunnel.CheckListener(at)
	return err == nil && len(sockets) > 0
}

var errStopped = errors.New("stopped on request")

// until waits for a condition. It returns an error if the Ray process p ends, the cluster fails or stops, or the time
// is over. p may be nil.
func (n *rayNode) until(ctx context.Context, p *rayProcess, happened func() bool) error {
	limit := rayTimeout
	if d, err := time.ParseDuration(os.Getenv("HPCC_RAY_WAIT")); err == nil && d > 0 {
		limit = d
	}
	for late := time.Now().Add(limit); ; {
		if happened() {
			return nil
		}
		var why string
		switch {
		case n.shared.get("failed", &why):
			return errors.New(why)
		case n.shared.has("stop"):
			return errStopped
		case time.Now().After(late):
			return fmt.Errorf("timed out after %s (set HPCC_RAY_WAIT to wait longer)", limit)
		}
		var ended <-chan struct{}
		if p != nil {
			ended = p.ended
		}
		select {
		case <-ctx.Done():
			return errStopped
		case <-ended:
			return fmt.Errorf("ray start ended with %s", p.cmd.ProcessState)
		case <-time.After(rayPoll):
		}
	}
}

// gather waits until Ray reports all nodes.
func (n *rayNode) gather(ctx context.Context, head *rayProcess) error {
	if n.plan.Nodes == 1 {
		return nil
	}
	const count = `import ray, sys, time
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
while sum(1 for n in ray.nodes() if n["Alive"]) < int(sys.argv[2]):
    time.sleep(0.5)
`
	query, err := n.begin("python3", "-c", count, n.Address, strconv.Itoa(n.plan.Nodes))
	if err != nil {
		return err
	}
	defer query.stop(rayPoll)
	err = n.until(ctx, head, func() bool {
		select {
		case <-query.ended:
			return true
		default:
			return false
		}
	})
	if err == nil && !query.cmd.ProcessState.Success() {
		err = fmt.Errorf("querying Ray for nodes: python3 ended with %s", query.cmd.ProcessState)
	}
	if err != nil && !errors.Is(err, errStopped) {
		err = fmt.Errorf("waiting for %d nodes: %w%s", n.plan.Nodes, err, n.tail())
	}
	return err
}

// drive runs the program, and ends it if the Ray cluster ends first.
func (n *rayNode) drive(ctx context.Context, head *rayProcess) int {
	// Scripts for older versions of Ray use ip_head and redis_password, here with Ray's default password.
	cmd := n.command([]string{"RAY_ADDRESS=" + n.Address, "ip_head=" + n.Address, "redis_password=5241590000000000"}, n.plan.Program)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	ended, why := make(chan struct{}), make(chan string, 1)
	run, err := metrics.Measure(ctx, cmd, metrics.Options{Started: func(metrics.Run) {
		go func() {
			reason := n.awaitEnd(ctx, head, ended)
			why <- reason
			if reason == "" {
				return
			}
			if ctx.Err() == nil { // else the signal was passed on
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
			}
			select {
			case <-ended:
			case <-time.After(programGrace):
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			}
		}()
	}})
	if err != nil {
		return n.fail("%v", err)
	}
	close(ended)
	if reason := <-why; reason != "" && reason != errStopped.Error() {
		return n.fail("hpcc ended the program: %s", reason)
	}
	return run.Status()
}

// awaitEnd waits for an event that must end the program, and returns a description of it. If the program ends first,
// it returns "".
func (n *rayNode) awaitEnd(ctx context.Context, head *rayProcess, ended <-chan struct{}) string {
	for {
		var why string
		switch {
		case n.shared.get("failed", &why):
			return why
		case n.shared.has("stop"):
			return errStopped.Error()
		}
		select {
		case <-ended:
			return ""
		case <-ctx.Done():
			return errStopped.Error()
		case <-head.ended:
			return "the head ended: " + head.cmd.ProcessState.String() + n.tail()
		case <-time.After(rayPoll):
		}
	}
}

// work runs a node with a worker until the program ends.
func (n *rayNode) work(ctx context.Context) int {
	if err := n.until(ctx, nil, func() bool {
		return n.shared.get("address", &n.rayAddress) ||
			n.shared.has("done")
	}); err != nil || n.Address == "" {
		if err != nil && !errors.Is(err, errStopped) {
			return n.fail("waiting for the head: %v", err)
		}
		return 0
	}
	if err := ownDir(n.Temp); err != nil {
		return n.lost(fmt.Sprintf("creating a temporary directory for Ray: %v", err))
	}
	defer os.RemoveAll(n.Temp)
	markTemp(n.Temp)
	c, err := net.Dial("udp", n.Address) // sends nothing; selects this node's address on that network
	if err != nil {
		return n.lost(fmt.Sprintf("reaching the head: %v", err))
	}
	ip, _, _ := net.SplitHostPort(c.LocalAddr().String())
	c.Close()
	ray, err := n.start("--address="+n.Address, "--node-ip-address="+ip)
	if err != nil {
		return n.lost(err.Error())
	}
	defer ray.stop(rayGrace)
	for {
		if n.shared.has("done") || n.shared.has("stop") {
			return 0
		}
		select {
		case <-ctx.Done():
			return 0
		case <-ray.ended:
			// The worker may end with the head before the file is visible.
			for end := time.Now().Add(rayGrace); time.Now().Before(end); time.Sleep(rayPoll) {
				if n.shared.has("done") || n.shared.has("stop") || ctx.Err() != nil {
					return 0
				}
			}
			return n.lost("Ray ended before the program: " + ray.cmd.ProcessState.String() + n.tail())
		case <-time.After(rayPoll):
		}
	}
}

// lost reports the failure of a worker to the other nodes, which ends the Ray cluster.
func (n *rayNode) lost(why string) int {
	if err := n.shared.put("failed", fmt.Sprintf("node %d on %s: %s", n.rank, n.host, why)); err != nil {
		n.logf("ray: %v", err)
	}
	return n.fail("%s", why)
}

// A rayProcess is a process of Ray that runs next to the program.
type rayProcess struct {
	cmd       *exec.Cmd
	ended     chan struct{}
	dashboard string // address of the dashboard; only of a head
}

// start runs "ray start" in the image, limited to the job's resources. By default Ray would use the full machine.
func (n *rayNode) start(args ...string) (*rayProcess, error) {
	ports, err := freePorts("", 1)
	if err != nil {
		return nil, err
	}
	cpus := n.plan.CPUs
	if cpus == 0 {
		cpus = usableCPUs()
	}
	w := append([]string{"ray", "start"}, args...)
	w = append(w, "--num-cpus="+strconv.Itoa(cpus), "--num-gpus="+strconv.Itoa(n.plan.GPUs),
		"--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port="+ports[0], "--block")
	if m := n.plan.Memory; m > 0 { // divided like Ray's default: 30 % for objects
		w = append(w, fmt.Sprintf("--object-store-memory=%d", m*3/10), fmt.Sprintf("--memory=%d", m*7/10))
	}
	return n.begin(w...)
}

// begin starts argv in the image, with its output in the node's log.
func (n *rayNode) begin(argv ...string) (*rayProcess, error) {
	log, err := os.OpenFile(n.shared.file(n.log), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &rayProcess{cmd: n.command(nil, argv), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", argv[0], err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	return p, nil
}

// command returns the command that runs argv in the image as a process group, with Ray's variables and directories.
func (n *rayNode) command(env, argv []string) *exec.Cmd {
	w := slices.Clone(n.plan.Image[:2]) // hpcc run
	for _, e := range append([]string{"RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN_PATH=" + n.shared.file("token"),
		"RAY_USAGE_STATS_ENABLED=0"}, env...) {
		w = append(w, "--set-env="+e)
	}
	w = append(w, "--bind="+string(n.shared), "--bind="+n.Temp)
	w = append(append(w, n.plan.Image[2:]...), argv...)
	cmd := exec.Command(w[0], w[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// stop ends the process and its group.
func (p *rayProcess) stop(grace time.Duration) {
	stopGroup(p.cmd, p.ended, grace)
}

// tail returns the end of Ray's log, for a message.
func (n *rayNode) tail() string {
	b, err := os.ReadFile(n.shared.file(n.log))
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return ":\n" + strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// hostIP returns the address at which the other nodes reach this one: that of HPCC_RAY_INTERFACE, else the source
// address for another node, else that of the host name, else the first that is not local.
func (n *rayNode) hostIP() (string, error) {
	if n.plan.Nodes == 1 {
		return "127.0.0.1", nil
	}
	var found []net.IP
	if name := os.Getenv("HPCC_RAY_INTERFACE"); name != "" {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return "", fmt.Errorf("finding the address of HPCC_RAY_INTERFACE %q: %w", name, err)
		}
		addresses, _ := i.Addrs()
		found = ipsOf(addresses)
	} else {
		if c, err := net.Dial("udp", net.JoinHostPort(n.peer, "9")); n.peer != "" && err == nil { // sends nothing
			if a, ok := c.LocalAddr().(*net.UDPAddr); ok {
				found = append(found, a.IP)
			}
			c.Close()
		}
		host, _ := os.Hostname()
		named, _ := net.LookupIP(host)
		found = append(found, named...)
		addresses, _ := net.InterfaceAddrs()
		found = append(found, ipsOf(addresses)...)
	}
	found = slices.DeleteFunc(found, func(ip net.IP) bool { return ip.IsLoopback() || ip.IsLinkLocalUnicast() })
	if len(found) == 0 {
		return "127.0.0.1", nil // all nodes are on one machine
	}
	i := slices.IndexFunc(found, func(ip net.IP) bool { return ip.To4() != nil }) // all versions of Ray support IPv4
	return found[max(i, 0)].String(), nil
}

func ipsOf(list []net.Addr) []net.IP {
	var out []net.IP
	for _, a := range list {
		if ip, ok := a.(*net.IPNet); ok {
			out = append(out, ip.IP)
		}
	}
	return out
}

// freePorts returns n TCP ports that are free at an address of this machine, or at all its
// addresses for "".
func freePorts(address string, n int) ([]string, error) {
	var out []string
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			return nil, fmt.Errorf("finding a free port: %w", err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		out = append(out, port)
	}
	return out, nil
}

// ownDir creates a directory. It accepts an existing one of this user, because the nodes of a
// test may share /tmp.
func ownDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	fi, serr := os.Lstat(dir)
	if serr != nil {
		return serr
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || !fi.IsDir() || int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%q is not a directory of this user", dir)
	}
	return nil
}

// usableCPUs returns the number of processors that this process may run on.
func usableCPUs() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return 1
	}
	return set.Count()
}

// EndChildren kills the remaining children of this process. Their children become its own when
// their parents end, and are killed too.
func EndChildren() {
	self := strconv.Itoa(os.Getpid())
	for end := time.Now().Add(rayGrace); time.Now().Before(end); time.Sleep(rayPoll / 20) {
		left := false
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			if s := Stat(pid); len(s) < 2 || s[1] != self {
				continue
			}
			left = true
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		if !left {
			return
		}
	}
}

// markTemp marks a temporary directory of Ray with this process. It also removes the user's other
// directories whose processes are gone, because some schedulers kill a job before it can clean up.
func markTemp(dir string) {
	mark := fmt.Sprintf(".hpcc-%d-%s", os.Getpid(), startTime(os.Getpid()))
	_ = os.WriteFile(filepath.Join(dir, mark), nil, 0o600)
	abandoned := map[string]bool{}
	marks, _ := filepath.Glob("/tmp/ray-*/.hpcc-*-*")
	for _, m := range marks {
		f := strings.Split(filepath.Base(m), "-")
		pid, err := strconv.Atoi(f[1])
		alive := err == nil && f[2] != "" && startTime(pid) == f[2]
		if old, seen := abandoned[filepath.Dir(m)]; !seen || old {
			abandoned[filepath.Dir(m)] = !alive
		}
	}
	for d, gone := range abandoned {
		fi, err := os.Lstat(d)
		if err != nil || !gone {
			continue
		}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Getuid() && fi.IsDir() {
			_ = os.RemoveAll(d)
		}
	}
}
