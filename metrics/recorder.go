package metrics

import (
	"math"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A recorder makes the record of one run. A nil one makes none.
type recorder struct {
	options  Options
	header   Header
	begun    bool // the header is written
	over     bool // the run has ended
	out      log
	cgroups  *cgroups
	stalls   stalls
	network  network
	gpus     *gpus
	tree     *tree // nil until the program runs
	start    time.Time
	spent    float64 // processor time of this process before the run
	shared   bool    // others are in the cgroups
	limit    int64   // of memory, in bytes; 0: none
	brink    brink
	inherit  int64   // bytes: the kernel begins to count the program's largest resident set with this process's
	looking  float64 // processor time that samples took
	samples  int
	rssAsked int64 // the sum of resident sets when the proportional ones were last asked for
	last     Sample
	most     peaks
}

// peaks are the largest values that samples found.
type peaks struct {
	rss, pss, cache    int64
	processes, threads int
}

// How long to go on without what only GPUs' tools know, which the header has.
const headerWait = 2 * time.Second

// newRecorder notes how everything stands before a run.
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
	rec.inherit = (field(b, "VmHWM") << 10) * 9 / 8 // and it may grow until the program begins
	return rec
}

// startedUs says whether a process is this one, or one that started it: they wait for it.
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

// unkept says why there will be nothing in the file.
func (rec *recorder) unkept() error {
	if rec == nil {
		return nil
	}
	return unwritten(rec.out.err)
}

// watch looks at the program until it has ended.
func (rec *recorder) watch(cmd *exec.Cmd) {
	if rec == nil {
		return
	}
	pid, group := cmd.Process.Pid, 0
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Setpgid {
		group = pid
	}
	rec.tree = newTree(pid, group, rec.options.Kin)
	ended := make(chan struct{})
	go func() { // and leaves it for cmd.Wait to take
		_, _ = retry(func() (int, error) { return 0, unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
		close(ended)
	}()
	rec.describe()
	rec.brink.watch(rec.cgroups)
	defer rec.brink.end()
	header := time.NewTimer(headerWait)
	defer header.Stop()
	heard := rec.gpus.heard
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ended:
			rec.look()
			return
		case <-heard:
			heard = nil
			rec.writeHeader()
		case <-header.C:
			rec.writeHeader()
		case <-next.C:
			if rec.brink.near() {
				next.Reset(heldPause)
				continue
			}
			before := ownTime()
			rec.look()
			rec.looking += ownTime() - before
			next.Reset(pause(time.Since(rec.start), rec.looking))
		}
	}
}

// How often a run is looked at: at first often, then the less the longer it runs, and never so
// often that looking takes more than a part of a processor, but for a little at the start.
const (
	firstPause = 50 * time.Millisecond
	longPause  = 10 * time.Second
	dayPause   = time.Minute // after a day
	share      = 0.005
	allowance  = 0.01 // seconds
)

// pause is the time to the next look at a run, when all until now took so many seconds of a processor.
func pause(running time.Duration, looking float64) time.Duration {
	p := min(max(running/20, firstPause), longPause)
	if running > 24*time.Hour {
		p = dayPause
	}
	earliest := time.Duration((looking - allowance) / share * float64(time.Second))
	return max(p, earliest-running)
}

// ownTime is the processor time of this process, in seconds.
func ownTime() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// describe completes the header, but for the GPUs.
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

// writeHeader writes the header, once.
func (rec *recorder) writeHeader() {
	if rec.begun {
		return
	}
	rec.begun = true
	rec.header.Machine.GPUs = rec.gpus.list()
	rec.out.first(rec.header)
	rec.write()
}

// write writes what there is.
func (rec *recorder) write() {
	rec.out.flush()
	if rec.options.Told != nil && !rec.over {
		now := &Run{Start: rec.start, End: time.Now()}
		now.Usage = Usage{User: rec.last.CPU - rec.last.System, System: rec.last.System}
		rec.options.Told(&rec.header, rec.footer(now))
	}
}

// pssEvery is how many samples there are for one with proportional sets, which
// take the kernel longer to say. There is one more whenever memory grew.
const pssEvery = 10

// look takes a sample.
func (rec *recorder) look() {
	c := rec.tree.look(rec.samples%pssEvery == pssEvery-1)
	if c.pss == 0 && c.rss > rec.rssAsked+rec.rssAsked/10 {
		c = rec.tree.look(true)
	}
	if c.pss > 0 {
		rec.rssAsked = c.rss
	}
	rec.network.look(rec.tree.program)
	s := Sample{Kind: kindSample, At: round(time.Since(rec.start).Round(time.Millisecond).Seconds()), CPU: round(float64(c.user+c.system) * tick), System: round(float64(c.system) * tick),
		RSS: c.rss, PSS: c.pss, Swap: c.swap, Processes: c.processes, Threads: c.threads, Read: c.in, Written: c.out,
		NetIn: rec.network.in, NetOut: rec.network.out, Cgroup: rec.cgroups.use(), Pressure: rec.stalls.now(), GPUs: rec.gpus.samples(time.Now())}
	rec.samples++
	rec.most.take(&s)
	if s.Peak = rec.most.pss; s.Peak == 0 {
		s.Peak = rec.most.rss
	}
	rec.last = s
	rec.out.sample(&s)
	near := rec.nearLimit(&s)
	if near {
		rec.writeHeader() // though the tools of GPUs have not answered
	}
	if rec.begun && (near || rec.out.due(time.Since(rec.start))) {
		rec.write()
	}
}

// nearLimit says whether the kernel may soon end everything in the cgroup, this process among it.
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

// round keeps a millionth.
func round(seconds float64) float64 { return math.Round(seconds*1e6) / 1e6 }

// end ends the record, of a program that ended, or was ended for a problem, or did not run: err says why.
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
	r.Footer, r.Unkept = f, rec.out.close()
	if rec.options.Told != nil {
		rec.options.Told(&rec.header, f)
	}
}

// footer is what is known of a run at its end, or of one that goes on.
func (rec *recorder) footer(r *Run) *Footer {
	f := &Footer{Kind: kindFooter, End: r.End, Wall: r.Wall().Seconds(), Exit: r.Exit, Signal: r.Signal, Usage: r.Usage,
		GPUs: rec.gpus.uses(&rec.header.Machine), Cost: ownTime() - rec.spent}
	if rec.samples > 0 {
		rec.sumUp(f, r)
	}
	return f
}

// sumUp says what the program used in all.
func (rec *recorder) sumUp(f *Footer, r *Run) {
	s := &rec.last
	f.Samples, f.Processes, f.Threads = rec.samples, rec.most.processes, rec.most.threads
	f.Read, f.Written = max(s.Read, r.Usage.ReadBlocks*512), max(s.Written, r.Usage.WrittenBlocks*512)
	f.NetIn, f.NetOut, f.Cgroup, f.Pressure = s.NetIn, s.NetOut, s.Cgroup, s.Pressure
	if len(rec.options.Kin) > 0 { // whom nobody here waits for
		f.Usage.User, f.Usage.System = max(f.Usage.User, round(s.CPU-s.System)), max(f.Usage.System, s.System)
	}
	f.Memory, f.MemoryFrom = rec.peak(r.Usage.MaxRSS)
}

// peak is the most memory that the run held, and who says so. The cgroup's peak is exact, but
// where much of it was the contents of files it says little of what the run needs.
func (rec *recorder) peak(largest int64) (int64, string) {
	p, u := rec.most, rec.last.Cgroup
	if !rec.shared && u != nil && u.Peak > 0 && u.Peak >= 8*p.cache {
		return u.Peak, "cgroup"
	}
	sampled, from := p.pss, "pss"
	if p.pss == 0 {
		sampled, from = p.rss, "rss"
	}
	if largest > max(sampled, rec.inherit) || sampled == 0 {
		return largest, "process"
	}
	return sampled, from
}
