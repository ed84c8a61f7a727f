package metrics

import (
	"math"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A recorder writes the record of one run. A nil recorder writes none.
type recorder struct {
	options      Options
	header       Header
	begun        bool // the header was written
	over         bool // the run has ended
	out          log
	cgroups      *cgroups
	stalls       stalls
	network      network
	gpus         *gpus
	tree         *tree // nil until the program runs
	start        time.Time
	spent        float64 // processor time of this process before the run
	shared       bool    // other processes are in the cgroups
	limit        int64   // memory limit in bytes; 0: none
	guard        memoryGuard
	inheritedRSS int64   // bytes: the kernel starts the program's largest resident set with this process's
	sampling     float64 // processor time of taking samples
	samples      int
	rssAsked     int64 // sum of resident sets at the last query of proportional ones
	last         Sample
	most         peaks
}

// peaks are the maxima of samples.
type peaks struct {
	rss, pss, cache    int64
	processes, threads int
}

// headerWait is how long the header waits for the tools of GPUs.
const headerWait = 2 * time.Second

// newRecorder records the state before a run.
func newRecorder(cmd *exec.Cmd, r *Run, o Options) *recorder {
	rec := &recorder{options: o, start: r.Start, cgroups: findCgroups("/"), spent: ownTime()}
	h := o.Header
	h.Kind, h.Version, h.Start = kindHeader, recordVersion, r.Start
	if h.Command == nil {
		h.Command = r.Command
	}
	rec.header = h
	rec.shared = rec.cgroups.shared(os.Getpid(), startedUs)
	rec.cgroups.begin()
	rec.stalls.begin(rec.cgroups)
	rec.network.begin()
	env := cmd.Env
	if env == nil {
		env = os.Environ()
	}
	children.adopt()
	rec.gpus = watchGPUs(env)
	rec.out.open(o.File)
	b, _ := rec.network.read.read("/proc/self/status")
	rec.inheritedRSS = (field(b, "VmHWM") << 10) * 9 / 8 // with a margin, because it may grow until the program starts
	return rec
}

// startedUs reports whether a process is this one or an ancestor, which wait for it.
func startedUs(pid int) bool {
	var r reader
	for at, n := os.Getpid(), 0; at > 0 && n < maxThreads; n++ {
		if at == pid {
			return true
		}
		s, _ := r.stat(at)
		at = s.parent
	}
	return false
}

// recordErr returns why the file will stay empty.
func (rec *recorder) recordErr() error {
	if rec == nil {
		return nil
	}
	return unwritten(rec.out.err)
}

// watch samples the program until it has ended.
func (rec *recorder) watch(cmd *exec.Cmd) {
	if rec == nil {
		return
	}
	pid, group := cmd.Process.Pid, 0
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Setpgid {
		group = pid
	}
	rec.tree = newTree(pid, group, rec.options.Related)
	ended := make(chan struct{})
	go func() { // leaves the status to cmd.Wait
		_, _ = retry(func() (int, error) { return 0, unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
		close(ended)
	}()
	rec.describe()
	rec.guard.watch(rec.cgroups)
	defer rec.guard.end()
	header := time.NewTimer(headerWait)
	defer header.Stop()
	ready := rec.gpus.ready
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ended:
			rec.sample()
			return
		case <-ready:
			ready = nil
			rec.writeHeader()
		case <-header.C:
			rec.writeHeader()
		case <-next.C:
			if rec.guard.shouldPostpone() {
				next.Reset(postponePause)
				continue
			}
			before := ownTime()
			rec.sample()
			rec.sampling += ownTime() - before
			next.Reset(pause(time.Since(rec.start), rec.sampling))
		}
	}
}

// The intervals of samples: short at first, longer as the run gets older, and limited so
// that sampling uses at most a share of a processor, plus an allowance at the start.
const (
	firstPause = 50 * time.Millisecond
	longPause  = 10 * time.Second
	dayPause   = time.Minute // after a day
	share      = 0.005
	allowance  = 0.01 // seconds
)

// pause returns the time until the next sample. sampling is the processor time of all samples so
// far, in seconds.
func pause(running time.Duration, sampling float64) time.Duration {
	p := min(max(running/20, firstPause), longPause)
	if running > 24*time.Hour {
		p = dayPause
	}
	earliest := time.Duration((sampling - allowance) / share * float64(time.Second))
	return max(p, earliest-running)
}

// ownTime returns the processor time of this process, in seconds.
func ownTime() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// describe completes the header, except for the GPUs.
func (rec *recorder) describe() {
	host := rec.header.Machine.Host
	rec.header.Machine = thisMachine()
	if host != "" {
		rec.header.Machine.Host = host
	}
	rec.header.Limits = rec.cgroups.limits(rec.header.Machine)
	rec.header.Limits.Shared = rec.shared && rec.header.Limits.Cgroup != ""
	rec.limit = rec.header.Limits.Memory
}

// writeHeader writes the header once.
func (rec *recorder) writeHeader() {
	if rec.begun {
		return
	}
	rec.begun = true
	rec.header.Machine.GPUs = rec.gpus.list()
	rec.out.first(rec.header)
	rec.write()
}

// write writes the collected lines.
func (rec *recorder) write() {
	rec.out.flush()
	if rec.options.Progress != nil && !rec.over {
		now := &Run{Start: rec.start, End: time.Now()}
		now.Usage = Usage{User: rec.last.CPU - rec.last.System, System: rec.last.System}
		rec.options.Progress(&rec.header, rec.footer(now))
	}
}

// pssEvery is the number of samples for each one with proportional sets, which are
// expensive. There is an additional one whenever memory has grown.
const pssEvery = 10

// sample takes a sample.
func (rec *recorder) sample() {
	c := rec.tree.scan(rec.samples%pssEvery == pssEvery-1)
	if c.pss == 0 && c.rss > rec.rssAsked+rec.rssAsked/10 {
		c = rec.tree.scan(true)
	}
	if c.pss > 0 {
		rec.rssAsked = c.rss
	}
	rec.network.update(rec.tree.program)
	s := Sample{Kind: kindSample, At: round(time.Since(rec.start).Round(time.Millisecond).Seconds()),
		CPU: round(float64(c.user+c.system) * tick), System: round(float64(c.system) * tick),
		RSS: c.rss, PSS: c.pss, Swap: c.swap, Processes: c.processes, Threads: c.threads, Read: c.in, Written: c.out,
		NetIn: rec.network.in, NetOut: rec.network.out, Cgroup: rec.cgroups.use(), Pressure: rec.stalls.now(),
		GPUs: rec.gpus.samples(time.Now())}
	rec.samples++
	rec.most.take(&s)
	if s.Peak = rec.most.pss; s.Peak == 0 {
		s.Peak = rec.most.rss
	}
	rec.last = s
	rec.out.sample(&s)
	near := rec.nearLimit(&s)
	if near {
		rec.writeHeader() // even if the GPUs' tools have not reported
	}
	if rec.begun && (near || rec.out.due(time.Since(rec.start))) {
		rec.write()
	}
}

// nearLimit reports whether the kernel may soon kill all processes in the cgroup, including
// this one.
func (rec *recorder) nearLimit(s *Sample) bool {
	return rec.limit > 0 && s.Cgroup != nil && s.Cgroup.Memory-s.Cgroup.Cache > rec.limit/10*9
}

func (p *peaks) take(s *Sample) {
	p.rss, p.pss = max(p.rss, s.RSS), max(p.pss, s.PSS)
	p.processes, p.threads = max(p.processes, s.Processes), max(p.threads, s.Threads)
	if s.Cgroup != nil {
		p.cache = max(p.cache, s.Cgroup.Cache)
	}
}

// round rounds to microseconds.
func round(seconds float64) float64 { return math.Round(seconds*1e6) / 1e6 }

// end ends the record of a program that ended, was ended because of problem, or did not run
// because of err.
func (rec *recorder) end(r *Run, problem string, err error) {
	if rec == nil {
		return
	}
	tool := rec.gpus.end()
	if rec.over = true; rec.tree == nil {
		rec.describe()
	}
	r.Usage.add(children.leave(rec.tree))
	rec.writeHeader()
	f := rec.footer(r)
	if f.Problem = problem; problem == "" && err != nil {
		f.Problem = err.Error()
	}
	f.Cost = round(f.Cost + tool)
	rec.out.add(f)
	r.Footer, r.RecordErr = f, rec.out.close()
	if rec.options.Progress != nil {
		rec.options.Progress(&rec.header, f)
	}
}

// footer returns the footer of a run that has ended or is in progress.
func (rec *recorder) footer(r *Run) *Footer {
	f := &Footer{Kind: kindFooter, End: r.End, Wall: r.Wall().Seconds(), Exit: r.Exit, Signal: r.Signal, Usage: r.Usage,
		GPUs: rec.gpus.uses(&rec.header.Machine), Cost: ownTime() - rec.spent}
	if rec.samples > 0 {
		rec.sumUp(f, r)
	}
	return f
}

// sumUp sets the program's total usage.
func (rec *recorder) sumUp(f *Footer, r *Run) {
	s := &rec.last
	f.Samples = rec.samples
	f.total(s, &rec.most)
	f.Read, f.Written = max(s.Read, r.Usage.ReadBlocks*512), max(s.Written, r.Usage.WrittenBlocks*512)
	// wait4 leaves out related processes and those that the program left running.
	f.Usage.User, f.Usage.System = max(f.Usage.User, round(s.CPU-s.System)), max(f.Usage.System, s.System)
	f.Memory, f.MemoryFrom = rec.peak(r.Usage.MaxRSS)
}

// peak returns the peak memory of the run and its source. largest is the memory of the largest
// process.
func (rec *recorder) peak(largest int64) (int64, string) {
	sampled, from := rec.most.memory(rec.last.Cgroup, rec.shared)
	if from != "cgroup" && (largest > max(sampled, rec.inheritedRSS) || sampled == 0) {
		return largest, "process"
	}
	return sampled, from
}
