package local

import (
	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/dialect"
	"hpcc/job/field"
)

// scripts is the dialect of jobs on this machine.
var scripts = dialect.Dialect{
	Target: job.Local, JobID: "$PPID",
	Verdicts: map[field.Field]field.Verdict{
		field.Nodes:       {Fate: field.Refused, How: "this machine is one node", When: func(j *job.Job) bool { return j.Nodes > 1 }},
		field.CPUs:        {Fate: field.Changed, How: "the task may use all CPUs of this machine", When: ignoresCPUs},
		field.Memory:      {Fate: field.Changed, Drop: true, How: "no limit on this machine"},
		field.GPUs:        {Fate: field.Changed, Drop: true, How: "the GPUs of this machine"},
		field.GPUType:     {Fate: field.Changed, Drop: true, How: "the GPUs of this machine"},
		field.Queue:       {Fate: field.Changed, Drop: true, How: thisMachine},
		field.Account:     {Fate: field.Changed, Drop: true, How: thisMachine},
		field.Exclusive:   {Fate: field.Changed, Drop: true, How: thisMachine},
		field.Features:    {Fate: field.Changed, Drop: true, How: thisMachine},
		field.Hosts:       {Fate: field.Changed, Drop: true, How: thisMachine},
		field.NotHosts:    {Fate: field.Changed, Drop: true, How: thisMachine},
		field.QoS:         {Fate: field.Changed, Drop: true, How: thisMachine},
		field.Mail:        {Fate: field.Refused, How: "hpcc sends no mail"},
		field.MailOn:      {Fate: field.Refused, How: "hpcc sends no mail"},
		field.Hold:        {Fate: field.Refused, How: noQueue},
		field.Begin:       {Fate: field.Refused, How: noQueue},
		field.Requeue:     {Fate: field.Refused, How: "jobs on this machine are not restarted"},
		field.After:       {Fate: field.Refused, How: noQueue + " in which a job could wait; submit the first job with --wait"},
		field.AfterAny:    {Fate: field.Refused, How: noQueue + " in which a job could wait; submit the first job with --wait"},
		field.AfterFailed: {Fate: field.Refused, How: noQueue + " in which a job could wait"},
		field.AfterEach:   {Fate: field.Refused, How: noQueue + " in which a job could wait"},
		field.Signal:      {Fate: field.Emulated, How: "hpcc sends it to the script"},
		field.Time:        {Fate: field.Emulated, How: "hpcc ends each task: SIGTERM, SIGKILL 30 s later"},
		field.Array:       {Fate: field.Emulated, How: "hpcc runs the tasks, one per CPU at a time"},
		field.Append:      {Fate: field.Changed, How: "the file is overwritten", When: func(j *job.Job) bool { return j.Append }},
		field.Export:      {Fate: field.Changed, How: "the script has the environment of the shell that submits it"},
	},
}

const (
	thisMachine = "jobs run on this machine only"
	noQueue     = "this machine has no queue"
)

// Describe returns the properties of this machine for other packages; see [batch.System].
func (System) Describe() *batch.Description { return &batch.Description{Dialect: &scripts} }
