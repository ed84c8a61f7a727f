package translate

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/message"
	"hpcc/job/quantity"
)

// lsfDialect is what bsub(1) of LSF 10.1 reads: directives in the whole file,
// here-documents included.
var lsfDialect = dialect{
	target: job.LSF, name: "LSF", prefix: "#BSUB", command: "bsub", anywhere: true, glued: true,
	options: lsfTable, finish: lsfFinish, defaults: lsfDefaults,
}.made()

var lsfTable = append([]option{
	{"-J", 1, lsfName},
	{"-n", 1, func(r *reader, v string) (err error) {
		r.n.slots, err = r.number(v, ",")
		r.fills(fTasks, fNodes, fTasksPerNode)
		return err
	}},
	{"-nnodes", 1, setNumber(fNodes, func(j *job.Job) *int { return &j.Nodes })},
	{"-R", 1, lsfResources},
	{"-M", 1, func(r *reader, v string) (err error) {
		r.n.limitPerProcess, err = quantity.Size(strings.TrimSuffix(v, "!"), lsfUnits("KB"))
		r.fills(fMemory)
		return err
	}},
	{"-W", 1, lsfTime},
	{"-gpu", 1, lsfGPU},
	{"-q", 1, func(r *reader, v string) error {
		return setWord(fQueue, func(j *job.Job) *string { return &j.Queue })(r, strings.Join(listOf(v, " ,"), ","))
	}},
	{"-P", 1, setWord(fAccount, func(j *job.Job) *string { return &j.Account })},
	{"-m", 1, func(r *reader, v string) error { return r.anyHost(listOf(v, " ")) }},
	{"-x", 0, setFlag(fExclusive, func(j *job.Job) { j.Exclusive = true })},
	{"-o", 1, lsfOutput(fOutput, true)},
	{"-oo", 1, lsfOutput(fOutput, false)},
	{"-e", 1, lsfOutput(fError, true)},
	{"-eo", 1, lsfOutput(fError, false)},
	{"-env", 1, lsfEnvironment},
	{"-cwd", 1, func(r *reader, v string) error { return r.directory(v) }},
	{"-w", 1, lsfAfter},
	{"-B", 0, func(r *reader, _ string) error { r.mailOn("begin"); r.fills(fMailOn); return nil }},
	{"-N", 0, func(r *reader, _ string) error { r.mailOn("end"); r.fills(fMailOn); return nil }},
	{"-Ne", 0, func(r *reader, _ string) error { r.mailOn("fail"); r.fills(fMailOn); return nil }},
	{"-u", 1, setWord(fMail, func(j *job.Job) *string { return &j.Mail })},
	{"-r", 0, setFlag(fRequeue, func(j *job.Job) { j.Requeue = "yes" })},
	{"-rn", 0, setFlag(fRequeue, func(j *job.Job) { j.Requeue = "no" })},
	{"-wa", 1, func(r *reader, v string) (err error) {
		r.job.Warning.Signal, err = job.SignalName(v)
		r.fills(fSignal)
		return err
	}},
	{"-wt", 1, func(r *reader, v string) (err error) {
		r.job.Warning.Lead, err = quantity.Clock(v, time.Minute, time.Hour)
		r.fills(fSignal)
		return err
	}},
	{"-b", 1, lsfBegin},
	{"-H", 0, setFlag(fHold, func(j *job.Job) { j.Hold = true })},
	{"-Is -Ip -I -ISp -ISs -IS -IX", 0, func(r *reader, v string) error {
		r.job.Interactive = true
		r.fills(fInteractive)
		return nil
	}},
	{"-K", 0, outside},
	{"-V -h", 0, outside},
	{"-tty -ti", 0, outside},
	{"-L", 1, refuse("it only gives the script the environment of a login shell; source what it needs in the script")},
	{"-i -is", 1, refuse("hpcc gives jobs nothing to read; redirect in the script: program < file")},
	{"-f", 1, refuse("hpcc copies no files; do it in the script")},
	{"-jsdl -jsdl_strict -json -jsm", 1, refuse("hpcc does not read job files of other formats")},
	{"-Q", 1, lsfRequeueExit},
}, natives(1, "-a -app -alloc_flags -C -c -clusters -cn_cu -cn_mem -core_isolation -csm -D -data -datagrp -E -Ep -eptl -ext -F -freq -G -g -hostfile -jobaff -Jd -k -Lp -ln_mem -ln_slots -mig -network "+
	"-outdir -p -pack -rcacct -S -s -sla -smt -sp -stage -step_cgroup -T -t -tmp -U -v -W+ -We -wm -ptl -yaml"),
	natives(0, "-notify -hl -rq -ul -XF -Zs -ar -ps"))

// lsfUnits are the suffixes of sizes; a bare number is of the unit that
// LSF_UNIT_FOR_LIMITS names, bare where the site has none.
func lsfUnits(bare string) quantity.Units {
	u := quantity.Units{"K": 1 << 10, "KB": 1 << 10, "M": 1 << 20, "MB": 1 << 20, "G": 1 << 30, "GB": 1 << 30, "T": 1 << 40, "TB": 1 << 40,
		"k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30, "t": 1 << 40, "tb": 1 << 40}
	u[""] = u[bare]
	return u
}

var lsfLetters = pattern{sign: "%", letters: []string{"%J", "{job}", "%I", "{task}", "%%", "%"}}

var lsfArray = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([^\[\]]*)\[([^\[\]]+)\](%[0-9]+)?$`) })

// lsfName reads NAME or NAME[1-8,20:2]%4. Indices begin at 1.
func lsfName(r *reader, v string) (err error) {
	r.fills(fName)
	if !strings.ContainsAny(v, "[]") {
		r.job.Name, r.job.Array = v, job.Array{}
		return nil
	}
	m := lsfArray().FindStringSubmatch(v)
	if m == nil {
		return fmt.Errorf("%q is no name with indices", message.Short(v))
	}
	list := strings.ReplaceAll(m[2], " ", "")
	if r.job.Array, err = job.ParseArray(list + m[3]); err != nil {
		return err
	}
	for k := range r.job.Array.All() {
		if k == 0 {
			return fmt.Errorf("indices of LSF begin at 1")
		}
		break
	}
	r.job.Name = m[1]
	r.fills(fArray)
	return nil
}

// lsfTime reads [H:]M[/HOST].
func lsfTime(r *reader, v string) error {
	limit, host, ok := strings.Cut(v, "/")
	d, err := quantity.Clock(limit, time.Minute, time.Hour)
	if err == nil && d == 0 {
		err = fmt.Errorf("%q is no time", message.Short(v))
	}
	if err != nil {
		return err
	}
	if ok {
		r.changed("%s as it is; LSF would have counted it on a host or model %s", limit, host)
	} else if !strings.Contains(limit, ":") {
		r.row.become("", "minutes")
	}
	r.job.Time = d
	r.fills(fTime)
	return nil
}

// lsfGPU reads num=4[/task]:mode=…:j_exclusive=…:gmodel=…:gmem=…; numbers are
// per host.
func lsfGPU(r *reader, v string) error {
	n, kind := 1, ""
	var odd []string
	for _, item := range listOf(v, ":") {
		key, value, _ := strings.Cut(item, "=")
		switch key {
		case "-":
		case "num":
			count, per, _ := strings.Cut(value, "/")
			var err error
			if n, err = r.number(count, ""); err != nil {
				return err
			}
			if per == "task" {
				r.n.gpusPerTask = n
			}
		case "mode":
			if value == "exclusive_process" {
				odd = append(odd, item+": the compute mode is not the user's elsewhere; other jobs do not get these GPUs anyway")
			}
		case "j_exclusive":
			if value == "no" {
				odd = append(odd, item+": GPUs are the job's alone")
			}
		case "gmodel":
			kind = strings.NewReplacer(" ", "_").Replace(value)
		default:
			odd = append(odd, item+" is left out")
		}
	}
	if r.t.To != job.LSF || len(odd) == 0 {
		if len(odd) > 0 {
			r.changed("%s", strings.Join(odd, "; "))
		}
		r.job.GPUs, r.job.GPUType = n, kind
		r.fills(fGPUs)
		if kind != "" {
			r.fills(fGPUType)
		}
		return nil
	}
	return r.native(`-gpu "` + v + `"`)
}

// anyHost keeps hosts to choose from where there is nothing to choose.
func (r *reader) anyHost(list []string) error {
	for _, h := range list {
		if !job.WordText().MatchString(h) || strings.Contains(h, "+") || h == "all" || h == "others" {
			return r.native(r.row.Text)
		}
	}
	if len(list) != 1 {
		if r.t.To == r.dialect.target {
			return r.native(r.row.Text)
		}
		return fmt.Errorf("it lets the scheduler choose among hosts, the target would take all of them")
	}
	r.job.Hosts = list
	r.fills(fHosts)
	return nil
}

func lsfOutput(f field, add bool) func(*reader, string) error {
	return func(r *reader, v string) error {
		if strings.HasSuffix(v, "/") {
			v += map[field]string{fOutput: "%J.out", fError: "%J.err"}[f]
			if !r.job.Array.IsZero() {
				v = strings.Replace(v, "%J", "%J_%I", 1)
			}
			r.changed("%s", v)
		}
		if err := r.output(v, f, lsfLetters); err != nil {
			return err
		}
		r.job.Append = add
		r.fills(fAppend)
		return nil
	}
}

// lsfEnvironment reads -env "all, A=1" and "none, A".
func lsfEnvironment(r *reader, v string) error {
	r.job.Export = nil
	var list []string
	for _, e := range commaList(v) {
		e = strings.TrimSpace(e)
		switch {
		case e == "all" || e == "none":
			e = strings.ToUpper(e)
		case strings.HasPrefix(e, "~"):
			r.changed("%s stays set", e[1:])
			continue
		case e == "":
			continue
		}
		list = append(list, e)
	}
	if len(list) > 1 && list[0] == "NONE" && slices.ContainsFunc(list, func(e string) bool { return e != "NONE" && !strings.Contains(e, "=") }) {
		list = list[1:] // names alone say that
	}
	r.fills(fExport)
	return r.environment(list)
}

var lsfCondition = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(done|ended|exit)\(\s*"?([^()" ]+?)"?\s*\)$`) })

// lsfAfter reads done(ID) && ended(ID) && exit(ID); a bare ID is done(ID).
func lsfAfter(r *reader, v string) error {
	if strings.ContainsAny(v, "|!<>") {
		return r.native(`-w "` + strings.ReplaceAll(v, `"`, `\"`) + `"`)
	}
	for _, part := range strings.Split(v, "&&") {
		part = strings.TrimSpace(part)
		word, id := "done", strings.Trim(part, `"`)
		if m := lsfCondition().FindStringSubmatch(part); m != nil {
			word, id = m[1], m[2]
		} else if strings.ContainsAny(part, "()") {
			return r.native(`-w "` + strings.ReplaceAll(v, `"`, `\"`) + `"`)
		}
		kind := map[string]string{"done": "afterok", "ended": "afterany", "exit": "afternotok"}[word]
		if each, ok := strings.CutSuffix(id, "[*]"); ok && word == "done" {
			kind, id = "aftercorr", each
		}
		if strings.Trim(id, "0123456789") != "" && r.t.To != job.LSF && r.t.To != job.Argo {
			return fmt.Errorf("it names job %q, and the target knows jobs by their ids: give it with --after", id)
		}
		if err := r.after(kind, []string{id}); err != nil {
			return err
		}
	}
	return nil
}

// maxRequeue is how often hpcc runs a task again in the place of LSF, which
// would do it for ever unless the site says otherwise (MAX_JOB_REQUEUE).
const maxRequeue = 10

// lsfRequeueExit reads -Q "99 100": statuses after which a job runs again.
func lsfRequeueExit(r *reader, v string) error {
	var endings []string
	for _, status := range strings.Fields(v) {
		endings = append(endings, "exit="+status)
	}
	if _, err := job.ParseEndings(strings.Join(endings, ",")); err != nil || len(endings) == 0 {
		return r.native(`-Q "` + v + `"`)
	}
	r.job.Retry = job.Retry{Times: maxRequeue, Endings: endings}
	r.row.become(Emulated, fmt.Sprintf("hpcc runs the task again, %d times at most; --retry says how often", maxRequeue))
	r.fills(fRetry)
	return nil
}

var lsfMoment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:(\d{4}):)?(?:(\d\d?):(\d\d?):)?(\d\d?):(\d\d)$`) })

// lsfBegin reads [[YEAR:]MONTH:DAY:]H:M with a year or with neither month nor day.
func lsfBegin(r *reader, v string) error {
	m := lsfMoment().FindStringSubmatch(v)
	switch {
	case m == nil || (m[1] == "") != (m[2] == ""):
		return r.native("-b " + v)
	case m[1] == "":
		r.job.Begin = pad(m[4]) + ":" + m[5]
	default:
		r.job.Begin = m[1] + "-" + pad(m[2]) + "-" + pad(m[3]) + "T" + pad(m[4]) + ":" + m[5]
	}
	r.fills(fBegin)
	return nil
}

func pad(s string) string { return ("00" + s)[len(s):] }

// lsfFinish turns slots over all hosts into processes and nodes, and memory of
// hosts and processes into memory of nodes.
func lsfFinish(r *reader) {
	j := r.job
	if r.n.slots > 0 {
		j.Tasks = r.n.slots
	}
	if k := r.n.perHost; k > 0 {
		j.TasksPerNode = k
		if j.Tasks == 0 {
			j.Tasks = 1
		}
		j.Nodes = (j.Tasks + k - 1) / k
		r.tell(fTasks, func(row *Row) error {
			row.become("", fmt.Sprintf("%d slots over %d hosts, at most %d on each", j.Tasks, j.Nodes, k))
			return nil
		})
	}
	if n := r.n.gpusPerTask; n > 0 {
		j.GPUs = n * j.ProcessesPerNode()
		r.tell(fGPUs, func(row *Row) error {
			row.become(Changed, fmt.Sprintf("%d on each host, for %d processes there", j.GPUs, j.ProcessesPerNode()))
			return nil
		})
	}
	lsfMemory(r)
	if j.Warning.Signal == "" && j.Warning.Lead > 0 {
		r.tell(fSignal, func(*Row) error { j.Warning.Lead = 0; return fmt.Errorf("without -wa there is no signal") })
	}
	if j.Warning.Signal != "" && j.Warning.Lead == 0 {
		r.tell(fSignal, func(*Row) error { j.Warning.Signal = ""; return fmt.Errorf("without -wt it is not said when") })
	}
}

// lsfMemory takes what is reserved; a limit of a process stands for it where
// nothing is.
func lsfMemory(r *reader) {
	j, n := r.job, &r.n
	perCPU := func(task int64) int64 { return (task + int64(max(j.CPUs, 1)) - 1) / int64(max(j.CPUs, 1)) }
	switch {
	case j.Memory > 0:
	case n.perTask > 0:
		j.MemoryPerCPU = perCPU(n.perTask)
	case n.perJob > 0:
		j.Memory = n.perJob / int64(max(j.Nodes, 1))
	case n.limitPerProcess > 0:
		j.MemoryPerCPU = perCPU(n.limitPerProcess)
	}
	if n.limitPerProcess == 0 {
		return
	}
	reserved := j.Memory > 0 || n.perTask > 0 || n.perJob > 0
	r.tell(fMemory, func(row *Row) error {
		if !strings.HasPrefix(row.Text, "-M") {
			return nil
		}
		if reserved && r.t.To != job.LSF {
			row.become(Changed, fmt.Sprintf("a limit of %s for each process; the memory that -R reserves is asked for", quantity.FormatMemory(n.limitPerProcess)))
		} else if reserved {
			return r.native(row.Text)
		} else {
			row.become(Changed, fmt.Sprintf("a limit of %s for each process becomes memory that is asked for; a bare number is KB, where LSF_UNIT_FOR_LIMITS says nothing else", quantity.FormatMemory(n.limitPerProcess)))
		}
		return nil
	})
}

// lsfDefaults are LSF's where nothing is said.
func lsfDefaults(r *reader) {
	j := r.job
	if !r.outputSet {
		r.add(0, "(no -o)").become(Changed, "LSF sends the output by mail; it goes into a file of hpcc's name")
	}
	if len(j.Export) == 1 && j.Export[0] == "ALL" && r.t.To == job.Slurm {
		j.Export = nil
	}
	r.environmentDefault(len(j.Export) == 0)
	if len(j.Script.Shell) == 0 {
		j.Script.Shell = []string{"/bin/sh"}
		r.add(1, "(no #!)").become("", "/bin/sh, as LSF has it")
	}
}

// lsfNumber reads the number behind a key of a resource string.
func lsfNumber(v string) (int, bool) {
	n, err := strconv.Atoi(v)
	return n, err == nil && n > 0 && n < 1<<24
}
