package job

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hpcc/job/shellword"
)

// A Script is a job script that was written for some scheduler.
type Script struct {
	Name  string   `json:"name"`
	From  Target   `json:"from"`
	Body  string   `json:"body"`            // ends with a line break
	Shell []string `json:"shell"`           // what runs it, with options
	Args  []string `json:"args,omitempty"`  // of the script
	Dir   string   `json:"dir"`             // absolute: where it was to be handed in from
	Start string   `json:"start,omitempty"` // absolute: where it starts; "": where the job does
	Host  bool     `json:"host,omitempty"`  // runs outside of the image: it starts programs there itself
}

// hidden are what targets read as directives in the whole file, and so also in
// a script that stands in it. sbatch takes those of PBS and LSF for its own.
var hidden = map[Target][]string{Slurm: {"#PBS", "#BSUB"}, LSF: {"#BSUB"}, GridEngine: {"#$"}}

// render writes the script for a bash that reads it from standard input: what
// its scheduler would have set, then the script itself, byte for byte, on
// descriptor 3, for the interpreter that it names. Nothing that the script runs reads it
// away, and lines of its errors are those of the file.
func (s *Script) render(j *Job, to Target) string {
	t := &text{}
	t.WriteString(s.prelude(j, to))
	if s.Start != "" && s.Start != j.Dir && !to.Pods() {
		t.line("cd %s || exit 97 # where %s starts jobs", shellword.Quote(s.Start), dialectOf(s.From).name)
	}
	end := shellword.Delimiter("HPCC_SCRIPT", s.Body)
	if slices.ContainsFunc(hidden[to], func(prefix string) bool { return strings.Contains("\n"+s.Body, "\n"+prefix) }) {
		t.line("# The strokes keep %s from reading directives in here.", to)
		t.line("exec 3< <(sed 's/^|//' <<'%s'", end)
		for l := range strings.Lines(s.Body) {
			t.WriteString("|" + l)
		}
		t.line("%s\n)", end)
	} else {
		t.line("exec 3<<'%s'", end)
		t.WriteString(s.Body)
		t.line("%s", end)
	}
	words := append(slices.Clone(s.Shell), "/dev/fd/3")
	if j.Image != "" && !s.Host && !to.Pods() {
		words = append(j.runPrefix(), words...)
	}
	t.line(`exec %s "$@" </dev/null`, shellword.Join(words))
	return t.String()
}

// A variable is one that a scheduler sets. The values are for bash in double
// quotes, {…} are figures of the job; "" does not set it.
type variable struct {
	name   string
	value  string // of a task of an array; of any job when single is ""
	single string // of a job that is no array
	array  bool   // there is none of it without an array
	hosts  bool   // made from the list of hosts
	always bool   // programs read it, not only the script
}

// variables are those that each scheduler sets and that hpcc can supply.
var variables = map[Target][]variable{
	Slurm: {
		{name: "SLURM_JOB_ID", value: "$hpcc_id", always: true},
		{name: "SLURM_JOBID", value: "$hpcc_id"},
		{name: "SLURM_ARRAY_JOB_ID", value: "$hpcc_id", array: true},
		{name: "SLURM_ARRAY_TASK_ID", value: "$HPCC_TASK_ID", array: true, always: true},
		{name: "SLURM_ARRAY_TASK_COUNT", value: "{count}", array: true},
		{name: "SLURM_ARRAY_TASK_MIN", value: "{first}", array: true},
		{name: "SLURM_ARRAY_TASK_MAX", value: "{last}", array: true},
		{name: "SLURM_ARRAY_TASK_STEP", value: "{step}", array: true},
		{name: "SLURM_JOB_NAME", value: "{name}"}, {name: "SLURM_JOB_PARTITION", value: "{queue}"}, {name: "SLURM_JOB_ACCOUNT", value: "{account}"},
		{name: "SLURM_SUBMIT_DIR", value: "{dir}"}, {name: "SLURM_SUBMIT_HOST", value: "$HOSTNAME"},
		{name: "SLURM_NTASKS", value: "{tasks}"}, {name: "SLURM_NPROCS", value: "{tasks}"},
		{name: "SLURM_CPUS_PER_TASK", value: "{cpus?}"}, {name: "SLURM_CPUS_ON_NODE", value: "{node_cpus}"}, {name: "SLURM_JOB_CPUS_PER_NODE", value: "{node_cpus}"},
		{name: "SLURM_NTASKS_PER_NODE", value: "{node_tasks}"}, {name: "SLURM_TASKS_PER_NODE", value: "{node_tasks}"},
		{name: "SLURM_GPUS_ON_NODE", value: "{gpus?}"}, {name: "SLURM_GPUS_PER_NODE", value: "{gpus?}"}, {name: "SLURM_MEM_PER_NODE", value: "{mem?}"},
		{name: "SLURM_JOB_NUM_NODES", value: "${#hpcc_hosts[@]}", hosts: true}, {name: "SLURM_NNODES", value: "${#hpcc_hosts[@]}", hosts: true},
		{name: "SLURM_JOB_NODELIST", value: "$(IFS=,; echo \"${hpcc_hosts[*]}\")", hosts: true}, {name: "SLURM_NODELIST", value: "$(IFS=,; echo \"${hpcc_hosts[*]}\")", hosts: true},
		{name: "SLURMD_NODENAME", value: "${HOSTNAME%%.*}"}, {name: "SLURM_CLUSTER_NAME", value: "{to}"}, {name: "SLURM_RESTART_COUNT", value: "0"},
		{name: "SLURM_PROCID", value: "0"}, {name: "SLURM_LOCALID", value: "0"}, {name: "SLURM_NODEID", value: "0"},
		{name: "SLURM_TMPDIR", value: "${TMPDIR:-/tmp}"},
	},
	LSF: {
		{name: "LSB_JOBID", value: "$hpcc_id", always: true},
		{name: "LSB_JOBINDEX", value: "$HPCC_TASK_ID", single: "0", always: true},
		{name: "LSB_JOBINDEX_END", value: "{last}", array: true}, {name: "LSB_JOBINDEX_STEP", value: "{step}", array: true},
		{name: "LSB_BATCH_JID", value: "$hpcc_id[$HPCC_TASK_ID]", single: "$hpcc_id"},
		{name: "LSB_JOBNAME", value: "{name}"}, {name: "LSB_QUEUE", value: "{queue}"}, {name: "LSB_PROJECT_NAME", value: "{account}"},
		{name: "LS_SUBCWD", value: "{dir}"}, {name: "LSB_SUBCWD", value: "{dir}"}, {name: "LSB_SUB_HOST", value: "$HOSTNAME"},
		{name: "LSB_DJOB_NUMPROC", value: "{tasks}"}, {name: "LSB_MAX_NUM_PROCESSORS", value: "{tasks}"},
		{name: "LSB_HOSTS", value: "$(hpcc_each; echo \"${hpcc_list[*]}\")", hosts: true},
		{name: "LSB_MCPU_HOSTS", value: "$(for i in \"${!hpcc_hosts[@]}\"; do printf '%s %s ' \"${hpcc_hosts[i]}\" \"${hpcc_tasks[i]}\"; done)", hosts: true},
		{name: "LSB_DJOB_HOSTFILE", value: "$(hpcc_file hosts)", hosts: true},
	},
	GridEngine: {
		{name: "JOB_ID", value: "$hpcc_id", always: true},
		{name: "SGE_TASK_ID", value: "$HPCC_TASK_ID", single: "undefined", always: true},
		{name: "SGE_TASK_FIRST", value: "{first}", single: "undefined"}, {name: "SGE_TASK_LAST", value: "{last}", single: "undefined"}, {name: "SGE_TASK_STEPSIZE", value: "{step}", single: "undefined"},
		{name: "JOB_NAME", value: "{name}"}, {name: "QUEUE", value: "{queue}"}, {name: "SGE_O_WORKDIR", value: "{dir}"}, {name: "SGE_O_HOME", value: "$HOME"}, {name: "SGE_O_HOST", value: "$HOSTNAME"},
		{name: "SGE_O_LOGNAME", value: "${LOGNAME:-$USER}"}, {name: "NSLOTS", value: "{slots}"}, {name: "NHOSTS", value: "${#hpcc_hosts[@]}", hosts: true}, {name: "NQUEUES", value: "1"}, {name: "RESTARTED", value: "0"},
		{name: "PE_HOSTFILE", value: "$(hpcc_file slots)", hosts: true}, {name: "TMPDIR", value: "${TMPDIR:-/tmp}"},
	},
	PBS: {
		{name: "PBS_JOBID", value: "$hpcc_id[$HPCC_TASK_ID]", single: "$hpcc_id", always: true},
		{name: "PBS_ARRAY_INDEX", value: "$HPCC_TASK_ID", array: true, always: true}, {name: "PBS_ARRAYID", value: "$HPCC_TASK_ID", array: true}, {name: "PBS_ARRAY_ID", value: "$hpcc_id[]", array: true},
		{name: "PBS_O_WORKDIR", value: "{dir}", always: true}, {name: "PBS_O_HOME", value: "$HOME"}, {name: "PBS_O_HOST", value: "$HOSTNAME"}, {name: "PBS_O_LOGNAME", value: "${LOGNAME:-$USER}"},
		{name: "PBS_JOBNAME", value: "{name}"}, {name: "PBS_QUEUE", value: "{queue}"}, {name: "PBS_O_QUEUE", value: "{queue}"}, {name: "PBS_ENVIRONMENT", value: "PBS_BATCH"},
		{name: "PBS_NODEFILE", value: "$(hpcc_file hosts)", hosts: true}, {name: "PBS_NP", value: "{tasks}"}, {name: "PBS_NUM_NODES", value: "${#hpcc_hosts[@]}", hosts: true}, {name: "PBS_NUM_PPN", value: "{node_tasks}"},
		{name: "NCPUS", value: "{node_cpus}"}, {name: "OMP_NUM_THREADS", value: "{cpus}"}, {name: "TMPDIR", value: "${TMPDIR:-/tmp}"},
	},
}

// ids are how a job knows its id on each target.
var ids = map[Target]string{
	Slurm: "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}", LSF: "$LSB_JOBID", GridEngine: "$JOB_ID", PBS: "${PBS_JOBID%%[.[]*}", Local: "$PPID", Kubernetes: "$HPCC_JOB", OpenShift: "$HPCC_JOB", Argo: "$HPCC_JOB",
}

// hostLists fill hpcc_hosts and, for each of them, hpcc_tasks.
var hostLists = map[Target]string{
	Slurm: `mapfile -t hpcc_hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST" </dev/null)
for c in ${SLURM_TASKS_PER_NODE//,/ }; do # 2(x3),1
  k=1; case $c in *x*) k=${c##*x} k=${k%)} ;; esac
  for ((; k > 0; k--)); do hpcc_tasks+=("${c%%(*}"); done
done
`,
	LSF: `read -ra c <<<"$LSB_MCPU_HOSTS"
for ((k = 0; k + 1 < ${#c[@]}; k += 2)); do hpcc_hosts+=("${c[k]}"); hpcc_tasks+=("${c[k+1]}"); done
`,
	GridEngine: `if [ -r "$PE_HOSTFILE" ]; then
  while read -r k c _; do hpcc_hosts+=("$k"); hpcc_tasks+=($((c / {cpus}))); done <"$PE_HOSTFILE"
else
  hpcc_hosts=("$HOSTNAME") hpcc_tasks=({tasks})
fi
`,
	PBS: `declare -A hpcc_n
while read -r k; do
  [ -n "${hpcc_n[$k]}" ] || hpcc_hosts+=("$k")
  hpcc_n[$k]=$((${hpcc_n[$k]:-0} + 1))
done <"$PBS_NODEFILE"
for k in "${hpcc_hosts[@]}"; do hpcc_tasks+=("${hpcc_n[$k]}"); done
`,
	Local: oneHost, Kubernetes: oneHost, OpenShift: oneHost, Argo: oneHost,
}

const oneHost = `hpcc_hosts=("$HOSTNAME") hpcc_tasks=({tasks})
`

// hostEach and hostFile write the list of hosts in the forms that schedulers have.
const hostEach = `hpcc_each() { # a word for each process
  local i k
  for i in "${!hpcc_hosts[@]}"; do for ((k = 0; k < hpcc_tasks[i]; k++)); do hpcc_list+=("${hpcc_hosts[i]}"); done; done
}
`

const hostFile = `hpcc_file() { # a file of them, or one of hosts and slots
  local f=$HPCC_TASK_TMP/$1 i
  if [ "$1" = hosts ]; then hpcc_each; printf '%s\n' "${hpcc_list[@]}" >"$f"
  else for i in "${!hpcc_hosts[@]}"; do echo "${hpcc_hosts[i]} $((hpcc_tasks[i] * {cpus})) {queue}@${hpcc_hosts[i]} UNDEFINED" >>"$f"; done; fi
  echo "$f"
}
`

// needed are the variables of the script's scheduler that it gets on a target:
// those that programs read, and those that the script names.
func (s *Script) needed(j *Job, to Target) []variable {
	if s.From == to && (to == Slurm || to == PBS || j.Array.IsZero()) {
		return nil
	}
	var out []variable
	for _, v := range variables[s.From] {
		named := namedIn(s.Body, v.name) > 0
		switch {
		case v.array && j.Array.IsZero(), !v.always && !named:
		case s.From == to && (v.hosts || (!strings.Contains(v.value, "HPCC_TASK_ID") && !strings.Contains(v.name, "TASK"))): // its own are right
		default:
			out = append(out, v)
		}
	}
	return out
}

// namedIn is the line, from 1, in which a text names a variable; 0: none.
func namedIn(text, name string) int {
	for at := 0; ; {
		i := strings.Index(text[at:], name)
		if i < 0 {
			return 0
		}
		i += at
		at = i + len(name)
		if (i == 0 || !wordByte(text[i-1])) && (at == len(text) || !wordByte(text[at])) {
			return strings.Count(text[:i], "\n") + 1
		}
	}
}

func wordByte(c byte) bool {
	return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
}

// prelude is bash that sets what the script's scheduler would have set, from
// what the target sets.
func (s *Script) prelude(j *Job, to Target) string {
	list := s.needed(j, to)
	if len(list) == 0 {
		return ""
	}
	t := &text{}
	t.line("# What %s would have set, for %s:", dialectOf(s.From).name, s.Name)
	t.line("hpcc_id=%s", ids[to])
	fill := s.figures(j, to)
	if slices.ContainsFunc(list, func(v variable) bool { return v.hosts }) {
		t.line("hpcc_hosts=() hpcc_tasks=() hpcc_list=()")
		t.WriteString(fill.Replace(hostLists[to]))
		values := fmt.Sprint(list)
		if strings.Contains(values, "hpcc_each") || strings.Contains(values, "hpcc_file") {
			t.WriteString(hostEach)
		}
		if strings.Contains(values, "hpcc_file") {
			t.WriteString(fill.Replace(hostFile))
		}
	}
	for _, v := range list {
		value := v.value
		if v.single != "" && j.Array.IsZero() {
			value = v.single
		}
		if value = fill.Replace(value); value != "" {
			t.line("export %s=%s", v.name, doubleQuote(value))
		}
	}
	return t.String()
}

// doubleQuote writes a value of the table for bash, as plainly as can be.
func doubleQuote(v string) string {
	if plainValue().MatchString(v) {
		return v
	}
	return `"` + v + `"`
}

var plainValue = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_./+-]*$`) })

// escape makes text of a job safe between double quotes of bash.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`")

// figures fill in what the job says.
func (s *Script) figures(j *Job, to Target) *strings.Replacer {
	number := strconv.Itoa
	some := func(n int) string {
		if n == 0 {
			return ""
		}
		return number(n)
	}
	first, last, step := j.Array.bounds()
	dir := escape.Replace(s.Dir)
	if to.Pods() { // which do not have it
		dir = "$PWD"
	}
	return strings.NewReplacer("{count}", number(j.Count()), "{first}", number(first), "{last}", number(last), "{step}", number(step),
		"{name}", escape.Replace(j.Name), "{queue}", escape.Replace(j.Queue), "{account}", escape.Replace(j.Account), "{dir}", dir, "{to}", string(to),
		"{tasks}", number(j.processes()), "{slots}", number(j.processes()*max(j.CPUs, 1)), "{cpus}", number(max(j.CPUs, 1)), "{cpus?}", some(j.CPUs),
		"{node_tasks}", number(j.perNode()), "{node_cpus}", number(j.perNode()*max(j.CPUs, 1)), "{gpus?}", some(j.GPUs), "{mem?}", some(int(j.Memory>>20)))
}

// processes are all that the job has room for.
func (j *Job) processes() int {
	if j.Tasks > 0 {
		return j.Tasks
	}
	return max(j.TasksPerNode, 1) * max(j.Nodes, 1)
}

// bounds are the least and the greatest index, and the step between them where
// the array has one.
func (a Array) bounds() (first, last, step int) {
	step = 1
	for i, r := range a.ranges {
		if i == 0 {
			first, last = r.first, r.last
		}
		first, last = min(first, r.first), max(last, r.last)
	}
	if len(a.ranges) == 1 && a.ranges[0].first != a.ranges[0].last {
		step = a.ranges[0].step
	}
	return first, last, step
}

// ofScheduler are names of variables that each scheduler sets.
var ofScheduler = sync.OnceValue(func() map[Target]*regexp.Regexp {
	return map[Target]*regexp.Regexp{
		Slurm: regexp.MustCompile(`\bSLURMD?_[A-Z][A-Z0-9_]*\b`), LSF: regexp.MustCompile(`\bLSB?_[A-Z][A-Z0-9_]*\b`),
		GridEngine: regexp.MustCompile(`\bSGE_[A-Z][A-Z0-9_]*\b`), PBS: regexp.MustCompile(`\bPBS_[A-Z][A-Z0-9_]*\b`),
	}
})

// variables tells which variables of its scheduler the script gets, and which
// hpcc cannot supply.
func (t *Translation) variables() {
	s := t.Job.Script
	if s == nil {
		return
	}
	var names []string
	for _, v := range s.needed(t.Job, t.To) {
		names = append(names, v.name)
	}
	if len(names) > 0 {
		t.Rows = append(t.Rows, &Row{Text: strings.Join(names, " "), Fate: Emulated, How: fmt.Sprintf("set from what %s sets", t.To)})
	}
	if s.From == t.To {
		return
	}
	unknown := ofScheduler()[s.From].FindAllString(s.Body, -1)
	slices.Sort(unknown)
	for _, name := range slices.Compact(unknown) {
		known := slices.ContainsFunc(variables[s.From], func(v variable) bool { return v.name == name })
		if !known && !definedIn(s.Body, name) {
			t.Rows = append(t.Rows, &Row{Line: namedIn(s.Body, name), Text: "$" + name, Fate: Refused, How: "hpcc cannot say what it would be on " + string(t.To)})
		}
	}
}

// definedIn says whether a script sets a variable itself.
func definedIn(body, name string) bool {
	return regexp.MustCompile(`(?m)(^|[ \t;])` + name + `=`).MatchString(body)
}
