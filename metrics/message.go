package metrics

import (
	"encoding/json"
	"strings"

	"hpcc/text"
)

// maxMessage is the size of a container's termination message, in bytes. The kubelet keeps
// 4096 bytes of one, but 12 KiB of all containers of a pod in equal parts, including init
// containers (core/v1, terminationMessagePath). This size fits pods of up to six containers.
const maxMessage = 12 << 10 / 6

// message returns the essential part of a record, in at most most bytes: the header and
// footer lines, readable by [ReadRecord]. If they are too long, the least important members
// are dropped. It is nil if even the minimum does not fit.
func message(h Header, f Footer, most int) []byte {
	for k := -1; k < len(leastFirst); k++ {
		if k >= 0 {
			leastFirst[k](&h, &f)
		}
		head, err := json.Marshal(h)
		if err != nil {
			return nil
		}
		foot, err := json.Marshal(f)
		if err != nil {
			return nil
		}
		if len(head)+len(foot)+2 <= most {
			return append(append(append(head, '\n'), foot...), '\n')
		}
	}
	return nil
}

// leastFirst drops parts of a record, the least important first. The reader of a pod's
// message knows the job, so the job goes before measurements.
var leastFirst = []func(*Header, *Footer){
	func(h *Header, f *Footer) { h.Unknown, f.Unknown = nil, nil },
	func(h *Header, _ *Footer) { h.Command = shortArgs(h.Command, 400) },
	func(h *Header, _ *Footer) { h.Job = nil },
	func(h *Header, f *Footer) {
		m := &h.Machine
		m.Host, m.CPU, m.Kernel = text.Prefix(m.Host, 64), text.Prefix(m.CPU, 64), text.Prefix(m.Kernel, 64)
		h.Limits.CgroupPath, h.Image, f.Problem = "", text.Prefix(h.Image, 128), text.Prefix(f.Problem, 256)
	},
	func(h *Header, _ *Footer) { h.Command = shortArgs(h.Command, 80) },
	func(h *Header, _ *Footer) {
		list := make([]GPU, len(h.Machine.GPUs))
		for i, g := range h.Machine.GPUs {
			list[i] = GPU{Index: g.Index, Name: text.Prefix(g.Name, 48), Memory: g.Memory}
		}
		h.Machine.GPUs = list
	},
	func(h *Header, f *Footer) {
		h.Machine.GPUs, f.GPUs = h.Machine.GPUs[:min(len(h.Machine.GPUs), 8)], f.GPUs[:min(len(f.GPUs), 8)]
	},
	func(_ *Header, f *Footer) { f.Pressure = nil },
	func(h *Header, f *Footer) { h.Machine.GPUs, f.GPUs = nil, nil },
	func(h *Header, f *Footer) { *h, *f = bare(h, f) },
}

// bare returns the minimum: what ran where, and how it ended.
func bare(h *Header, f *Footer) (Header, Footer) {
	m := &h.Machine
	least := Header{Kind: h.Kind, Version: h.Version, Start: h.Start, Digest: plain(h.Digest, 71), Asked: h.Asked,
		Machine: Machine{Host: plain(m.Host, 64), Architecture: plain(m.Architecture, 16), CPUs: m.CPUs,
			Memory: m.Memory, Kernel: plain(m.Kernel, 32)},
		Limits: Limits{CPUs: h.Limits.CPUs, Memory: h.Limits.Memory, Cgroup: plain(h.Limits.Cgroup, 2), Shared: h.Limits.Shared}}
	for _, w := range shortArgs(h.Command, 40) {
		least.Command = append(least.Command, plain(w, 40))
	}
	foot := *f
	foot.Signal, foot.Problem, foot.MemoryFrom = plain(f.Signal, 16), plain(f.Problem, 128), plain(f.MemoryFrom, 16)
	return least, foot
}

// plain returns a text of at most most bytes, of characters that JSON encodes as one byte.
func plain(s string, most int) string {
	return text.Prefix(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) {
			return '?'
		}
		return r
	}, s), most)
}

// shortArgs returns the first arguments that fit into most bytes, with an ellipsis if some are
// missing.
func shortArgs(args []string, most int) []string {
	for i, w := range args {
		if most -= len(w) + 3; most < 0 {
			return append(append([]string{}, args[:i]...), text.Prefix(w, max(0, most+len(w)))+"…")
		}
	}
	return args
}
