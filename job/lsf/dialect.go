package lsf

import (
	"fmt"
	"path"
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

// scripts is the dialect of bsub(1) of LSF 10.1: directives anywhere in the file,
// including here-documents.
var scripts = dialect.Dialect{
	Target: target, Title: "LSF", Prefix: "#BSUB", Command: "bsub", Anywhere: true, TakesProgram: true,
	Options: bsubOptions, Finish: finish, Defaults: defaults,
	Launchers: map[string]dialect.Launcher{
		"jsrun": {Options: dialect.Options{
			Values: map[string]dialect.Setter{"-n --nrs -a --tasks_per_rs -c --cpu_per_rs -g --gpu_per_rs -r --rs_per_host -d " +
				"--launch_distribution -b --bind -l --latency_priority -p --np -E --env -M --smpiargs -o --stdio_stdout " +
				"-e --stdio_stderr -m --memory_per_rs -k --stdio_mode -h --chdir": nil},
			Flags: map[string]dialect.Setter{"-i --immediate -x --exit_on_error -X": nil},
			Glued: true,
		}, Counts: "-n --nrs -a --tasks_per_rs -p --np -r --rs_per_host",
			Placement: "-c --cpu_per_rs -g --gpu_per_rs -d --launch_distribution -b --bind -l --latency_priority -M " +
				"--smpiargs -m --memory_per_rs -i --immediate -x --exit_on_error"},
		"blaunch": {Options: dialect.Options{
			Values: map[string]dialect.Setter{"-z -u": nil},
			Flags:  map[string]dialect.Setter{"-n -no-shell -use-login-shell -no-wait": nil},
		}, HostFirst: []string{"-z", "-u"}},
	},
	Commands:  []string{"bjobs", "bkill", "bhist", "bpeek", "bhosts", "bqueues", "brequeue", "bmod", "bstop", "bresume", "lsrun", "lsgrun"},
	Variables: variables, VariableText: `\bLSB?_[A-Z][A-Z0-9_]*\b`,
	Verdicts: map[field.Field]field.Verdict{
		field.Time: {Fate: field.Emulated, How: "hpcc ends each task after a warning; -W is the fallback"},
		field.QoS:  {Fate: field.Refused, How: "LSF has no QoS"},
		field.After: {Fate: field.Emulated, How: "hpcc checks that the jobs succeeded; done(ID) would wait forever after " +
			"a failure", When: func(j *job.Job) bool { return slices.ContainsFunc(j.After, isID) }},
		field.Signal: {Fate: field.Emulated, How: "hpcc sends it to the script", When: func(j *job.Job) bool { return j.Time > 0 }},
		field.Append: {Fate: field.Changed, How: "hpcc overwrites the file", When: func(j *job.Job) bool { return j.Append }},
		field.Hosts:  {Fate: field.Changed, How: "LSF selects some of them", When: func(j *job.Job) bool { return len(j.Hosts) > 1 }},
	},
	ExportsAll: true,
	JobID:      "$LSB_JOBID", Hosts: hostList, Hides: []string{"#BSUB"}, Signals: true,
}

// bsubOptions are the options of bsub(1).
var bsubOptions = dialect.Options{
	Glued: true,
	Values: map[string]dialect.Setter{
		"-J": readName,
		"-n": func(r *dialect.Reader, v string) (err error) {
			r.N.Slots, err = r.Number(v, ",")
			r.Row.Fills(field.Tasks, field.Nodes, field.TasksPerNode)
			return err
		},
		"-nnodes": readFullNodes,
		"-R":      readResources,
		"-M": func(r *dialect.Reader, v string) (err error) {
			r.N.LimitPerProcess, err = quantity.Size(strings.TrimSuffix(v, "!"), units("KB"))
			r.Row.Fills(field.Memory)
			return err
		},
		"-W":   readTime,
		"-gpu": readGPU,
		"-q": func(r *dialect.Reader, v string) error {
			return dialect.Set(field.Queue)(r, strings.Join(dialect.List(v, " ,"), ","))
		},
		"-P":   dialect.Set(field.Account),
		"-m":   func(r *dialect.Reader, v string) error { return anyHost(r, dialect.List(v, " ")) },
		"-o":   readOutput(field.Output, true),
		"-oo":  readOutput(field.Output, false),
		"-e":   readOutput(field.Error, true),
		"-eo":  readOutput(field.Error, false),
		"-env": readEnvironment,
		"-cwd": readDirectory,
		"-w":   readAfter,
		"-u":   dialect.Set(field.Mail),
		"-wa": func(r *dialect.Reader, v string) (err error) {
			r.Job.Warning.Signal, err = job.SignalName(v)
			r.Row.Fills(field.Signal)
			return err
		},
		"-wt": func(r *dialect.Reader, v string) (err error) {
			r.Job.Warning.Lead, err = quantity.Clock(v, time.Minute, time.Hour)
			r.Row.Fills(field.Signal)
			return err
		},
		"-b":                            readBegin,
		"-L":                            readLogin,
		"-i -is":                        dialect.NoInput,
		"-f":                            dialect.Refuse("hpcc does not copy files; copy them in the script"),
		"-jsdl -jsdl_strict -json -jsm": dialect.Refuse("hpcc does not read job files of other formats"),
		"-Q":                            readRequeueExit,
		"-a -app -alloc_flags -C -c -clusters -cn_cu -cn_mem -core_isolation -csm -D -data -datagrp -E -Ep -eptl -ext " +
			"-extsched -F -freq -G -g -hostfile -jobaff -Jd -k -Lp -ln_mem -ln_slots -mig -network " +
			"-outdir -p -pack -rcacct -S -s -sla -smt -sp -stage -step_cgroup -T -t -tmp -U -v -W+ -We -wm -ptl -yaml": nil,
	},
	Flags: map[string]dialect.Setter{
		"-x":                                  dialect.Set(field.Exclusive),
		"-B":                                  mailOn("begin"),
		"-N":                                  mailOn("end"),
		"-Ne":                                 mailOn("fail"),
		"-r":                                  dialect.SetRequeue("yes"),
		"-rn -rnc":                            dialect.SetRequeue("no"),
		"-H":                                  dialect.Set(field.Hold),
		"-Is -Ip -I -ISp -ISs -IS -IX":        dialect.Set(field.Interactive),
		"-K":                                  (*dialect.Reader).Outside,
		"-V -h":                               (*dialect.Reader).Outside,
		"-tty -ti":                            (*dialect.Reader).Outside,
		"-notify -hl -rq -ul -XF -Zs -ar -ps": nil,
	},
}

// mailOn returns the Setter of an option without an argument that requests a mail.
func mailOn(event string) dialect.Setter {
	return func(r *dialect.Reader, _ string) error {
		r.MailOn(event)
		r.Row.Fills(field.MailOn)
		return nil
	}
}

// readFullNodes parses -nnodes, which gives the job all of the nodes, not slots on them.
func readFullNodes(r *dialect.Reader, v string) (err error) {
	if r.Own() {
		return r.Native("-nnodes " + v)
	}
	if r.Job.Nodes, err = r.Number(v, ""); err != nil {
		return err
	}
	r.Job.Exclusive = true
	r.Row.Fills(field.Nodes, field.Exclusive)
	r.Changed("full nodes; the script does not say what a node has: add --gpus, and --cpus or --tasks-per-node")
	return nil
}

// loginShells are the shells that read a profile and run a command with the options -l and -c.
var loginShells = []string{"bash", "sh", "ksh", "zsh", "dash"}

// readLogin parses -L, the login shell whose profile sets up the environment of the script. Another
// shell may run the script.
func readLogin(r *dialect.Reader, v string) error {
	switch name := path.Base(v); {
	case r.Own():
		return r.Native("-L " + v)
	case !path.IsAbs(v) || !job.WordText().MatchString(v):
		return fmt.Errorf("%q is not the path of a shell", text.Short(v))
	case r.To.Target.Pods():
		r.Changed("left out: it prepared the host, and the image has its own environment")
		return nil
	case !slices.Contains(loginShells, name):
		return fmt.Errorf("hpcc cannot use %s as a login shell; source the files that the script needs in the script", name)
	}
	r.Job.Script.Login = v
	r.Row.Become(field.Emulated, v+" reads the profile, and then starts the script")
	return nil
}

// units are the suffixes of sizes. A bare number has the unit in LSF_UNIT_FOR_LIMITS, or bare if the site
// does not set it.
func units(bare string) quantity.Units {
	u := quantity.Units{"K": 1 << 10, "KB": 1 << 10, "M": 1 << 20, "MB": 1 << 20, "G": 1 << 30, "GB": 1 << 30, "T": 1 << 40, "TB": 1 << 40,
		"k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30, "t": 1 << 40, "tb": 1 << 40}
	u[""] = u[bare]
	return u
}

var letters = dialect.Pattern{Sign: "%", Letters: []string{"%J", "{job}", "%I", "{task}", "%%", "%"}}

var nameAndArray = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([^\[\]]*)\[([^\[\]]+)\](%[0-9]+)?$`) })

// readName parses NAME or NAME[1-8,20:2]%4. Indices start at 1.
func readName(r *dialect.Reader, v string) (err error) {
	r.Row.Fills(field.Name)
	if !strings.ContainsAny(v, "[]") {
		r.Job.Name, r.Job.Array = v, job.Array{}
		return nil
	}
	m := nameAndArray().FindStringSubmatch(v)
	if m == nil {
		return fmt.Errorf("%q is not a name with indices", text.Short(v))
	}
	list := strings.ReplaceAll(m[2], " ", "")
	if r.Job.Array, err = job.ParseArray(list + m[3]); err != nil {
		return err
	}
	for k := range r.Job.Array.All() {
		if k == 0 {
			return fmt.Errorf("the indices of LSF begin at 1, not 0")
		}
		break
	}
	r.Job.Name = m[1]
	r.Row.Fills(field.Array)
	return nil
}

// readTime parses [H:]M[/HOST].
func readTime(r *dialect.Reader, v string) error {
	limit, host, ok := strings.Cut(v, "/")
	d, err := quantity.Clock(limit, time.Minute, time.Hour)
	if err == nil && d == 0 {
		err = fmt.Errorf("%q is not a time", text.Short(v))
	}
	if err != nil {
		return err
	}
	if ok {
		r.Changed("%s unchanged; LSF would have scaled it by the speed of the host or model %s", limit, host)
	} else if !strings.Contains(limit, ":") {
		r.Row.Become("", "minutes")
	}
	r.Job.Time = d
	r.Row.Fills(field.Time)
	return nil
}

// readGPU parses num=4[/task]:mode=…:j_exclusive=…:gmodel=…:gmem=…; numbers are per host.
func readGPU(r *dialect.Reader, v string) error {
	n, kind := 1, ""
	var notes []string
	for _, item := range dialect.List(v, ":") {
		key, value, _ := strings.Cut(item, "=")
		switch key {
		case "-":
		case "num":
			count, per, _ := strings.Cut(value, "/")
			var err error
			if n, err = r.Number(count, ""); err != nil {
				return err
			}
			if per == "task" && r.Own() {
				return r.Native(`-gpu "` + v + `"`)
			}
			if per == "task" {
				r.N.GPUsPerTask = n
			}
		case "mode":
			if value == "exclusive_process" {
				notes = append(notes, item+": only LSF lets users set the compute mode; no other job gets these GPUs anyway")
			}
		case "j_exclusive":
			if value == "no" {
				notes = append(notes, item+": the job gets its GPUs exclusively")
			}
		case "gmodel":
			kind = strings.NewReplacer(" ", "_").Replace(value)
		default:
			notes = append(notes, item+" is left out")
		}
	}
	if !r.Own() || len(notes) == 0 {
		if len(notes) > 0 {
			r.Changed("%s", strings.Join(notes, "; "))
		}
		r.Job.GPUs, r.Job.GPUType = n, kind
		r.Row.Fills(field.GPUs)
		if kind != "" {
			r.Row.Fills(field.GPUType)
		}
		return nil
	}
	return r.Native(`-gpu "` + v + `"`)
}

// anyHost accepts a list of alternative hosts only if it has a single host.
func anyHost(r *dialect.Reader, list []string) error {
	for _, h := range list {
		if !job.WordText().MatchString(h) || strings.Contains(h, "+") || h == "all" || h == "others" {
			return r.Native(r.Row.Text)
		}
	}
	if len(list) != 1 {
		if r.Own() {
			return r.Native(r.Row.Text)
		}
		return fmt.Errorf("LSF chooses among these hosts; the target would use all of them")
	}
	r.Job.Hosts = list
	r.Row.Fills(field.Hosts)
	return nil
}

// readOutput returns the Setter of an output file. add reports whether the job appends to it.
func readOutput(f field.Field, add bool) func(*dialect.Reader, string) error {
	return func(r *dialect.Reader, v string) error {
		if strings.HasSuffix(v, "/") || r.IsDir(v) {
			v = strings.TrimSuffix(v, "/") + "/" + map[field.Field]string{field.Output: "%J.out", field.Error: "%J.err"}[f]
			if !r.Job.Array.IsZero() {
				v = strings.Replace(v, "%J", "%J_%I", 1)
			}
			r.Changed("%s", v)
		}
		if err := r.Output(v, f, letters); err != nil {
			return err
		}
		r.Job.Append = add
		r.Row.Fills(field.Append)
		return nil
	}
}

// readDirectory parses -cwd. LSF would create a directory with a pattern in its name; hpcc needs its name when it submits
// the job.
func readDirectory(r *dialect.Reader, v string) error {
	if strings.Contains(v, "%") {
		return fmt.Errorf("hpcc does not replace patterns in the directory: create it in the script, and change to it")
	}
	return r.Directory(v)
}

// readEnvironment parses -env "all, A=1" and "none, A".
func readEnvironment(r *dialect.Reader, v string) error {
	r.Job.Export = nil
	var list []string
	for _, e := range dialect.CommaList(v) {
		e = strings.TrimSpace(e)
		switch {
		case e == "all" || e == "none":
			e = strings.ToUpper(e)
		case strings.HasPrefix(e, "~"):
			r.Changed("variable %s stays set", e[1:])
			continue
		case e == "":
			continue
		}
		list = append(list, e)
	}
	if len(list) > 1 && list[0] == "NONE" && slices.ContainsFunc(list,
		func(e string) bool { return e != "NONE" && !strings.Contains(e, "=") }) {
		list = list[1:] // a list of names implies it
	}
	r.Row.Fills(field.Export)
	return r.Environment(list)
}

var condition = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(done|ended|exit)\(\s*"?([^()" ]+?)"?\s*\)$`) })

// readAfter parses done(ID) && ended(ID) && exit(ID); a bare ID means done(ID).
func readAfter(r *dialect.Reader, v string) error {
	if strings.ContainsAny(v, "|!<>") {
		return r.Native(`-w "` + strings.ReplaceAll(v, `"`, `\"`) + `"`)
	}
	for _, part := range strings.Split(v, "&&") {
		part = strings.TrimSpace(part)
		event, id := "done", strings.Trim(part, `"`)
		if m := condition().FindStringSubmatch(part); m != nil {
			event, id = m[1], m[2]
		} else if strings.ContainsAny(part, "()") {
			return r.Native(`-w "` + strings.ReplaceAll(v, `"`, `\"`) + `"`)
		}
		kind := map[string]string{"done": "afterok", "ended": "afterany", "exit": "afternotok"}[event]
		if each, ok := strings.CutSuffix(id, "[*]"); ok && event == "done" {
			kind, id = "aftercorr", each
		}
		if err := r.OnlyIDs(id); err != nil {
			return err
		}
		if err := r.After(kind, []string{id}); err != nil {
			return err
		}
	}
	return nil
}

// maxRequeue is the number of times that hpcc runs a task again. LSF has no limit unless the
// site sets one (MAX_JOB_REQUEUE).
const maxRequeue = 10

// readRequeueExit parses -Q "99 100": exit statuses after which a job runs again.
func readRequeueExit(r *dialect.Reader, v string) error {
	var endings []string
	for _, status := range strings.Fields(v) {
		endings = append(endings, "exit="+status)
	}
	if _, err := job.ParseEndings(strings.Join(endings, ",")); err != nil || len(endings) == 0 {
		return r.Native(`-Q "` + v + `"`)
	}
	r.Job.Retry = job.Retry{Times: maxRequeue, Endings: endings}
	r.Row.Become(field.Emulated, fmt.Sprintf("hpcc runs the task again, at most %d times; --retry sets the number", maxRequeue))
	r.Row.Fills(field.Retry)
	return nil
}

var moment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:(\d{4}):)?(?:(\d\d?):(\d\d?):)?(\d\d?):(\d\d)$`) })

// readBegin parses YEAR:MONTH:DAY:H:M or H:M. Other forms stay native.
func readBegin(r *dialect.Reader, v string) error {
	m := moment().FindStringSubmatch(v)
	switch {
	case m == nil || (m[1] == "") != (m[2] == ""):
		return r.Native("-b " + v)
	case m[1] == "":
		r.Job.Begin = pad(m[4]) + ":" + m[5]
	default:
		r.Job.Begin = m[1] + "-" + pad(m[2]) + "-" + pad(m[3]) + "T" + pad(m[4]) + ":" + m[5]
	}
	r.Row.Fills(field.Begin)
	return nil
}

func pad(s string) string { return ("00" + s)[len(s):] }

// finish converts slots over all hosts to processes and nodes, and memory per host or process to memory
// per node.
func finish(r *dialect.Reader) {
	j := r.Job
	if r.N.Slots > 0 {
		j.Tasks = r.N.Slots
	}
	if k := r.N.PerHost; k > 0 {
		j.TasksPerNode = k
		if j.Tasks == 0 {
			j.Tasks = 1
		}
		j.Nodes = (j.Tasks + k - 1) / k
		r.Rows.SetFate("", fmt.Sprintf("%d slots over %d hosts, at most %d on each", j.Tasks, j.Nodes, k), field.Tasks)
	}
	r.DivideGPUs("host", "")
	finishMemory(r)
	if j.Interactive && j.Script.Login != "" {
		for _, row := range r.Rows {
			if strings.HasPrefix(row.Text, "-L") {
				row.Become(field.Refused, "an interactive job has no script that the login shell could start")
			}
		}
	}
	if j.Warning.Signal == "" && j.Warning.Lead > 0 {
		j.Warning.Lead = 0
		r.Rows.SetFate(field.Refused, "it has no effect without -wa, which names the signal", field.Signal)
	}
	if j.Warning.Signal != "" && j.Warning.Lead == 0 {
		j.Warning.Signal = ""
		r.Rows.SetFate(field.Refused, "it has no effect without -wt, which sets the time of the signal", field.Signal)
	}
}

// finishMemory uses the reserved memory, or the limit per process if none is reserved.
func finishMemory(r *dialect.Reader) {
	j, n := r.Job, &r.N
	perCPU := func(task int64) int64 { return (task + int64(max(j.CPUs, 1)) - 1) / int64(max(j.CPUs, 1)) }
	switch {
	case j.Memory > 0:
	case n.PerTask > 0:
		j.MemoryPerCPU = perCPU(n.PerTask)
	case n.PerJob > 0:
		j.Memory = n.PerJob / int64(max(j.Nodes, 1))
	case n.LimitPerProcess > 0:
		j.MemoryPerCPU = perCPU(n.LimitPerProcess)
	}
	if n.LimitPerProcess == 0 {
		return
	}
	reserved := j.Memory > 0 || n.PerTask > 0 || n.PerJob > 0
	r.FinishRows(field.Memory, func(row *field.Row) error {
		if !strings.HasPrefix(row.Text, "-M") {
			return nil
		}
		if reserved && !r.Own() {
			row.Become(field.Changed, fmt.Sprintf("a limit of %s for each process; the job requests the memory that -R reserves",
				quantity.FormatMemory(n.LimitPerProcess)))
		} else if reserved {
			return r.Native(row.Text)
		} else {
			row.Become(field.Changed, fmt.Sprintf("a limit of %s for each process becomes requested memory; a number without "+
				"a unit is in KB, unless LSF_UNIT_FOR_LIMITS sets another unit", quantity.FormatMemory(n.LimitPerProcess)))
		}
		return nil
	})
}

// defaults sets LSF's defaults.
func defaults(r *dialect.Reader) {
	if !r.OutputSet() {
		r.Add(0, "(no -o)").Become(field.Changed, "LSF sends the output by mail; hpcc writes it to a file with hpcc's default name")
	}
	r.ExportAll()
	if s := r.Job.Script; len(s.Shell) == 0 {
		s.Shell = []string{"/bin/sh"}
		r.Add(1, "(no #!)").Become("", "/bin/sh, as under LSF")
	}
}

// positive parses the number after a key of a resource string.
func positive(v string) (int, bool) {
	n, err := strconv.Atoi(v)
	return n, err == nil && n > 0 && n < 1<<24
}
