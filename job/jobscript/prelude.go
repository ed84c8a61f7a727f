package jobscript

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/text"
)

// Body returns the script for a bash that reads it from standard input. It sets the variables of the script's scheduler,
// then runs the script itself, byte for byte on descriptor 3, with its own interpreter. So programs in the script
// cannot consume it, and line numbers in its errors are those of the file.
func Body(s *job.Script, j *job.Job, to *dialect.Dialect) string {
	t := &Writer{}
	t.WriteString(Prelude(s, j, to))
	if s.Start != "" && s.Start != j.Dir && !to.Target.Pods() {
		t.Line("cd %s || exit 97 # where %s starts jobs", text.Quote(s.Start), s.FromTitle)
	}
	end := text.Delimiter("HPCC_SCRIPT", s.Body)
	if slices.ContainsFunc(to.Hides, func(prefix string) bool { return strings.Contains("\n"+s.Body, "\n"+prefix) }) {
		t.Line("# The | at the start of each line keeps %s from reading directives in here.", to.Target)
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
	argv := append(slices.Clone(s.Shell), "/dev/fd/3")
	switch {
	case to.Target.Pods():
	case j.Image == "":
		argv = j.OnHostArgv(argv)
	case !s.Host:
		argv = append(j.RunPrefix(), argv...)
	}
	if s.Login != "" { // it reads the user's profile, and passes its environment on
		argv = append([]string{s.Login, "-l", "-c", `exec "$@"`, path.Base(s.Login)}, argv...)
	}
	t.Line(`exec %s "$@" </dev/null`, text.Arguments(argv))
	return t.String()
}

// oneHost is bash code that sets the hosts and tasks of a job on one host.
const oneHost = `hpcc_hosts=("$HOSTNAME") hpcc_tasks=({tasks})
`

// hostEach and hostFile are bash functions that write the list of hosts in the formats of schedulers.
const hostEach = `hpcc_each() { # lists the host of each process
  local i k
  for i in "${!hpcc_hosts[@]}"; do for ((k = 0; k < hpcc_tasks[i]; k++)); do hpcc_list+=("${hpcc_hosts[i]}"); done; done
}
`

const hostFile = `hpcc_file() { # writes that list, or hosts and slots, to a file
  local f=$HPCC_TASK_TMP/$1 i
  if [ "$1" = hosts ]; then hpcc_each; printf '%s\n' "${hpcc_list[@]}" >"$f"
  else for i in "${!hpcc_hosts[@]}"; do echo "${hpcc_hosts[i]} $((hpcc_tasks[i] * {cpus})) {queue}@${hpcc_hosts[i]} UNDEFINED" >>"$f"; done; fi
  echo "$f"
}
`

// Needed returns the variables of the script's scheduler to set on a target: those that programs usually read, and
// those that the script names.
func Needed(s *job.Script, j *job.Job, to *dialect.Dialect) []job.Variable {
	own := s.From == to.Target
	if own && (j.Array.IsZero() || (to.OwnsIndices != nil && to.OwnsIndices(j.Array))) {
		return nil
	}
	var out []job.Variable
	for _, v := range s.Sets {
		named := NamedIn(s.Body, v.Name) > 0
		switch {
		case v.Array && j.Array.IsZero(), !v.Always && !named:
		case own && (v.Hosts || (!strings.Contains(v.Value, "HPCC_TASK_ID") &&
			!strings.Contains(v.Name, "TASK"))): // the target sets it correctly itself
		default:
			out = append(out, v)
		}
	}
	return out
}

// NamedIn returns the number of the first line, from 1, in which a text names a variable, or 0.
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

// Prelude returns bash code that sets the variables of the script's scheduler from those of the target.
func Prelude(s *job.Script, j *job.Job, to *dialect.Dialect) string {
	list := Needed(s, j, to)
	if len(list) == 0 {
		return ""
	}
	t := &Writer{}
	t.Line("# Variables that %s would have set, for %s:", s.FromTitle, s.Name)
	t.Line("hpcc_id=%s", to.JobID)
	fill := jobValues(s, j, to)
	if slices.ContainsFunc(list, func(v job.Variable) bool { return v.Hosts }) {
		t.Line("hpcc_hosts=() hpcc_tasks=() hpcc_list=()")
		t.WriteString(fill.Replace(cmp.Or(to.Hosts, oneHost)))
		values := fmt.Sprint(list)
		if strings.Contains(values, "hpcc_each") || strings.Contains(values, "hpcc_file") {
			t.WriteString(hostEach)
		}
		if strings.Contains(values, "hpcc_file") {
			t.WriteString(fill.Replace(hostFile))
		}
	}
	for _, v := range list {
		value := v.Value
		if v.Single != "" && j.Array.IsZero() {
			value = v.Single
		}
		if value = fill.Replace(value); value != "" {
			t.Line("export %s=%s", v.Name, doubleQuote(value))
		}
	}
	return t.String()
}

// doubleQuote returns a value of the table for bash, with double quotes only if necessary.
func doubleQuote(v string) string {
	if plainValue().MatchString(v) {
		return v
	}
	return `"` + v + `"`
}

var plainValue = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_./+-]*$`) })

// escape escapes text within double quotes of bash.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`")

// jobValues returns a replacer that fills in the placeholders of variables, such as {tasks}, from the job.
func jobValues(s *job.Script, j *job.Job, to *dialect.Dialect) *strings.Replacer {
	number := strconv.Itoa
	nonZero := func(n int) string {
		if n == 0 {
			return ""
		}
		return number(n)
	}
	first, last, step := j.Array.Bounds()
	dir := escape.Replace(s.Dir)
	if to.Target.Pods() { // pods do not have the submit directory
		dir = "$PWD"
	}
	return strings.NewReplacer("{count}", number(j.Count()), "{first}", number(first), "{last}", number(last), "{step}", number(step),
		"{name}", escape.Replace(j.Name), "{queue}", escape.Replace(j.Queue), "{account}", escape.Replace(j.Account), "{dir}", dir, "{to}", string(to.Target),
		"{tasks}", number(j.Processes()), "{slots}", number(j.Processes()*max(j.CPUs, 1)), "{cpus}", number(max(j.CPUs, 1)), "{cpus?}", nonZero(j.CPUs),
		"{node_tasks}", number(j.ProcessesPerNode()), "{node_cpus}", number(j.ProcessesPerNode()*max(j.CPUs, 1)), "{gpus?}", nonZero(j.GPUs), "{mem?}", nonZero(int(j.Memory>>20)))
}
