// Package field names the fields of a job that directives fill in, and records what a
// translation does with them.
//
//	directive ─► Row with its Fields ─► Verdict of the target ─► Fate
//
// A better fate never replaces a worse one, so nothing is refused silently. The package does
// not depend on any batch system.
package field

import (
	"reflect"

	"hpcc/job"
)

// A Field is a property of a job that a directive fills in. It has the name of hpcc's flag
// for the property, if there is one.
type Field string

// The fields of a job.
const (
	Name         Field = "name"
	Array        Field = "array"
	Nodes        Field = "nodes"
	Tasks        Field = "tasks"
	TasksPerNode Field = "tasks-per-node"
	CPUs         Field = "cpus"
	Memory       Field = "mem"
	GPUs         Field = "gpus"
	Time         Field = "time"
	Queue        Field = "queue"
	Account      Field = "account"
	Exclusive    Field = "exclusive"
	After        Field = "after"
	Output       Field = "output"
	Error        Field = "error"
	Mail         Field = "mail"
	Dir          Field = "chdir"
	Env          Field = "env"
	Native       Field = "native"
	Interactive  Field = "interactive"
	GPUType      Field = "GPU type"
	Features     Field = "features"
	Hosts        Field = "hosts"
	NotHosts     Field = "hosts to avoid"
	AfterAny     Field = "after the end"
	AfterFailed  Field = "after failure"
	AfterEach    Field = "after each task"
	Signal       Field = "signal"
	Requeue      Field = "requeue"
	MailOn       Field = "mail events"
	Begin        Field = "begin"
	QoS          Field = "QoS"
	Hold         Field = "hold"
	Append       Field = "append"
	Export       Field = "export"
	Retry        Field = "retry"
	Image        Field = "image"
	Run          Field = "flags of hpcc run"
)

// values returns pointers to the values of each field in a job, the main one first. It lacks
// the fields that no target refuses and that no option sets alone.
var values = map[Field]func(j *job.Job) []any{
	Name:         func(j *job.Job) []any { return []any{&j.Name} },
	Array:        func(j *job.Job) []any { return []any{&j.Array} },
	Nodes:        func(j *job.Job) []any { return []any{&j.Nodes} },
	Tasks:        func(j *job.Job) []any { return []any{&j.Tasks} },
	TasksPerNode: func(j *job.Job) []any { return []any{&j.TasksPerNode} },
	CPUs:         func(j *job.Job) []any { return []any{&j.CPUs} },
	Memory:       func(j *job.Job) []any { return []any{&j.Memory, &j.MemoryPerCPU} },
	GPUs:         func(j *job.Job) []any { return []any{&j.GPUs, &j.GPUType} },
	Time:         func(j *job.Job) []any { return []any{&j.Time} },
	Queue:        func(j *job.Job) []any { return []any{&j.Queue} },
	Account:      func(j *job.Job) []any { return []any{&j.Account} },
	Exclusive:    func(j *job.Job) []any { return []any{&j.Exclusive} },
	After:        func(j *job.Job) []any { return []any{&j.After} },
	Error:        func(j *job.Job) []any { return []any{&j.Error} },
	Mail:         func(j *job.Job) []any { return []any{&j.Mail} },
	Native:       func(j *job.Job) []any { return []any{&j.Native} },
	Interactive:  func(j *job.Job) []any { return []any{&j.Interactive} },
	GPUType:      func(j *job.Job) []any { return []any{&j.GPUType} },
	Features:     func(j *job.Job) []any { return []any{&j.Features} },
	Hosts:        func(j *job.Job) []any { return []any{&j.Hosts} },
	NotHosts:     func(j *job.Job) []any { return []any{&j.NotHosts} },
	AfterAny:     func(j *job.Job) []any { return []any{&j.AfterAny} },
	AfterFailed:  func(j *job.Job) []any { return []any{&j.AfterFailed} },
	AfterEach:    func(j *job.Job) []any { return []any{&j.AfterEach} },
	Signal:       func(j *job.Job) []any { return []any{&j.Warning} },
	Requeue:      func(j *job.Job) []any { return []any{&j.Requeue} },
	MailOn:       func(j *job.Job) []any { return []any{&j.MailOn} },
	Begin:        func(j *job.Job) []any { return []any{&j.Begin} },
	QoS:          func(j *job.Job) []any { return []any{&j.QoS} },
	Hold:         func(j *job.Job) []any { return []any{&j.Hold} },
	Append:       func(j *job.Job) []any { return []any{&j.Append} },
	Export:       func(j *job.Job) []any { return []any{&j.Export} },
}

// At returns pointers to the values of the field in a job, the main one first.
func (f Field) At(j *job.Job) []any {
	if at := values[f]; at != nil {
		return at(j)
	}
	return nil
}

// Clear zeroes the field in a job, because the target refuses it.
func (f Field) Clear(j *job.Job) {
	for _, p := range f.At(j) {
		reflect.ValueOf(p).Elem().SetZero()
	}
}

// Copy sets the field in a job to its value in another one. It reports whether it knows the values of the field.
func (f Field) Copy(to, from *job.Job) bool {
	values := f.At(from)
	for i, p := range f.At(to) {
		reflect.ValueOf(p).Elem().Set(reflect.ValueOf(values[i]).Elem())
	}
	return values != nil
}
