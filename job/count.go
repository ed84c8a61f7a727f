package job

import (
	"slices"
)

// Slots are the processors that the job asks for in all.
func (j *Job) Slots() int {
	n := max(j.Tasks, 1)
	if j.Tasks == 0 {
		n = max(j.TasksPerNode, 1) * max(j.Nodes, 1)
	}
	return n * max(j.CPUs, 1)
}

// Spread is over how many nodes the job's processes are to lie; 0 where that is
// left to the target.
func (j *Job) Spread() int {
	switch {
	case j.Nodes > 1:
		return j.Nodes
	case j.Nodes == 0 && j.TasksPerNode > 0 && j.Tasks > j.TasksPerNode:
		return (j.Tasks + j.TasksPerNode - 1) / j.TasksPerNode
	}
	return 0
}

// NodeCount is on how many nodes a task of the job lies, at least one.
func (j *Job) NodeCount() int64 { return int64(max(j.Nodes, j.Spread(), 1)) }

// Within says whether all indices lie between two bounds.
func (a Array) Within(least, most int) bool {
	for _, r := range a.Ranges {
		if r.First < least || r.Last > most {
			return false
		}
	}
	return true
}

// ProcessesPerNode is how many processes a node has.
func (j *Job) ProcessesPerNode() int {
	if j.TasksPerNode > 0 {
		return j.TasksPerNode
	}
	nodes := max(j.Nodes, 1)
	return (max(j.Tasks, nodes) + nodes - 1) / nodes
}

// Processes are all that the job has room for.
func (j *Job) Processes() int {
	if j.Tasks > 0 {
		return j.Tasks
	}
	return max(j.TasksPerNode, 1) * max(j.Nodes, 1)
}

// MemoryPerNode is what the job asks for of each node.
func (j *Job) MemoryPerNode() int64 {
	if j.MemoryPerCPU > 0 {
		return j.MemoryPerCPU * int64(max(j.CPUs, 1)*j.ProcessesPerNode())
	}
	return j.Memory
}

// Requeueing is what is asked for after the loss of a node: retries need it.
func (j *Job) Requeueing() string {
	if j.Requeue == "" && j.Retry.Requeue() {
		return "yes"
	}
	return j.Requeue
}

// ExportedNames are the variables that are handed over by name.
func (w *Wishes) ExportedNames() []string {
	return slices.DeleteFunc(slices.Clone(w.Export), func(n string) bool { return n == "ALL" || n == "NONE" })
}

// MailsOn says whether mail is wanted at an event; with an address alone, at the end
// and on failure.
func (j *Job) MailsOn(event string) bool {
	if len(j.MailOn) > 0 {
		return slices.Contains(j.MailOn, event)
	}
	return j.Mail != "" && event != "begin"
}

// MailLetters are those of qsub for the events that mail is wanted at.
func (j *Job) MailLetters(of ...string) string {
	out := ""
	for i := 0; i < len(of); i += 2 {
		if j.MailsOn(of[i]) {
			out += of[i+1]
		}
	}
	return out
}
