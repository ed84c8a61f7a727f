package pack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/quantity"
	"hpcc/job/tunnel"
	"hpcc/runtime/inherit"
	"hpcc/text"
)

// A worker runs tasks on a node.
type worker struct {
	plan        *Plan
	token       string
	rank        int
	incarnation string
	host        string
	slots       []*slot
	records     *recordFile
	todo        chan assignment
	logf        func(format string, args ...any)

	lock   sync.Mutex
	wire   *wire       // nil without a connection
	queued map[int]int // attempts of tasks that wait for a slot, by index
	held   map[int]int // attempts of tasks that run or whose records are being written
	unsent []byte      // lines about ends for the next connection
}

// An assignment is an attempt of a task to run.
type assignment struct{ index, attempt int }

// errStopped means that the job is being ended.
var errStopped = errors.New("the job is being ended")

// errUnfit means that a node cannot run the tasks of the job.
var errUnfit = errors.New("the node cannot run tasks of this job")

// errNoCoordinator means that a worker did not reach a coordinator before its lease ended.
var errNoCoordinator = errors.New("no coordinator of the packed job answers")

// work runs tasks on this node until none is left. rank is the number of the node.
func work(ctx context.Context, dir, run string, rank int, logf func(format string, args ...any)) error {
	p, token, err := join(dir, run)
	if err != nil {
		return err
	}
	p.Argv = p.Argv[p.Image:]
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0); err != nil { // the start of an image clears it
		return err
	}
	w := &worker{plan: p, token: token, rank: rank, incarnation: random(4), host: tunnel.Host(), logf: logf,
		todo: make(chan assignment, maxQueued), queued: map[int]int{}, held: map[int]int{}}
	if err := p.params.Parse(p.Params); err != nil {
		return err
	}
	if err := w.openSlots(); err != nil {
		return fmt.Errorf("%w: %s: %w", errUnfit, w.host, err)
	}
	defer w.removeDirs()
	tasks, end := context.WithCancelCause(ctx)
	defer end(nil)
	var g sync.WaitGroup
	for _, s := range w.slots {
		g.Go(func() { s.loop(tasks) })
	}
	g.Go(func() { w.records.noteRunning(tasks, w.slots) })
	err = w.serve(ctx)
	end(err)
	g.Wait()
	if errors.Is(err, errStopped) {
		err = nil
	}
	return errors.Join(err, w.records.close())
}

// maxQueued is the number of tasks that a worker takes before it has slots for them.
const maxQueued = 20_000

// serve runs the tasks that the coordinator assigns, until none is left. It returns errNoCoordinator
// when the lease ends.
func (w *worker) serve(ctx context.Context) error {
	for heard := time.Now(); ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wire := w.connect(ctx, heard.Add(w.plan.Lease))
		if wire == nil {
			if time.Since(heard) >= w.plan.Lease {
				return errNoCoordinator
			}
			time.Sleep(reconnectEach)
			continue
		}
		done, last, err := w.converse(ctx, wire)
		if heard = last; done {
			return err
		}
		if ctx.Err() == nil {
			w.logf("lost the connection to the coordinator: %v", err)
		}
	}
}

const reconnectEach = 200 * time.Millisecond

// connect tries all addresses of the coordinator at once until a time, and returns the first connection.
func (w *worker) connect(ctx context.Context, until time.Time) *wire {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	var at address
	if !w.plan.get("address", &at) {
		return nil
	}
	id, age := supervisor()
	hello := fmt.Sprintf("%d %d %s %d %s %s", w.rank, len(w.slots), id, age/time.Millisecond, w.incarnation, w.host)
	found := make(chan *wire, len(at.Hosts))
	for _, a := range at.Hosts {
		go func() {
			c, _ := dial(a, w.token, hello, w.plan.Lease)
			found <- c
		}()
	}
	for n := range at.Hosts {
		select {
		case <-ctx.Done():
			return nil
		case c := <-found:
			if c == nil {
				continue
			}
			go func() { // close the others
				for range len(at.Hosts) - n - 1 {
					if c := <-found; c != nil {
						c.conn.Close()
					}
				}
			}()
			return c
		}
	}
	return nil
}

// converse queues the tasks from a connection until it ends. It reports whether this worker has to end,
// and when the last line arrived.
func (w *worker) converse(ctx context.Context, c *wire) (done bool, heard time.Time, err error) {
	closed := make(chan struct{})
	defer close(closed)
	defer c.conn.Close()
	defer w.setWire(nil)
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	defer stop()
	w.rejoin(c)
	go c.pings(closed)
	for heard = time.Now(); ; heard = time.Now() {
		f, err := c.next()
		if err != nil {
			return false, heard, err
		}
		switch {
		case len(f) == 1 && f[0] == "done":
			return true, heard, nil
		case len(f) == 1 && f[0] == "stop":
			return true, heard, errStopped
		case len(f) == 1 && f[0] == "lost":
			return true, heard, errNoCoordinator
		case len(f) == 4 && f[0] == "run":
			first, e1 := strconv.Atoi(f[1])
			last, e2 := strconv.Atoi(f[2])
			attempt, e3 := strconv.Atoi(f[3])
			if err := errors.Join(e1, e2, e3); err != nil || last-first >= maxQueued {
				return false, heard, fmt.Errorf("unknown line %q", strings.Join(f, " "))
			}
			w.queue(first, last, attempt)
		case len(f) == 1 && f[0] == "ping":
		default:
			return false, heard, fmt.Errorf("unknown line %q", strings.Join(f, " "))
		}
	}
}

func (w *worker) setWire(c *wire) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.wire = c
}

// rejoin drops the tasks that no slot has taken, and reports which ones run and have ended.
func (w *worker) rejoin(c *wire) {
	w.lock.Lock()
	defer w.lock.Unlock()
	clear(w.queued)
	var lines []byte
	for k, attempt := range w.held {
		lines = fmt.Appendf(lines, "hold %d %d\n", k, attempt)
	}
	lines = slices.Concat([]byte("join\n"), lines, w.unsent, []byte("ready\n"))
	w.unsent, w.wire = nil, c
	c.sendAll(lines)
}

func (w *worker) queue(first, last, attempt int) {
	w.lock.Lock()
	for k := first; k <= last; k++ {
		w.queued[k] = attempt
	}
	w.lock.Unlock()
	for k := first; k <= last; k++ {
		w.todo <- assignment{k, attempt} // never blocks long: the coordinator assigns at most maxQueued
	}
}

// take marks a task as running, and reports its start. It returns false if the task was dropped.
func (w *worker) take(a assignment) bool {
	w.lock.Lock()
	defer w.lock.Unlock()
	if attempt, ok := w.queued[a.index]; !ok || attempt != a.attempt || w.wire == nil {
		return false
	}
	delete(w.queued, a.index)
	w.held[a.index] = a.attempt
	w.wire.send("start %d", a.index)
	return true
}

// ended reports the end of tasks whose records are written.
func (w *worker) ended(lines []byte, tasks []int) {
	w.lock.Lock()
	defer w.lock.Unlock()
	for _, k := range tasks {
		delete(w.held, k)
	}
	if w.unsent = append(w.unsent, lines...); w.wire != nil {
		w.wire.sendAll(w.unsent)
		w.unsent = nil
	}
}

// openSlots opens the files of the records and of the slots.
func (w *worker) openSlots() error {
	n, cpus, err := w.plan.slots()
	if err != nil {
		return err
	}
	gpus, err := splitGPUs(os.Getenv, n, w.plan.Each.GPUs)
	if err != nil {
		return err
	}
	file, outputs := (&job.Task{}).PackedFile(w.plan.dir, w.plan.run, w.rank)
	header := &job.Task{Host: w.host, Native: w.plan.Native, ImageVersion: w.plan.Version}
	if w.plan.Output != "" {
		parts := strings.Split(w.plan.Output, job.Placeholder) // that is left to replace
		for i := range parts {
			parts[i] = header.File(parts[i], w.plan.Name, w.plan.Job)
		}
		if header.Output, err = filepath.Abs(strings.Join(parts, job.Placeholder)); err != nil {
			return err
		}
	}
	if w.records, err = openRecords(file, header.PackedHeader(w.plan.Params), w); err != nil {
		return err
	}
	for i := range n {
		s := &slot{worker: w, number: i, cpus: cpus[i],
			dir: filepath.Join(w.plan.dir, fmt.Sprintf("results.%s.%s.%d", w.plan.run, w.incarnation, i))}
		s.env = w.plan.environ(gpus[i])
		if w.plan.Output == "" {
			if s.output, err = files.Create(outputs+strconv.Itoa(i), os.O_WRONLY|os.O_APPEND); err != nil {
				return err
			}
		}
		w.slots = append(w.slots, s)
	}
	return nil
}

func (w *worker) removeDirs() {
	for _, s := range w.slots {
		_ = os.Remove(s.dir) // if empty
		if s.output != nil {
			s.output.Close()
		}
	}
}

// slots returns the number of tasks that run at once on this node, and the CPUs of each slot. The
// latter are nil if the slots do not have CPUs of their own.
func (p *Plan) slots() (n int, cpus [][]int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, nil, fmt.Errorf("finding the CPUs: %w", err)
	}
	var usable []int
	for k := range len(set) * 64 {
		if set.IsSet(k) {
			usable = append(usable, k)
		}
	}
	each := max(1, p.Each.CPUs)
	if n = p.Slots; n == 0 {
		n = len(usable) / each
		if m := usableMemory(); p.Each.Memory > 0 && m > 0 {
			n = min(n, int(m/p.Each.Memory))
		}
		if n < 1 {
			return 0, nil, fmt.Errorf("a task needs %s and %s of memory; the node has %s and %s", text.Count(each, "CPU", "CPUs"),
				quantity.FormatMemory(p.Each.Memory), text.Count(len(usable), "CPU", "CPUs"), quantity.FormatMemory(usableMemory()>>20<<20))
		}
	}
	cpus = make([][]int, n)
	if p.Each.CPUs > 0 && n*each <= len(usable) {
		for i := range n {
			cpus[i] = usable[i*each : (i+1)*each]
		}
	}
	return n, cpus, nil
}

// usableMemory returns the memory of this node, in bytes, or 0 if it is unknown.
func usableMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// gpuVariables select the GPUs of a program.
var gpuVariables = []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"}

// splitGPUs returns the variables that give each of n slots its own GPUs, of those that the variables
// of this process name.
func splitGPUs(getenv func(string) string, n, each int) ([][]string, error) {
	out := make([][]string, n)
	if each == 0 {
		return out, nil
	}
	found := false
	for _, name := range gpuVariables {
		v := getenv(name)
		if v == "" {
			continue
		}
		found = true
		list := strings.Split(v, ",")
		if len(list) < n*each {
			return nil, fmt.Errorf("%s=%s has %d GPUs, too few for %d tasks with %d each", name, v, len(list), n, each)
		}
		for i := range n {
			out[i] = append(out[i], name+"="+strings.Join(list[i*each:(i+1)*each], ","))
		}
	}
	if !found {
		for i := range n { // the scheduler leaves all GPUs of the node to the job
			var list []string
			for k := range each {
				list = append(list, strconv.Itoa(i*each+k))
			}
			out[i] = append(out[i], gpuVariables[0]+"="+strings.Join(list, ","))
		}
	}
	return out, nil
}

// environ returns the environment of a slot's tasks, without the variables of each task.
func (p *Plan) environ(more []string) []string {
	set := map[string]bool{"HPCC_TASK_ID": true, "HPCC_TASK_COUNT": true, "HPCC_TASK_DIR": true, "HPCC_JOB_DIR": true,
		supervisorVariable: true}
	for _, e := range more {
		name, _, _ := strings.Cut(e, "=")
		set[name] = true
	}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return set[name]
	})
	return append(append(env, more...), "HPCC_TASK_COUNT="+strconv.Itoa(p.Count), "HPCC_JOB_DIR="+p.dir)
}

// A slot runs one task at a time.
type slot struct {
	worker *worker
	number int
	cpus   []int     // nil: those of the worker
	env    []string  // of its tasks
	output *os.File  // of the tasks, one after the other; nil if each has its own file
	dir    string    // HPCC_TASK_DIR
	made   time.Time // modification time of dir when it was made

	// The lock of the worker protects these.
	begun *job.Task // the record of the program that runs; nil: none
	noted bool      // the record of its start is written
}

// loop runs tasks until ctx ends. It keeps its thread: children inherit the CPUs of the thread, and
// the kernel kills a child when the thread that started it ends.
func (s *slot) loop(ctx context.Context) {
	goruntime.LockOSThread()
	if s.cpus != nil {
		var set unix.CPUSet
		for _, k := range s.cpus {
			set.Set(k)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			s.worker.logf("warning: giving tasks their own CPUs: %v", err)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-s.worker.todo:
			if ctx.Err() == nil && s.worker.take(a) {
				s.run(ctx, a)
			}
		}
	}
}

// killGrace is the time between SIGTERM and SIGKILL for the tasks of a worker that has to end, unless
// the lease is shorter.
const killGrace = 10 * time.Second

// run runs a task once, and records its end.
func (s *slot) run(ctx context.Context, a assignment) {
	p := s.worker.plan
	t := &job.Task{Index: a.index, Attempt: a.attempt, Host: s.worker.host, Native: p.Native,
		Start: time.Now(), Params: p.params.Row(a.index)}
	usage := &syscall.Rusage{}
	if err := s.start(ctx, t, usage); err != nil {
		s.worker.logf("task %d: %v", t.Index, err)
		t.End, t.Exit, t.Problem = time.Now(), notRun, err.Error()
	}
	s.worker.records.add(s, t, usage)
}

// notRun is the exit status of a task whose program did not run.
const notRun = 125

// start runs the program of a task to its end, which it sets in t.
func (s *slot) start(ctx context.Context, t *job.Task, usage *syscall.Rusage) error {
	p := s.worker.plan
	argv := t.Fill(p.Argv)
	if err := p.Version.CheckStart(p.File); err != nil {
		return err
	}
	if p.fill {
		remove, err := t.FillValues(p.dir)
		if err != nil {
			return err
		}
		defer remove()
	}
	if err := s.makeDir(); err != nil {
		return err
	}
	out, errs, from, err := s.open(t)
	if err != nil {
		return err
	}
	defer closeOwn(s.output, out, errs)
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	env := append(s.env[:len(s.env):len(s.env)], "HPCC_TASK_ID="+strconv.Itoa(t.Index), "HPCC_TASK_DIR="+s.dir)
	program, argv = inherit.Command(program, argv)
	child, err := os.StartProcess(program, argv, &os.ProcAttr{Dir: "", Env: env, Files: []*os.File{null, out, errs},
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}})
	if err != nil {
		return err
	}
	t.PID = child.Pid
	s.note(t)
	stop := context.AfterFunc(ctx, func() { s.worker.stop(ctx, child.Pid) })
	state, err := child.Wait()
	_ = syscall.Kill(-child.Pid, syscall.SIGKILL) // what the task leaves behind
	asked := !stop()
	t.End = time.Now()
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", argv[0], err)
	}
	if take(t, state, usage); asked && t.Exit == 0 {
		t.Problem = "status 0 after SIGTERM, which asked it to stop"
	}
	return s.close(t, out, from)
}

// stop ends the process group of a task: at once after the lease, because the task may run on another
// node soon.
func (w *worker) stop(ctx context.Context, pid int) {
	if !errors.Is(context.Cause(ctx), errNoCoordinator) {
		_ = syscall.Kill(-pid, syscall.SIGTERM)
		time.Sleep(min(killGrace, w.plan.Lease))
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
}

// take sets the end of a program in its record.
func take(t *job.Task, state *os.ProcessState, usage *syscall.Rusage) {
	t.Exit = state.ExitCode()
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		t.Signal = unix.SignalName(ws.Signal())
	}
	if u, ok := state.SysUsage().(*syscall.Rusage); ok {
		*usage = *u
	}
}

// makeDir makes HPCC_TASK_DIR.
func (s *slot) makeDir() error {
	if !s.made.IsZero() {
		return nil
	}
	if err := os.Mkdir(s.dir, 0o777&files.Perm(s.dir)); err != nil && !os.IsExist(err) {
		return fmt.Errorf("creating the results directory: %w", err)
	}
	fi, err := os.Stat(s.dir)
	if err == nil {
		s.made = fi.ModTime()
	}
	return err
}

// open opens the output files of a task, and returns where its output begins in the slot's file.
func (s *slot) open(t *job.Task) (out, errs *os.File, from int64, err error) {
	p := s.worker.plan
	if s.output != nil {
		fi, err := s.output.Stat()
		if err != nil {
			return nil, nil, 0, err
		}
		t.Output = s.output.Name()
		t.SetPart(s.number, fi.Size(), -1)
		return s.output, s.output, fi.Size(), nil
	}
	mode := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if t.Attempt == 0 {
		mode |= os.O_TRUNC // later attempts keep the output of earlier ones
	}
	if out, err = os.OpenFile(t.File(p.Output, p.Name, p.Job), mode, 0o666); err != nil {
		return nil, nil, 0, fmt.Errorf("opening the output file: %w", err)
	}
	if p.Errors == "" {
		return out, out, 0, nil
	}
	if errs, err = os.OpenFile(t.File(p.Errors, p.Name, p.Job), mode, 0o666); err != nil {
		out.Close()
		return nil, nil, 0, fmt.Errorf("opening the file for standard error: %w", err)
	}
	return out, errs, 0, nil
}

// closeOwn closes the files of a task that are not the one that it shares with others.
func closeOwn(shared, out, errs *os.File) {
	if out != shared {
		out.Close()
	}
	if errs != out {
		errs.Close()
	}
}

// close notes the size of a task's output, and keeps its results.
func (s *slot) close(t *job.Task, out *os.File, from int64) error {
	if out == s.output {
		fi, err := out.Stat()
		if err != nil {
			return err
		}
		t.SetPart(s.number, from, max(0, fi.Size()-from))
	}
	fi, err := os.Stat(s.dir)
	if err == nil && fi.ModTime().Equal(s.made) { // nothing was created
		return nil
	}
	s.made = time.Time{}
	if err == nil && os.Remove(s.dir) != nil { // not empty
		keep := t.Dir(s.worker.plan.dir)
		if err = os.RemoveAll(keep); err == nil { // of an earlier attempt
			err = os.Rename(s.dir, keep)
		}
	}
	if err != nil {
		return fmt.Errorf("keeping the results of the task: %w", err)
	}
	return nil
}

// note keeps the record of a task that has started, for noteRunning.
func (s *slot) note(t *job.Task) {
	s.worker.lock.Lock()
	defer s.worker.lock.Unlock()
	begun := *t
	s.begun, s.noted = &begun, false
}
