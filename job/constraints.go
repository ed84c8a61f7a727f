package job

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"hpcc/job/quantity"
	"hpcc/text"
)

// Constraints hold the requests of scripts that hpcc has no flags for and that at least two
// schedulers support. The zero value requests nothing.
type Constraints struct {
	OnHost       bool     `json:"on_host,omitempty"`              // an interactive program without an image
	MemoryPerCPU int64    `json:"memory_per_cpu_bytes,omitempty"` // instead of Memory
	GPUType      string   `json:"gpu_type,omitempty"`
	Features     []string `json:"features,omitempty"` // that each node must have, as the site names them
	Hosts        []string `json:"hosts,omitempty"`    // all of these nodes
	NotHosts     []string `json:"not_hosts,omitempty"`
	AfterAny     []string `json:"after_any,omitempty"`    // native IDs of jobs that must have ended
	AfterFailed  []string `json:"after_failed,omitempty"` // native IDs of jobs that must have failed
	AfterEach    []string `json:"after_each,omitempty"`   // native IDs of arrays whose task with the same index must have succeeded
	Warning      Warning  `json:"warning,omitzero"`
	Requeue      string   `json:"requeue,omitempty"` // after the loss of a node: "yes", "no", "" for the site's default
	MailOn       []string `json:"mail_on,omitempty"` // begin, end, fail; with only an address, end and fail
	Begin        string   `json:"begin,omitempty"`   // earliest start: 15:04 or 2006-01-02T15:04
	QoS          string   `json:"qos,omitempty"`
	Hold         bool     `json:"hold,omitempty"`
	Append       bool     `json:"append,omitempty"` // append to existing output files
	Export       []string `json:"export,omitempty"` // variables of the submitting shell; or only ALL or NONE
}

// A Warning is a signal that is sent before the time limit.
type Warning struct {
	Signal string        `json:"signal,omitempty"` // without SIG: USR1; "" for no signal
	Lead   time.Duration `json:"lead_ns,omitempty"`
	Steps  bool          `json:"steps,omitempty"` // only to what srun started
}

// ParseWarning parses SIGNAL@TIME, such as USR1@5m; "" gives the zero Warning.
func ParseWarning(s string) (Warning, error) {
	if s == "" {
		return Warning{}, nil
	}
	name, lead, _ := strings.Cut(s, "@")
	sig, err := SignalName(name)
	if err != nil {
		return Warning{}, err
	}
	d, err := time.ParseDuration(lead)
	if err != nil || d <= 0 || d > quantity.MaxTime {
		return Warning{}, fmt.Errorf("%q is not a time before the limit; write %s@5m", text.Short(lead), sig)
	}
	return Warning{Signal: sig, Lead: d}, nil
}

// check returns an error for values that would break out of a directive.
func (w *Constraints) check() error {
	return checkWords(words{"feature", w.Features}, words{"host", slices.Concat(w.Hosts, w.NotHosts)},
		words{"job ID", slices.Concat(w.AfterAny, w.AfterFailed, w.AfterEach)}, words{"word", slices.Concat(w.MailOn, w.Export)},
		words{"GPU type", []string{w.GPUType}}, words{"QoS", []string{w.QoS}}, words{"signal", []string{w.Warning.Signal}},
		words{"begin", []string{w.Begin}}, words{"requeue", []string{w.Requeue}})
}
