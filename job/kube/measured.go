package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/job"
	"hpcc/job/atomicfile"
	"hpcc/job/batch"
	"hpcc/job/invoke"
)

// The program of a pod that is measured leaves the header and the footer of its record as the
// container's termination message: all that stays when the pod's files are gone. It is written while
// the program runs, too, so that something is known of one that was killed with all around it.
// A program may write there what it likes; what is no record is none.

// Bounds of such a message, in bytes, and how it begins.
const (
	maxPodRecord = 16 << 10
)

// recordLine is a line of a record, of which what is not known here goes on as it came.
type recordLine map[string]json.RawMessage

// text is the line, its kind first as in other records.
func (l recordLine) text(kind string) []byte {
	l.remove("kind")
	b, _ := json.Marshal(l) // of what was read or made as JSON
	head := `{"kind":"` + kind + `"`
	if len(l) > 0 {
		head += ","
	}
	return append(append([]byte(head), b[1:]...), '\n')
}

// set gives a member a value, in the place of all that readers take for it.
func (l recordLine) set(name string, value any) {
	l.remove(name)
	if b, err := json.Marshal(value); err == nil {
		l[name] = b
	}
}

// remove takes a member away in whatever letters: readers of JSON in Go do not tell them apart.
func (l recordLine) remove(name string) {
	for k := range l {
		if strings.EqualFold(k, name) {
			delete(l, k)
		}
	}
}

// What of the lines has to be of its kind, so that the record can be read; see package metrics, which
// says what it means. That nothing is missing is held by TestPodRecordReads of cmd/hpcc.
type (
	podHeader struct {
		Version int        `json:"version"`
		Start   time.Time  `json:"start"`
		Command []string   `json:"command"`
		Machine podMachine `json:"machine"`
		Limits  struct {
			CPUs   float64 `json:"cpus"`
			Memory int64   `json:"memory_bytes"`
			Cgroup string  `json:"cgroup"`
			Path   string  `json:"cgroup_path"`
			Shared bool    `json:"cgroup_shared"`
		} `json:"limits"`
		Hpcc string `json:"hpcc"`
	}
	podMachine struct {
		Host         string   `json:"host"`
		Architecture string   `json:"architecture"`
		CPU          string   `json:"cpu"`
		CPUs         int      `json:"cpus"`
		Memory       int64    `json:"memory_bytes"`
		Kernel       string   `json:"kernel"`
		GPUs         []podGPU `json:"gpus"`
	}
	podGPU struct {
		Index  int    `json:"index"`
		Name   string `json:"name"`
		Memory int64  `json:"memory_bytes"`
		Driver string `json:"driver"`
	}
	podFooter struct {
		End     time.Time `json:"end"`
		Wall    float64   `json:"wall_s"`
		Exit    int       `json:"exit"`
		Signal  string    `json:"signal"`
		Problem string    `json:"problem"`
		Usage   struct {
			User     float64 `json:"user_s"`
			System   float64 `json:"system_s"`
			MaxRSS   int64   `json:"max_rss_bytes"`
			Read     int64   `json:"read_blocks"`
			Written  int64   `json:"written_blocks"`
			Switches int64   `json:"involuntary_switches"`
		} `json:"usage"`
		Memory     int64  `json:"memory_peak_bytes"`
		MemoryFrom string `json:"memory_from"`
		Read       int64  `json:"read_bytes"`
		Written    int64  `json:"written_bytes"`
		NetIn      int64  `json:"net_in_bytes"`
		NetOut     int64  `json:"net_out_bytes"`
		Processes  int    `json:"processes"`
		Threads    int    `json:"threads"`
		Cgroup     *struct {
			CPU       float64 `json:"cpu_s"`
			Memory    int64   `json:"memory_bytes"`
			Cache     int64   `json:"cache_bytes"`
			Peak      int64   `json:"memory_peak_bytes"`
			Read      int64   `json:"read_bytes"`
			Written   int64   `json:"written_bytes"`
			Throttled float64 `json:"throttled_s"`
			Throttles int64   `json:"throttles"`
			OOMKills  int64   `json:"oom_kills"`
		} `json:"cgroup"`
		Pressure *struct {
			CPU     float64 `json:"cpu_s"`
			Memory  float64 `json:"memory_s"`
			IO      float64 `json:"io_s"`
			Machine bool    `json:"machine"`
		} `json:"pressure"`
		GPUs []struct {
			Index   int     `json:"index"`
			Mean    float64 `json:"utilisation_mean"`
			P95     float64 `json:"utilisation_p95"`
			Unknown bool    `json:"utilisation_unknown"`
			GPU     *podGPU `json:"gpu"`
			Memory  int64   `json:"memory_peak_bytes"`
			Energy  float64 `json:"energy_j"`
		} `json:"gpus"`
		Samples int     `json:"samples"`
		Cost    float64 `json:"measuring_s"`
	}
)

// podRecord reads the lines that a program left in a message; nil for one that is not there, or
// is none.
func podRecord(message string) (header recordLine, h podHeader, footer recordLine, f podFooter) {
	i := strings.Index(message, recordHead)
	if i < 0 || len(message)-i > maxPodRecord {
		return nil, h, nil, f
	}
	first, rest, _ := strings.Cut(message[i:], "\n")
	if header = readLine(first, "header", &h); header == nil {
		return nil, podHeader{}, nil, f
	}
	second, _, _ := strings.Cut(rest, "\n")
	if footer = readLine(second, "footer", &f); footer == nil {
		f = podFooter{}
	}
	return header, h, footer, f
}

// readLine reads a line of a kind; nil where it is none.
func readLine(text, kind string, into any) recordLine {
	var l recordLine
	var is string
	if json.Unmarshal([]byte(text), &l) != nil || json.Unmarshal(l["kind"], &is) != nil || is != kind || json.Unmarshal([]byte(text), into) != nil {
		return nil
	}
	return l
}

// keepMeasured writes the record of a task that has ended: what its program left, and what
// the job and the cluster know.
func (k System) keepMeasured(s *batch.Submitted, a *batch.Attempt, t *job.Task) error {
	if t.Native == "" { // it never began
		return nil
	}
	header, h, footer, f := podRecord(a.Words)
	if header == nil {
		header = recordLine{}
		h = podHeader{Start: t.Start, Machine: podMachine{Host: t.Host}, Command: s.Job.OfTask(t).Args}
		header.set("version", 1)
		header.set("start", h.Start)
		header.set("command", h.Command)
		header.set("machine", h.Machine)
		header.set("limits", h.Limits)
	}
	k.describe(s, header, &h, a, t)
	known := footer != nil
	if !known {
		footer = recordLine{}
		f = podFooter{}
		footer.set("usage", f.Usage)
	}
	ended := known && f.endedWith(t.Exit)
	if !ended {
		f.outlived(&h, t)
		footer.set("end", f.End)
		footer.set("wall_s", f.Wall)
		footer.set("exit", f.Exit)
		footer.set("signal", f.Signal)
	}
	if known && !ended && f.Problem == "" { // of a program that did not begin it says why
		footer.set("problem", "what measured it ended with it: the figures are of its last look")
	}
	if t.Problem != "" {
		footer.set("problem", t.Problem)
	}
	if err := atomicfile.Write(filepath.Join(s.Home, t.Measured()), append(header.text("header"), footer.text("footer")...)); err != nil {
		return fmt.Errorf("keeping what was measured of task %d: %w", t.Index, err)
	}
	if known {
		t.Usage = footer["usage"]
	}
	return nil
}

// endedWith says whether a footer is of a program with this status, as a shell has it.
func (f *podFooter) endedWith(status int) bool {
	if f.Signal == "" {
		return f.Exit == status
	}
	if n := unix.SignalNum(f.Signal); n != 0 {
		return 128+int(n) == status
	}
	return status > 128+32 // a real-time one
}

// outlived takes the end of a run from what the cluster says of it.
func (f *podFooter) outlived(h *podHeader, t *job.Task) {
	f.End, f.Exit, f.Signal = t.End, t.Exit, ""
	if name := unix.SignalName(unix.Signal(t.Exit - 128)); t.Exit > 128 && name != "" {
		f.Exit, f.Signal = -1, name
	}
	f.Wall = max(f.Wall, t.End.Sub(h.Start).Seconds(), 0)
}

// describe adds to a header what the job knows. The host is the node, and not the pod.
func (k System) describe(s *batch.Submitted, header recordLine, h *podHeader, a *batch.Attempt, t *job.Task) {
	machine := recordLine{}
	if _ = json.Unmarshal(header["machine"], &machine); machine == nil { // it said null
		machine = recordLine{}
	}
	if t.Host != "" {
		machine.set("host", t.Host)
		header.set("machine", machine)
	}
	header.set("job", struct {
		ID        string            `json:"id"`
		Name      string            `json:"name"`
		Target    job.Target        `json:"target"`
		Task      int               `json:"task"`
		Attempt   int               `json:"attempt,omitempty"`
		Native    map[string]string `json:"native"`
		Params    map[string]string `json:"params,omitempty"`
		Submitted time.Time         `json:"submitted"`
		Pulled    float64           `json:"pull_s,omitempty"`
	}{s.ID, s.Job.Name, k.Target, t.Index, t.Attempt, map[string]string{"pod": t.Native}, t.Params, s.At(t), a.Pulled.Seconds()})
	j := s.Job.OfTask(t)
	asked := j.Asked()
	header.set("asked", struct {
		CPUs   int     `json:"cpus,omitempty"`
		Memory int64   `json:"memory_bytes,omitempty"`
		GPUs   int     `json:"gpus,omitempty"`
		Time   float64 `json:"time_s,omitempty"`
	}{asked.CPUs, asked.Memory, asked.GPUs, asked.Time.Seconds()})
	m := &j.Pod.Measurer
	header.set("image", j.Image)
	header.remove("digest")
	header.remove("config")
	for _, d := range []string{m.Digest, digestIn(j.Pod.Image), digestIn(a.Image)} {
		if d != "" {
			header.set("digest", d)
			break
		}
	}
	if m.Config != "" && h.Machine.Architecture == m.Architecture {
		header.set("config", m.Config)
	}
}

// digestIn is the digest in a reference of an image.
func digestIn(ref string) string {
	_, d, _ := strings.Cut(ref, "@")
	return d
}

// Hear asks how long images took to come, and, if the pods have not been asked how they
// stand, for what their programs left; see [batch.Keeper].
func (k System) Hear(ctx context.Context, s *batch.Submitted, known map[string]batch.QueueState) (later bool, err error) {
	want, err := unheard(s, known)
	if len(want) == 0 || err != nil {
		return err != nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, invoke.Patience)
	defer cancel()
	api, err := k.Open(ctx)
	if err == nil {
		defer api.Close()
		if k.Target == job.Argo {
			err = api.LastWords(ctx, job.Label(s.ID), want)
		}
	}
	if err != nil {
		return !lasting(err), fmt.Errorf("asking the pods what was measured: %w", err)
	}
	api.Pulls(ctx, want)
	return false, nil
}

// unheard are, by their pods, the attempts that have ended, and of which a record is to be made.
func unheard(s *batch.Submitted, known map[string]batch.QueueState) (map[string][]*batch.Attempt, error) {
	last, earlier, _, err := job.Attempts(s.Home, true)
	if err != nil {
		return nil, err
	}
	type run struct {
		pod   string
		begun int64
	}
	whole := map[run]bool{}
	for _, t := range slices.Concat(last, earlier) {
		if t.Ended() {
			whole[run{t.Native, t.Start.UnixNano()}] = true
		}
	}
	want := map[string][]*batch.Attempt{}
	for _, id := range s.Natives {
		kept := map[run]bool{}
		for _, a := range ofNodes(s.Job, known[id]) {
			kept[run{a.Native, a.Start.UnixNano()}] = true
		}
		for i := range known[id].Tasks {
			a := &known[id].Tasks[i]
			if r := (run{a.Native, a.Start.UnixNano()}); a.Ended() && a.Native != "" && kept[r] && !whole[r] {
				want[a.Native] = append(want[a.Native], a)
			}
		}
	}
	return want, nil
}

// lasting says of an error of hear that another look would not bring more: something was refused, or the
// server is not to be reached from here, unlike one that is slow or busy.
func lasting(err error) bool {
	refused := new(Error)
	return errors.As(err, &refused) &&
		!slices.Contains([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, refused.Code)
}
