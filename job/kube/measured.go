package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/metrics"
)

// A measured program's header and footer are the container's termination message, which remains when
// the pod's files are gone. It is also updated while the program runs, in case everything in the pod
// is killed. A program may write anything there; other text is ignored.

// Limits of such a message, in bytes, and its prefix.
const (
	maxPodRecord = 16 << 10
)

// A recordLine is a line of a record. Unknown members stay as they are.
type recordLine map[string]json.RawMessage

// text returns the line, with the kind first as in other records.
func (l recordLine) text(kind string) []byte {
	l.remove("kind")
	b, _ := json.Marshal(l) // cannot fail: all values are JSON
	head := `{"kind":"` + kind + `"`
	if len(l) > 0 {
		head += ","
	}
	return append(append([]byte(head), b[1:]...), '\n')
}

// set replaces all members whose name matches case-insensitively.
func (l recordLine) set(name string, value any) {
	l.remove(name)
	if b, err := json.Marshal(value); err == nil {
		l[name] = b
	}
}

// remove deletes a member in any case, because Go's JSON decoder ignores case.
func (l recordLine) remove(name string) {
	for k := range l {
		if strings.EqualFold(k, name) {
			delete(l, k)
		}
	}
}

// podRecord parses the lines that a program left in a message. Missing or invalid lines are nil.
func podRecord(message string) (header recordLine, h metrics.Header, footer recordLine, f metrics.Footer) {
	i := strings.Index(message, recordHead)
	if i < 0 || len(message)-i > maxPodRecord {
		return nil, h, nil, f
	}
	first, rest, _ := strings.Cut(message[i:], "\n")
	if header = readLine(first, "header", &h); header == nil {
		return nil, metrics.Header{}, nil, f
	}
	second, _, _ := strings.Cut(rest, "\n")
	if footer = readLine(second, "footer", &f); footer == nil {
		f = metrics.Footer{}
	}
	return header, h, footer, f
}

// readLine parses a line of a kind, or returns nil. Members that hpcc knows better may be invalid.
func readLine(text, kind string, into any) recordLine {
	var l recordLine
	var is string
	if json.Unmarshal([]byte(text), &l) != nil || json.Unmarshal(l["kind"], &is) != nil || is != kind {
		return nil
	}
	checked := maps.Clone(l)
	for _, name := range []string{"job", "asked", "image", "digest", "config"} {
		checked.remove(name)
	}
	if b, err := json.Marshal(checked); err != nil || json.Unmarshal(b, into) != nil {
		return nil
	}
	return l
}

// keepMeasured writes the measurements of an ended task: what its program left, and what the job and
// the cluster know.
func (k System) keepMeasured(s *batch.Submitted, a *batch.Attempt, t *job.Task) error {
	if t.Native == "" { // it never started
		return nil
	}
	header, h, footer, f := podRecord(a.Message)
	if header == nil {
		header = recordLine{}
		h = metrics.Header{Start: t.Start, Machine: metrics.Machine{Host: t.Host}, Command: s.Job.OfTask(t).Args}
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
		f = metrics.Footer{}
		footer.set("usage", f.Usage)
	}
	ended := known && endedWith(&f, t.Exit)
	if !ended {
		outlived(&f, &h, t)
		footer.set("end", f.End)
		footer.set("wall_s", f.Wall)
		footer.set("exit", f.Exit)
		footer.set("signal", f.Signal)
	}
	if known && !ended && f.Problem == "" { // the footer has the reason if the program did not start
		footer.set("problem", "the measuring process was killed too; the figures are from its last sample")
	}
	if t.Problem != "" {
		footer.set("problem", t.Problem)
	}
	if err := files.Write(filepath.Join(s.Home, t.Measured()), append(header.text("header"), footer.text("footer")...)); err != nil {
		return fmt.Errorf("saving the measurements of task %d: %w", t.Index, err)
	}
	if known {
		t.Usage = footer["usage"]
	}
	return nil
}

// endedWith reports whether a footer belongs to a program with this exit status, in shell notation.
func endedWith(f *metrics.Footer, status int) bool {
	if f.Signal == "" {
		return f.Exit == status
	}
	if n := unix.SignalNum(f.Signal); n != 0 {
		return 128+int(n) == status
	}
	return status > 128+32 // a real-time signal
}

// outlived sets the end of a run from the cluster's record.
func outlived(f *metrics.Footer, h *metrics.Header, t *job.Task) {
	f.End, f.Exit, f.Signal = t.End, t.Exit, ""
	if name := unix.SignalName(unix.Signal(t.Exit - 128)); t.Exit > 128 && name != "" {
		f.Exit, f.Signal = -1, name
	}
	f.Wall = max(f.Wall, t.End.Sub(h.Start).Seconds(), 0)
}

// describe adds the job's properties to a header. The host is the node, not the pod.
func (k System) describe(s *batch.Submitted, header recordLine, h *metrics.Header, a *batch.Attempt, t *job.Task) {
	machine := recordLine{}
	if _ = json.Unmarshal(header["machine"], &machine); machine == nil { // it was null
		machine = recordLine{}
	}
	if t.Host != "" {
		machine.set("host", t.Host)
		header.set("machine", machine)
	}
	header.set("job", metrics.JobOf{ID: s.ID, Name: s.Job.Name, Target: string(k.Target), Task: t.Index, Attempt: t.Attempt,
		Native: map[string]string{"pod": t.Native}, Params: t.Params, Submitted: s.At(t), Pulled: a.Pulled.Seconds()})
	j := s.Job.OfTask(t)
	asked := j.Request()
	header.set("asked", metrics.Asked{CPUs: asked.CPUs, Memory: asked.Memory, GPUs: asked.GPUs, Time: asked.Time.Seconds()})
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

// digestIn returns the digest in an image reference.
func digestIn(ref string) string {
	_, d, _ := strings.Cut(ref, "@")
	return d
}

// AddMeasurements reads how long image pulls took, and the termination messages if the pods have not been queried
// yet; see [batch.Keeper].
func (k System) AddMeasurements(ctx context.Context, s *batch.Submitted, known map[string]batch.State) (later bool, err error) {
	want, err := withoutRecord(s, known)
	if len(want) == 0 || err != nil {
		return err != nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, invoke.LongTimeout)
	defer cancel()
	api, err := k.Open(ctx)
	if err == nil {
		defer api.Close()
		if k.Target == job.Argo {
			err = api.TerminationMessage(ctx, job.Label(s.ID), want)
		}
	}
	if err != nil {
		return !lasting(err), fmt.Errorf("reading measurements from the pods: %w", err)
	}
	api.Pulls(ctx, want)
	return false, nil
}

// withoutRecord returns the ended attempts without a record, by pod.
func withoutRecord(s *batch.Submitted, known map[string]batch.State) (map[string][]*batch.Attempt, error) {
	var r job.Records
	if err := r.Read(s.Home, true); err != nil {
		return nil, err
	}
	type run struct {
		pod   string
		begun int64
	}
	complete := map[run]bool{}
	for _, t := range slices.Concat(r.Last, r.Earlier) {
		if t.Ended() {
			complete[run{t.Native, t.Start.UnixNano()}] = true
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
			if r := (run{a.Native, a.Start.UnixNano()}); a.Ended() && a.Native != "" && kept[r] && !complete[r] {
				want[a.Native] = append(want[a.Native], a)
			}
		}
	}
	return want, nil
}

// lasting reports whether an error of Hear is final: the server refused, or cannot be reached. A slow
// or busy server may answer later.
func lasting(err error) bool {
	refused := new(Error)
	return errors.As(err, &refused) &&
		!slices.Contains([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, refused.Code)
}
