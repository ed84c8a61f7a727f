package local

import (
	"context"
	"math"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"

	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// Nodes returns this machine: its processors minus the load average, the available memory, and its GPUs. A GPU
// with almost no memory in use is free.
func (System) Nodes(ctx context.Context, _ string) (*capacity.Snapshot, error) {
	n := capacity.Node{Name: "localhost", CPUs: goruntime.NumCPU()}
	if h, err := os.Hostname(); err == nil {
		n.Name = h
	}
	n.FreeCPUs = n.CPUs
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ := strings.Cut(string(b), " ")
		if x, err := strconv.ParseFloat(load, 64); err == nil {
			n.FreeCPUs = max(0, n.CPUs-int(math.Round(min(x, 1<<20))))
		}
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		n.Memory, n.FreeMemory = meminfo(string(b))
	}
	readGPUs(ctx, &n)
	return &capacity.Snapshot{Nodes: []capacity.Node{n}}, nil
}

// meminfo parses /proc/meminfo (proc(5)) and returns the total and the available memory.
func meminfo(text string) (total, free int64) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		switch f[0] {
		case "MemTotal:":
			total = quantity.Bytes(f[1], 1<<10)
		case "MemAvailable:":
			free = quantity.Bytes(f[1], 1<<10)
		}
	}
	return total, free
}

// readGPUs queries nvidia-smi, or counts devices if that fails.
func readGPUs(ctx context.Context, n *capacity.Node) {
	devices, _ := filepath.Glob("/dev/nvidia[0-9]*")
	if len(devices) == 0 {
		return
	}
	out, err := invoke.Probe(ctx, []string{"nvidia-smi", "--query-gpu=name,memory.used,memory.total", "--format=csv,noheader,nounits"})
	if err != nil {
		n.GPUs, n.FreeGPUs = len(devices), len(devices)
		return
	}
	n.GPUs, n.FreeGPUs, n.GPUType = nvidiaGPUs(string(out))
}

// nvidiaGPUs parses the name and the used and total MiB of each GPU. The driver itself
// uses a little memory, so a GPU with less than a fiftieth in use is free.
func nvidiaGPUs(csv string) (all, free int, kind string) {
	for line := range strings.Lines(csv) {
		f := strings.Split(strings.TrimSpace(line), ", ")
		if len(f) < 3 {
			continue
		}
		all, kind = all+1, f[0]
		if used, total := quantity.Count(f[1]), quantity.Count(f[2]); total > 0 && used*50 < total {
			free++
		}
	}
	return all, free, kind
}
