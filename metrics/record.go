package metrics

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// recordVersion is the version of the records that this package writes. It reads all
// up to it, and of later ones what it knows.
const recordVersion = 1

// A Record is what was measured of one run: a file of JSON lines, a header,
// samples, a footer. Each line says its kind. A record without a footer is of a run that
// goes on, or whose measurer was killed with it.
type Record struct {
	Header  Header
	Samples []Sample
	Footer  *Footer           // nil: there is none (yet)
	Other   []json.RawMessage // lines of kinds that this version does not know, where samples are wanted
	Torn    bool              // the last line was cut off

	others int // bytes of Other
}

// The kinds of lines.
const (
	kindHeader = "header"
	kindSample = "sample"
	kindFooter = "footer"
)

// A Header is what was known of a run when it began.
type Header struct {
	Kind    string    `json:"kind"`
	Version int       `json:"version"`
	Hpcc    string    `json:"hpcc,omitempty"` // hpcc's version
	Start   time.Time `json:"start"`
	Command []string  `json:"command"`
	Image   string    `json:"image,omitempty"`  // its name
	Digest  string    `json:"digest,omitempty"` // and what that was
	Config  string    `json:"config,omitempty"` // the digest of its configuration, which a directory that it was unpacked to has, too
	Job     *JobOf    `json:"job,omitempty"`
	Asked   Asked     `json:"asked,omitzero"`
	Machine Machine   `json:"machine"`
	Limits  Limits    `json:"limits"`

	Unknown map[string]json.RawMessage `json:"-"` // members of later versions, kept
}

// JobOf says which task of which job a run was.
type JobOf struct {
	ID        string            `json:"id"`
	Name      string            `json:"name,omitempty"`
	Target    string            `json:"target,omitempty"`
	Task      int               `json:"task"`
	Attempt   int               `json:"attempt,omitempty"`
	Native    map[string]string `json:"native,omitempty"` // the scheduler's own: SLURM_JOB_ID, JOB_ID, …
	Params    map[string]string `json:"params,omitempty"`
	Submitted time.Time         `json:"submitted,omitzero"` // when it was handed in
	Pulled    float64           `json:"pull_s,omitempty"`   // how long its image took to come, in seconds
}

// Asked is what the job asked for, of each task; zero is what it did not say.
type Asked struct {
	CPUs   int     `json:"cpus,omitempty"`
	Memory int64   `json:"memory_bytes,omitempty"`
	GPUs   int     `json:"gpus,omitempty"`
	Time   float64 `json:"time_s,omitempty"`
}

// A Machine is the host of a run, whoever else uses it.
type Machine struct {
	Host         string `json:"host"`
	Architecture string `json:"architecture"` // as Go spells it: amd64, ppc64le
	CPU          string `json:"cpu,omitempty"`
	CPUs         int    `json:"cpus"` // that are online
	Memory       int64  `json:"memory_bytes"`
	Kernel       string `json:"kernel"`
	GPUs         []GPU  `json:"gpus,omitempty"` // that the run may use
}

// A GPU is an accelerator.
type GPU struct {
	Index  int    `json:"index"`
	Name   string `json:"name"`
	Memory int64  `json:"memory_bytes,omitempty"`
	Driver string `json:"driver,omitempty"`
}

// Limits are what the run may use of its machine.
type Limits struct {
	CPUs       float64 `json:"cpus"`                   // least of affinity and quota
	Memory     int64   `json:"memory_bytes,omitempty"` // 0: all that the machine has
	Cgroup     string  `json:"cgroup,omitempty"`       // "v1", "v2", or "" where it could not be read
	CgroupPath string  `json:"cgroup_path,omitempty"`
	// Shared says that others are in the cgroup too, as in a login session: its
	// figures are then not the run's.
	Shared bool `json:"cgroup_shared,omitempty"`
}

// A Sample is how a run stood at one moment. Times, bytes and counts of events are sums
// since the run began; what others did in a cgroup before is not in them.
type Sample struct {
	Kind      string  `json:"kind"`
	At        float64 `json:"t"`        // seconds since the start
	CPU       float64 `json:"cpu_s"`    // of the program and all its descendants
	System    float64 `json:"system_s"` // of that in the kernel
	RSS       int64   `json:"rss_bytes"`
	Peak      int64   `json:"rss_peak_bytes,omitempty"` // the most until now; of proportional sets where those are known
	PSS       int64   `json:"pss_bytes,omitempty"`      // now and then: it costs more
	Swap      int64   `json:"swap_bytes,omitempty"`
	Processes int     `json:"processes"`
	Threads   int     `json:"threads"`
	Read      int64   `json:"read_bytes"`    // from storage
	Written   int64   `json:"written_bytes"` // to storage
	NetIn     int64   `json:"net_in_bytes"`  // of the network namespace, whoever it was
	NetOut    int64   `json:"net_out_bytes"`

	Cgroup   *CgroupUse  `json:"cgroup,omitempty"`
	Pressure *Pressure   `json:"pressure,omitempty"`
	GPUs     []GPUSample `json:"gpus,omitempty"`
}

// CgroupUse is what a cgroup counted.
type CgroupUse struct {
	CPU       float64 `json:"cpu_s,omitempty"`
	Memory    int64   `json:"memory_bytes,omitempty"`
	Cache     int64   `json:"cache_bytes,omitempty"` // of that the contents of files, which the kernel gives up where memory is short
	Peak      int64   `json:"memory_peak_bytes,omitempty"`
	Read      int64   `json:"read_bytes,omitempty"`
	Written   int64   `json:"written_bytes,omitempty"`
	Throttled float64 `json:"throttled_s,omitempty"` // because of the quota
	Throttles int64   `json:"throttles,omitempty"`   // periods in which it was
	OOMKills  int64   `json:"oom_kills,omitempty"`
}

// Pressure is how long some of the tasks waited, in seconds: Documentation/accounting/psi.rst.
// It is the cgroup's where that has it, else the machine's.
type Pressure struct {
	CPU     float64 `json:"cpu_s"`
	Memory  float64 `json:"memory_s"`
	IO      float64 `json:"io_s"`
	Machine bool    `json:"machine,omitempty"`
}

// A GPUSample is how a GPU stood.
type GPUSample struct {
	Index       int     `json:"index"`
	Utilisation float64 `json:"utilisation"`                   // percent
	Unknown     bool    `json:"utilisation_unknown,omitempty"` // as of parts of a GPU (MIG)
	Memory      int64   `json:"memory_bytes"`
	Power       float64 `json:"power_w,omitempty"`
}

// A Footer is how a run ended, and what it used in all.
type Footer struct {
	Kind    string    `json:"kind"`
	End     time.Time `json:"end"`
	Wall    float64   `json:"wall_s"`
	Exit    int       `json:"exit"` // -1 when a signal ended it
	Signal  string    `json:"signal,omitempty"`
	Problem string    `json:"problem,omitempty"` // why hpcc ended it, or why it did not run
	Usage   Usage     `json:"usage"`
	// Memory is the most that all processes together held, and MemoryFrom who says so:
	// "cgroup", "pss", "rss" (sampled), or "process", the largest alone.
	Memory     int64      `json:"memory_peak_bytes"`
	MemoryFrom string     `json:"memory_from"`
	Read       int64      `json:"read_bytes"`
	Written    int64      `json:"written_bytes"`
	NetIn      int64      `json:"net_in_bytes,omitempty"`
	NetOut     int64      `json:"net_out_bytes,omitempty"`
	Processes  int        `json:"processes"` // at once, that a sample saw
	Threads    int        `json:"threads"`
	Cgroup     *CgroupUse `json:"cgroup,omitempty"`
	Pressure   *Pressure  `json:"pressure,omitempty"`
	GPUs       []GPUUse   `json:"gpus,omitempty"`
	Samples    int        `json:"samples"`
	Cost       float64    `json:"measuring_s"` // processor time of measuring

	Unknown map[string]json.RawMessage `json:"-"` // members of later versions, kept
}

// GPUUse is how a GPU was used over the whole run.
type GPUUse struct {
	Index   int     `json:"index"`
	Mean    float64 `json:"utilisation_mean"` // percent, over time
	P95     float64 `json:"utilisation_p95"`
	Unknown bool    `json:"utilisation_unknown,omitempty"` // as of parts of a GPU (MIG)
	Memory  int64   `json:"memory_peak_bytes"`
	Energy  float64 `json:"energy_j,omitempty"`
	// GPU is what it is, where its tool told of that after the header was written. [ReadRecord] adds it
	// to the header's.
	GPU *GPU `json:"gpu,omitempty"`
}

// maxLine bounds a line of a record, in bytes, and maxLines the lines.
const (
	maxLine  = 1 << 20
	maxLines = 1 << 20
	maxOther = 64 << 20 // of lines that are not known, together
)

// sampleHead begins each sample that hpcc writes: most of a record, which a report of many does not need.
var sampleHead = []byte(`{"kind":"sample",`)

// ReadRecord reads a record, with its samples where they are wanted. A last line that was cut
// off is left out: who wrote it was killed. Anything else that is not a line of a record is an error with its line.
func ReadRecord(file string, samples bool) (*Record, error) {
	f, _, err := openRecord(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := readRecord(f, samples)
	if err != nil {
		return nil, fmt.Errorf("reading a measured run: %s%w", file, err)
	}
	return r, nil
}

// openRecord opens a record to read. What lies in its place may be a stranger's: nobody is waited for to write
// a pipe.
func openRecord(file string) (*os.File, os.FileInfo, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("reading a measured run: %w", err)
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("reading a measured run: %s: %w", file, err)
	}
	return f, fi, nil
}

// readRecord begins its errors with the line's number.
func readRecord(in io.Reader, samples bool) (*Record, error) {
	r := &Record{}
	lines := bufio.NewReaderSize(in, 64<<10)
	for n := 1; ; n++ {
		line, whole, err := readLine(lines)
		if err != nil {
			return nil, fmt.Errorf(":%d: %w", n, err)
		}
		if !whole && len(line) == 0 {
			break
		}
		if n > maxLines {
			return nil, fmt.Errorf(":%d: more than %d lines", n, maxLines)
		}
		if len(bytes.TrimSpace(line)) == 0 || (!samples && whole && n > 1 && bytes.HasPrefix(line, sampleHead)) {
			continue
		}
		if err := r.take(line, samples); err != nil {
			if !whole { // cut off in its middle
				r.Torn = true
				break
			}
			return nil, fmt.Errorf(":%d: %w", n, err)
		}
	}
	if r.Header.Kind == "" {
		return nil, errors.New(":1: no header: this is no measured run")
	}
	r.addGPUs()
	return r, nil
}

// addGPUs adds those that only the footer knows to the header's.
func (r *Record) addGPUs() {
	if r.Footer == nil {
		return
	}
	m := &r.Header.Machine
	for _, u := range r.Footer.GPUs {
		if u.GPU != nil && len(m.GPUs) < maxGPUs && !m.hasGPU(u.Index) {
			m.GPUs = append(m.GPUs, *u.GPU)
		}
	}
}

func (m *Machine) hasGPU(index int) bool {
	return slices.ContainsFunc(m.GPUs, func(g GPU) bool { return g.Index == index })
}

// readLine reads a line; whole says that it had an end.
func readLine(in *bufio.Reader) (line []byte, whole bool, err error) {
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return nil, false, fmt.Errorf("a line of more than %d bytes", maxLine)
		case err == nil:
			return line, true, nil
		case errors.Is(err, io.EOF):
			return line, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		}
	}
}

// take takes one line in; samples, and what it does not know, where they are wanted.
func (r *Record) take(line []byte, samples bool) error {
	var of struct {
		Kind    string `json:"kind"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(line, &of); err != nil {
		return err
	}
	if r.Header.Kind == "" && of.Kind != kindHeader {
		return errors.New("no header: this is no measured run")
	}
	switch {
	case of.Kind == kindHeader:
		if r.Header.Kind != "" {
			return errors.New("a second header")
		}
		return json.Unmarshal(line, &r.Header)
	case of.Kind == kindFooter:
		if r.Footer != nil { // two wrote here
			return errors.New("a second footer")
		}
		r.Footer = &Footer{}
		return json.Unmarshal(line, r.Footer)
	case !samples:
	case of.Kind == kindSample:
		var s Sample
		if err := json.Unmarshal(line, &s); err != nil {
			return err
		}
		s.bound()
		r.Samples = append(r.Samples, s)
	default:
		if r.others += len(line); r.others > maxOther {
			return fmt.Errorf("more than %d bytes of lines that are not known", maxOther)
		}
		r.Other = append(r.Other, bytes.Clone(line))
	}
	return nil
}

// UnmarshalJSON keeps the members that it does not know, and brings figures within what can be.
func (h *Header) UnmarshalJSON(b []byte) (err error) {
	type plain Header
	if err = json.Unmarshal(b, (*plain)(h)); err == nil {
		h.bound()
		h.Unknown, err = unknown(b, reflect.TypeFor[Header]())
	}
	return err
}

// MarshalJSON writes the unknown members after the known ones.
func (h Header) MarshalJSON() ([]byte, error) {
	type plain Header
	return withUnknown(plain(h), h.Unknown)
}

// UnmarshalJSON keeps the members that it does not know, and brings figures within what can be.
func (f *Footer) UnmarshalJSON(b []byte) (err error) {
	type plain Footer
	if err = json.Unmarshal(b, (*plain)(f)); err == nil {
		f.bound()
		f.Unknown, err = unknown(b, reflect.TypeFor[Footer]())
	}
	return err
}

// MarshalJSON writes the unknown members after the known ones.
func (f Footer) MarshalJSON() ([]byte, error) {
	type plain Footer
	return withUnknown(plain(f), f.Unknown)
}

// unknown are the members of an object that a struct does not have.
func unknown(b []byte, t reflect.Type) (map[string]json.RawMessage, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		delete(all, name)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// withUnknown writes an object with more members behind its own.
func withUnknown(v any, more map[string]json.RawMessage) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil || len(more) == 0 {
		return b, err
	}
	rest, err := json.Marshal(more)
	if err != nil {
		return nil, err
	}
	return append(append(b[:len(b)-1], ','), rest[1:]...), nil
}
