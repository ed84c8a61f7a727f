package metrics

import (
	"math"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// GPUs are queried with the vendors' tools, which run as children of this process during the
// run. Without a tool, or with unusable output, there are no GPUs.

// A gpuState is a tool's report on a GPU.
type gpuState struct {
	GPU
	id   string // permanent ID
	now  GPUSample
	seen time.Time // time of the report
}

// gpus holds the GPUs that the program may use.
type gpus struct {
	mu     sync.Mutex
	latest map[int]gpuState
	sums   map[int]*gpuSum
	every  time.Duration // interval between reports
	silent bool          // there will be no more reports
	ready  chan struct{} // closed after the first report, or if no report will come
	once   sync.Once
	stop   func() (cost float64) // ends the tool and returns its processor time; nil: no tool
}

// A gpuSum accumulates the use of a GPU.
type gpuSum struct {
	busy    [101]float64 // seconds at each percentage
	seconds float64
	memory  int64
	energy  float64
	last    time.Time
}

// maxGPUs bounds the number of reported GPUs.
const maxGPUs = 256

// watchGPUs starts a tool. env is the program's environment, which selects its GPUs.
func watchGPUs(env []string) *gpus {
	g := &gpus{latest: map[int]gpuState{}, sums: map[int]*gpuSum{}, ready: make(chan struct{})}
	vars := func(name string) (string, bool) { return variable(env, name) }
	if path, err := exec.LookPath("nvidia-smi"); err == nil {
		if allowed, some := visible(vars, "CUDA_VISIBLE_DEVICES"); some {
			g.followNvidia(path, allowed)
			return g
		}
	} else if path, err := exec.LookPath("rocm-smi"); err == nil {
		if allowed, some := visible(vars, "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"); some {
			g.pollROCm(path, allowed)
			return g
		}
	}
	g.markReady()
	return g
}

// variable returns the last value of an environment variable.
func variable(env []string, name string) (string, bool) {
	for _, e := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// visible parses the first variable that is set, a list of indices and IDs. The list ends at
// an invalid entry such as -1. Without a variable all GPUs are visible.
func visible(vars func(string) (string, bool), names ...string) (allowed func(gpuState) bool, some bool) {
	for _, name := range names {
		list, ok := vars(name)
		if !ok {
			continue
		}
		var ids []string
		for w := range strings.SplitSeq(list, ",") {
			w = strings.TrimSpace(w)
			if w == "" || strings.HasPrefix(w, "-") || w == "NoDevFiles" || len(ids) == maxGPUs {
				break
			}
			ids = append(ids, w)
		}
		return func(s gpuState) bool {
			return slices.ContainsFunc(ids, func(w string) bool {
				if n, err := strconv.Atoi(w); err == nil {
					return n == s.Index
				}
				// A part of a GPU has an ID that samples lack: all GPUs may be meant.
				return strings.HasPrefix(s.id, w) || strings.HasPrefix(w, "MIG-")
			})
		}, len(ids) > 0
	}
	return func(gpuState) bool { return true }, true
}

// markReady marks the first report as received or impossible.
func (g *gpus) markReady() { g.once.Do(func() { close(g.ready) }) }

// take records a report on all GPUs or on one. again reports whether they were known before.
func (g *gpus) take(states []gpuState, at time.Time) (again bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range states {
		_, known := g.latest[s.Index]
		if again = again || known; !known && len(g.latest) == maxGPUs {
			continue
		}
		sum := g.sums[s.Index]
		if sum == nil {
			sum = &gpuSum{last: at}
			g.sums[s.Index] = sum
		}
		s.seen = at
		g.latest[s.Index] = s
		// Almost 0 for the first report.
		sum.add(s.now, min(max(1e-3, at.Sub(sum.last).Seconds()), g.holds().Seconds()))
		sum.last = at
	}
	return again
}

// add counts the use of a GPU in the seconds before a report: tools report the time before the
// query.
func (u *gpuSum) add(s GPUSample, seconds float64) {
	if !s.Unknown {
		u.busy[int(s.Utilisation+0.5)] += seconds
		u.seconds += seconds
	}
	u.memory = max(u.memory, s.Memory)
	u.energy += s.Power * seconds
}

// use returns the sum as part of a footer.
func (u *gpuSum) use(index int) GPUUse {
	use := GPUUse{Index: index, Unknown: u.seconds == 0, Memory: u.memory, Energy: math.Round(u.energy*10) / 10}
	below := 0.0
	for percent, seconds := range u.busy {
		if seconds == 0 {
			continue
		}
		use.Mean += float64(percent) * seconds / u.seconds
		if below < 0.95*u.seconds {
			use.P95 = float64(percent)
		}
		below += seconds
	}
	use.Mean = math.Round(use.Mean*100) / 100
	return use
}

// list returns the GPUs by index.
func (g *gpus) list() (out []GPU) {
	for _, s := range g.sorted() {
		out = append(out, s.GPU)
	}
	return out
}

// samples returns the latest reports that are still valid at a time.
func (g *gpus) samples(at time.Time) (out []GPUSample) {
	g.mu.Lock()
	holds, silent := g.holds(), g.silent
	g.mu.Unlock()
	for _, s := range g.sorted() {
		if !silent && at.Sub(s.seen) <= holds {
			out = append(out, s.now)
		}
	}
	return out
}

// holds returns how long a report is valid without a newer one, because a tool may hang.
func (g *gpus) holds() time.Duration { return 3*g.every + 5*time.Second }

// pace sets the interval between reports.
func (g *gpus) pace(every time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.every = every
}

// silence records that there will be no more reports.
func (g *gpus) silence() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent = true
}

func (g *gpus) sorted() []gpuState {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []gpuState
	for _, s := range g.latest {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b gpuState) int { return a.Index - b.Index })
	return out
}

// uses returns the use of the GPUs over the run. It includes a GPU's description if the
// header lacks it.
func (g *gpus) uses(header *Machine) (out []GPUUse) {
	for _, s := range g.sorted() {
		g.mu.Lock()
		u := *g.sums[s.Index]
		g.mu.Unlock()
		use := u.use(s.Index)
		if !header.hasGPU(s.Index) {
			use.GPU = &s.GPU
		}
		out = append(out, use)
	}
	return out
}

// toolGrace is how long a tool may take to end. One that hangs in a driver never ends.
const toolGrace = 2 * time.Second

// end ends the tool and returns its processor time, if it ended.
func (g *gpus) end() float64 {
	if g.stop == nil {
		return 0
	}
	cost := make(chan float64, 1)
	go func() { cost <- g.stop() }()
	select {
	case c := <-cost:
		return c
	case <-time.After(toolGrace):
		return 0
	}
}

// toolTime returns a tool's processor time in seconds, or 0 if it never ran or was waited
// for elsewhere.
func toolTime(tool *exec.Cmd) float64 {
	if tool.ProcessState == nil {
		return 0
	}
	return (tool.ProcessState.UserTime() + tool.ProcessState.SystemTime()).Seconds()
}

// percent, mebibytes and watts parse tool output and clamp it. They are not ok for "[N/A]"
// and similar values.
func percent(s string) (float64, bool) { return quantity(s, 100) }

func mebibytes(s string) int64 {
	n, _ := quantity(s, 1<<30)
	return int64(n * (1 << 20))
}

func watts(s string) float64 {
	n, _ := quantity(s, 1e6)
	return n
}

// quantity parses a number from 0 to most.
func quantity(s string, most float64) (float64, bool) {
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || !(n >= 0) || math.IsInf(n, 0) {
		return 0, false
	}
	return min(n, most), true
}

// named sanitizes a tool's text.
func named(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, strings.TrimSpace(s))
	return s[:min(len(s), 100)]
}
