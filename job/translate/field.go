package translate

import (
	"hpcc/job"
)

// A field is what a directive fills in, by the name of hpcc's own flag where
// there is one.
type field string

const (
	fName         field = "name"
	fArray        field = "array"
	fNodes        field = "nodes"
	fTasks        field = "tasks"
	fTasksPerNode field = "tasks-per-node"
	fCPUs         field = "cpus"
	fMemory       field = "mem"
	fGPUs         field = "gpus"
	fTime         field = "time"
	fQueue        field = "queue"
	fAccount      field = "account"
	fExclusive    field = "exclusive"
	fAfter        field = "after"
	fOutput       field = "output"
	fError        field = "error"
	fMail         field = "mail"
	fDir          field = "chdir"
	fEnv          field = "env"
	fNative       field = "native"
	fInteractive  field = "interactive"
	fGPUType      field = "GPU type"
	fFeatures     field = "features"
	fHosts        field = "hosts"
	fNotHosts     field = "hosts to avoid"
	fAfterAny     field = "after the end"
	fAfterFailed  field = "after failure"
	fAfterEach    field = "after each task"
	fSignal       field = "signal"
	fRequeue      field = "requeue"
	fMailOn       field = "mail events"
	fBegin        field = "begin"
	fQoS          field = "QoS"
	fHold         field = "hold"
	fAppend       field = "append"
	fExport       field = "export"
	fRetry        field = "retry"
)

// without takes fields out of a job again: those that a target refuses.
var without = map[field]func(*job.Job){
	fNodes:        func(j *job.Job) { j.Nodes = 0 },
	fTasks:        func(j *job.Job) { j.Tasks = 0 },
	fTasksPerNode: func(j *job.Job) { j.TasksPerNode = 0 },
	fMemory:       func(j *job.Job) { j.Memory, j.MemoryPerCPU = 0, 0 },
	fGPUs:         func(j *job.Job) { j.GPUs, j.GPUType = 0, "" },
	fTime:         func(j *job.Job) { j.Time = 0 },
	fQueue:        func(j *job.Job) { j.Queue = "" },
	fAccount:      func(j *job.Job) { j.Account = "" },
	fExclusive:    func(j *job.Job) { j.Exclusive = false },
	fAfter:        func(j *job.Job) { j.After = nil },
	fError:        func(j *job.Job) { j.Error = "" },
	fMail:         func(j *job.Job) { j.Mail = "" },
	fNative:       func(j *job.Job) { j.Native = nil },
	fGPUType:      func(j *job.Job) { j.GPUType = "" },
	fFeatures:     func(j *job.Job) { j.Features = nil },
	fHosts:        func(j *job.Job) { j.Hosts = nil },
	fNotHosts:     func(j *job.Job) { j.NotHosts = nil },
	fAfterAny:     func(j *job.Job) { j.AfterAny = nil },
	fAfterFailed:  func(j *job.Job) { j.AfterFailed = nil },
	fAfterEach:    func(j *job.Job) { j.AfterEach = nil },
	fSignal:       func(j *job.Job) { j.Warning = job.Warning{} },
	fRequeue:      func(j *job.Job) { j.Requeue = "" },
	fMailOn:       func(j *job.Job) { j.MailOn = nil },
	fBegin:        func(j *job.Job) { j.Begin = "" },
	fQoS:          func(j *job.Job) { j.QoS = "" },
	fHold:         func(j *job.Job) { j.Hold = false },
	fAppend:       func(j *job.Job) { j.Append = false },
	fExport:       func(j *job.Job) { j.Export = nil },
}
