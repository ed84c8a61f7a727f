package slurm

import (
	"cmp"
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

// scripts is the dialect of sbatch(1) of 22.05 and later: directives before the first
// command, and options in the syntax of getopt_long(3).
var scripts = dialect.Dialect{
	Target: target, Title: "Slurm", Prefix: "#SBATCH", Command: "sbatch", Separators: []string{"hetjob", "packjob"},
	Options: sbatchOptions, Finish: finish, Defaults: defaults,
	Launchers: map[string]dialect.Launcher{"srun": {Options: srunOptions(), Total: "-n --ntasks",
		Counts: "-N --nodes --ntasks-per-node", TaskCount: "SLURM_NTASKS",
		Roles: containerRoles, Flags: containerFlags, Image: containerImage, Mounts: containerMounts,
		Placement: "-c --cpus-per-task --cpu-bind --cpu_bind --mem-bind --mem --mem-per-cpu --mem-per-gpu --gres -G --gpus " +
			"--gpus-per-task --gpus-per-node --gpu-bind --mpi -K --kill-on-bad-exit -u --unbuffered " +
			"-l --label --exclusive --exact --overlap -m --distribution --hint -p --partition -A --account -t --time -J " +
			"--job-name -Q --quiet -v --verbose -E --preserve-env"}}, StepLauncher: "srun",
	Commands: []string{"salloc", "scancel", "scontrol", "squeue", "sacct", "sacctmgr", "sinfo", "sstat", "sprio",
		"sbcast", "sgather", "sattach"},
	LocalDirs: []string{"SLURM_TMPDIR"},
	Variables: variables, VariableText: `\bSLURMD?_[A-Z][A-Z0-9_]*\b`,
	Verdicts: map[field.Field]field.Verdict{
		field.Exclusive: {Fate: field.Kept, How: "with --mem=0, because --exclusive does not include the memory of the node",
			When: func(j *job.Job) bool { return j.Memory == 0 && j.MemoryPerCPU == 0 }},
	},
	OpensFiles: func(j *job.Job) bool { return ownsIndices(j.Array) },
	Shape:      func(*job.Job, field.Rows) {}, ExportsAll: true, // sbatch accepts memory per processor
	JobID: "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}", Hosts: hostList, Hides: []string{"#PBS", "#BSUB"},
	Signals: true, OwnsIndices: ownsIndices,
}

// sbatchOptions are the options of sbatch(1), and of plugins that start containers.
var sbatchOptions = addContainer(dialect.Options{
	Glued: true, Abbrev: true,
	Values: map[string]dialect.Setter{
		"-J --job-name":                      dialect.Set(field.Name),
		"-a --array":                         dialect.Set(field.Array),
		"-N --nodes":                         dialect.Set(field.Nodes),
		"-n --ntasks":                        dialect.Set(field.Tasks),
		"--ntasks-per-node --tasks-per-node": dialect.Set(field.TasksPerNode),
		"-c --cpus-per-task":                 dialect.Set(field.CPUs),
		"--mem":                              readMemory,
		"--mem-per-cpu":                      readMemoryPerCPU,
		"--gpus-per-node":                    readGPUs,
		"--gres":                             readGres,
		"-G --gpus":                          readTotalGPUs,
		"--gpus-per-task":                    readGPUsPerTask,
		"-t --time":                          readTime,
		"-p --partition":                     dialect.Set(field.Queue),
		"-A --account":                       dialect.Set(field.Account),
		"-q --qos":                           dialect.Set(field.QoS),
		"-d --dependency":                    readAfter,
		"-o --output":                        func(r *dialect.Reader, v string) error { return r.Output(v, field.Output, letters) },
		"-e --error":                         func(r *dialect.Reader, v string) error { return r.Output(v, field.Error, letters) },
		"--open-mode":                        readOpenMode,
		"--mail-user":                        dialect.Set(field.Mail),
		"--mail-type":                        readMailType,
		"-D --chdir":                         (*dialect.Reader).Directory,
		"--workdir": func(r *dialect.Reader, v string) error {
			r.Changed("--chdir, as its name is since Slurm 17.11")
			return r.Directory(v)
		},
		"--image": readImage,
		"--volume --module --container-writable-paths": plugin,
		"--export":              readExport,
		"-C --constraint":       readConstraint,
		"-w --nodelist":         readHosts(field.Hosts),
		"-x --exclude":          readHosts(field.NotHosts),
		"--signal":              readSignal,
		"-b --begin":            readBegin,
		"--kill-on-invalid-dep": readKillOnInvalid,
		"--wrap":                func(r *dialect.Reader, v string) error { r.Wrap = v; return nil },
		"--uid --gid":           dialect.Refuse("only root may use it"),
		"-i --input":            dialect.NoInput,
		"--bb --bbf --batch --cluster-constraint --comment --constraint-override --core-spec -S --cores-per-socket --cpu-freq --cpus-per-gpu " +
			"--deadline --delay-boot -m --distribution --export-file --extra -B --extra-node-info --gpu-bind --gpu-freq " +
			"--gpus-per-socket --gres-flags --hint -L --licenses " +
			"-M --clusters --mcs-label --mem-bind --mem-per-gpu --mincpus --network -F --nodefile --ntasks-per-core " +
			"--ntasks-per-gpu --ntasks-per-socket --power --prefer --priority " +
			"--profile --reservation --resv-ports --segment --sockets-per-node --switches --thread-spec --threads-per-core " +
			"--time-min --tmp --tres-bind --tres-per-task --wckey --acctg-freq": nil,
	},
	Flags: map[string]dialect.Setter{
		"--requeue":    dialect.SetRequeue("yes"),
		"--no-requeue": dialect.SetRequeue("no"),
		"-H --hold":    dialect.Set(field.Hold),
		"--parsable -W --wait --test-only -Q --quiet -v --verbose --ignore-pbs": (*dialect.Reader).Outside,
		"-h --help --usage -V --version":                                        (*dialect.Reader).Outside,
		"--contiguous -k --no-kill -O --overcommit --reboot -s --oversubscribe --share --spread-job " +
			"--use-min-nodes --stepmgr": nil,
	},
	Optional: map[string]dialect.Setter{
		"--exclusive":                       readExclusive,
		"--nice --propagate --get-user-env": nil,
	},
})

var letters = dialect.Pattern{Sign: "%", Letters: []string{"%A", "{job}", "%j", "{job}", "%a", "{task}", "%x", "{name}", "%%", "%"}}

// units are those of sbatch(1), --mem: mebibytes without a suffix.
var units = quantity.Units{"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}

func readMemory(r *dialect.Reader, v string) (err error) {
	r.Row.Fills(field.Memory)
	if v == "0" {
		r.N.AllMemory = true
		return nil
	}
	r.Job.MemoryPerCPU = 0
	r.Job.Memory, err = quantity.Size(v, units)
	return err
}

func readMemoryPerCPU(r *dialect.Reader, v string) (err error) {
	r.Row.Fills(field.Memory)
	r.Job.Memory = 0
	r.Job.MemoryPerCPU, err = quantity.Size(v, units)
	return err
}

// readGPUs parses [TYPE:]N.
func readGPUs(r *dialect.Reader, v string) error {
	kind, count, ok := strings.Cut(v, ":")
	if !ok {
		kind, count = "", v
	}
	if strings.Contains(v, ",") {
		return manyGPUTypes(r, r.Row.Text)
	}
	if _, err := strconv.Atoi(count); err != nil && !ok && job.EnvName().MatchString(v) { // --gres=gpu:a100 requests one GPU
		kind, count = v, "1"
	}
	n, err := r.Number(count, "")
	if err != nil {
		return err
	}
	r.Job.GPUs, r.Job.GPUType = n, kind
	r.Row.Fills(field.GPUs)
	if kind != "" {
		r.Row.Fills(field.GPUType)
	}
	return nil
}

// manyGPUTypes keeps an option with several types of GPUs for Slurm.
func manyGPUTypes(r *dialect.Reader, text string) error {
	if !r.Own() {
		return errors.New("a job of hpcc has one type of GPU")
	}
	return r.Native(text)
}

// readGres parses a list of resources, of which hpcc supports gpu[:TYPE][:N].
func readGres(r *dialect.Reader, v string) error {
	var gpus, others []string
	for _, item := range dialect.List(v, ",") {
		if name, rest, _ := strings.Cut(item, ":"); strings.TrimPrefix(name, "gres/") == "gpu" {
			gpus = append(gpus, cmp.Or(rest, "1"))
		} else {
			others = append(others, item)
		}
	}
	switch {
	case len(gpus) == 0:
		return r.Native("--gres=" + v)
	case len(gpus) > 1:
		return manyGPUTypes(r, "--gres="+v)
	}
	if err := readGPUs(r, gpus[0]); err != nil || len(others) == 0 {
		return err
	}
	rest := strings.Join(others, ",")
	if r.Own() {
		return r.Native("--gres=" + rest)
	}
	r.Changed("without %s, which only Slurm has", rest)
	return nil
}

func readTotalGPUs(r *dialect.Reader, v string) error {
	if err := readGPUs(r, v); err != nil {
		return err
	}
	r.N.TotalGPUs, r.Job.GPUs = r.Job.GPUs, 0
	return nil
}

func readGPUsPerTask(r *dialect.Reader, v string) error {
	if err := readGPUs(r, v); err != nil {
		return err
	}
	r.N.GPUsPerTask, r.Job.GPUs = r.Job.GPUs, 0
	return nil
}

// readTime parses the forms of sbatch(1): M, M:S, H:M:S, D-H, D-H:M, D-H:M:S.
func readTime(r *dialect.Reader, v string) error {
	r.Row.Fills(field.Time)
	switch strings.ToUpper(v) {
	case "0", "-1", "UNLIMITED", "INFINITE":
		r.Changed("no limit")
		r.Job.Time = 0
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
			return fmt.Errorf("%q is not a time", text.Short(v))
		}
		d += time.Duration(n) * 24 * time.Hour
	} else {
		switch strings.Count(v, ":") {
		case 0:
			d, err = quantity.Clock(v, time.Minute)
		case 1:
			d, err = quantity.Clock(v, time.Second, time.Minute)
			r.Row.Become("", "Slurm reads minutes and seconds")
		default:
			d, err = quantity.Clock(v, time.Second, time.Minute, time.Hour)
		}
	}
	if err == nil && d == 0 {
		err = fmt.Errorf("%q is not a time", text.Short(v))
	}
	r.Job.Time = d
	return err
}

func readExclusive(r *dialect.Reader, v string) error {
	if v != "" && v != "exclusive" {
		return r.Native("--exclusive=" + v)
	}
	return dialect.Set(field.Exclusive)(r, v)
}

// readAfter parses TYPE:ID[:ID...][,TYPE:ID...].
func readAfter(r *dialect.Reader, v string) error {
	if strings.Contains(v, "?") {
		return r.Native("--dependency=" + v)
	}
	for _, part := range strings.Split(v, ",") {
		kind, ids, _ := strings.Cut(part, ":")
		list := dialect.List(ids, ":")
		switch {
		case kind == "singleton" || kind == "after" || kind == "afterburstbuffer":
			return r.Native("--dependency=" + v)
		case len(list) == 0:
			return fmt.Errorf("%q does not name a job", part)
		}
		if err := r.After(kind, list); err != nil {
			return err
		}
	}
	return nil
}

func readOpenMode(r *dialect.Reader, v string) error {
	if v != "append" && v != "truncate" {
		return fmt.Errorf("%q is neither append nor truncate", text.Short(v))
	}
	r.Job.Append = v == "append"
	r.Row.Fills(field.Append)
	return nil
}

// readMailType accepts begin, end and fail; ALL means all of them. Slurm adds the events of several
// options.
func readMailType(r *dialect.Reader, v string) error {
	var left []string
	for _, e := range dialect.List(strings.ToUpper(v), ",") {
		switch e {
		case "BEGIN", "END", "FAIL":
			r.MailOn(strings.ToLower(e))
		case "ALL":
			r.MailOn("begin", "end", "fail")
			r.Changed("at the start, at the end and on failure")
		case "NONE":
		default:
			left = append(left, e)
		}
	}
	if len(left) > 0 {
		r.Changed("%s is left out", strings.Join(left, ","))
	}
	r.Row.Fills(field.MailOn)
	return nil
}

func readExport(r *dialect.Reader, v string) error {
	list := dialect.CommaList(v)
	r.Job.Export = nil
	for i, e := range list {
		if e == "NIL" {
			list[i] = "NONE"
		}
	}
	return r.Environment(list)
}

// readConstraint accepts features that are all required; alternatives and counts stay native.
func readConstraint(r *dialect.Reader, v string) error {
	if strings.ContainsAny(v, "|[]*()") {
		return r.Native(`--constraint="` + v + `"`)
	}
	r.Job.Features = dialect.List(v, "&,")
	r.Row.Fills(field.Features)
	return nil
}

func readHosts(f field.Field) dialect.Setter {
	return func(r *dialect.Reader, v string) (err error) {
		r.Row.Fills(f)
		*f.At(r.Job)[0].(*[]string), err = expandHosts(v, maxListed)
		return err
	}
}

// maxListed is the largest number of hosts in an option.
const maxListed = 10_000

// readSignal parses [[R][B]:]SIGNAL[@SECONDS]; the default is 60 s.
func readSignal(r *dialect.Reader, v string) error {
	to, rest, ok := strings.Cut(v, ":")
	if !ok {
		to, rest = "", v
	}
	name, lead, timed := strings.Cut(rest, "@")
	sig, err := job.SignalName(name)
	if err != nil {
		return err
	}
	r.Job.Warning = job.Warning{Signal: sig, Lead: time.Minute, Steps: !strings.Contains(to, "B")}
	if timed {
		n, err := strconv.ParseUint(lead, 10, 16)
		if err != nil {
			return fmt.Errorf("%q is not a number of seconds", text.Short(lead))
		}
		r.Job.Warning.Lead = time.Duration(n) * time.Second
	}
	r.Row.Fills(field.Signal)
	return nil
}

var moment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(\d{4}-\d\d-\d\dT)?\d\d:\d\d$`) })

// readBegin accepts a time of day, or a date with a time; other forms stay native.
func readBegin(r *dialect.Reader, v string) error {
	short := v
	if strings.HasSuffix(v, ":00") && strings.Count(v, ":") == 2 {
		short = strings.TrimSuffix(v, ":00")
	}
	if !moment().MatchString(short) {
		return r.Native("--begin=" + v)
	}
	r.Job.Begin = short
	r.Row.Fills(field.Begin)
	return nil
}

func readKillOnInvalid(r *dialect.Reader, v string) error {
	if v != "yes" {
		return fmt.Errorf("hpcc ends a job whose dependency cannot be met, instead of letting it wait forever")
	}
	return nil
}

// readImage parses the option of Shifter's plugin, which starts the script in an image.
func readImage(r *dialect.Reader, v string) error {
	if err := plugin(r, v); err == nil {
		return nil
	}
	return fmt.Errorf("a plugin of Slurm starts the image: name it as IMAGE of hpcc instead")
}

// plugin is the Setter of an option of a plugin, which only Slurm has.
func plugin(r *dialect.Reader, _ string) error {
	err := r.Native(r.Row.Text)
	if err == nil {
		r.Changed("an option of a plugin, which the site may lack")
	}
	return err
}

// finish divides GPUs among nodes, and refuses to request all memory of a shared node.
func finish(r *dialect.Reader) {
	finishContainer(r)
	j := r.Job
	r.DivideGPUs("node", "")
	if r.N.AllMemory && !j.Exclusive {
		r.FinishRows(field.Memory, func(*field.Row) error {
			if !r.Own() {
				return errors.New("all memory of each node: name an amount with --mem, because only Slurm can request it without the node")
			}
			return r.Native("--mem=0")
		})
	}
}

// defaults sets Slurm's defaults: names of files, the environment, the shell.
func defaults(r *dialect.Reader) {
	j := r.Job
	if !r.OutputSet() {
		j.Output = "slurm-{job}.out"
		if !j.Array.IsZero() {
			j.Output = "slurm-{job}_{task}.out"
		}
		r.Add(0, "(no --output)").Become("", j.Output)
		r.Row.Fills(field.Output)
	}
	r.ExportAll()
	if r.Wrap != "" {
		j.Script.Shell = []string{"/bin/sh"}
	}
	if len(j.Script.Shell) == 0 {
		j.Script.Shell = []string{"/bin/bash"}
		r.Add(1, "(no #!)").Become(field.Changed, "bash runs the script; sbatch would refuse it")
	}
}

// srunOptions returns the options of srun(1) in a script.
func srunOptions() dialect.Options {
	o := sbatchOptions
	o.Values, o.Flags, o.Optional = maps.Clone(o.Values), maps.Clone(o.Flags), maps.Clone(o.Optional)
	o.Values["--mpi --het-group --jobid -r --relative -T --threads --cpu-bind --task-prolog --task-epilog --epilog "+
		"--prolog --slurmd-debug -I --immediate"] = nil
	o.Flags["--pty -l --label -u --unbuffered --overlap --exact -E --preserve-env -X --disable-status -Z --no-allocate"] = nil
	o.Optional["-K --kill-on-bad-exit --bcast --compress"] = nil
	return o
}
