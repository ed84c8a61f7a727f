package metrics

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// fullRecord returns a record with a value in every member. name is the value of each text and
// of each of the args arguments of the command.
func fullRecord(name string, gpus, args int) (Header, Footer) {
	h := Header{Kind: kindHeader, Version: recordVersion, Hpcc: "1", Start: time.Unix(1e9, 0).UTC(), Image: name, Digest: "sha256:" + strings.Repeat("a", 64),
		Job:   &JobOf{ID: name, Name: name, Target: "kubernetes", Task: 3, Native: map[string]string{name: name}, Params: map[string]string{name: name}},
		Asked: Asked{CPUs: 2, Memory: 1 << 30}, Machine: Machine{Host: name, Architecture: "amd64", CPU: name, CPUs: 64, Memory: 1 << 40, Kernel: name},
		Limits: Limits{CPUs: 2, Memory: 1 << 30, Cgroup: "v2", CgroupPath: "/" + name}, Unknown: map[string]json.RawMessage{"later": json.RawMessage(`"` + strings.Repeat("x", len(name)) + `"`)}}
	f := Footer{Kind: kindFooter, End: time.Unix(1e9+100, 0).UTC(), Wall: 100.25, Exit: -1, Signal: "SIGKILL", Problem: name, Usage: Usage{User: 1.5, System: .25, MaxRSS: 1 << 28},
		Memory: 1 << 29, MemoryFrom: "cgroup", Cgroup: &CgroupUse{CPU: 1.75, Memory: 1, Peak: 1 << 29, OOMKills: 1}, Pressure: &Pressure{CPU: 1}}
	for i := range gpus {
		h.Machine.GPUs = append(h.Machine.GPUs, GPU{Index: i, Name: name, Memory: 1 << 36, Driver: name})
		f.GPUs = append(f.GPUs, GPUUse{Index: i, Mean: 33.3333333, P95: 66.6666666, Memory: 1 << 35, Energy: 12345.6789})
	}
	for range args {
		h.Command = append(h.Command, name)
	}
	return h, f
}

func TestMessage(t *testing.T) {
	if six := 6 * maxMessage; six > 12<<10 {
		t.Errorf("the messages of six containers have %d bytes; the kubelet keeps 12 KiB", six)
	}
	for _, c := range []struct {
		what, name string
		gpus, args int
		omitted    string // parts of the record that the message lacks
	}{
		{"short", "n1", 2, 3, ""},
		{"long command", "n1", 2, 2000, "command"},
		{"long names", strings.Repeat("n", 300), 2, 3, "command params"},
		{"many GPUs", "n1", 64, 3, "params gpus"},
		{"characters that JSON escapes with six bytes", strings.Repeat("\x00\xff<", 400), 9, 50, "command params gpus"},
	} {
		h, f := fullRecord(c.name, c.gpus, c.args)
		text := message(h, f, maxMessage)
		if len(text) == 0 || len(text) > maxMessage {
			t.Errorf("%s: %d bytes", c.what, len(text))
		}
		r, err := readRecord(bytes.NewReader(text), true)
		if err != nil || r.Footer == nil || r.Torn {
			t.Fatalf("%s: %v: %s", c.what, err, text)
		}
		if r.Footer.Wall != 100.25 || r.Footer.Usage != f.Usage || r.Footer.Memory != f.Memory || !reflect.DeepEqual(r.Footer.Cgroup, f.Cgroup) || r.Header.Machine.CPUs != 64 || r.Header.Limits.Memory != 1<<30 || r.Header.Digest != h.Digest {
			t.Errorf("%s: an essential member is missing or wrong: %s", c.what, text)
		}
		for part, omitted := range map[string]bool{"command": len(r.Header.Command) != c.args || (c.args > 0 && r.Header.Command[0] != c.name), "params": r.Header.Job == nil || r.Header.Job.Params == nil, "gpus": len(r.Footer.GPUs) < c.gpus} {
			if omitted != strings.Contains(c.omitted, part) {
				t.Errorf("%s: the message omits %s: %v; want %v", c.what, part, omitted, !omitted)
			}
		}
	}
	if text := message(Header{}, Footer{}, 100); text != nil {
		t.Errorf("message in at most 100 bytes = %q; want nil", text)
	}
}

// FuzzMessage checks that messages of arbitrary records fit and can be read.
func FuzzMessage(f *testing.F) {
	h, foot := fullRecord("n1", 1, 2)
	f.Add(message(h, foot, maxMessage))
	f.Add([]byte(head + `{"kind":"footer","memory_from":"rss","gpus":[{}]}` + "\n"))
	f.Fuzz(func(t *testing.T, record []byte) {
		r, err := readRecord(bytes.NewReader(record), false)
		if err != nil || r.Footer == nil {
			return
		}
		text := message(r.Header, *r.Footer, maxMessage)
		if len(text) == 0 || len(text) > maxMessage {
			t.Fatalf("%d bytes", len(text))
		}
		if again, err := readRecord(bytes.NewReader(text), true); err != nil || again.Footer == nil || again.Footer.Wall != r.Footer.Wall || !again.Header.Start.Equal(r.Header.Start) {
			t.Fatalf("%v: %s", err, text)
		}
	})
}
