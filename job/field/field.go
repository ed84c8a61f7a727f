// Package field names the fields of a job that directives fill in, and keeps account of
// what a translation does with them.
//
//	directive ─► Row with its Fields ─► Verdict of the target ─► Fate
//
// A row never loses its fate to a better one, so nothing is refused silently. The package
// knows no batch system.
package field

import (
	"reflect"

	"hpcc/job"
)

// A Field is what a directive fills in, by the name of hpcc's own flag if there is one.
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
)

// At returns pointers to the values of the field in a job, the main one first. It is nil
// for a field that no target refuses and that no option sets alone.
func (f Field) At(j *job.Job) []any {
	switch f {
	case Name:
		return []any{&j.Name}
	case Nodes:
		return []any{&j.Nodes}
	case Tasks:
		return []any{&j.Tasks}
	case TasksPerNode:
		return []any{&j.TasksPerNode}
	case CPUs:
		return []any{&j.CPUs}
	case Memory:
		return []any{&j.Memory, &j.MemoryPerCPU}
	case GPUs:
		return []any{&j.GPUs, &j.GPUType}
	case Time:
		return []any{&j.Time}
	case Queue:
		return []any{&j.Queue}
	case Account:
		return []any{&j.Account}
	case Exclusive:
		return []any{&j.Exclusive}
	case After:
		return []any{&j.After}
	case Error:
		return []any{&j.Error}
	case Mail:
		return []any{&j.Mail}
	case Native:
		return []any{&j.Native}
	case Interactive:
		return []any{&j.Interactive}
	case GPUType:
		return []any{&j.GPUType}
	case Features:
		return []any{&j.Features}
	case Hosts:
		return []any{&j.Hosts}
	case NotHosts:
		return []any{&j.NotHosts}
	case AfterAny:
		return []any{&j.AfterAny}
	case AfterFailed:
		return []any{&j.AfterFailed}
	case AfterEach:
		return []any{&j.AfterEach}
	case Signal:
		return []any{&j.Warning}
	case Requeue:
		return []any{&j.Requeue}
	case MailOn:
		return []any{&j.MailOn}
	case Begin:
		return []any{&j.Begin}
	case QoS:
		return []any{&j.QoS}
	case Hold:
		return []any{&j.Hold}
	case Append:
		return []any{&j.Append}
	case Export:
		return []any{&j.Export}
	}
	return nil
}

// Clear takes the field out of a job whose target refuses it.
func (f Field) Clear(j *job.Job) {
	for _, p := range f.At(j) {
		reflect.ValueOf(p).Elem().SetZero()
	}
}
