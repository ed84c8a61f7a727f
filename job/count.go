package job

import (
	"slices"
)

// Slots returns the total number of processors that the job requests.
func (j *Job) Slots() int {
	n := max(j.Tasks, 1)
	if j.Tasks == 0 {
		n = max(j.TasksPerNode, 1) * max(j.Nodes, 1)
	}
	return n * max(j.CPUs, 1)
}

// Spread returns the number of nodes for the job's processes, or 0 if the target decides.
func (j *Job) Spread() int {
	switch {
	case j.Nodes > 1:
		return j.Nodes
	case j.Nodes == 0 && j.TasksPerNode > 0 && j.Tasks > j.TasksPerNode:
		return (j.Tasks + j.TasksPerNode - 1) / j.TasksPerNode
	}
	return 0
}

// NodeCount returns the number of nodes of a task, at least one.
func (j *Job) NodeCount() int64 { return int64(max(j.Nodes, j.Spread(), 1)) }

// Within reports whether all indices are between two bounds.
func (a Array) Within(least, most int) bool {
	for _, r := range a.Ranges {
		if r.First < least || r.Last > most {
			return false
		}
	}
	return true
}

// ProcessesPerNode returns the number of processes on each node.
func (j *Job) ProcessesPerNode() int {
	if j.TasksPerNode > 0 {
		return j.TasksPerNode
	}
	nodes := max(j.Nodes, 1)
	return (max(j.Tasks, nodes) + nodes - 1) / nodes
}

// Processes returns the total number of processes of the job.
func (j *Job) Processes() int {
	if j.Tasks > 0 {
		return j.Tasks
	}
	return max(j.TasksPerNode, 1) * max(j.Nodes, 1)
}

// MemoryPerNode returns the requested memory of each node, in bytes.
func (j *Job) MemoryPerNode() int64 {
	if j.MemoryPerCPU > 0 {
		return j.MemoryPerCPU * int64(max(j.CPUs, 1)*j.ProcessesPerNode())
	}
	return j.Memory
}

// Requeueing returns the requested requeue setting. Retries require it.
func (j *Job) Requeueing() string {
	if j.Requeue == "" && j.Retry.Requeue() {
		return "yes"
	}
	return j.Requeue
}

// ExportedNames returns the variables that are exported by name.
func (w *Constraints) ExportedNames() []string {
	return slices.DeleteFunc(slices.Clone(w.Export), func(n string) bool { return n == "ALL" || n == "NONE" })
}

// MailsOn reports whether an event sends mail. With only an address, the end and a failure do.
func (j *Job) MailsOn(event string) bool {
	if len(j.MailOn) > 0 {
		return slices.Contains(j.MailOn, event)
	}
	return j.Mail != "" && event != "begin"
}

// MailLetters returns qsub's letters for the events that send mail.
func (j *Job) MailLetters(of ...string) string {
	out := ""
	for i := 0; i < len(of); i += 2 {
		if j.MailsOn(of[i]) {
			out += of[i+1]
		}
	}
	return out
}
