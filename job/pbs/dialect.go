package pbs

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/job/quantity"
	"hpcc/text"
)

// scripts is the dialect of qsub(1B) of OpenPBS, PBS Pro and Torque: directives before the
// first command.
var scripts = dialect.Dialect{
	Target: target, Title: "PBS", Prefix: "#PBS", Command: "qsub", Indented: true, ExactArgv: true,
	Options: qsubOptions, Resources: resources, Finish: finish, Defaults: defaults,
	FileName: true, Commands: []string{"qstat", "qdel", "qalter", "qhold", "qrls", "qselect", "qmove", "pbsnodes",
		"pbsdsh", "tracejob", "checkjob", "showq"}, LocalDirs: []string{"PBS_JOBFS"},
	Variables: variables, VariableText: `\bPBS_[A-Z][A-Z0-9_]*\b`,
	Verdicts: map[field.Field]field.Verdict{
		field.QoS:       {Fate: field.Refused, How: "PBS has no QoS"},
		field.GPUType:   {Fate: field.Refused, How: "each site has its own names for GPU types"},
		field.NotHosts:  {Fate: field.Refused, How: "PBS cannot exclude hosts"},
		field.AfterEach: {Fate: field.Refused, How: "PBS waits for full arrays"},
		field.Signal:    {Fate: field.Emulated, How: "hpcc sends it to the script"},
		field.Hosts: {Fate: field.Refused, How: "PBS would place every chunk on the same host",
			When: func(j *job.Job) bool { return len(j.Hosts) > 1 }},
		field.Time:   {Fate: field.Emulated, How: "hpcc ends each task after a warning; walltime is the fallback"},
		field.Append: {Fate: field.Changed, How: "hpcc overwrites the file", When: func(j *job.Job) bool { return j.Append }},
	},
	Shape: shape, NoExports: true,
	JobID: "${PBS_JOBID%%[.[]*}", Hosts: hostList, OwnsIndices: ownsIndices,
}

// shape gives each node the same number of processes, and arrays a setting that PBS accepts. Without
// nodes, a chunk is one process.
func shape(j *job.Job, rows field.Rows) {
	if j.Requeue == "no" && !j.Array.IsZero() {
		j.Requeue = ""
		rows.SetFate(field.Changed, "PBS can requeue every array, and refuses -r n for arrays", field.Requeue)
	}
	if anywhere(j) && j.GPUs > 0 {
		j.Nodes = 1
		rows.SetFate(field.Changed, "on one node, because PBS would give each process, on any node, the GPUs of a node", field.Tasks, field.GPUs)
	}
	if _, _, mem := chunks(j); !anywhere(j) {
		dialect.NodeMemory(j, rows)
	} else if mem > 0 {
		rows.SetFate(field.Changed, quantity.FormatMemory(mem)+" for each process, which PBS places on any node", field.Memory)
	}
	if j.Nodes > 1 && j.Tasks > 0 && j.Tasks != j.Nodes*j.ProcessesPerNode() {
		j.TasksPerNode = j.ProcessesPerNode()
		j.Tasks = j.Nodes * j.TasksPerNode
		rows.SetFate(field.Changed, fmt.Sprintf("PBS gives each node the same number: %d", j.TasksPerNode), field.Tasks)
	}
}

// qsubOptions are the options of qsub(1B).
var qsubOptions = dialect.Options{
	Glued: true,
	Values: map[string]dialect.Setter{
		"-N":    dialect.Set(field.Name),
		"-J -t": dialect.Set(field.Array),
		"-l":    readResources,
		"-q": func(r *dialect.Reader, v string) error {
			queue, server, ok := strings.Cut(v, "@")
			if ok {
				r.Changed("without the server %s", server)
			}
			return dialect.Set(field.Queue)(r, queue)
		},
		"-A": dialect.Set(field.Account),
		"-P": func(r *dialect.Reader, v string) error {
			if r.Own() || r.Job.Account != "" {
				return r.Native("-P " + v)
			}
			r.Changed("the project becomes the account")
			return dialect.Set(field.Account)(r, v)
		},
		"-o": readOutput(field.Output),
		"-e": readOutput(field.Error),
		"-j": func(r *dialect.Reader, v string) error {
			if v != "oe" && v != "n" && v != "eo" {
				return fmt.Errorf("%q is not oe, eo or n", text.Short(v))
			}
			if r.Join = v != "n"; v == "eo" {
				r.Changed("both streams go to the output file")
			}
			return nil
		},
		"-k": func(r *dialect.Reader, v string) error {
			r.Changed("the files are written in place while the job runs")
			return nil
		},
		"-m": (*dialect.Reader).MailLetters,
		"-M": (*dialect.Reader).FirstAddress,
		"-W": readAttributes,
		"-v": func(r *dialect.Reader, v string) error { return r.Environment(dialect.CommaList(v)) },
		"-S": func(r *dialect.Reader, v string) error {
			r.Shell = strings.Fields(strings.Split(v, ",")[0])
			if len(r.Shell) > 0 {
				r.Shell[0], _, _ = strings.Cut(r.Shell[0], "@")
			}
			return nil
		},
		"-r":                   (*dialect.Reader).Requeue,
		"-a":                   readBegin,
		"-d -w":                (*dialect.Reader).Directory, // Torque's
		"-C":                   dialect.Refuse("hpcc only reads directives that begin with #PBS"),
		"-c -G -p -R -u -L -T": nil,
	},
	Flags: map[string]dialect.Setter{
		"-V":          (*dialect.Reader).ExportAllVariables,
		"-h":          dialect.Set(field.Hold),
		"-I":          dialect.Set(field.Interactive),
		"-z -f -X -x": (*dialect.Reader).Outside,
	},
}

// units are those of pbs_resources(7B): bytes, and powers of 1024.
var units = quantity.Units{"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "k": 1 << 10,
	"m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30,
	"T": 1 << 40, "Gb": 1 << 30, "Mb": 1 << 20}

// readResources parses -l, a list of NAME=VALUE. The list may have select and place at any position.
func readResources(r *dialect.Reader, v string) error {
	if name, value, _ := strings.Cut(v, "="); (name == "select" || name == "place") && !strings.Contains(v, ",") {
		return r.Resources[name](r, value)
	}
	return r.ResourceList(v, func(name, value, item string) error {
		if read := r.Resources[name]; read != nil {
			return read(r, value)
		}
		if !r.Own() {
			return errors.New("a resource of the site that hpcc does not know")
		}
		return r.Native("-l " + item)
	})
}

// resources are the resources of pbs_resources(7B) and of Torque that hpcc supports.
var resources = map[string]dialect.Setter{
	"walltime": readTime,
	"wd": func(r *dialect.Reader, _ string) error { // of sites in Australia
		r.Job.Dir = r.Dir
		r.Row.Fills(field.Dir)
		if r.Own() {
			return r.Native("-l wd")
		}
		return nil
	},
	"procs": dialect.Set(field.Tasks), // of Torque, on any nodes
	"naccesspolicy": func(r *dialect.Reader, v string) error { // of Moab
		if v != "singlejob" {
			return r.Native("-l naccesspolicy=" + v)
		}
		return dialect.Set(field.Exclusive)(r, v)
	},
	"cput":    dialect.Refuse("it limits CPU time; add --time for the duration"),
	"pcput":   dialect.Refuse("it limits CPU time; add --time for the duration"),
	"qos":     ofMoab(field.QoS),
	"feature": ofMoab(field.Features),
	"nodes":   readNodes,
	"select":  readSelect,
	"place":   readPlace,
	"ncpus":   dialect.Set(field.CPUs),
	"ngpus":   dialect.Set(field.GPUs),
	"gpus":    dialect.Set(field.GPUs),
	"mem":     readMemory,
	"vmem":    readMemory,
	"pmem":    readTaskMemory,
	"pvmem":   readTaskMemory,
}

// readMemory parses the memory of the full job.
func readMemory(r *dialect.Reader, v string) (err error) {
	r.N.PerJob, err = quantity.Size(v, units)
	r.Row.Fills(field.Memory)
	return err
}

// readTaskMemory parses the memory of each process.
func readTaskMemory(r *dialect.Reader, v string) (err error) {
	r.N.PerTask, err = quantity.Size(v, units)
	r.Row.Fills(field.Memory)
	return err
}

// readTime parses [[[D:]H:]M:]S. Torque accepts days.
func readTime(r *dialect.Reader, v string) error {
	r.Row.Fills(field.Time)
	days, rest, found := "", v, strings.Count(v, ":") == 3
	if found {
		days, rest, _ = strings.Cut(v, ":")
	}
	d, err := quantity.Clock(rest, time.Second, time.Minute, time.Hour)
	if n, derr := strconv.ParseUint(days, 10, 16); found && derr == nil && n <= 3650 {
		d += time.Duration(n) * 24 * time.Hour
		r.Row.Become("", "days, hours, minutes and seconds")
	} else if found || (err == nil && d == 0) {
		err = fmt.Errorf("%q is not a time", text.Short(v))
	}
	r.Job.Time = d
	return err
}

// ofMoab returns the Setter of a resource of the scheduler Moab, which PBS itself does not know.
func ofMoab(f field.Field) dialect.Setter {
	return func(r *dialect.Reader, v string) error {
		if r.Own() {
			return r.Native("-l " + map[field.Field]string{field.QoS: "qos=", field.Features: "feature="}[f] + v)
		}
		switch p := f.At(r.Job)[0].(type) {
		case *string:
			*p = v
		case *[]string:
			*p = append(slices.Clip(*p), v)
		}
		r.Row.Fills(f)
		return nil
	}
}

// readSelect parses N:ncpus=C:mpiprocs=P:mem=M:ngpus=G. It refuses different chunks, because all nodes of a
// job are equal.
func readSelect(r *dialect.Reader, v string) (err error) {
	chunks := strings.Split(v, "+")
	for _, c := range chunks[1:] {
		if strings.TrimLeft(c, "0123456789") != strings.TrimLeft(chunks[0], "0123456789") {
			return errors.New("hpcc does not support different chunks in one job")
		}
	}
	total := 0
	for _, c := range chunks {
		first, _, _ := strings.Cut(c, ":")
		n := 1
		if !strings.Contains(first, "=") {
			if n, err = r.Number(first, ""); err != nil {
				return err
			}
		}
		total += n
	}
	r.N.Chunks, r.N.ChunkCPUs, r.N.ChunkProcesses = total, 0, 0
	r.Row.Fills(field.Nodes, field.Tasks, field.TasksPerNode)
	for _, item := range strings.Split(strings.TrimLeft(chunks[0], "0123456789"), ":") {
		if err := r.Try(func() error { return readChunkItem(r, item) }); err != nil {
			r.Changed("without %s: %v", text.Short(item), err)
		}
	}
	return nil
}

// readChunkItem parses one resource of a chunk.
func readChunkItem(r *dialect.Reader, item string) (err error) {
	name, value, ok := strings.Cut(item, "=")
	switch {
	case item == "":
	case !ok:
		return fmt.Errorf("not of the form NAME=VALUE")
	case name == "ncpus":
		r.N.ChunkCPUs, err = r.Number(value, "")
		r.Row.Fills(field.CPUs)
	case name == "mpiprocs":
		r.N.ChunkProcesses, err = r.Number(value, "")
	case name == "ompthreads":
		r.Job.CPUs, err = r.Number(value, "")
		r.Row.Fills(field.CPUs)
	case name == "mem" || name == "vmem":
		r.Job.Memory, err = quantity.Size(value, units)
		r.Row.Fills(field.Memory)
	case name == "ngpus":
		r.Job.GPUs, err = r.Number(value, "")
		r.Row.Fills(field.GPUs)
	case name == "host" && dialect.HostName().MatchString(value):
		r.Job.Hosts = []string{value}
		r.Row.Fills(field.Hosts)
	case value == "true" || value == "True" || value == "TRUE":
		r.Job.Features = append(slices.Clip(r.Job.Features), name)
		r.Row.Fills(field.Features)
	case r.Own() && job.WordText().MatchString(item): // the site's
		r.Job.Features = append(slices.Clip(r.Job.Features), item)
		r.Row.Fills(field.Features)
	case name == "gpu_type" || name == "gpu_model":
		r.Job.GPUType = value
		r.Row.Fills(field.GPUType)
	default:
		return fmt.Errorf("hpcc does not know this resource")
	}
	return err
}

// readNodes parses nodes=N:ppn=P:gpus=G:feature and nodes=host1.
func readNodes(r *dialect.Reader, v string) (err error) {
	if strings.Contains(v, "+") {
		return errors.New("hpcc does not support different nodes in one job")
	}
	items := strings.Split(v, ":")
	r.Job.Nodes = 1
	r.Row.Fills(field.Nodes)
	if strings.Trim(items[0], "0123456789") == "" {
		if r.Job.Nodes, err = r.Number(items[0], ""); err != nil {
			return err
		}
	} else {
		r.Job.Hosts = []string{items[0]}
		r.Row.Fills(field.Hosts)
	}
	for _, item := range items[1:] {
		name, value, ok := strings.Cut(item, "=")
		switch {
		case name == "ppn":
			r.Job.TasksPerNode, err = r.Number(value, "")
			r.Row.Fills(field.TasksPerNode)
		case name == "gpus":
			r.Job.GPUs, err = r.Number(value, "")
			r.Row.Fills(field.GPUs)
		case !ok:
			r.Job.Features = append(slices.Clip(r.Job.Features), item)
			r.Row.Fills(field.Features)
		default:
			err = fmt.Errorf("hpcc does not know %s", text.Short(item))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readPlace parses a list of scatter, pack, free, excl, exclhost and shared.
func readPlace(r *dialect.Reader, v string) error {
	for _, w := range dialect.List(v, ":") {
		switch w {
		case "excl", "exclhost":
			r.Job.Exclusive = true
			r.Row.Fills(field.Exclusive)
		case "scatter":
			r.N.Scatter = true
			r.Row.Fills(field.Nodes)
		case "pack":
			r.Job.Nodes = 1
			r.Row.Fills(field.Nodes)
		case "free", "shared":
		default:
			return fmt.Errorf("hpcc does not know the placement %s", text.Short(w))
		}
	}
	return nil
}

// readAttributes parses -W depend=… and -W block=…. Other attributes stay native.
func readAttributes(r *dialect.Reader, v string) error {
	name, value, _ := strings.Cut(v, "=")
	switch name {
	case "block":
		return (*dialect.Reader).Outside(r, v)
	case "depend":
	default:
		return r.Native("-W " + v)
	}
	for _, part := range strings.Split(value, ",") {
		kind, ids, _ := strings.Cut(part, ":")
		if kind == "before" || kind == "after" || kind == "on" || strings.HasPrefix(kind, "before") {
			return r.Native("-W " + v)
		}
		list := dialect.List(ids, ":")
		for i, id := range list {
			if n, server, ok := strings.Cut(id, "."); ok && !r.Own() && strings.Trim(n, "0123456789") == "" {
				list[i] = n
				r.Changed("%s without the server %s", n, server)
			}
		}
		if err := r.After(strings.TrimSuffix(kind, "array"), list); err != nil {
			return err
		}
	}
	return nil
}

var letters = dialect.Pattern{Sign: "^", Letters: []string{"^array_index^", "{task}", "$PBS_JOBID", "{job}", "${PBS_JOBID}", "{job}"}}

// readOutput parses [HOST:]FILE. In a directory, the file gets the default name.
func readOutput(f field.Field) func(*dialect.Reader, string) error {
	return func(r *dialect.Reader, v string) error {
		if host, file, ok := strings.Cut(v, ":"); ok && !strings.Contains(host, "/") {
			v = file
			r.Changed("without the host %s", host)
		}
		if v == "." || strings.HasSuffix(v, "/") || r.IsDir(v) {
			r.SetFile(f, r.Inside(v, f))
			return nil
		}
		return r.Output(v, f, letters)
	}
}

// finish converts chunks to nodes, or to processes if each chunk has one processor and may be on any node.
func finish(r *dialect.Reader) {
	j, n := r.Job, &r.N
	if n.Chunks > 0 {
		finishChunks(r)
	} else if j.TasksPerNode > 0 && j.Nodes > 0 {
		j.Tasks = j.Nodes * j.TasksPerNode
	}
	if n.PerJob > 0 && j.Memory == 0 {
		j.Memory = n.PerJob / int64(max(j.Nodes, 1))
		if j.Nodes > 1 {
			r.Rows.SetFate(field.Changed, fmt.Sprintf("memory of the full job: %s on each of %d nodes",
				quantity.FormatMemory(j.Memory), j.Nodes), field.Memory)
		}
	}
	if n.PerTask > 0 && j.Memory == 0 {
		j.MemoryPerCPU = (n.PerTask + int64(max(j.CPUs, 1)) - 1) / int64(max(j.CPUs, 1))
		r.Rows.SetFate(field.Changed, fmt.Sprintf("%s for each processor", quantity.FormatMemory(j.MemoryPerCPU)), field.Memory)
	}
}

// finishChunks converts the chunks of select.
func finishChunks(r *dialect.Reader) {
	j, n := r.Job, &r.N
	processes, cpus := max(n.ChunkProcesses, 1), max(n.ChunkCPUs, 1)
	if j.CPUs == 0 && (n.ChunkCPUs > 0 || n.ChunkProcesses > 0) {
		j.CPUs = max(cpus/processes, 1)
	}
	if j.CPUs == 1 && n.ChunkCPUs <= processes {
		j.CPUs = 0
	}
	if n.ChunkCPUs == 0 && j.CPUs == 0 {
		r.Rows.SetFate(field.Changed, "each process gets one CPU, because select has no ncpus; a site may set another default "+
			"for chunks, such as a full node", field.TasksPerNode)
	}
	how := ""
	switch {
	case r.N.Scatter || n.Chunks == 1 || processes > 1 || cpus > 1 || j.GPUs > 0 || j.Exclusive:
		j.Nodes, j.TasksPerNode, j.Tasks = n.Chunks, processes, n.Chunks*processes
		if !r.N.Scatter && n.Chunks > 1 {
			how = "each chunk becomes a node; PBS may place several chunks on one node"
		}
	default:
		j.Tasks = n.Chunks
		if j.Memory > 0 {
			j.MemoryPerCPU, j.Memory = j.Memory, 0
		}
	}
	if how != "" {
		r.Rows.SetFate(field.Changed, how, field.TasksPerNode)
	}
}

// readBegin parses hhmm and the forms of [dialect.Reader.DateTime].
func readBegin(r *dialect.Reader, v string) error {
	if len(v) == 4 && strings.Trim(v, "0123456789") == "" {
		r.Row.Fills(field.Begin)
		r.Job.Begin = v[:2] + ":" + v[2:]
		return nil
	}
	return r.DateTime(v)
}

// defaults sets PBS's defaults. Jobs start in the home directory; output files go to the submit directory.
func defaults(r *dialect.Reader) {
	s := r.Job.Script
	if !r.DirSet() {
		s.Start = r.Home
		r.Add(0, "(directory)").Become(field.Emulated, "the script starts in "+r.Home+", as under PBS; PBS_O_WORKDIR is "+r.Dir)
	}
	r.OutputDefaults()
	r.ExportNone("-V")
	switch {
	case len(r.Shell) > 0:
		s.Shell = r.Shell
	case len(s.Shell) == 0:
		s.Shell = []string{"/bin/bash"}
		r.Add(1, "(no -S)").Become(field.Changed, "bash runs the script; PBS would use the user's login shell")
	}
}
