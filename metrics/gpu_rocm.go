package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// rocmArgs are the arguments of rocm-smi. It has no continuous mode, so it is started
// repeatedly.
var rocmArgs = []string{"--showuse", "--showmeminfo", "vram", "--showpower", "--showproductname",
	"--showuniqueid", "--showdriverversion", "--json"}

// The minimum interval between starts of rocm-smi, its maximum duration, and its maximum
// output in bytes.
const (
	rocmEvery   = 2 * time.Second
	rocmLongest = 10 * time.Second
	maxROCm     = 1 << 20
	maxFailed   = 3 // consecutive failures after which polling ends
)

// pollROCm queries repeatedly, but rarely enough to use no more of a processor than
// nvidia-smi may.
func (g *gpus) pollROCm(path string, allowed func(gpuState) bool) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var spent float64
	g.stop = func() float64 {
		cancel()
		<-done
		return spent
	}
	go func() {
		defer close(done)
		defer g.silence()
		for failed := 0; ; {
			began := time.Now()
			states, cost := g.askROCm(ctx, path)
			spent += cost
			var mine []gpuState
			for _, s := range states {
				if allowed(s) {
					mine = append(mine, s)
				}
			}
			wait := max(rocmEvery, time.Duration(cost/nvidiaShare*float64(time.Second)))
			if failed++; len(states) > 0 {
				failed = 0
				g.pace(wait + time.Since(began))
			}
			g.take(mine, time.Now())
			g.markReady()
			if failed == maxFailed {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
	}()
}

// askROCm queries once and returns the processor time.
func (g *gpus) askROCm(ctx context.Context, path string) ([]gpuState, float64) {
	ctx, cancel := context.WithTimeout(ctx, rocmLongest)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, rocmArgs...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out := &bounded{most: maxROCm}
	cmd.Stdout = out
	err := Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return nil, toolTime(cmd)
	}
	return parseROCm(out.Bytes()), toolTime(cmd)
}

// A bounded buffer keeps a limited amount and discards the rest.
type bounded struct {
	bytes.Buffer
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.most-b.Len())])
	return len(p), nil
}

// parseROCm parses an object with a member for each card. Keys are spelled differently from
// version to version.
func parseROCm(b []byte) (out []gpuState) {
	var cards map[string]map[string]any
	if i := bytes.IndexByte(b, '{'); i < 0 || json.Unmarshal(b[i:], &cards) != nil { // warnings may precede the object
		return nil
	}
	driver := ""
	if system, ok := cards["system"]; ok {
		driver = value(system, "driver version")
	}
	for name, card := range cards {
		n, err := strconv.ParseUint(strings.TrimPrefix(name, "card"), 10, 16)
		if err != nil || !strings.HasPrefix(name, "card") || len(out) == maxGPUs {
			continue
		}
		s := gpuState{GPU: GPU{Index: int(n), Driver: driver}}
		s.Name = value(card, "card series", "card model", "gfx version")
		s.id = value(card, "unique id")
		s.id = "GPU-" + strings.TrimPrefix(s.id, "0x")
		total := value(card, "vram total memory (b)")
		used := value(card, "vram total used memory (b)")
		power := value(card, "average graphics package power (w)", "current socket graphics package power (w)")
		use := value(card, "gpu use (%)")
		busy, known := percent(use)
		s.GPU.Memory = bytesOf(total)
		s.now = GPUSample{Index: s.Index, Utilisation: busy, Unknown: !known, Memory: bytesOf(used), Power: watts(power)}
		out = append(out, s)
	}
	return out
}

func bytesOf(s string) int64 {
	n, _ := quantity(s, 1<<50)
	return int64(n)
}

// value returns the text of the first existing member; names are in lower case.
func value(of map[string]any, names ...string) string {
	for _, name := range names {
		for k, v := range of {
			if text, ok := v.(string); ok && strings.ToLower(k) == name {
				return named(text)
			}
		}
	}
	return ""
}
