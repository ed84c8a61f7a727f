// Package snakemake reads the job scripts of Snakemake and writes its profiles.
//
//	profile ─► snakemake ─► hpcc submit --from SCRIPT ─► [Dialect] ─► Job
//
// Snakemake's executors "cluster" (version 7) and "cluster-generic" (8 and later) write a shell
// script for each job, with the properties of the job as JSON in a comment.
package snakemake

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/job/quantity"
	"hpcc/text"
)

// Name is the name of the dialect.
const Name job.Target = "snakemake"

// Dialect reads the job scripts of Snakemake. Their directives are the resources of the rule.
var Dialect = dialect.Dialect{Target: Name, Title: "Snakemake", IsManifest: isScript, ReadManifest: readScript}

// head begins the line of a script that has the properties of the job.
const head = "# properties = "

// properties returns the properties line of a script, without its head, and the number of the line.
func properties(text string) (line string, number int) {
	for l := range strings.Lines(text) {
		if number++; number > 5 {
			break
		}
		if rest, ok := strings.CutPrefix(l, head); ok && strings.HasPrefix(rest, "{") {
			return rest, number
		}
	}
	return "", 0
}

func isScript(text string) bool {
	_, n := properties(text)
	return strings.HasPrefix(text, "#!") && n > 0
}

// A task is a job of Snakemake, of one rule or of a group of rules.
type task struct {
	Rule      string         `json:"rule"`
	Group     any            `json:"groupid"`
	Wildcards map[string]any `json:"wildcards"`
	Threads   any            `json:"threads"`
	Resources map[string]any `json:"resources"`
}

// readScript fills in a job from a script. The line of the properties, which lists all input files,
// is not part of the job.
func readScript(r *dialect.Reader, name, text string) error {
	line, number := properties(text)
	var t task
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&t); err != nil {
		return fmt.Errorf("reading %s: line %d: the properties of Snakemake's job: %w", name, number, err)
	}
	body := strings.Replace(text, head+line, "", 1)
	if len(body) > job.MaxScript {
		return fmt.Errorf("%s has %d bytes besides its properties; a job script has at most %d", name, len(body), job.MaxScript)
	}
	j := r.Job
	j.Script = &job.Script{Name: name, From: r.To.Target, Dir: r.Dir}
	r.Body(body)
	j.Name, j.Output = t.name(name), ".snakemake/hpcc/{name}-{job}.out"
	r.Add(number, "rule "+j.Name)
	r.Row.Fills(field.Name)
	r.Add(0, "(output)").Become("", j.Output)
	r.Row.Fills(field.Output)
	if t.Threads != nil {
		t.read(r, number, "threads", t.Threads)
	}
	for _, resource := range slices.Sorted(maps.Keys(t.Resources)) {
		t.read(r, number, resource, t.Resources[resource])
	}
	return nil
}

// name returns the name of the job: the rule with its wildcards, or the group.
func (t *task) name(script string) string {
	parts := []string{cmp.Or(t.Rule, "group")}
	if t.Rule == "" && t.Group != nil {
		parts = append(parts, fmt.Sprint(t.Group))
	}
	for _, w := range slices.Sorted(maps.Keys(t.Wildcards)) {
		parts = append(parts, fmt.Sprint(t.Wildcards[w]))
	}
	if t.Rule == "" && t.Group == nil {
		parts = []string{job.BaseName(script)}
	}
	return job.CleanName(strings.Join(parts, "-"))
}

// A setter fills in a field of the job from the value of a resource.
type setter func(t *task, r *dialect.Reader, v string) error

// resources maps names of resources to setters. Snakemake itself, or its plugins for schedulers,
// give these names a meaning.
var resources = map[string]setter{
	"threads":        unless("cpus_per_task", set(field.CPUs)),
	"cpus_per_task":  set(field.CPUs),
	"mem_mb":         memory(1 << 20),
	"mem_mib":        unless("mem_mb", memory(1<<20)),
	"mem":            unless("mem_mb", unless("mem_mib", readMemory)),
	"mem_mb_per_cpu": memoryPerCPU,
	"runtime":        readTime,
	"gpu":            set(field.GPUs),
	"gpus":           set(field.GPUs),
	"nvidia_gpu":     set(field.GPUs),
	"gpu_model":      func(_ *task, r *dialect.Reader, v string) error { return word(r, field.GPUs, v, &r.Job.GPUType) },
	"gres":           readGres,
	"nodes":          set(field.Nodes),
	"tasks":          set(field.Tasks),
	"tasks_per_node": set(field.TasksPerNode),
	"qos":            set(field.QoS),
	"constraint":     readConstraint,
	"reservation":    native,
	"clusters":       native,
	"mem_mb_per_gpu": native,
	"cpus_per_gpu":   native,
	"partition":      set(field.Queue),
	"queue":          set(field.Queue),
	"account":        set(field.Account),
	"project":        set(field.Account),
	"*_extra":        readExtra,
	"disk":           diskSpace,
	"disk_mb":        diskSpace,
	"disk_mib":       diskSpace,
	"tmpdir": func(_ *task, r *dialect.Reader, _ string) error {
		r.Row.Become("", "Snakemake sets TMPDIR")
		return nil
	},
	"mpi":        func(_ *task, r *dialect.Reader, _ string) error { r.Row.Become("", "the rule uses it"); return nil },
	"shell_exec": func(_ *task, r *dialect.Reader, _ string) error { r.Row.Become("", "Snakemake uses it"); return nil },
}

// scheduler matches a resource that is named after a scheduler.
var scheduler = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z]+_(partition|queue|account|project|extra)$`)
})

// read adds a row for a resource, and fills in the job. Other resources limit how many jobs Snakemake
// submits at a time.
func (t *task) read(r *dialect.Reader, line int, name string, value any) {
	v := fmt.Sprint(value)
	r.Add(line, name+"="+text.Short(v))
	if v == "<TBD>" || value == nil { // Snakemake does not know it before the job runs
		r.Changed("the default of the scheduler, because Snakemake does not know the value yet")
		return
	}
	key := name
	if m := scheduler().FindStringSubmatch(name); m != nil {
		key = m[1]
	}
	if key == "extra" && key != name {
		key = "*_extra"
	}
	set := resources[key]
	if set == nil {
		r.Row.Become("", "Snakemake counts it")
		return
	}
	if err := set(t, r, v); err != nil {
		r.Row.Become(field.Refused, err.Error())
	}
}

// set returns the setter of a field that holds a number or a word. 0 requests nothing.
func set(f field.Field) setter {
	return func(_ *task, r *dialect.Reader, v string) error {
		if v == "0" {
			return nil
		}
		return dialect.Set(f)(r, v)
	}
}

// word stores a word.
func word(r *dialect.Reader, f field.Field, v string, at *string) error {
	if !job.WordText().MatchString(v) {
		return fmt.Errorf("%q contains characters that directives cannot hold", text.Short(v))
	}
	r.Row.Fills(f)
	*at = v
	return nil
}

// unless returns a setter that does nothing if the job has another resource with the same meaning.
func unless(other string, s setter) setter {
	return func(t *task, r *dialect.Reader, v string) error {
		if t.Resources[other] != nil {
			r.Row.Become("", "as "+other)
			return nil
		}
		return s(t, r, v)
	}
}

// amount parses a number of units of bytes.
func amount(v string, unit int64) (int64, error) {
	return quantity.Size(v, quantity.Units{"": unit})
}

func memory(unit int64) setter {
	return func(t *task, r *dialect.Reader, v string) (err error) {
		if t.Resources["mem_mb_per_cpu"] != nil {
			r.Row.Become("", "mem_mb_per_cpu replaces it")
			return nil
		}
		r.Row.Fills(field.Memory)
		r.Job.Memory, err = amount(v, unit)
		return err
	}
}

func memoryPerCPU(_ *task, r *dialect.Reader, v string) (err error) {
	r.Row.Fills(field.Memory)
	r.Job.MemoryPerCPU, err = amount(v, 1<<20)
	return err
}

// sizes are the units of Snakemake's sizes, which it reads with humanfriendly.
var sizes = quantity.Units{"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "K": 1e3, "M": 1e6,
	"G": 1e9, "T": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

func readMemory(_ *task, r *dialect.Reader, v string) (err error) {
	r.Row.Fills(field.Memory)
	r.Job.Memory, err = quantity.Size(strings.ReplaceAll(v, " ", ""), sizes)
	return err
}

// readTime reads a number of minutes, or a text such as "2h".
func readTime(_ *task, r *dialect.Reader, v string) error {
	r.Row.Fills(field.Time)
	if minutes, err := strconv.ParseFloat(v, 64); err == nil {
		d := time.Duration(minutes * float64(time.Minute))
		if !(minutes > 0) || minutes > quantity.MaxTime.Minutes() {
			return fmt.Errorf("%s is not a number of minutes", text.Short(v))
		}
		r.Job.Time = d
		return nil
	}
	d, err := quantity.ParseTime(v)
	r.Job.Time = d
	return err
}

// readGres reads the generic resources that are GPUs: gpu:N or gpu:MODEL:N.
func readGres(t *task, r *dialect.Reader, v string) error {
	parts := strings.Split(v, ":")
	n, err := strconv.Atoi(parts[len(parts)-1])
	if parts[0] != "gpu" || len(parts) > 3 || err != nil || n < 1 {
		return fmt.Errorf("hpcc reads only gpu:N and gpu:MODEL:N: pass other resources with %s_extra or with --native", r.To.Target)
	}
	r.Row.Fills(field.GPUs)
	if r.Job.GPUs = n; len(parts) == 3 {
		return word(r, field.GPUs, parts[1], &r.Job.GPUType)
	}
	return nil
}

// readConstraint reads features that are all required.
func readConstraint(_ *task, r *dialect.Reader, v string) error {
	if strings.ContainsAny(v, "|()[]*!") {
		return fmt.Errorf("hpcc reads only A&B: pass others with %s_extra or with --native", r.To.Target)
	}
	r.Row.Fills(field.Features)
	r.Job.Features = strings.FieldsFunc(v, func(c rune) bool { return c == '&' || c == ',' })
	return nil
}

// readExtra reads options for one scheduler.
func readExtra(t *task, r *dialect.Reader, v string) error {
	name, _, _ := strings.Cut(r.Row.Text, "=")
	if name != string(r.To.Target)+"_extra" {
		return fmt.Errorf("options of another scheduler than %s", r.To.Target)
	}
	if strings.ContainsAny(v, "\n\r\x00") {
		return errors.New("it contains a line break, which a directive cannot hold")
	}
	r.Row.Fills(field.Native)
	r.Job.Native = append(r.Job.Native, v)
	return nil
}

// native refuses a resource that only one scheduler has.
func native(_ *task, r *dialect.Reader, _ string) error {
	return fmt.Errorf("only some schedulers have it: pass it with %s_extra or with --native", r.To.Target)
}

func diskSpace(_ *task, r *dialect.Reader, _ string) error {
	r.Changed("batch systems do not reserve disk space")
	return nil
}
