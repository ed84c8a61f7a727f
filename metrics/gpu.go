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

// The GPUs are asked about through the tools of their makers: a child of this process that
// goes on beside the program. No tool, or one that says nothing of use: no GPUs.

// A gpuState is what a tool said of a GPU.
type gpuState struct {
	GPU
	id   string // its own, for good
	now  GPUSample
	seen time.Time // when that was
}

// gpus are those that the program may use.
type gpus struct {
	mu     sync.Mutex
	latest map[int]gpuState
	sums   map[int]*gpuSum
	every  time.Duration // between two answers
	silent bool          // there will be no more
	heard  chan struct{} // closed when the first answer came, or there will be none
	once   sync.Once
	stop   func() (cost float64) // ends the tool; nil: there is none
}

// A gpuSum gathers how a GPU was used.
type gpuSum struct {
	busy    [101]float64 // seconds at each percent
	seconds float64
	memory  int64
	energy  float64
	last    time.Time
}

// maxGPUs bounds the GPUs that a tool may tell of.
const maxGPUs = 256

// watchGPUs begins to ask. env is the program's environment: it says which GPUs are its.
func watchGPUs(env []string) *gpus {
	g := &gpus{latest: map[int]gpuState{}, sums: map[int]*gpuSum{}, heard: make(chan struct{})}
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
	g.answered()
	return g
}

// variable is that of an environment; the last one counts.
func variable(env []string, name string) (string, bool) {
	for _, e := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// visible reads the first of the variables that is set: a list of indices and ids, and none of what
// follows one that is neither, as -1. Without a variable all GPUs are.
func visible(vars func(string) (string, bool), names ...string) (allowed func(gpuState) bool, some bool) {
	for _, name := range names {
		list, ok := vars(name)
		if !ok {
			continue
		}
		var words []string
		for w := range strings.SplitSeq(list, ",") {
			w = strings.TrimSpace(w)
			if w == "" || strings.HasPrefix(w, "-") || w == "NoDevFiles" || len(words) == maxGPUs {
				break
			}
			words = append(words, w)
		}
		return func(s gpuState) bool {
			return slices.ContainsFunc(words, func(w string) bool {
				if n, err := strconv.Atoi(w); err == nil {
					return n == s.Index
				}
				// A part of a GPU has an id of its own, which no sample has: all may be meant.
				return strings.HasPrefix(s.id, w) || strings.HasPrefix(w, "MIG-")
			})
		}, len(words) > 0
	}
	return func(gpuState) bool { return true }, true
}

// answered says that nobody need wait for a first answer any more.
func (g *gpus) answered() { g.once.Do(func() { close(g.heard) }) }

// take takes an answer in, of all GPUs or of one, and says whether it was known before.
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
		sum.add(s.now, at, g.holds())
	}
	return again
}

// add counts what a GPU did between two answers, for as long as one holds, as what the second one says: tools
// tell of the time before they are asked.
func (u *gpuSum) add(s GPUSample, at time.Time, holds time.Duration) {
	seconds := min(max(1e-3, at.Sub(u.last).Seconds()), holds.Seconds()) // of the first answer nearly none
	u.last = at
	if !s.Unknown {
		u.busy[int(s.Utilisation+0.5)] += seconds
		u.seconds += seconds
	}
	u.memory = max(u.memory, s.Memory)
	u.energy += s.Power * seconds
}

// list are the GPUs themselves, by index.
func (g *gpus) list() (out []GPU) {
	for _, s := range g.sorted() {
		out = append(out, s.GPU)
	}
	return out
}

// samples are the latest answers that still hold at a moment.
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

// holds is how long an answer says how a GPU stands, where no other one comes: a tool may hang.
func (g *gpus) holds() time.Duration { return 3*g.every + 5*time.Second }

// pace says how long it is from one answer to the next.
func (g *gpus) pace(every time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.every = every
}

// hush says that no more answers come.
func (g *gpus) hush() {
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

// uses are how the GPUs were used over the run, with what they are where the header does not say.
func (g *gpus) uses(told *Machine) (out []GPUUse) {
	for _, s := range g.sorted() {
		g.mu.Lock()
		u := *g.sums[s.Index]
		g.mu.Unlock()
		use := GPUUse{Index: s.Index, Unknown: u.seconds == 0, Memory: u.memory, Energy: math.Round(u.energy*10) / 10}
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
		if !told.hasGPU(s.Index) {
			use.GPU = &s.GPU
		}
		out = append(out, use)
	}
	return out
}

// toolGrace is how long a tool may take to end: one that a driver holds never does.
const toolGrace = 2 * time.Second

// end ends the tool and says what processor time it took, where it does end.
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

// toolTime is what processor time a tool took, in seconds; 0 where it never ran, or somebody else waited for it.
func toolTime(tool *exec.Cmd) float64 {
	if tool.ProcessState == nil {
		return 0
	}
	return (tool.ProcessState.UserTime() + tool.ProcessState.SystemTime()).Seconds()
}

// percent, mebibytes and watts read what tools print, within what can be; not ok for "[N/A]" and the like.
func percent(s string) (float64, bool) { return quantity(s, 100) }

func mebibytes(s string) int64 {
	n, _ := quantity(s, 1<<30)
	return int64(n * (1 << 20))
}

func watts(s string) float64 {
	n, _ := quantity(s, 1e6)
	return n
}

// quantity reads a number from 0 to most.
func quantity(s string, most float64) (float64, bool) {
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || !(n >= 0) || math.IsInf(n, 0) {
		return 0, false
	}
	return min(n, most), true
}

// named is a text of a tool, fit to be kept.
func named(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, strings.TrimSpace(s))
	return s[:min(len(s), 100)]
}
