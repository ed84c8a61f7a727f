package job

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"hpcc/job/quantity"
)

// A Use is what a job asked for and what its tasks used of it.
type Use struct {
	ID         string        `json:"id"`
	Target     Target        `json:"target"`
	State      string        `json:"state"`
	Tasks      int           `json:"tasks"`          // that have begun
	CPUs       int           `json:"cpus"`           // of a task, over its nodes
	GPUs       int           `json:"gpus,omitempty"` // the same
	Nodes      int           `json:"nodes"`          // of a task
	CPUTime    time.Duration `json:"cpu_time_ns"`
	CPUUnknown bool          `json:"cpu_unknown,omitempty"` // nobody counted it of all tasks: of one that runs there is no record
	Wall       time.Duration `json:"wall_ns"`               // of all tasks together, but for those that are lost
	Longest    time.Duration `json:"longest_ns"`
	Time       time.Duration `json:"time_ns,omitempty"` // that was asked for
	Memory     int64         `json:"memory_bytes,omitempty"`
	PeakMemory int64         `json:"peak_memory_bytes"` // of the largest task, or of its largest process where no scheduler counts
	Ended      time.Time     `json:"ended,omitzero"`    // the last of its tasks, of a lost one its start; zero while one runs
	Advice     []string      `json:"advice,omitempty"`
}

// usage is what a scheduler counted of a job: of all of its tasks the processor time,
// of the largest the memory. Zero is what it did not count.
type usage struct {
	cpu  time.Duration
	peak int64
}

// Uses compares what jobs below dir asked for with what they used: the records
// first, and in one call for each scheduler what it counted. A scheduler that does
// not say is a warning.
func Uses(ctx context.Context, dir string, ids []string) (list []*Use, warnings []string, err error) {
	all, warnings, err := Statuses(ctx, dir, ids)
	if err != nil {
		return nil, nil, err
	}
	natives, clusters := map[string][]string{}, map[string]Cluster{}
	for _, st := range all {
		if len(st.Tasks) > 0 {
			clusters[st.key()] = st.Cluster
			natives[st.key()] = append(natives[st.key()], st.natives()...)
		}
	}
	counted := map[string]map[string]usage{} // by cluster
	for _, key := range slices.Sorted(maps.Keys(natives)) {
		to, err := clusters[key].scheduler()
		if err != nil {
			continue
		}
		counter, ok := to.(usageCounter)
		if !ok {
			continue
		}
		if counted[key], err = counter.used(clusters[key].Within(ctx), natives[key]); err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	for _, st := range all {
		if len(st.Tasks) > 0 {
			list = append(list, st.use(counted[st.key()], time.Now()))
		}
	}
	return list, warnings, nil
}

// use sums the records up; where the scheduler counted more, as of processes on other
// nodes, that counts.
func (s *Status) use(counted map[string]usage, now time.Time) *Use {
	u := &Use{ID: s.ID, Target: s.Target, State: s.State(), Tasks: len(s.Tasks), CPUs: s.Job.Slots(), Nodes: int(s.Job.nodes()), GPUs: s.Job.GPUs * int(s.Job.nodes()), Time: s.Job.Time, Memory: s.Job.memory()}
	for i := range s.Tasks {
		t := &s.Tasks[i]
		end := t.End
		switch {
		case !t.Ended() && s.Running > 0:
			end = now
		case !t.Ended(): // it is lost: nobody knows how long it ran
			end = t.Start
		}
		u.Ended = later(u.Ended, end)
		wall := max(end.Sub(t.Start), 0)
		u.Wall, u.Longest = u.Wall+wall, max(u.Longest, wall)
		u.CPUUnknown = u.CPUUnknown || (wall > 0 && len(t.Usage) == 0)
		cpu, peak := t.used()
		u.CPUTime, u.PeakMemory = u.CPUTime+cpu, max(u.PeakMemory, peak)
	}
	var sum usage
	for _, id := range s.natives() {
		sum.cpu, sum.peak = sum.cpu+counted[id].cpu, max(sum.peak, counted[id].peak)
	}
	u.CPUTime, u.PeakMemory = max(u.CPUTime, sum.cpu), max(u.PeakMemory, sum.peak)
	u.CPUUnknown = u.CPUUnknown && sum.cpu == 0
	if s.Running+s.Waiting == 0 {
		u.Advice = u.Advise()
	} else {
		u.Ended = time.Time{}
	}
	return u
}

// memory is what the job asks for of each node.
func (j *Job) memory() int64 {
	if j.MemoryPerCPU > 0 {
		return j.MemoryPerCPU * int64(max(j.CPUs, 1)*j.ProcessesPerNode())
	}
	return j.Memory
}

// used is what the record says that the task's processes used: processor time, and
// the resident set of the largest.
func (t *Task) used() (time.Duration, int64) {
	var u struct {
		User   float64 `json:"user_s"`
		System float64 `json:"system_s"`
		MaxRSS int64   `json:"max_rss_bytes"`
	}
	if json.Unmarshal(t.Usage, &u) != nil || !(u.User >= 0 && u.System >= 0 && u.User+u.System < quantity.MaxTime.Seconds()) {
		return 0, 0
	}
	return time.Duration((u.User + u.System) * float64(time.Second)), u.MaxRSS
}

// When is too much asked for: less than this part was used.
const (
	fewCPUs    = 0.5
	littleRest = 4 // memory and time: a quarter
)

// leastWall is how long tasks have to run before their use of processors says much.
const leastWall = time.Minute

// Advise says in plain words what would have done, where that is much less.
func (u *Use) Advise() []string {
	var out []string
	if busy := u.busy(); !u.CPUUnknown && u.CPUs > 1 && u.Wall >= leastWall && busy < fewCPUs*float64(u.CPUs) {
		out = append(out, fmt.Sprintf("%.1f of %d processors were busy: ask for %d", busy, u.CPUs, max(1, int(math.Ceil(busy)))))
	}
	if u.Memory > 0 && u.PeakMemory > 0 && u.PeakMemory < u.Memory/littleRest {
		enough := max((u.PeakMemory*3/2+step-1)/step*step, step)
		if enough < u.Memory {
			out = append(out, fmt.Sprintf("%s of %s of memory were used: --mem %s would do", quantity.FormatMemory(u.PeakMemory), quantity.FormatMemory(u.Memory), roundly(enough)))
		}
	}
	if enough := (2*u.Longest + 10*time.Minute - 1).Truncate(10 * time.Minute); u.Time > 0 && u.Longest < u.Time/littleRest && enough < u.Time {
		out = append(out, fmt.Sprintf("it ran for %s of %s: --time %s would do, and short jobs start sooner", quantity.FormatTime(u.Longest.Round(time.Second)), quantity.FormatTime(u.Time), quantity.FormatTime(max(enough, 10*time.Minute))))
	}
	return out
}

// roundly writes an amount of memory for --mem: a large one in whole G, rounded up.
func roundly(n int64) string {
	if n >= 8<<30 {
		return fmt.Sprintf("%dG", (n+1<<30-1)>>30)
	}
	return fmt.Sprintf("%dM", n>>20)
}

// step is what amounts of memory are rounded up to, in bytes.
const step = 64 << 20

// busy is how many processors were busy on average.
func (u *Use) busy() float64 {
	if u.Wall <= 0 {
		return 0
	}
	return u.CPUTime.Seconds() / u.Wall.Seconds()
}

// Busy is the part of the processors asked for that were busy, from 0 to 1 or a
// little more.
func (u *Use) Busy() float64 { return u.busy() / float64(max(u.CPUs, 1)) }

// used asks the accounting, and about what runs the nodes themselves.
func (slurm) used(ctx context.Context, ids []string) (map[string]usage, error) {
	list := strings.Join(ids, ",")
	out, err := call(ctx, "/", "sacct", "-n", "-P", "-j", list, "-o", "JobID,TotalCPU,MaxRSS")
	m := slurmUsed(map[string]usage{}, string(out))
	if err != nil {
		return nil, fmt.Errorf("asking Slurm's accounting what jobs used: %w", slurmWords(out, err))
	}
	// Of jobs that have ended it is an error, and tells of the others all the same.
	out, _ = call(ctx, "/", "sstat", "-a", "-n", "-P", "-j", list, "-o", "JobID,AveCPU,MaxRSS")
	return slurmUsed(m, string(out)), nil
}

// slurmUsed reads lines of sacct and sstat: a job or task of an array, 17 and 17_3,
// whose processor time is that of its steps, and the steps, 17.batch and 17_3.0,
// with their memory.
func slurmUsed(m map[string]usage, list string) map[string]usage {
	for line := range strings.Lines(list) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) < 3 {
			continue
		}
		id, stepName, isStep := strings.Cut(f[0], ".")
		id, _, _ = strings.Cut(id, "_")
		u := m[id]
		u.peak = max(u.peak, quantity.Bytes(f[2], 1<<10))
		if cpu := slurmCPU(f[1]); !isStep {
			u.cpu += cpu
		} else if stepName == "batch" && u.cpu == 0 { // it runs
			u.cpu = cpu
		}
		m[id] = u
	}
	return m
}

// slurmCPU reads processor time: 1-02:03:04, 02:03:04, 03:04.567.
func slurmCPU(s string) time.Duration {
	days, rest, ok := strings.Cut(s, "-")
	if !ok {
		days, rest = "0", s
	}
	rest, part, _ := strings.Cut(rest, ".")
	d, err := quantity.Clock(rest, time.Second, time.Minute, time.Hour)
	if err != nil {
		return 0
	}
	return min(time.Duration(quantity.Count(days))*24*time.Hour, quantity.MaxTime) + d + time.Duration(quantity.Count((part + "000")[:3]))*time.Millisecond
}

// used asks for the jobs of this user, those that have ended, too, where PBS keeps them.
func (pbs) used(ctx context.Context, ids []string) (map[string]usage, error) {
	out, err := call(ctx, "/", "qstat", append([]string{"-x", "-f", "-t", "-F", "json"}, ids...)...)
	if err != nil && len(out) == 0 {
		return nil, fmt.Errorf("asking PBS what jobs used: %w", words(out, err))
	}
	return pbsUsed(out), nil
}

// pbsUsed reads the JSON of "qstat -f": an array's tasks, 17[3].h, count for 17[].h.
func pbsUsed(out []byte) map[string]usage {
	var list struct {
		Jobs map[string]struct {
			Used struct {
				CPU    string `json:"cput"`
				Memory string `json:"mem"`
			} `json:"resources_used"`
		}
	}
	m := map[string]usage{}
	if json.Unmarshal(out, &list) != nil {
		return m
	}
	for id, j := range list.Jobs {
		if number, rest, ok := strings.Cut(id, "["); ok {
			_, server, _ := strings.Cut(rest, "]")
			id = number + "[]" + server
		}
		u := m[id]
		if cpu, err := quantity.Clock(j.Used.CPU, time.Second, time.Minute, time.Hour); err == nil {
			u.cpu += cpu
		}
		u.peak = max(u.peak, quantity.Bytes(j.Used.Memory, 1))
		m[id] = u
	}
	return m
}

// used asks for all jobs at once.
func (lsf) used(ctx context.Context, ids []string) (map[string]usage, error) {
	out, err := call(ctx, "/", "bjobs", append([]string{"-a", "-noheader", "-o", "jobid cpu_used max_mem delimiter='|'"}, ids...)...)
	if err != nil {
		return nil, fmt.Errorf("asking LSF what jobs used: %w", words(out, err))
	}
	return lsfUsed(string(out)), nil
}

// lsfUsed reads lines of bjobs: 17|1.5 second(s)|12.5 Mbytes.
func lsfUsed(list string) map[string]usage {
	m := map[string]usage{}
	for line := range strings.Lines(list) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) < 3 {
			continue
		}
		u := m[f[0]]
		var seconds float64
		if _, err := fmt.Sscanf(f[1], "%g", &seconds); err == nil && seconds > 0 && seconds < quantity.MaxTime.Seconds() {
			u.cpu += time.Duration(seconds * float64(time.Second))
		}
		number, unit, _ := strings.Cut(strings.TrimSpace(f[2]), " ")
		u.peak = max(u.peak, quantity.Bytes(number+unit[:min(len(unit), 1)], 1<<20))
		m[f[0]] = u
	}
	return m
}
