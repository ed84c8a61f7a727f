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
	"hpcc/job/hostlist"
	"hpcc/job/message"
	"hpcc/job/quantity"
)

// slurmDialect is what sbatch(1) of 22.05 and later reads: directives before the
// first command, options as getopt_long(3) takes them.
var slurmDialect = dialect{
	target: job.Slurm, name: "Slurm", prefix: "#SBATCH", command: "sbatch", glued: true, abbrev: true,
	options: slurmTable, finish: slurmFinish, defaults: slurmDefaults,
}.made()

// slurmTable are the options of sbatch(1). Those without a function are Slurm's alone.
var slurmTable = append([]option{
	{"-J --job-name", 1, setWord(fName, func(j *job.Job) *string { return &j.Name })},
	{"-a --array", 1, slurmArray},
	{"-N --nodes", 1, setNumber(fNodes, func(j *job.Job) *int { return &j.Nodes })},
	{"-n --ntasks", 1, setNumber(fTasks, func(j *job.Job) *int { return &j.Tasks })},
	{"--ntasks-per-node --tasks-per-node", 1, setNumber(fTasksPerNode, func(j *job.Job) *int { return &j.TasksPerNode })},
	{"-c --cpus-per-task", 1, setNumber(fCPUs, func(j *job.Job) *int { return &j.CPUs })},
	{"--mem", 1, slurmMemory},
	{"--mem-per-cpu", 1, slurmMemoryPerCPU},
	{"--gpus-per-node", 1, slurmGPUs},
	{"--gres", 1, slurmGres},
	{"-G --gpus", 1, slurmGPUsInAll},
	{"--gpus-per-task", 1, slurmGPUsPerTask},
	{"-t --time", 1, slurmTime},
	{"-p --partition", 1, setWord(fQueue, func(j *job.Job) *string { return &j.Queue })},
	{"-A --account", 1, setWord(fAccount, func(j *job.Job) *string { return &j.Account })},
	{"-q --qos", 1, setWord(fQoS, func(j *job.Job) *string { return &j.QoS })},
	{"--exclusive", optional, slurmExclusive},
	{"-d --dependency", 1, slurmAfter},
	{"-o --output", 1, func(r *reader, v string) error { return r.output(v, fOutput, slurmLetters) }},
	{"-e --error", 1, func(r *reader, v string) error { return r.output(v, fError, slurmLetters) }},
	{"--open-mode", 1, slurmOpenMode},
	{"--mail-user", 1, setWord(fMail, func(j *job.Job) *string { return &j.Mail })},
	{"--mail-type", 1, slurmMailType},
	{"-D --chdir", 1, func(r *reader, v string) error { return r.directory(v) }},
	{"--export", 1, slurmExport},
	{"-C --constraint", 1, slurmConstraint},
	{"-w --nodelist", 1, slurmHosts(fHosts, func(j *job.Job) *[]string { return &j.Hosts })},
	{"-x --exclude", 1, slurmHosts(fNotHosts, func(j *job.Job) *[]string { return &j.NotHosts })},
	{"--signal", 1, slurmSignal},
	{"--requeue", 0, setFlag(fRequeue, func(j *job.Job) { j.Requeue = "yes" })},
	{"--no-requeue", 0, setFlag(fRequeue, func(j *job.Job) { j.Requeue = "no" })},
	{"-b --begin", 1, slurmBegin},
	{"-H --hold", 0, setFlag(fHold, func(j *job.Job) { j.Hold = true })},
	{"--kill-on-invalid-dep", 1, slurmInvalid},
	{"--wrap", 1, func(r *reader, v string) error { r.wrap = v; return nil }},
	{"--parsable -W --wait --test-only -Q --quiet -v --verbose --ignore-pbs", 0, outside},
	{"-h --help --usage -V --version", 0, outside},
	{"--uid --gid", 1, refuse("only root may")},
	{"-i --input", 1, refuse("hpcc gives jobs nothing to read; redirect in the script: program < file")},
}, natives(1, "--bb --bbf --batch --cluster-constraint --comment --constraint-override --container --container-id --core-spec -S --cores-per-socket --cpu-freq --cpus-per-gpu "+
	"--deadline --delay-boot -m --distribution --export-file --extra -B --extra-node-info --gpu-bind --gpu-freq --gpus-per-socket --gres-flags --hint -L --licenses "+
	"-M --clusters --mcs-label --mem-bind --mem-per-gpu --mincpus --network -F --nodefile --ntasks-per-core --ntasks-per-gpu --ntasks-per-socket --power --prefer --priority "+
	"--profile --reservation --resv-ports --segment --sockets-per-node --switches --thread-spec --threads-per-core --time-min --tmp --tres-bind --tres-per-task --wckey --acctg-freq"),
	natives(0, "--contiguous -k --no-kill -O --overcommit --reboot -s --oversubscribe --share --spread-job --use-min-nodes --stepmgr"),
	natives(optional, "--nice --propagate --get-user-env"))

// natives are options that only one scheduler has.
func natives(args int, names string) option { return option{names: names, args: args} }

var slurmLetters = pattern{sign: "%", letters: []string{"%A", "{job}", "%j", "{job}", "%a", "{task}", "%x", "{name}", "%%", "%"}}

// output reads the name of an output file.
func (r *reader) output(v string, f field, p pattern) error {
	name, err := r.file(v, p)
	if err != nil {
		return err
	}
	lost := foreignLetters(name, p.sign)
	if len(lost) > 0 && r.t.To != r.dialect.target {
		name = strings.NewReplacer(pairs(lost, "")...).Replace(name)
		if name == "" || strings.HasSuffix(name, "/") {
			return fmt.Errorf("nothing else fills %s in", strings.Join(lost, " "))
		}
		r.changed("nothing else fills %s in; %s", strings.Join(lost, " "), name)
	}
	if p.sign != "$" && strings.Contains(name, "$") {
		r.row.become("", r.dialect.name+" fills no variable in")
	}
	r.setFile(f, name)
	return nil
}

// setFile fills in the file of the output, or that of standard error.
func (r *reader) setFile(f field, name string) {
	if r.fills(f); f == fOutput {
		r.job.Output, r.outputSet = name, true
	} else {
		r.job.Error, r.errorSet = name, true
	}
}

func pairs(list []string, with string) []string {
	var out []string
	for _, s := range list {
		out = append(out, s, with)
	}
	return out
}

// foreignLetters are what is left in a pattern that only its scheduler fills in.
func foreignLetters(name, sign string) []string {
	var out []string
	switch sign {
	case "%":
		out = letterPercent().FindAllString(name, -1)
	case "$":
		out = letterDollar().FindAllString(name, -1)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var (
	letterPercent = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%[0-9]*[A-Za-z]`) })
	letterDollar  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$[A-Za-z_]+`) })
)

// directory is where the job starts; a relative one is below where it is handed in.
func (r *reader) directory(v string) error {
	if v == "" || strings.ContainsAny(v, "\n\r\x00\"") {
		return fmt.Errorf("directory %q: holds a sign that directives cannot", message.Short(v))
	}
	if v[0] != '/' {
		v = strings.TrimSuffix(r.source.Dir, "/") + "/" + v
		r.changed("%s", v)
	}
	r.job.Dir = v
	r.fills(fDir)
	return nil
}

func slurmArray(r *reader, v string) (err error) {
	r.job.Array, err = job.ParseArray(v)
	r.fills(fArray)
	return err
}

// slurmUnits are those of sbatch(1), --mem: mebibytes without a suffix.
var slurmUnits = quantity.Units{"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}

func slurmMemory(r *reader, v string) (err error) {
	r.fills(fMemory)
	if v == "0" {
		r.allMemory = true
		return nil
	}
	r.job.MemoryPerCPU = 0
	r.job.Memory, err = quantity.Size(v, slurmUnits)
	return err
}

func slurmMemoryPerCPU(r *reader, v string) (err error) {
	r.fills(fMemory)
	r.job.Memory = 0
	r.job.MemoryPerCPU, err = quantity.Size(v, slurmUnits)
	return err
}

// slurmGPUs reads [TYPE:]N.
func slurmGPUs(r *reader, v string) error {
	kind, count, ok := strings.Cut(v, ":")
	if !ok {
		kind, count = "", v
	}
	if _, err := strconv.Atoi(count); err != nil && !ok && job.EnvName().MatchString(v) { // --gres=gpu:a100 is one of them
		kind, count = v, "1"
	}
	n, err := r.number(count, "")
	if err != nil {
		return err
	}
	r.job.GPUs, r.job.GPUType = n, kind
	r.fills(fGPUs)
	if kind != "" {
		r.fills(fGPUType)
	}
	return nil
}

func slurmGres(r *reader, v string) error {
	what, rest, _ := strings.Cut(v, ":")
	if what != "gpu" || strings.Contains(v, ",") {
		return r.native("--gres=" + v)
	}
	if rest == "" {
		rest = "1"
	}
	return slurmGPUs(r, rest)
}

func slurmGPUsInAll(r *reader, v string) error {
	if err := slurmGPUs(r, v); err != nil {
		return err
	}
	r.n.gpusInAll, r.job.GPUs = r.job.GPUs, 0
	return nil
}

func slurmGPUsPerTask(r *reader, v string) error {
	if err := slurmGPUs(r, v); err != nil {
		return err
	}
	r.n.gpusPerTask, r.job.GPUs = r.job.GPUs, 0
	return nil
}

// slurmTime reads the forms of sbatch(1): M, M:S, H:M:S, D-H, D-H:M, D-H:M:S.
func slurmTime(r *reader, v string) error {
	r.fills(fTime)
	switch strings.ToUpper(v) {
	case "0", "-1", "UNLIMITED", "INFINITE":
		r.changed("no limit")
		r.job.Time = 0
		return nil
	}
	days, rest, dash := strings.Cut(v, "-")
	var d time.Duration
	var err error
	if dash {
		fields := []time.Duration{time.Hour, time.Minute, time.Second}[:min(3, strings.Count(rest, ":")+1)]
		reversed := slices.Clone(fields)
		slices.Reverse(reversed)
		if d, err = quantity.Clock(rest, reversed...); err != nil {
			return err
		}
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil || n > 3650 {
			return fmt.Errorf("%q is no time", message.Short(v))
		}
		d += time.Duration(n) * 24 * time.Hour
	} else {
		switch strings.Count(v, ":") {
		case 0:
			d, err = quantity.Clock(v, time.Minute)
		case 1:
			d, err = quantity.Clock(v, time.Second, time.Minute)
			r.row.become("", "Slurm reads minutes and seconds")
		default:
			d, err = quantity.Clock(v, time.Second, time.Minute, time.Hour)
		}
	}
	if err == nil && d == 0 {
		err = fmt.Errorf("%q is no time", message.Short(v))
	}
	r.job.Time = d
	return err
}

func slurmExclusive(r *reader, v string) error {
	if v != "" && v != "exclusive" {
		return r.native("--exclusive=" + v)
	}
	return setFlag(fExclusive, func(j *job.Job) { j.Exclusive = true })(r, v)
}

// slurmAfter reads TYPE:ID[:ID...][,TYPE:ID...].
func slurmAfter(r *reader, v string) error {
	if strings.Contains(v, "?") {
		return r.native("--dependency=" + v)
	}
	for _, part := range strings.Split(v, ",") {
		kind, ids, _ := strings.Cut(part, ":")
		list := listOf(ids, ":")
		switch {
		case kind == "singleton" || kind == "after" || kind == "afterburstbuffer":
			return r.native("--dependency=" + v)
		case len(list) == 0:
			return fmt.Errorf("%q names no job", part)
		}
		if err := r.after(kind, list); err != nil {
			return err
		}
	}
	return nil
}

// after adds a dependency by Slurm's and PBS's word for it.
func (r *reader) after(kind string, ids []string) error {
	for _, id := range ids {
		if !job.WordText().MatchString(id) {
			return fmt.Errorf("%q is no id of a job", message.Short(id))
		}
	}
	at := map[string]struct {
		list *[]string
		f    field
	}{"afterok": {&r.job.After, fAfter}, "afterany": {&r.job.AfterAny, fAfterAny}, "afternotok": {&r.job.AfterFailed, fAfterFailed}, "aftercorr": {&r.job.AfterEach, fAfterEach}}[kind]
	if at.list == nil {
		return fmt.Errorf("hpcc does not know the dependency %q", kind)
	}
	*at.list = append((*at.list)[:len(*at.list):len(*at.list)], ids...)
	r.fills(at.f)
	return nil
}

func slurmOpenMode(r *reader, v string) error {
	if v != "append" && v != "truncate" {
		return fmt.Errorf("%q is neither append nor truncate", message.Short(v))
	}
	r.job.Append = v == "append"
	r.fills(fAppend)
	return nil
}

// slurmMailType keeps begin, end and fail; ALL is all of them.
func slurmMailType(r *reader, v string) error {
	r.job.MailOn = nil
	var left []string
	for _, e := range listOf(strings.ToUpper(v), ",") {
		switch e {
		case "BEGIN", "END", "FAIL":
			r.mailOn(strings.ToLower(e))
		case "ALL":
			r.mailOn("begin", "end", "fail")
			r.changed("at the beginning, the end and on failure")
		case "NONE":
		default:
			left = append(left, e)
		}
	}
	if len(left) > 0 {
		r.changed("%s is left out", strings.Join(left, ","))
	}
	r.fills(fMailOn)
	return nil
}

func (r *reader) mailOn(events ...string) {
	for _, e := range events {
		if !slices.Contains(r.job.MailOn, e) {
			r.job.MailOn = append(r.job.MailOn[:len(r.job.MailOn):len(r.job.MailOn)], e)
		}
	}
}

func slurmExport(r *reader, v string) error {
	list := commaList(v)
	r.job.Export = nil
	for i, e := range list {
		if e == "NIL" {
			list[i] = "NONE"
		}
	}
	return r.environment(list)
}

// slurmConstraint keeps features that are all wanted; alternatives and counts
// are Slurm's own.
func slurmConstraint(r *reader, v string) error {
	if strings.ContainsAny(v, "|[]*()") {
		return r.native(`--constraint="` + v + `"`)
	}
	r.job.Features = listOf(v, "&,")
	r.fills(fFeatures)
	return nil
}

func slurmHosts(f field, at func(j *job.Job) *[]string) func(*reader, string) error {
	return func(r *reader, v string) error {
		list, err := hostlist.Expand(v, maxListed)
		*at(r.job) = list
		r.fills(f)
		return err
	}
}

// slurmSignal reads [[R][B]:]SIGNAL[@SECONDS]; 60 s when nothing is said.
func slurmSignal(r *reader, v string) error {
	to, rest, ok := strings.Cut(v, ":")
	if !ok {
		to, rest = "", v
	}
	name, lead, timed := strings.Cut(rest, "@")
	sig, err := job.SignalName(name)
	if err != nil {
		return err
	}
	r.job.Warning = job.Warning{Signal: sig, Lead: time.Minute, Steps: !strings.Contains(to, "B")}
	if timed {
		n, err := strconv.ParseUint(lead, 10, 16)
		if err != nil {
			return fmt.Errorf("%q is no number of seconds", message.Short(lead))
		}
		r.job.Warning.Lead = time.Duration(n) * time.Second
	}
	r.fills(fSignal)
	return nil
}

var slurmMoment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(\d{4}-\d\d-\d\dT)?\d\d:\d\d$`) })

// slurmBegin keeps a time of day or a date with a time; the other forms are Slurm's own.
func slurmBegin(r *reader, v string) error {
	short := v
	if strings.HasSuffix(v, ":00") && strings.Count(v, ":") == 2 {
		short = strings.TrimSuffix(v, ":00")
	}
	if !slurmMoment().MatchString(short) {
		return r.native("--begin=" + v)
	}
	r.job.Begin = short
	r.fills(fBegin)
	return nil
}

func slurmInvalid(r *reader, v string) error {
	if v != "yes" {
		return fmt.Errorf("a job whose dependency cannot be met would wait for ever; hpcc has it end")
	}
	return nil
}

// slurmFinish shares GPUs out to nodes, and says whose the memory of the nodes is.
func slurmFinish(r *reader) {
	j := r.job
	nodes, perNode := max(j.Nodes, 1), j.ProcessesPerNode()
	if n := r.n.gpusInAll; n > 0 {
		r.tell(fGPUs, func(row *Row) error {
			if n%nodes != 0 {
				return fmt.Errorf("%d GPUs over %d nodes: hpcc counts them per node", n, nodes)
			}
			j.GPUs = n / nodes
			row.become(Changed, fmt.Sprintf("%d on each of %d nodes", j.GPUs, nodes))
			return nil
		})
	}
	if n := r.n.gpusPerTask; n > 0 {
		r.tell(fGPUs, func(row *Row) error {
			j.GPUs = n * perNode
			row.become(Changed, fmt.Sprintf("%d on each node, for %d processes there", j.GPUs, perNode))
			return nil
		})
	}
	if r.allMemory && !j.Exclusive {
		r.tell(fMemory, func(*Row) error { return r.native("--mem=0") })
	}
}

// tell lets rows of a field be finished; an error refuses them.
func (r *reader) tell(f field, finish func(row *Row) error) {
	for _, row := range r.t.Rows {
		if row.Fate == Refused || !slices.Contains(row.fields, f) {
			continue
		}
		r.row = row
		if err := finish(row); err != nil {
			row.become(Refused, err.Error())
		}
	}
}

// slurmDefaults are Slurm's where nothing is said: names of files, the
// environment, the shell.
func slurmDefaults(r *reader) {
	j := r.job
	if !r.outputSet {
		j.Output = "slurm-{job}.out"
		if !j.Array.IsZero() {
			j.Output = "slurm-{job}_{task}.out"
		}
		r.add(0, "(no --output)").become("", j.Output)
		r.fills(fOutput)
	}
	if len(j.Export) == 1 && j.Export[0] == "ALL" && r.t.To == job.Slurm {
		j.Export = nil // as it is without --export
	}
	r.environmentDefault(len(j.Export) == 0)
	if r.wrap != "" {
		j.Script.Shell = []string{"/bin/sh"}
	}
	if len(j.Script.Shell) == 0 {
		j.Script.Shell = []string{"/bin/bash"}
		r.add(1, "(no #!)").become(Changed, "bash runs it; sbatch would refuse the script")
	}
}

// environmentDefault says of schedulers that hand the whole environment over
// what those do that do not.
func (r *reader) environmentDefault(all bool) {
	if !all || (r.t.To != job.GridEngine && r.t.To != job.PBS) {
		return
	}
	r.add(0, "(environment)").become(Changed, fmt.Sprintf("%s hands all variables over, the target none: name what the script needs with --env NAME=VALUE", r.dialect.name))
}

const maxListed = 10_000
