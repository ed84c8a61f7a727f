package translate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/jobscript"
	"hpcc/job/quantity"
)

// A verdict is what a target makes of a field that it does not have as the
// source has it. Fields without one are kept.
type verdict struct {
	fate Fate
	how  string
	when func(j *job.Job) bool // nil: always
	drop bool                  // the job goes without it, as with what is refused
}

const (
	thisMachine = "there is this machine alone"
	noQueue     = "this machine has no queue"
	hpccSends   = "hpcc sends it to the script"
)

// podVerdicts are the differences of targets that run the image in pods.
func podVerdicts(name string) map[field]verdict {
	later := verdict{fate: Refused, how: name + " keeps no order among Jobs: --to argo makes one workflow of them"}
	return map[field]verdict{
		fNodes:     {fate: Refused, how: "a script begins on one node, and MPI cannot start processes in another pod: ask for one node", when: func(j *job.Job) bool { return j.Nodes > 1 }},
		fGPUType:   {fate: Changed, how: "the label " + job.LabelGPU + ", which has the whole name of the model"},
		fQueue:     {fate: Changed, drop: true, how: "queues are those of Kueue, where a cluster has it: --queue NAME"},
		fAccount:   {fate: Changed, drop: true, how: "namespaces are charged"},
		fExclusive: {fate: Changed, how: "no pod of another Job comes to the node"},
		fHosts:     {fate: Changed, how: "one of them", when: func(j *job.Job) bool { return len(j.Hosts) > 1 }},
		fFeatures: {fate: Refused, how: "nodes have labels: --node-label KEY=VALUE", when: func(j *job.Job) bool {
			return slices.ContainsFunc(j.Features, func(f string) bool { return !strings.Contains(f, "=") })
		}},
		fAfter:       later,
		fAfterAny:    later,
		fAfterFailed: later,
		fAfterEach:   later,
		fOutput:      {fate: Emulated, how: "the pod's log, which hpcc brings into the file"},
		fError:       {fate: Changed, drop: true, how: "with the output: a pod has one stream"},
		fMail:        {fate: Refused, how: name + " writes no mail"},
		fMailOn:      {fate: Refused, how: name + " writes no mail"},
		fDir:         {fate: Changed, how: "a directory of this machine; pods start in the image's, or in that of --cd"},
		fSignal:      {fate: Refused, how: "SIGTERM comes at the time limit, and no signal before"},
		fBegin:       {fate: Refused, how: "Jobs begin when there is room"},
		fQoS:         {fate: Refused, how: "the cluster's PriorityClasses are not the site's QoS"},
		fHold:        {fate: Changed, how: "the Job is suspended until somebody sets spec.suspend to false"},
		fAppend:      {fate: Changed, how: "the file is written anew", when: func(j *job.Job) bool { return j.Append }},
		fExport:      {fate: Changed, drop: true, how: "the script has the environment of the image: say what it needs with --env"},
	}
}

// argoVerdicts are those of pods, of which Argo keeps an order; see [Translation.order].
func argoVerdicts() map[field]verdict {
	v := podVerdicts("Argo")
	delete(v, fAfter)
	delete(v, fAfterAny)
	delete(v, fAfterFailed)
	v[fAfterEach] = verdict{fate: Refused, how: "Argo waits for whole arrays"}
	v[fNodes] = verdict{fate: Refused, how: "each pod of a workflow begins for itself", when: func(j *job.Job) bool { return j.Nodes > 1 }}
	v[fHold] = verdict{fate: Changed, how: "the workflow is suspended until \"argo resume\""}
	return v
}

// verdicts are the differences of the targets.
var verdicts = map[job.Target]map[field]verdict{
	job.Kubernetes: podVerdicts("Kubernetes"),
	job.OpenShift:  podVerdicts("OpenShift"),
	job.Argo:       argoVerdicts(),
	job.Slurm: {
		fExclusive: {fate: Kept, how: "with --mem=0, since the node does not bring its memory", when: func(j *job.Job) bool { return j.Memory == 0 && j.MemoryPerCPU == 0 }},
	},
	job.Local: {
		fNodes:       {fate: Refused, how: "this machine is one node", when: func(j *job.Job) bool { return j.Nodes > 1 }},
		fMemory:      {fate: Changed, drop: true, how: "no limit on this machine"},
		fGPUs:        {fate: Changed, drop: true, how: "the GPUs of this machine"},
		fQueue:       {fate: Changed, drop: true, how: thisMachine},
		fAccount:     {fate: Changed, drop: true, how: thisMachine},
		fExclusive:   {fate: Changed, drop: true, how: thisMachine},
		fFeatures:    {fate: Changed, drop: true, how: thisMachine},
		fHosts:       {fate: Changed, drop: true, how: thisMachine},
		fNotHosts:    {fate: Changed, drop: true, how: thisMachine},
		fQoS:         {fate: Changed, drop: true, how: thisMachine},
		fMail:        {fate: Refused, how: "hpcc writes no mail"},
		fMailOn:      {fate: Refused, how: "hpcc writes no mail"},
		fHold:        {fate: Refused, how: noQueue},
		fBegin:       {fate: Refused, how: noQueue},
		fRequeue:     {fate: Refused, how: "nothing runs again here"},
		fAfter:       {fate: Refused, how: noQueue + " in which a job could wait; hand the first in with --wait"},
		fAfterAny:    {fate: Refused, how: noQueue + " in which a job could wait; hand the first in with --wait"},
		fAfterFailed: {fate: Refused, how: noQueue + " in which a job could wait"},
		fAfterEach:   {fate: Refused, how: noQueue + " in which a job could wait"},
		fSignal:      {fate: Emulated, how: hpccSends},
		fTime:        {fate: Emulated, how: "hpcc ends each task: SIGTERM, SIGKILL 30 s later"},
		fArray:       {fate: Emulated, how: "hpcc runs the tasks, as many at once as there are processors"},
		fAppend:      {fate: Changed, how: "the file is written anew", when: func(j *job.Job) bool { return j.Append }},
		fExport:      {fate: Changed, how: "the script has the environment of the shell that hands it in"},
	},
	job.GridEngine: {
		fTime:        {fate: Emulated, how: "hpcc ends each task, with a warning; h_rt stands behind it"},
		fMemory:      {fate: Changed, how: "mem_free of each slot: no limit, and the site may want another resource"},
		fGPUType:     {fate: Refused, how: "only the site knows how it names kinds of GPUs"},
		fFeatures:    {fate: Refused, how: "only the site knows how it names features"},
		fQoS:         {fate: Refused, how: "Grid Engine has no QoS"},
		fAfter:       {fate: Emulated, how: "-hold_jid lets go after failures as well; hpcc looks whether the jobs succeeded"},
		fAfterFailed: {fate: Refused, how: "Grid Engine waits for the end of jobs, not for their failure"},
		fAfterEach:   {fate: Changed, how: "-hold_jid_ad lets a task go when the other has ended, however it did"},
		fSignal:      {fate: Emulated, how: hpccSends},
		fAppend:      {fate: Changed, how: "Grid Engine appends to files that are there", when: func(j *job.Job) bool { return !j.Append }},
		fHosts:       {fate: Refused, how: "Grid Engine takes one of several hosts, not all", when: func(j *job.Job) bool { return len(j.Hosts) > 1 }},
		fBegin:       {fate: Refused, how: "Grid Engine wants the day as well", when: func(j *job.Job) bool { return !strings.Contains(j.Begin, "T") }},
		fExport:      {fate: Changed, how: "Grid Engine hands nothing over, and hpcc does not ask it to: say what the script needs with --env", when: func(j *job.Job) bool { return slices.Contains(j.Export, "ALL") }},
	},
	job.LSF: {
		fTime:   {fate: Emulated, how: "hpcc ends each task, with a warning; -W stands behind it"},
		fQoS:    {fate: Refused, how: "LSF has no QoS"},
		fAppend: {fate: Changed, how: "hpcc writes the file, anew", when: func(j *job.Job) bool { return j.Append }},
		fHosts:  {fate: Changed, how: "LSF takes some of them", when: func(j *job.Job) bool { return len(j.Hosts) > 1 }},
	},
	job.PBS: {
		fQoS:       {fate: Refused, how: "PBS has no QoS"},
		fGPUType:   {fate: Refused, how: "only the site knows how it names kinds of GPUs"},
		fNotHosts:  {fate: Refused, how: "PBS cannot leave hosts out"},
		fAfterEach: {fate: Refused, how: "PBS waits for whole arrays"},
		fSignal:    {fate: Emulated, how: hpccSends},
		fHosts:     {fate: Refused, how: "each chunk of PBS would be on the same one of them", when: func(j *job.Job) bool { return len(j.Hosts) > 1 }},
		fTime:      {fate: Emulated, how: "hpcc ends each task, with a warning; walltime stands behind it"},
		fAppend:    {fate: Changed, how: "hpcc writes the file, anew", when: func(j *job.Job) bool { return j.Append }},
		fExport:    {fate: Changed, how: "PBS hands nothing over, and hpcc does not ask it to: say what the script needs with --env", when: func(j *job.Job) bool { return slices.Contains(j.Export, "ALL") }},
	},
}

// shape brings the job into the form that its target counts in.
func shape(t *Translation) {
	j := t.Job
	if n := job.Label(j.Name); t.To.Pods() && n != j.Name {
		t.tell(n+", a label of the DNS", fName)
	}
	t.order()
	if t.To == job.GridEngine && (j.Nodes > 1 || (j.TasksPerNode > 1 && j.Nodes != 1)) {
		n, nodes := j.Processes(), max(j.Nodes, 1)
		t.tell(fmt.Sprintf("%d processes: the parallel environment says how they spread over nodes", n), fNodes, fTasks, fTasksPerNode)
		j.Tasks, j.Nodes, j.TasksPerNode = n, 0, 0
		j.GPUs, j.Memory = j.GPUs*nodes, j.Memory*int64(nodes) // of all nodes, to be shared out to slots
	}
	if t.To != job.Slurm && j.MemoryPerCPU > 0 {
		per, where := j.ProcessesPerNode(), "on each node"
		if t.To == job.PBS && j.Nodes == 0 && j.TasksPerNode == 0 {
			per, where = 1, "for each process"
		}
		n := j.MemoryPerCPU * int64(max(j.CPUs, 1)*per)
		t.tell(quantity.FormatMemory(n)+" "+where, fMemory)
		j.Memory, j.MemoryPerCPU = n, 0
	}
	if t.To == job.PBS && j.Nodes > 1 && j.Tasks > 0 && j.Tasks != j.Nodes*j.ProcessesPerNode() {
		j.TasksPerNode = j.ProcessesPerNode()
		j.Tasks = j.Nodes * j.TasksPerNode
		t.tell(fmt.Sprintf("PBS gives each node as many: %d", j.TasksPerNode), fTasks)
	}
	if t.To != job.Slurm && j.Warning.Steps {
		t.refuse("it goes to what srun started, and only Slurm has that", fSignal)
		j.Warning = job.Warning{}
	}
	if t.To != job.Slurm && t.To != job.LSF && j.Warning.Signal != "" && j.Time == 0 {
		t.refuse("without a time limit there is nothing to warn of; give --time", fSignal)
		j.Warning = job.Warning{}
	}
	if t.To == job.GridEngine && j.GPUs%j.Slots() != 0 {
		t.refuse(fmt.Sprintf("%d GPUs for %d slots: Grid Engine gives each slot as many", j.GPUs, j.Slots()), fGPUs)
		j.GPUs = 0
	}
}

// refuse is the end of the rows of a field.
func (t *Translation) refuse(how string, f field) {
	for _, r := range t.Rows {
		if slices.Contains(r.fields, f) {
			r.refuse(f, how)
		}
	}
}

// tell notes a change in the rows of fields, note something that is none.
func (t *Translation) tell(how string, fields ...field) { t.say(Changed, how, fields) }
func (t *Translation) note(how string, fields ...field) { t.say(Kept, how, fields) }

func (t *Translation) say(f Fate, how string, fields []field) {
	for _, r := range t.Rows {
		if r.Fate != Refused && slices.ContainsFunc(fields, func(f field) bool { return slices.Contains(r.fields, f) }) {
			r.become(f, how)
		}
	}
}

// order keeps, of what a job of Argo waits for, the scripts that are given with it.
func (t *Translation) order() {
	if t.To != job.Argo {
		return
	}
	for _, d := range []struct {
		f     field
		names *[]string
	}{{fAfter, &t.Job.After}, {fAfterAny, &t.Job.AfterAny}, {fAfterFailed, &t.Job.AfterFailed}} {
		outside := slices.DeleteFunc(slices.Clone(*d.names), func(n string) bool { return slices.Contains(t.among, job.Label(n)) })
		if len(outside) > 0 {
			t.refuse(fmt.Sprintf("%s is no script that is given with it: Argo keeps an order among those alone, each with --from", strings.Join(outside, ", ")), d.f)
			*d.names = nil
		}
	}
}

// variables tells which variables of its scheduler the script gets, and which
// hpcc cannot supply.
func (t *Translation) variables() {
	s := t.Job.Script
	if s == nil {
		return
	}
	var names []string
	for _, v := range jobscript.Needed(s, t.Job, t.To) {
		names = append(names, v.Name)
	}
	if len(names) > 0 {
		t.Rows = append(t.Rows, &Row{Text: strings.Join(names, " "), Fate: Emulated, How: fmt.Sprintf("set from what %s sets", t.To)})
	}
	if s.From == t.To {
		return
	}
	unknown := jobscript.OfScheduler()[s.From].FindAllString(s.Body, -1)
	slices.Sort(unknown)
	for _, name := range slices.Compact(unknown) {
		known := slices.ContainsFunc(jobscript.Variables[s.From], func(v jobscript.Variable) bool { return v.Name == name })
		if !known && !definedIn(s.Body, name) {
			t.Rows = append(t.Rows, &Row{Line: jobscript.NamedIn(s.Body, name), Text: "$" + name, Fate: Refused, How: "hpcc cannot say what it would be on " + string(t.To)})
		}
	}
}

// definedIn says whether a script sets a variable itself.
func definedIn(body, name string) bool {
	return regexp.MustCompile(`(?m)(^|[ \t;])` + name + `=`).MatchString(body)
}
