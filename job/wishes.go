package job

import (
	"fmt"
	"slices"
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

// An optionList is a list of options being written.
type optionList []string

func (o *optionList) add(have bool, format string, a ...any) {
	if have {
		*o = append(*o, fmt.Sprintf(format, a...))
	}
}

// slurmWishes are the options of sbatch(1) for them.
func slurmWishes(j *Job) []string {
	var o optionList
	add := o.add
	add(j.TimeMin > 0, "--time-min=%s", quantity.FormatClock(j.TimeMin))
	add(j.requeue() == "yes", "--requeue")
	add(j.requeue() == "no", "--no-requeue")
	add(len(j.Features) > 0, "--constraint=%s", strings.Join(j.Features, "&"))
	add(len(j.Hosts) > 0, "--nodelist=%s", strings.Join(j.Hosts, ","))
	add(len(j.NotHosts) > 0, "--exclude=%s", strings.Join(j.NotHosts, ","))
	add(j.MemoryPerCPU > 0, "--mem-per-cpu=%dM", (j.MemoryPerCPU+1<<20-1)>>20)
	to := "B:"
	if j.Warning.Steps {
		to = ""
	}
	add(j.Warning.Signal != "", "--signal=%s%s@%d", to, j.Warning.Signal, int64((j.Warning.Lead+time.Second-1)/time.Second))
	add(j.Begin != "", "--begin=%s", j.Begin)
	add(j.QoS != "", "--qos=%s", j.QoS)
	add(j.Hold, "--hold")
	add(j.Append || j.Retry.requeue(), "--open-mode=append") // what an attempt wrote that was taken away is still of use
	add(len(j.Export) > 0, "--export=%s", strings.Join(j.Export, ","))
	add(j.Mail != "", "--mail-user=%s", j.Mail)
	switch {
	case len(j.MailOn) > 0:
		add(true, "--mail-type=%s", strings.ToUpper(strings.Join(j.MailOn, ",")))
	case j.Mail != "":
		add(true, "--mail-type=END,FAIL")
	}
	return o
}

// slurmDependency is what has to happen before; "" for nothing.
func slurmDependency(j *Job) string {
	var parts []string
	for _, d := range []struct {
		word string
		ids  []string
	}{{"afterok", j.After}, {"afterany", j.AfterAny}, {"afternotok", j.AfterFailed}, {"aftercorr", j.AfterEach}} {
		if len(d.ids) > 0 {
			parts = append(parts, d.word+":"+strings.Join(d.ids, ":"))
		}
	}
	return strings.Join(parts, ",")
}

// requeue is what is asked for after the loss of a node: retries need it.
func (j *Job) requeue() string {
	if j.Requeue == "" && j.Retry.requeue() {
		return "yes"
	}
	return j.Requeue
}

// ExportedNames are the variables that are handed over by name.
func (w *Wishes) ExportedNames() []string {
	return slices.DeleteFunc(slices.Clone(w.Export), func(n string) bool { return n == "ALL" || n == "NONE" })
}

// MailsOn says whether mail is wanted at an event; with an address alone, at the end
// and on failure.
func (j *Job) MailsOn(event string) bool {
	if len(j.MailOn) > 0 {
		return slices.Contains(j.MailOn, event)
	}
	return j.Mail != "" && event != "begin"
}

// letters are those of qsub for the events that mail is wanted at.
func (j *Job) letters(of ...string) string {
	out := ""
	for i := 0; i < len(of); i += 2 {
		if j.MailsOn(of[i]) {
			out += of[i+1]
		}
	}
	return out
}

// gridEngineWishes are the options of qsub(1) for them.
func gridEngineWishes(j *Job) []string {
	var o optionList
	add := o.add
	before := append(slices.Clone(j.After), j.AfterAny...)
	add(len(before) > 0, "-hold_jid %s", strings.Join(before, ","))
	add(len(j.AfterEach) > 0, "-hold_jid_ad %s", strings.Join(j.AfterEach, ","))
	add(j.requeue() != "", "-r %.1s", j.requeue())
	when := j.letters("end", "e", "fail", "a", "begin", "b")
	add(when != "", "-m %s", when)
	add(j.Mail != "", "-M %s", j.Mail)
	add(len(j.Hosts) == 1, "-l hostname=%s", strings.Join(j.Hosts, ""))
	add(len(j.NotHosts) > 0, "-l hostname=!(%s)", strings.Join(j.NotHosts, "|"))
	add(j.Begin != "", "-a %s", digits(j.Begin))
	add(j.Hold, "-h")
	add(len(j.ExportedNames()) > 0, "-v %s", strings.Join(j.ExportedNames(), ","))
	return o
}

// digits of a moment: CCYYMMDDhhmm, or hhmm.
func digits(moment string) string {
	return strings.NewReplacer("-", "", "T", "", ":", "").Replace(moment)
}

// lsfWishes are the options of bsub(1) for them.
func lsfWishes(j *Job) []string {
	var o optionList
	add := o.add
	var before []string
	for _, d := range []struct {
		format string
		ids    []string
	}{{"done(%s)", j.After}, {"ended(%s)", j.AfterAny}, {"exit(%s)", j.AfterFailed}, {"done(%s[*])", j.AfterEach}} {
		for _, id := range d.ids {
			before = append(before, fmt.Sprintf(d.format, id))
		}
	}
	add(len(before) > 0, `-w "%s"`, strings.Join(before, " && "))
	add(j.requeue() == "yes", "-r")
	add(j.requeue() == "no", "-rn")
	add(j.MailsOn("end") || j.MailsOn("fail"), "-N")
	add(j.MailsOn("begin"), "-B")
	add(j.Mail != "", "-u %s", j.Mail)
	selected := slices.Clone(j.Features)
	for _, h := range j.NotHosts {
		selected = append(selected, "hname!='"+h+"'")
	}
	add(len(selected) > 0, `-R "select[%s]"`, strings.Join(selected, " && "))
	add(len(j.Hosts) > 0, `-m "%s"`, strings.Join(j.Hosts, " "))
	add(j.Warning.Signal != "", "-wa %s -wt %d", j.Warning.Signal, int64((j.Warning.Lead+time.Minute-1)/time.Minute))
	add(j.Begin != "", "-b %s", strings.NewReplacer("-", ":", "T", ":").Replace(j.Begin))
	add(j.Hold, "-H")
	if len(j.Export) > 0 && !slices.Contains(j.Export, "ALL") {
		add(true, `-env "%s"`, strings.Join(append([]string{"none", "HPCC_SUBMISSION"}, j.ExportedNames()...), ", "))
	}
	return o
}

// pbsChunkWishes are what a chunk of qsub(1B) asks for beside amounts.
func pbsChunkWishes(j *Job) string {
	s := ""
	for _, f := range j.Features {
		s += ":" + f + "=true"
	}
	if len(j.Hosts) == 1 {
		s += ":host=" + j.Hosts[0]
	}
	return s
}

// pbsWishes are the options of qsub(1B) for them.
func pbsWishes(j *Job) []string {
	var o optionList
	add := o.add
	var before []string
	for _, d := range []struct {
		word string
		ids  []string
	}{{"afterok", j.After}, {"afterany", j.AfterAny}, {"afternotok", j.AfterFailed}} {
		if len(d.ids) > 0 {
			before = append(before, d.word+":"+strings.Join(d.ids, ":"))
		}
	}
	add(len(before) > 0, "-W depend=%s", strings.Join(before, ","))
	add(j.requeue() != "", "-r %.1s", j.requeue())
	when := j.letters("fail", "a", "end", "e", "begin", "b")
	add(when != "", "-m %s", when)
	add(j.Mail != "", "-M %s", j.Mail)
	add(j.Begin != "", "-a %s", digits(j.Begin))
	add(j.Hold, "-h")
	add(len(j.ExportedNames()) > 0, "-v %s", strings.Join(j.ExportedNames(), ","))
	return o
}
