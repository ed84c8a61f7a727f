package jobscript

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hpcc/job"
	"hpcc/job/shellword"
)

// hidden are what targets read as directives in the whole file, and so also in
// a script that stands in it. sbatch takes those of PBS and LSF for its own.
var hidden = map[job.Target][]string{job.Slurm: {"#PBS", "#BSUB"}, job.LSF: {"#BSUB"}, job.GridEngine: {"#$"}}

// Body writes the script for a bash that reads it from standard input: what
// its scheduler would have set, then the script itself, byte for byte, on
// descriptor 3, for the interpreter that it names. Nothing that the script runs reads it
// away, and lines of its errors are those of the file.
func Body(s *job.Script, j *job.Job, to job.Target) string {
	t := &Writer{}
	t.WriteString(Prelude(s, j, to))
	if s.Start != "" && s.Start != j.Dir && !to.Pods() {
		t.Line("cd %s || exit 97 # where %s starts jobs", shellword.Quote(s.Start), s.From.Title())
	}
	end := shellword.Delimiter("HPCC_SCRIPT", s.Body)
	if slices.ContainsFunc(hidden[to], func(prefix string) bool { return strings.Contains("\n"+s.Body, "\n"+prefix) }) {
		t.Line("# The strokes keep %s from reading directives in here.", to)
		t.Line("exec 3< <(sed 's/^|//' <<'%s'", end)
		for l := range strings.Lines(s.Body) {
			t.WriteString("|" + l)
		}
		t.Line("%s\n)", end)
	} else {
		t.Line("exec 3<<'%s'", end)
		t.WriteString(s.Body)
		t.Line("%s", end)
	}
	words := append(slices.Clone(s.Shell), "/dev/fd/3")
	if j.Image != "" && !s.Host && !to.Pods() {
		words = append(j.RunPrefix(), words...)
	}
	t.Line(`exec %s "$@" </dev/null`, shellword.Join(words))
	return t.String()
}

// A Variable is one that a scheduler sets. The values are for bash in double
// quotes, {…} are figures of the job; "" does not set it.
type Variable struct {
	Name   string
	value  string // of a task of an array; of any job when single is ""
	single string // of a job that is no array
	array  bool   // there is none of it without an array
	hosts  bool   // made from the list of hosts
	always bool   // programs read it, not only the script
}

// Variables are those that each scheduler sets and that hpcc can supply.
var Variables = map[job.Target][]Variable{
	job.Slurm: {
		{Name: "SLURM_JOB_ID", value: "$hpcc_id", always: true},
		{Name: "SLURM_JOBID", value: "$hpcc_id"},
		{Name: "SLURM_ARRAY_JOB_ID", value: "$hpcc_id", array: true},
		{Name: "SLURM_ARRAY_TASK_ID", value: "$HPCC_TASK_ID", array: true, always: true},
		{Name: "SLURM_ARRAY_TASK_COUNT", value: "{count}", array: true},
		{Name: "SLURM_ARRAY_TASK_MIN", value: "{first}", array: true},
		{Name: "SLURM_ARRAY_TASK_MAX", value: "{last}", array: true},
		{Name: "SLURM_ARRAY_TASK_STEP", value: "{step}", array: true},
		{Name: "SLURM_JOB_NAME", value: "{name}"}, {Name: "SLURM_JOB_PARTITION", value: "{queue}"}, {Name: "SLURM_JOB_ACCOUNT", value: "{account}"},
		{Name: "SLURM_SUBMIT_DIR", value: "{dir}"}, {Name: "SLURM_SUBMIT_HOST", value: "$HOSTNAME"},
		{Name: "SLURM_NTASKS", value: "{tasks}"}, {Name: "SLURM_NPROCS", value: "{tasks}"},
		{Name: "SLURM_CPUS_PER_TASK", value: "{cpus?}"}, {Name: "SLURM_CPUS_ON_NODE", value: "{node_cpus}"}, {Name: "SLURM_JOB_CPUS_PER_NODE", value: "{node_cpus}"},
		{Name: "SLURM_NTASKS_PER_NODE", value: "{node_tasks}"}, {Name: "SLURM_TASKS_PER_NODE", value: "{node_tasks}"},
		{Name: "SLURM_GPUS_ON_NODE", value: "{gpus?}"}, {Name: "SLURM_GPUS_PER_NODE", value: "{gpus?}"}, {Name: "SLURM_MEM_PER_NODE", value: "{mem?}"},
		{Name: "SLURM_JOB_NUM_NODES", value: "${#hpcc_hosts[@]}", hosts: true}, {Name: "SLURM_NNODES", value: "${#hpcc_hosts[@]}", hosts: true},
		{Name: "SLURM_JOB_NODELIST", value: "$(IFS=,; echo \"${hpcc_hosts[*]}\")", hosts: true}, {Name: "SLURM_NODELIST", value: "$(IFS=,; echo \"${hpcc_hosts[*]}\")", hosts: true},
		{Name: "SLURMD_NODENAME", value: "${HOSTNAME%%.*}"}, {Name: "SLURM_CLUSTER_NAME", value: "{to}"}, {Name: "SLURM_RESTART_COUNT", value: "0"},
		{Name: "SLURM_PROCID", value: "0"}, {Name: "SLURM_LOCALID", value: "0"}, {Name: "SLURM_NODEID", value: "0"},
		{Name: "SLURM_TMPDIR", value: "${TMPDIR:-/tmp}"},
	},
	job.LSF: {
		{Name: "LSB_JOBID", value: "$hpcc_id", always: true},
		{Name: "LSB_JOBINDEX", value: "$HPCC_TASK_ID", single: "0", always: true},
		{Name: "LSB_JOBINDEX_END", value: "{last}", array: true}, {Name: "LSB_JOBINDEX_STEP", value: "{step}", array: true},
		{Name: "LSB_BATCH_JID", value: "$hpcc_id[$HPCC_TASK_ID]", single: "$hpcc_id"},
		{Name: "LSB_JOBNAME", value: "{name}"}, {Name: "LSB_QUEUE", value: "{queue}"}, {Name: "LSB_PROJECT_NAME", value: "{account}"},
		{Name: "LS_SUBCWD", value: "{dir}"}, {Name: "LSB_SUBCWD", value: "{dir}"}, {Name: "LSB_SUB_HOST", value: "$HOSTNAME"},
		{Name: "LSB_DJOB_NUMPROC", value: "{tasks}"}, {Name: "LSB_MAX_NUM_PROCESSORS", value: "{tasks}"},
		{Name: "LSB_HOSTS", value: "$(hpcc_each; echo \"${hpcc_list[*]}\")", hosts: true},
		{Name: "LSB_MCPU_HOSTS", value: "$(for i in \"${!hpcc_hosts[@]}\"; do printf '%s %s ' \"${hpcc_hosts[i]}\" \"${hpcc_tasks[i]}\"; done)", hosts: true},
		{Name: "LSB_DJOB_HOSTFILE", value: "$(hpcc_file hosts)", hosts: true},
	},
	job.GridEngine: {
		{Name: "JOB_ID", value: "$hpcc_id", always: true},
		{Name: "SGE_TASK_ID", value: "$HPCC_TASK_ID", single: "undefined", always: true},
		{Name: "SGE_TASK_FIRST", value: "{first}", single: "undefined"}, {Name: "SGE_TASK_LAST", value: "{last}", single: "undefined"}, {Name: "SGE_TASK_STEPSIZE", value: "{step}", single: "undefined"},
		{Name: "JOB_NAME", value: "{name}"}, {Name: "QUEUE", value: "{queue}"}, {Name: "SGE_O_WORKDIR", value: "{dir}"}, {Name: "SGE_O_HOME", value: "$HOME"}, {Name: "SGE_O_HOST", value: "$HOSTNAME"},
		{Name: "SGE_O_LOGNAME", value: "${LOGNAME:-$USER}"}, {Name: "NSLOTS", value: "{slots}"}, {Name: "NHOSTS", value: "${#hpcc_hosts[@]}", hosts: true}, {Name: "NQUEUES", value: "1"}, {Name: "RESTARTED", value: "0"},
		{Name: "PE_HOSTFILE", value: "$(hpcc_file slots)", hosts: true}, {Name: "TMPDIR", value: "${TMPDIR:-/tmp}"},
	},
	job.PBS: {
		{Name: "PBS_JOBID", value: "$hpcc_id[$HPCC_TASK_ID]", single: "$hpcc_id", always: true},
		{Name: "PBS_ARRAY_INDEX", value: "$HPCC_TASK_ID", array: true, always: true}, {Name: "PBS_ARRAYID", value: "$HPCC_TASK_ID", array: true}, {Name: "PBS_ARRAY_ID", value: "$hpcc_id[]", array: true},
		{Name: "PBS_O_WORKDIR", value: "{dir}", always: true}, {Name: "PBS_O_HOME", value: "$HOME"}, {Name: "PBS_O_HOST", value: "$HOSTNAME"}, {Name: "PBS_O_LOGNAME", value: "${LOGNAME:-$USER}"},
		{Name: "PBS_JOBNAME", value: "{name}"}, {Name: "PBS_QUEUE", value: "{queue}"}, {Name: "PBS_O_QUEUE", value: "{queue}"}, {Name: "PBS_ENVIRONMENT", value: "PBS_BATCH"},
		{Name: "PBS_NODEFILE", value: "$(hpcc_file hosts)", hosts: true}, {Name: "PBS_NP", value: "{tasks}"}, {Name: "PBS_NUM_NODES", value: "${#hpcc_hosts[@]}", hosts: true}, {Name: "PBS_NUM_PPN", value: "{node_tasks}"},
		{Name: "NCPUS", value: "{node_cpus}"}, {Name: "OMP_NUM_THREADS", value: "{cpus}"}, {Name: "TMPDIR", value: "${TMPDIR:-/tmp}"},
	},
}

// ids are how a job knows its id on each target.
var ids = map[job.Target]string{
	job.Slurm: "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}", job.LSF: "$LSB_JOBID", job.GridEngine: "$JOB_ID", job.PBS: "${PBS_JOBID%%[.[]*}", job.Local: "$PPID", job.Kubernetes: "$HPCC_JOB", job.OpenShift: "$HPCC_JOB", job.Argo: "$HPCC_JOB",
}

// hostLists fill hpcc_hosts and, for each of them, hpcc_tasks.
var hostLists = map[job.Target]string{
	job.Slurm: `mapfile -t hpcc_hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST" </dev/null)
for c in ${SLURM_TASKS_PER_NODE//,/ }; do # 2(x3),1
  k=1; case $c in *x*) k=${c##*x} k=${k%)} ;; esac
  for ((; k > 0; k--)); do hpcc_tasks+=("${c%%(*}"); done
done
`,
	job.LSF: `read -ra c <<<"$LSB_MCPU_HOSTS"
for ((k = 0; k + 1 < ${#c[@]}; k += 2)); do hpcc_hosts+=("${c[k]}"); hpcc_tasks+=("${c[k+1]}"); done
`,
	job.GridEngine: `if [ -r "$PE_HOSTFILE" ]; then
  while read -r k c _; do hpcc_hosts+=("$k"); hpcc_tasks+=($((c / {cpus}))); done <"$PE_HOSTFILE"
else
  hpcc_hosts=("$HOSTNAME") hpcc_tasks=({tasks})
fi
`,
	job.PBS: `declare -A hpcc_n
while read -r k; do
  [ -n "${hpcc_n[$k]}" ] || hpcc_hosts+=("$k")
  hpcc_n[$k]=$((${hpcc_n[$k]:-0} + 1))
done <"$PBS_NODEFILE"
for k in "${hpcc_hosts[@]}"; do hpcc_tasks+=("${hpcc_n[$k]}"); done
`,
	job.Local: oneHost, job.Kubernetes: oneHost, job.OpenShift: oneHost, job.Argo: oneHost,
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

// Needed are the variables of the script's scheduler that it gets on a target:
// those that programs read, and those that the script names.
func Needed(s *job.Script, j *job.Job, to job.Target) []Variable {
	if s.From == to && (to == job.Slurm || to == job.PBS || j.Array.IsZero()) {
		return nil
	}
	var out []Variable
	for _, v := range Variables[s.From] {
		named := NamedIn(s.Body, v.Name) > 0
		switch {
		case v.array && j.Array.IsZero(), !v.always && !named:
		case s.From == to && (v.hosts || (!strings.Contains(v.value, "HPCC_TASK_ID") && !strings.Contains(v.Name, "TASK"))): // its own are right
		default:
			out = append(out, v)
		}
	}
	return out
}

// NamedIn is the line, from 1, in which a text names a variable; 0: none.
func NamedIn(text, name string) int {
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

// Prelude is bash that sets what the script's scheduler would have set, from
// what the target sets.
func Prelude(s *job.Script, j *job.Job, to job.Target) string {
	list := Needed(s, j, to)
	if len(list) == 0 {
		return ""
	}
	t := &Writer{}
	t.Line("# What %s would have set, for %s:", s.From.Title(), s.Name)
	t.Line("hpcc_id=%s", ids[to])
	fill := figures(s, j, to)
	if slices.ContainsFunc(list, func(v Variable) bool { return v.hosts }) {
		t.Line("hpcc_hosts=() hpcc_tasks=() hpcc_list=()")
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
			t.Line("export %s=%s", v.Name, doubleQuote(value))
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
func figures(s *job.Script, j *job.Job, to job.Target) *strings.Replacer {
	number := strconv.Itoa
	some := func(n int) string {
		if n == 0 {
			return ""
		}
		return number(n)
	}
	first, last, step := j.Array.Bounds()
	dir := escape.Replace(s.Dir)
	if to.Pods() { // which do not have it
		dir = "$PWD"
	}
	return strings.NewReplacer("{count}", number(j.Count()), "{first}", number(first), "{last}", number(last), "{step}", number(step),
		"{name}", escape.Replace(j.Name), "{queue}", escape.Replace(j.Queue), "{account}", escape.Replace(j.Account), "{dir}", dir, "{to}", string(to),
		"{tasks}", number(j.Processes()), "{slots}", number(j.Processes()*max(j.CPUs, 1)), "{cpus}", number(max(j.CPUs, 1)), "{cpus?}", some(j.CPUs),
		"{node_tasks}", number(j.ProcessesPerNode()), "{node_cpus}", number(j.ProcessesPerNode()*max(j.CPUs, 1)), "{gpus?}", some(j.GPUs), "{mem?}", some(int(j.Memory>>20)))
}

// OfScheduler are names of variables that each scheduler sets.
var OfScheduler = sync.OnceValue(func() map[job.Target]*regexp.Regexp {
	return map[job.Target]*regexp.Regexp{
		job.Slurm: regexp.MustCompile(`\bSLURMD?_[A-Z][A-Z0-9_]*\b`), job.LSF: regexp.MustCompile(`\bLSB?_[A-Z][A-Z0-9_]*\b`),
		job.GridEngine: regexp.MustCompile(`\bSGE_[A-Z][A-Z0-9_]*\b`), job.PBS: regexp.MustCompile(`\bPBS_[A-Z][A-Z0-9_]*\b`),
	}
})
