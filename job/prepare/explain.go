package prepare

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/site"
	"hpcc/runtime/explain"
)

// known records the source of the settings that the job has now.
func (r *Request) known(source string, j *job.Job) {
	if r.Sources != nil {
		r.Sources.Compare(source, settings(j))
	}
}

// settings returns the settings of a job, except its program and the flags of its run.
func settings(j *job.Job) (out []explain.Fact) {
	var fields map[string]json.RawMessage
	text, err := json.Marshal(j)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		return []explain.Fact{{Kind: "job", Value: err.Error()}}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := string(fields[name])
		if text := ""; json.Unmarshal(fields[name], &text) == nil {
			value = text
		}
		if name != "args" && name != "run" && value != "" {
			out = append(out, explain.Fact{Kind: "job", Name: name, Value: value})
		}
	}
	return out
}

// Explain returns the target and the settings of a job with their sources.
func (r *Request) Explain(j *job.Job, to *Destination) []explain.Fact {
	target := explain.Fact{Kind: "job", Name: "target", Value: string(to.Target), Source: "hpcc"}
	if r.At != (site.Choice{}) {
		target.Source = "flag"
	}
	list := settings(j)
	r.Sources.Compare("hpcc", list)
	return append([]explain.Fact{target}, list...)
}

// EnterTask changes the directory and the variables of this process to those of the first task of a job. It returns the
// arguments of hpcc run with which the task starts its program.
func EnterTask(j *job.Job) ([]string, error) {
	task := &job.Task{}
	for task.Index = range j.Array.All() {
		break
	}
	task.Params = j.Params.Row(task.Index)
	err := os.Chdir(j.Dir)
	// The script of the job changes the directory, and sets these variables.
	for _, kv := range append([]string{"PWD=" + j.Dir, fmt.Sprint("HPCC_TASK_ID=", task.Index),
		fmt.Sprint("HPCC_TASK_COUNT=", j.FullCount())}, j.Env...) {
		name, value, _ := strings.Cut(kv, "=")
		if err == nil {
			err = os.Setenv(name, value)
		}
	}
	argv := j.Argv()
	if j.Script != nil { // each of its launchers starts hpcc run
		argv = append(j.RunPrefix(), j.Args...)
	}
	return task.Fill(argv[2:]), err
}
