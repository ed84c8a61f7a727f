package job

import (
	"fmt"
	"strings"
	"time"

	"hpcc/job/message"
	"hpcc/job/quantity"
)

// Wishes are what scripts ask for beside what the flags of hpcc say: what at
// least two of the schedulers have. The zero value asks for nothing.
type Wishes struct {
	OnHost       bool     `json:"on_host,omitempty"`              // an interactive program without an image
	MemoryPerCPU int64    `json:"memory_per_cpu_bytes,omitempty"` // in the place of Memory
	GPUType      string   `json:"gpu_type,omitempty"`
	Features     []string `json:"features,omitempty"` // what each node must have, in the site's words
	Hosts        []string `json:"hosts,omitempty"`    // all of these nodes
	NotHosts     []string `json:"not_hosts,omitempty"`
	AfterAny     []string `json:"after_any,omitempty"`    // native ids of jobs that must have ended
	AfterFailed  []string `json:"after_failed,omitempty"` // that must have failed
	AfterEach    []string `json:"after_each,omitempty"`   // arrays of which the task of the same index must have succeeded
	Warning      Warning  `json:"warning,omitzero"`
	Requeue      string   `json:"requeue,omitempty"` // after the loss of a node: "yes", "no", "" as the site has it
	MailOn       []string `json:"mail_on,omitempty"` // begin, end, fail; end and fail when there is an address alone
	Begin        string   `json:"begin,omitempty"`   // not before: 15:04 or 2006-01-02T15:04
	QoS          string   `json:"qos,omitempty"`
	Hold         bool     `json:"hold,omitempty"`
	Append       bool     `json:"append,omitempty"` // to output files that are there
	Export       []string `json:"export,omitempty"` // names of variables of the submitting shell; ALL or NONE alone
}

// A Warning is a signal before the time limit.
type Warning struct {
	Signal string        `json:"signal,omitempty"` // without SIG: USR1; "" is none
	Lead   time.Duration `json:"lead_ns,omitempty"`
	Steps  bool          `json:"steps,omitempty"` // to what srun started only
}

// ParseWarning reads SIGNAL@TIME: USR1@5m; "" is none.
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
		return Warning{}, fmt.Errorf("%q is not how long before the limit; write %s@5m", message.Short(lead), sig)
	}
	return Warning{Signal: sig, Lead: d}, nil
}

// check refuses words that would break out of a directive.
func (w *Wishes) check() error {
	lists := map[string][]string{"feature": w.Features, "host": append(append([]string{}, w.Hosts...), w.NotHosts...),
		"job id": append(append(append([]string{}, w.AfterAny...), w.AfterFailed...), w.AfterEach...),
		"word":   append(append([]string{}, w.MailOn...), w.Export...)}
	for what, s := range map[string]string{"GPU type": w.GPUType, "QoS": w.QoS, "signal": w.Warning.Signal, "begin": w.Begin, "requeue": w.Requeue} {
		if s != "" {
			lists[what] = []string{s}
		}
	}
	for what, list := range lists {
		for _, s := range list {
			if !WordText().MatchString(s) {
				return fmt.Errorf("%s %q: holds characters that directives cannot", what, s)
			}
		}
	}
	return nil
}
