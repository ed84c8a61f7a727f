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

// recordVersion is the version of the written records. Older records are read completely,
// newer ones if possible.
const recordVersion = 1

// A Record holds the measurements of one run. Its file has JSON lines, each with its kind: a
// header, samples, a footer. A record without a footer belongs to a run that is in progress,
// or whose measuring process was killed.
type Record struct {
	Header  Header
	Samples []Sample
	Footer  *Footer           // nil: there is none (yet)
	Other   []json.RawMessage // lines of unknown kinds, if samples were requested
	Torn    bool              // the last line was truncated

	others int // bytes of Other
}

// The kinds of lines.
const (
	kindHeader = "header"
	kindSample = "sample"
	kindFooter = "footer"
)

// A Header describes a run at its start.
type Header struct {
	Kind    string    `json:"kind"`
	Version int       `json:"version"`
	Hpcc    string    `json:"hpcc,omitempty"` // hpcc's version
	Start   time.Time `json:"start"`
	Command []string  `json:"command"`
	Image   string    `json:"image,omitempty"`  // the image's name
	Digest  string    `json:"digest,omitempty"` // the image's digest
	Config  string    `json:"config,omitempty"` // digest of the image's configuration, which unpacked directories have as well
	Job     *JobOf    `json:"job,omitempty"`
	Asked   Asked     `json:"asked,omitzero"`
	Machine Machine   `json:"machine"`
	Limits  Limits    `json:"limits"`

	Unknown map[string]json.RawMessage `json:"-"` // unknown members of later versions
}

// JobOf identifies the task of a run.
type JobOf struct {
	ID        string            `json:"id"`
	Name      string            `json:"name,omitempty"`
	Target    string            `json:"target,omitempty"`
	Task      int               `json:"task"`
	Attempt   int               `json:"attempt,omitempty"`
	Native    map[string]string `json:"native,omitempty"` // the scheduler's IDs: SLURM_JOB_ID, JOB_ID, …
	Params    map[string]string `json:"params,omitempty"`
	Submitted time.Time         `json:"submitted,omitzero"` // time of submission
	Pulled    float64           `json:"pull_s,omitempty"`   // time to fetch the image, in seconds
}

// Asked holds the requests of a job for each task. Zero means not specified.
type Asked struct {
	CPUs   int     `json:"cpus,omitempty"`
	Memory int64   `json:"memory_bytes,omitempty"`
	GPUs   int     `json:"gpus,omitempty"`
	Time   float64 `json:"time_s,omitempty"`
}

// A Machine describes the host of a run, including other users' share.
type Machine struct {
	Host         string `json:"host"`
	Architecture string `json:"architecture"` // as in Go: amd64, ppc64le
	CPU          string `json:"cpu,omitempty"`
	CPUs         int    `json:"cpus"` // online processors
	Memory       int64  `json:"memory_bytes"`
	Kernel       string `json:"kernel"`
	GPUs         []GPU  `json:"gpus,omitempty"` // GPUs that the run may use
}

// A GPU is an accelerator.
type GPU struct {
	Index  int    `json:"index"`
	Name   string `json:"name"`
	Memory int64  `json:"memory_bytes,omitempty"`
	Driver string `json:"driver,omitempty"`
}

// Limits are the run's limits on its machine.
type Limits struct {
	CPUs       float64 `json:"cpus"`                   // minimum of affinity and quota
	Memory     int64   `json:"memory_bytes,omitempty"` // 0: all of the machine's memory
	Cgroup     string  `json:"cgroup,omitempty"`       // "v1", "v2", or "" if it could not be read
	CgroupPath string  `json:"cgroup_path,omitempty"`
	// Shared reports that other processes are in the cgroup, as in a login session. Its
	// counters are then not the run's.
	Shared bool `json:"cgroup_shared,omitempty"`
}

// A Sample is the state of a run at one moment. Times, bytes and event counts are totals
// since the start of the run, without earlier activity in a cgroup.
type Sample struct {
	Kind      string  `json:"kind"`
	At        float64 `json:"t"`        // seconds since the start
	CPU       float64 `json:"cpu_s"`    // of the program and all its descendants
	System    float64 `json:"system_s"` // part of it in the kernel
	RSS       int64   `json:"rss_bytes"`
	Peak      int64   `json:"rss_peak_bytes,omitempty"` // maximum so far, of proportional sets if known
	PSS       int64   `json:"pss_bytes,omitempty"`      // only in some samples, because it is expensive
	Swap      int64   `json:"swap_bytes,omitempty"`
	Processes int     `json:"processes"`
	Threads   int     `json:"threads"`
	Read      int64   `json:"read_bytes"`    // from storage
	Written   int64   `json:"written_bytes"` // to storage
	NetIn     int64   `json:"net_in_bytes"`  // of the network namespace, by any process
	NetOut    int64   `json:"net_out_bytes"`

	Cgroup   *CgroupUse  `json:"cgroup,omitempty"`
	Pressure *Pressure   `json:"pressure,omitempty"`
	GPUs     []GPUSample `json:"gpus,omitempty"`
}

// CgroupUse holds the counters of a cgroup.
type CgroupUse struct {
	CPU       float64 `json:"cpu_s,omitempty"`
	Memory    int64   `json:"memory_bytes,omitempty"`
	Cache     int64   `json:"cache_bytes,omitempty"` // part of the memory with file contents, which the kernel reclaims when needed
	Peak      int64   `json:"memory_peak_bytes,omitempty"`
	Read      int64   `json:"read_bytes,omitempty"`
	Written   int64   `json:"written_bytes,omitempty"`
	Throttled float64 `json:"throttled_s,omitempty"` // because of the quota
	Throttles int64   `json:"throttles,omitempty"`   // throttled periods
	OOMKills  int64   `json:"oom_kills,omitempty"`
}

// Pressure is how long some of the tasks waited, in seconds:
// Documentation/accounting/psi.rst. It is the cgroup's, if available, else the machine's.
type Pressure struct {
	CPU     float64 `json:"cpu_s"`
	Memory  float64 `json:"memory_s"`
	IO      float64 `json:"io_s"`
	Machine bool    `json:"machine,omitempty"`
}

// A GPUSample is the state of a GPU.
type GPUSample struct {
	Index       int     `json:"index"`
	Utilisation float64 `json:"utilisation"`                   // percent
	Unknown     bool    `json:"utilisation_unknown,omitempty"` // true for parts of a GPU (MIG)
	Memory      int64   `json:"memory_bytes"`
	Power       float64 `json:"power_w,omitempty"`
}

// A Footer describes the end of a run and its total usage.
type Footer struct {
	Kind    string    `json:"kind"`
	End     time.Time `json:"end"`
	Wall    float64   `json:"wall_s"`
	Exit    int       `json:"exit"` // -1 if a signal ended it
	Signal  string    `json:"signal,omitempty"`
	Problem string    `json:"problem,omitempty"` // why hpcc ended it or it did not run
	Usage   Usage     `json:"usage"`
	// Memory is the peak of all processes together. MemoryFrom is its source: "cgroup",
	// "pss", "rss" (sampled), or "process", the largest single process.
	Memory     int64      `json:"memory_peak_bytes"`
	MemoryFrom string     `json:"memory_from"`
	Read       int64      `json:"read_bytes"`
	Written    int64      `json:"written_bytes"`
	NetIn      int64      `json:"net_in_bytes,omitempty"`
	NetOut     int64      `json:"net_out_bytes,omitempty"`
	Processes  int        `json:"processes"` // maximum at once, in samples
	Threads    int        `json:"threads"`
	Cgroup     *CgroupUse `json:"cgroup,omitempty"`
	Pressure   *Pressure  `json:"pressure,omitempty"`
	GPUs       []GPUUse   `json:"gpus,omitempty"`
	Samples    int        `json:"samples"`
	Cost       float64    `json:"measuring_s"` // processor time of measuring

	Unknown map[string]json.RawMessage `json:"-"` // unknown members of later versions
}

// GPUUse is the use of a GPU over the whole run.
type GPUUse struct {
	Index   int     `json:"index"`
	Mean    float64 `json:"utilisation_mean"` // percent, over time
	P95     float64 `json:"utilisation_p95"`
	Unknown bool    `json:"utilisation_unknown,omitempty"` // true for parts of a GPU (MIG)
	Memory  int64   `json:"memory_peak_bytes"`
	Energy  float64 `json:"energy_j,omitempty"`
	// GPU describes the GPU if its tool reported after the header was written. [ReadRecord]
	// adds it to the header's.
	GPU *GPU `json:"gpu,omitempty"`
}

// maxLine bounds a line of a record, in bytes, and maxLines the number of lines.
const (
	maxLine  = 1 << 20
	maxLines = 1 << 20
	maxOther = 64 << 20 // total of unknown lines
)

// sampleHead is the start of each sample that hpcc writes. Reports on many records skip
// samples.
var sampleHead = []byte(`{"kind":"sample",`)

// ReadRecord reads a record, with its samples if requested. It ignores a truncated last
// line, whose writer was killed. Any other invalid line is an error with its number.
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

// openRecord opens a record for reading. The file may be foreign, so it does not block on a
// pipe.
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

var errNoHeader = errors.New("no header: not a measured run")

// readRecord starts its errors with the line number.
func readRecord(in io.Reader, samples bool) (*Record, error) {
	r := &Record{}
	lines := bufio.NewReaderSize(in, 64<<10)
	for n := 1; ; n++ {
		line, complete, err := readLine(lines)
		if err != nil {
			return nil, fmt.Errorf(":%d: %w", n, err)
		}
		if !complete && len(line) == 0 {
			break
		}
		if n > maxLines {
			return nil, fmt.Errorf(":%d: more than %d lines", n, maxLines)
		}
		if len(bytes.TrimSpace(line)) == 0 || (!samples && complete && n > 1 && bytes.HasPrefix(line, sampleHead)) {
			continue
		}
		if err := r.take(line, samples); err != nil {
			if !complete { // truncated
				r.Torn = true
				break
			}
			return nil, fmt.Errorf(":%d: %w", n, err)
		}
	}
	if r.Header.Kind == "" {
		return nil, fmt.Errorf(":1: %w", errNoHeader)
	}
	r.addGPUs()
	return r, nil
}

// addGPUs adds GPUs that only the footer has to the header.
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

// readLine reads a line. complete reports that it has an end.
func readLine(in *bufio.Reader) (line []byte, complete bool, err error) {
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

// parseLine parses a line: a *Header, a *Footer or a *Sample. It returns nil for another kind, and for a sample unless
// samples is set.
func parseLine(line []byte, samples bool) (v any, err error) {
	var of struct {
		Kind    string `json:"kind"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(line, &of); err != nil {
		return nil, err
	}
	switch {
	case of.Kind == kindHeader:
		v = &Header{}
	case of.Kind == kindFooter:
		v = &Footer{}
	case of.Kind == kindSample && samples:
		v = &Sample{}
	default:
		return nil, nil
	}
	if err := json.Unmarshal(line, v); err != nil {
		return nil, err
	}
	if s, ok := v.(*Sample); ok {
		s.bound()
	}
	return v, nil
}

// take records one line. It keeps samples and unknown lines if samples is set.
func (r *Record) take(line []byte, samples bool) error {
	v, err := parseLine(line, samples)
	if err != nil {
		return err
	}
	if _, ok := v.(*Header); !ok && r.Header.Kind == "" {
		return errNoHeader
	}
	switch v := v.(type) {
	case *Header:
		if r.Header.Kind != "" {
			return errors.New("a second header")
		}
		r.Header = *v
	case *Footer:
		if r.Footer != nil { // two processes wrote to the file
			return errors.New("a second footer")
		}
		r.Footer = v
	case *Sample:
		r.Samples = append(r.Samples, *v)
	default:
		if !samples {
			return nil
		}
		if r.others += len(line); r.others > maxOther {
			return fmt.Errorf("more than %d bytes of unknown lines", maxOther)
		}
		r.Other = append(r.Other, bytes.Clone(line))
	}
	return nil
}

// UnmarshalJSON keeps unknown members and clamps values.
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

// UnmarshalJSON keeps unknown members and clamps values.
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

// unknown returns the members of an object that a struct lacks.
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

// withUnknown encodes an object with additional members after its own.
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
