package metrics

import (
	"encoding/json"
	"strings"
)

// maxMessage is the size of the message that a container leaves for the kubelet, in bytes. Of one 4096
// are kept, but of all containers of a pod, those that go before them included, 12 KiB in equal parts
// (core/v1, terminationMessagePath): this is whole in pods of up to six.
const maxMessage = 12 << 10 / 6

// message is what matters most of a record, in at most most bytes: the line of the
// header and that of the footer, as [ReadRecord] reads them. Where they are longer, what matters
// least goes first. It is nil where not even the least fits.
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

// leastFirst leave parts of a record out. Who collects the message of a pod knows the job
// itself, so that goes before what was measured.
var leastFirst = []func(*Header, *Footer){
	func(h *Header, f *Footer) { h.Unknown, f.Unknown = nil, nil },
	func(h *Header, _ *Footer) { h.Command = shortWords(h.Command, 400) },
	func(h *Header, _ *Footer) { h.Job = nil },
	func(h *Header, f *Footer) {
		m := &h.Machine
		m.Host, m.CPU, m.Kernel = cut(m.Host, 64), cut(m.CPU, 64), cut(m.Kernel, 64)
		h.Limits.CgroupPath, h.Image, f.Problem = "", cut(h.Image, 128), cut(f.Problem, 256)
	},
	func(h *Header, _ *Footer) { h.Command = shortWords(h.Command, 80) },
	func(h *Header, _ *Footer) {
		list := make([]GPU, len(h.Machine.GPUs))
		for i, g := range h.Machine.GPUs {
			list[i] = GPU{Index: g.Index, Name: cut(g.Name, 48), Memory: g.Memory}
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

// bare is the least that says what ran where, and how it ended.
func bare(h *Header, f *Footer) (Header, Footer) {
	m := &h.Machine
	least := Header{Kind: h.Kind, Version: h.Version, Start: h.Start, Digest: plain(h.Digest, 71), Asked: h.Asked,
		Machine: Machine{Host: plain(m.Host, 64), Architecture: plain(m.Architecture, 16), CPUs: m.CPUs, Memory: m.Memory, Kernel: plain(m.Kernel, 32)},
		Limits:  Limits{CPUs: h.Limits.CPUs, Memory: h.Limits.Memory, Cgroup: plain(h.Limits.Cgroup, 2), Shared: h.Limits.Shared}}
	for _, w := range shortWords(h.Command, 40) {
		least.Command = append(least.Command, plain(w, 40))
	}
	foot := *f
	foot.Signal, foot.Problem, foot.MemoryFrom = plain(f.Signal, 16), plain(f.Problem, 128), plain(f.MemoryFrom, 16)
	return least, foot
}

// plain is a text of at most so many bytes, of characters that JSON writes with one.
func plain(s string, most int) string {
	return cut(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) {
			return '?'
		}
		return r
	}, s), most)
}

// cut is a text of at most so many bytes, whole characters only.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

// shortWords are the first words that fit into so many bytes, with a sign that there are more.
func shortWords(words []string, most int) []string {
	for i, w := range words {
		if most -= len(w) + 3; most < 0 {
			return append(append([]string{}, words[:i]...), cut(w, max(0, most+len(w)))+"…")
		}
	}
	return words
}
