package gridengine

import (
	"errors"
	"fmt"
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

// scripts is the dialect of qsub(1) of Grid Engine: directives anywhere in the file, long
// options with one dash, and values that are separate from their options. Many comments begin
// with its prefix, so a directive needs an option.
var scripts = dialect.Dialect{
	Target: target, Title: "Grid Engine", Prefix: "#$", Command: "qsub", Anywhere: true, OptionsOnly: true,
	Options: qsubOptions, Resources: resources, Finish: finish, Defaults: defaults,
	FileName: true, Commands: []string{"qstat", "qdel", "qalter", "qhold", "qrls", "qacct", "qconf", "qrsh"},
	Variables: variables, VariableText: `\bSGE_[A-Z][A-Z0-9_]*\b`,
	Verdicts: map[field.Field]field.Verdict{
		field.Time: {Fate: field.Emulated, How: "hpcc ends each task after a warning; h_rt is the fallback"},
		field.Memory: {Fate: field.Changed, How: "becomes mem_free of each slot, which sets no limit; the site may " +
			"require another resource"},
		field.GPUType:     {Fate: field.Refused, How: "each site has its own names for GPU types"},
		field.Features:    {Fate: field.Refused, How: "each site has its own names for features"},
		field.QoS:         {Fate: field.Refused, How: "Grid Engine has no QoS"},
		field.After:       {Fate: field.Emulated, How: "-hold_jid also releases after failures, so hpcc checks that the jobs succeeded"},
		field.AfterFailed: {Fate: field.Refused, How: "Grid Engine waits for the end of jobs, not for their failure"},
		field.AfterEach:   {Fate: field.Changed, How: "-hold_jid_ad releases a task when the other ends, also after a failure"},
		field.Signal:      {Fate: field.Emulated, How: "hpcc sends it to the script"},
		field.Append: {Fate: field.Changed, How: "Grid Engine appends to existing files",
			When: func(j *job.Job) bool { return !j.Append }},
		field.Hosts: {Fate: field.Refused, How: "Grid Engine selects one of several hosts, not all",
			When: func(j *job.Job) bool { return len(j.Hosts) > 1 }},
		field.Begin: {Fate: field.Refused, How: "Grid Engine requires a date as well",
			When: func(j *job.Job) bool { return !strings.Contains(j.Begin, "T") }},
	},
	Shape: shape, NoExports: true, OpensFiles: opensFiles,
	JobID: "$JOB_ID", Hosts: hostList, Hides: []string{"#$"},
}

// shape converts nodes to slots. The parallel environment decides on which nodes the slots are.
func shape(j *job.Job, rows field.Rows) {
	if j.Nodes > 1 || (j.TasksPerNode > 1 && j.Nodes != 1) {
		n, nodes := j.Processes(), max(j.Nodes, 1)
		rows.SetFate(field.Changed, fmt.Sprintf("%d processes: the parallel environment decides how they spread over nodes",
			n), field.Nodes, field.Tasks, field.TasksPerNode)
		j.Tasks, j.Nodes, j.TasksPerNode = n, 0, 0
		j.GPUs, j.Memory = j.GPUs*nodes, j.Memory*int64(nodes) // totals of all nodes, to be divided among the slots
	}
	dialect.NodeMemory(j, rows)
	if j.GPUs%j.Slots() != 0 {
		rows.Refuse(fmt.Sprintf("%d GPUs for %d slots: Grid Engine gives each slot the same number", j.GPUs, j.Slots()), field.GPUs)
		j.GPUs = 0
	}
}

// qsubOptions are the options of qsub(1).
var qsubOptions = dialect.Options{
	Values: map[string]dialect.Setter{
		"-N": dialect.Set(field.Name),
		"-t": readArray,
		"-tc": func(r *dialect.Reader, v string) (err error) {
			r.N.ArrayLimit, err = r.Number(v, "")
			r.Row.Fills(field.Array)
			return err
		},
		"-l":        readResources,
		"-q":        readQueueList,
		"-P":        dialect.Set(field.Account),
		"-o":        readOutput(field.Output),
		"-e":        readOutput(field.Error),
		"-j":        func(r *dialect.Reader, v string) (err error) { r.Join, err = dialect.YesNo(v); return err },
		"-wd":       (*dialect.Reader).Directory,
		"-S":        func(r *dialect.Reader, v string) error { r.Shell = strings.Fields(v); return nil },
		"-v":        func(r *dialect.Reader, v string) error { return r.Environment(dialect.CommaList(v)) },
		"-m":        (*dialect.Reader).MailLetters,
		"-M":        (*dialect.Reader).FirstAddress,
		"-hold_jid": func(r *dialect.Reader, v string) error { return waitsFor(r, "afterany", v) },
		"-hold_jid_ad": func(r *dialect.Reader, v string) error {
			r.Changed("its tasks must succeed; Grid Engine only waits for their end")
			return waitsFor(r, "aftercorr", v)
		},
		"-r":            (*dialect.Reader).Requeue,
		"-a":            (*dialect.Reader).DateTime,
		"-b":            func(r *dialect.Reader, v string) (err error) { r.Binary, err = dialect.YesNo(v); return err },
		"-sync -w -now": (*dialect.Reader).Outside,
		"-i":            dialect.NoInput,
		"-@ -jsv -C":    dialect.Refuse("hpcc does not read options of other files; write them into the script"),
		"-A -ac -ar -binding -bgp -c -ckpt -cmdname -dc -display -dl -js -masterq -masterl -mbind -p -pty -R -rou -sc " +
			"-shell -si -tcon -xdv -xd -xd_run_as_image_user -par -umask": nil,
	},
	Pairs: map[string]dialect.Setter{
		"-pe": readSlots,
	},
	Flags: map[string]dialect.Setter{
		"-cwd": func(r *dialect.Reader, _ string) error { r.Job.Dir = r.Dir; r.Row.Fills(field.Dir); return nil },
		"-V":   (*dialect.Reader).ExportAllVariables,
		"-notify": func(r *dialect.Reader, _ string) error {
			if r.Own() {
				return r.Native("-notify")
			}
			r.Job.Warning = job.Warning{Signal: "USR2", Lead: time.Minute}
			r.Row.Fills(field.Signal)
			return nil
		},
		"-h":                                    dialect.Set(field.Hold),
		"-terse -verify":                        (*dialect.Reader).Outside,
		"-clear":                                dialect.Refuse("hpcc does not know which options it would undo"),
		"-soft":                                 func(r *dialect.Reader, _ string) error { return softly(r, true) },
		"-hard":                                 func(r *dialect.Reader, _ string) error { return softly(r, false) },
		"-nostdin -noshell -adds -mods -clearp": nil,
	},
}

// softly makes the resources and queues that follow a preference, or a requirement again.
func softly(r *dialect.Reader, soft bool) error {
	r.N.Preferred = soft
	if r.Own() {
		return r.Native(r.Row.Text)
	}
	if soft {
		r.Changed("the resources and queues after it are left out, because only Grid Engine can prefer without requiring")
	}
	return nil
}

// errSoft refuses a resource or a queue after -soft.
var errSoft = errors.New("the script only prefers it (-soft)")

// readArray parses a-b:s. It refuses lists: qsub silently reads 1,4,7 as 1-7:3, and refuses
// other lists.
func readArray(r *dialect.Reader, v string) error {
	if strings.ContainsAny(v, ",%") {
		return errors.New("qsub accepts one range; it would read a list as a different range")
	}
	if one, step, ok := strings.Cut(v, ":"); ok && !strings.Contains(one, "-") && step != "" { // one task, and a step without effect
		v = one
	}
	a, err := job.ParseArray(v)
	if err != nil {
		return err
	}
	if n, _ := a.Nth(1); n == 0 {
		return fmt.Errorf("the indices of Grid Engine begin at 1, not 0")
	}
	r.Job.Array = a
	r.Row.Fills(field.Array)
	return nil
}

// readSlots parses -pe NAME N[-M].
func readSlots(r *dialect.Reader, v string) (err error) {
	name, count, _ := strings.Cut(v, " ")
	if r.N.Slots, err = r.Number(count, "-,"); err != nil {
		return err
	}
	r.N.PerCPU, r.N.PerHost = placement(r, name)
	if r.Own() {
		r.Job.Native = append(slices.Clip(r.Job.Native), "-pe "+v)
		r.Row.Fills(field.Native)
	}
	switch {
	case r.N.PerCPU:
		r.Row.Fills(field.CPUs)
	case r.N.PerHost > 0:
		r.Row.Fills(field.Tasks, field.Nodes, field.TasksPerNode)
	default:
		r.Row.Fills(field.Tasks)
	}
	return nil
}

// placement returns what the slots of a parallel environment are: CPUs of one process, or
// processes, perHost on each host; 0: anywhere. It asks the Grid Engine of this host for the
// allocation rule (sge_pe(5)), and without one it goes by the name.
func placement(r *dialect.Reader, name string) (perCPU bool, perHost int) {
	switch rule := allocationRule(r, name); {
	case rule == "$pe_slots":
		r.Changed("all slots of %s are on one host (allocation_rule %s): they become CPUs of one process", name, rule)
		return true, 0
	case rule == "$fill_up", rule == "$round_robin":
		r.Changed("the slots of %s are on any hosts (allocation_rule %s): they become processes", name, rule)
		return false, 0
	case rule != "":
		if n, err := strconv.Atoi(rule); err == nil && n > 0 {
			r.Changed("%s places %s on each host (allocation_rule): they become processes", name, text.Count(n, "slot", "slots"))
			return false, n
		}
	}
	if m := perHostName().FindStringSubmatch(name); m != nil {
		if n, err := strconv.Atoi(m[1] + m[2]); err == nil && n > 0 {
			r.Changed("the name of %s suggests %d processes on each host", name, n)
			return false, n
		}
	}
	if threaded().MatchString(name) {
		r.Changed("the name of %s suggests that its slots are CPUs of one process", name)
		return true, 0
	}
	r.Changed("the name of %s suggests that its slots are processes; their placement is unknown", name)
	return false, 0
}

// perHostName matches names of parallel environments with the number of slots on each host.
var perHostName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:mpi_?([0-9]{1,4})_tasks_per_node|([0-9]{1,4})way)$`)
})

// allocationRule returns the rule of a parallel environment of this host's Grid Engine, or "".
func allocationRule(r *dialect.Reader, name string) string {
	if !objectName().MatchString(name) {
		return ""
	}
	for line := range strings.Lines(r.Ask("qconf", "-sp", name)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "allocation_rule" {
			return f[1]
		}
	}
	return ""
}

// objectName matches the name of an object of Grid Engine that qconf accepts as an argument.
var objectName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,255}$`) })

// countsPerJob reports whether this host's Grid Engine counts a resource once for each job
// (complex(5), consumable JOB), not for each slot.
func countsPerJob(r *dialect.Reader, name string) bool {
	for line := range strings.Lines(r.Ask("qconf", "-sc")) {
		if f := strings.Fields(line); len(f) > 5 && (f[0] == name || f[1] == name) {
			return f[5] == "JOB"
		}
	}
	return false
}

// units are those of sge_types(1): capitals are powers of 1024.
var units = quantity.Units{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "k": 1000, "m": 1e6, "g": 1e9, "t": 1e12}

// readResources parses -l NAME=VALUE,…; the row lists the resources that hpcc does not support.
func readResources(r *dialect.Reader, v string) error {
	return r.ResourceList(v, func(name, value, item string) error {
		read := r.Resources[name]
		switch {
		case r.Own() && r.N.Preferred:
			return r.Native("-l " + item)
		case r.N.Preferred:
			return errSoft
		case r.Own() && name != "h_rt": // Grid Engine knows the site's names
			return r.Native("-l " + item)
		case read != nil:
			return read(r, value)
		}
		return errors.New("a resource of the site that hpcc does not know")
	})
}

// resources are the usual resources of -l.
var resources = map[string]dialect.Setter{
	"h_rt": readTime, "time": readTime,
	"s_rt": func(r *dialect.Reader, v string) error {
		d, err := quantity.Seconds(v)
		r.N.Soft = int64(d / time.Second)
		r.Row.Fills(field.Signal)
		return err
	},
	"h_cpu":   dialect.Refuse("it limits CPU time; add --time for the duration"),
	"s_cpu":   dialect.Refuse("it limits CPU time; add --time for the duration"),
	"h_fsize": dialect.Refuse("it limits the size of files; call ulimit -f in the script"),
	"s_fsize": dialect.Refuse("it limits the size of files; call ulimit -f in the script"),
	"h_stack": dialect.Refuse("it limits the stack; call ulimit -s in the script"),
	"s_stack": dialect.Refuse("it limits the stack; call ulimit -s in the script"),
	"qname":   dialect.Set(field.Queue), "q": dialect.Set(field.Queue),
	"mf": readMemory(false), "vf": readMemory(false), "tmem": readMemory(false), "rmem": readMemory(false),
	"mfree": readMemory(false), "mem_per_core": readMemory(false), "ram.c": readMemory(false),
	"h_vmem": readMemory(true), "s_vmem": readMemory(true), "h_rss": readMemory(true), "m_mem_free": readMemory(false),
	"mem_free": readMemory(false), "virtual_free": readMemory(false), "mem": readMemory(false),
	"memory": readMemory(false), "h_data": readMemory(true), "mem_req": readMemory(false), "ram": readMemory(false),
	"gpu": readGPUs("gpu"), "gpus": readGPUs("gpus"), "ngpus": readGPUs("ngpus"), "gpu_card": readGPUs("gpu_card"),
	"cuda":     readGPUs("cuda"),
	"gpu_type": readGPUType, "gputype": readGPUType, "gpu_model": readGPUType,
	"exclusive": readExclusive, "excl": readExclusive,
	"hostname": readHost, "h": readHost,
}

// readMemory returns the Setter of the memory of a slot. limit reports whether the resource
// limits the address space, which becomes requested memory.
func readMemory(limit bool) func(*dialect.Reader, string) error {
	return func(r *dialect.Reader, v string) error {
		n, err := quantity.Size(v, units)
		if err != nil {
			return err
		}
		if limit {
			r.Changed("the address space limit of each slot becomes %s of memory per CPU", quantity.FormatMemory(n))
		}
		r.Job.MemoryPerCPU = max(r.Job.MemoryPerCPU, n)
		r.Row.Fills(field.Memory)
		return nil
	}
}

// readGPUs returns the Setter of a resource that counts GPUs.
func readGPUs(name string) dialect.Setter {
	return func(r *dialect.Reader, v string) (err error) {
		if strings.EqualFold(v, "true") || v == "" {
			v = "1"
		}
		n, err := r.Number(strings.TrimSuffix(v, ".0"), "")
		if r.Row.Fills(field.GPUs); countsPerJob(r, name) {
			r.N.TotalGPUs = n
		} else {
			r.N.GPUsPerSlot = n
		}
		return err
	}
}

// readGPUType parses one type of GPU, not a choice or an exclusion.
func readGPUType(r *dialect.Reader, v string) error {
	if strings.ContainsAny(v, "|!*?()") {
		return errors.New("hpcc does not support a choice among types of GPUs")
	}
	r.Row.Fills(field.GPUType)
	return dialect.Set(field.GPUType)(r, v)
}

func readTime(r *dialect.Reader, v string) (err error) {
	r.Job.Time, err = quantity.Seconds(v)
	r.Row.Fills(field.Time)
	return err
}

func readExclusive(r *dialect.Reader, v string) error {
	r.Job.Exclusive = !strings.HasPrefix(strings.ToLower(v), "f") && v != "0"
	r.Row.Fills(field.Exclusive)
	return nil
}

// readHost parses one host, or !(a|b) for hosts to avoid.
func readHost(r *dialect.Reader, v string) error {
	if not, ok := strings.CutPrefix(v, "!"); ok {
		list := dialect.List(strings.Trim(not, "()"), "|")
		for _, h := range list {
			if !dialect.HostName().MatchString(h) {
				return fmt.Errorf("%q is not a host name", text.Short(h))
			}
		}
		r.Job.NotHosts = list
		r.Row.Fills(field.NotHosts)
		return nil
	}
	if !dialect.HostName().MatchString(v) {
		return fmt.Errorf("hpcc does not support a choice among hosts")
	}
	r.Job.Hosts = []string{v}
	r.Row.Fills(field.Hosts)
	return nil
}

// readQueueList parses a list of queues, or QUEUE@HOST for one host of a queue.
func readQueueList(r *dialect.Reader, v string) error {
	queue, host, ok := strings.Cut(v, "@")
	switch {
	case r.N.Preferred && r.Own():
		return r.Native("-q " + v)
	case r.N.Preferred:
		return errSoft
	case !ok:
	case r.Own():
		queue = v
	case strings.Contains(v, ",") || !dialect.HostName().MatchString(host):
		return fmt.Errorf("only Grid Engine can select several hosts of queues")
	default:
		r.Job.Hosts = []string{host}
		r.Row.Fills(field.Hosts)
	}
	return dialect.Set(field.Queue)(r, queue)
}

var letters = dialect.Pattern{Sign: "$", Letters: []string{"$JOB_ID", "{job}", "$TASK_ID", "{task}", "$JOB_NAME", "{name}"}}

// readOutput parses [HOST]:FILE. In a directory, the file gets the default name.
func readOutput(f field.Field) func(*dialect.Reader, string) error {
	return func(r *dialect.Reader, v string) error {
		if host, file, ok := strings.Cut(v, ":"); ok && !strings.Contains(host, "/") {
			v = file
		}
		v = strings.NewReplacer("$HOME", r.Home, "~", r.Home).Replace(v)
		if v == "." || strings.HasSuffix(v, "/") || r.IsDir(v) {
			r.SetFile(f, r.Inside(v, f))
			return nil
		}
		return r.Output(v, f, letters)
	}
}

// waitsFor parses a list of jobs. Other targets than Grid Engine and Argo do not accept names
// of jobs.
func waitsFor(r *dialect.Reader, kind, v string) error {
	ids := dialect.List(v, ",")
	if err := r.OnlyIDs(ids...); err != nil {
		return err
	}
	return r.After(kind, ids)
}

// finish converts slots to processes or processors, and requests per slot to requests per
// node.
func finish(r *dialect.Reader) {
	j := r.Job
	if n := r.N.Slots; n > 0 && !r.Own() {
		switch {
		case r.N.PerCPU:
			j.CPUs, j.Nodes = n, 1
		case r.N.PerHost > 0:
			j.Tasks, j.TasksPerNode = n, r.N.PerHost
			j.Nodes = (n + r.N.PerHost - 1) / r.N.PerHost
		default:
			j.Tasks = n
		}
	}
	if r.N.ArrayLimit > 0 && !j.Array.IsZero() {
		j.Array.Limit = r.N.ArrayLimit
	} else if r.N.ArrayLimit > 0 {
		r.Rows.SetFate(field.Refused, "there is no array without -t", field.Array)
	}
	r.DivideGPUs("node", fmt.Sprintf("%d for the full job (consumable JOB), ", r.N.TotalGPUs))
	if n := r.N.GPUsPerSlot; n > 0 {
		slots := max(r.N.Slots, 1)
		j.GPUs = n * slots / max(j.Nodes, 1)
		where := ""
		if j.Tasks > 1 && j.Nodes == 0 {
			place, why := r.PlaceGPUs("node")
			where = " on " + place + why
		}
		if slots > 1 {
			r.Rows.SetFate(field.Changed, fmt.Sprintf("%d for each of %d slots, %d in total%s", n, slots, n*slots, where),
				field.GPUs)
		}
	}
	if s := time.Duration(r.N.Soft) * time.Second; s > 0 {
		r.FinishRows(field.Signal, func(row *field.Row) error {
			switch {
			case j.Time == 0:
				return fmt.Errorf("it has no effect without h_rt, because hpcc counts back from the end of the job")
			case s < j.Time:
				j.Warning = job.Warning{Signal: "USR1", Lead: j.Time - s}
				row.Become(field.Changed, fmt.Sprintf("SIGUSR1 %s before the limit", j.Warning.Lead))
			}
			return nil
		})
	}
}

// defaults sets Grid Engine's defaults: names of files, the home directory, no environment,
// and the shell of the queue.
func defaults(r *dialect.Reader) {
	j := r.Job
	if !r.DirSet() {
		j.Dir = r.Home
		r.Add(0, "(no -cwd)").Become("", "starts in "+j.Dir)
		r.Row.Fills(field.Dir)
	}
	r.OutputDefaults()
	r.ExportNone("-V")
	s := j.Script
	if m := exit99().FindStringIndex(s.Body); m != nil {
		r.Add(strings.Count(s.Body[:m[1]], "\n")+1, strings.TrimSpace(s.Body[m[0]:m[1]])).Become(field.Changed,
			"counts as a failure; Grid Engine would run the job again without limit: use --retry N --retry-on exit=99")
	}
	switch {
	case len(r.Shell) > 0:
		s.Shell = r.Shell
	case len(s.Shell) > 0:
		r.Add(1, "#!"+strings.Join(s.Shell, " ")).Become(field.Changed,
			"runs the script; Grid Engine would use the shell of the queue unless -S names one")
	default:
		s.Shell = []string{"/bin/sh"}
		r.Add(1, "(no -S)").Become("", "/bin/sh, as in most queues")
	}
}

// exit99 matches a command that ends the script with status 99, after which Grid Engine runs
// the job again.
var exit99 = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)\bexit[ \t]+99\b`) })
