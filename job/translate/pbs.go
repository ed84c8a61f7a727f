package translate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/message"
	"hpcc/job/quantity"
)

// pbsDialect is what qsub(1B) of OpenPBS, PBS Pro and Torque reads: directives
// before the first command.
var pbsDialect = dialect{
	target: job.PBS, name: "PBS", prefix: "#PBS", command: "qsub", glued: true,
	options: pbsTable, finish: pbsFinish, defaults: pbsDefaults,
}.made()

var pbsTable = append([]option{
	{"-N", 1, setWord(fName, func(j *job.Job) *string { return &j.Name })},
	{"-J -t", 1, pbsArray},
	{"-l", 1, pbsResources},
	{"-q", 1, func(r *reader, v string) error {
		queue, server, ok := strings.Cut(v, "@")
		if ok {
			r.changed("without the server %s", server)
		}
		return setWord(fQueue, func(j *job.Job) *string { return &j.Queue })(r, queue)
	}},
	{"-A", 1, setWord(fAccount, func(j *job.Job) *string { return &j.Account })},
	{"-P", 1, func(r *reader, v string) error {
		if r.t.To == job.PBS || r.job.Account != "" {
			return r.native("-P " + v)
		}
		r.changed("the project becomes the account")
		return setWord(fAccount, func(j *job.Job) *string { return &j.Account })(r, v)
	}},
	{"-o", 1, pbsOutput(fOutput)},
	{"-e", 1, pbsOutput(fError)},
	{"-j", 1, func(r *reader, v string) error {
		if v != "oe" && v != "n" && v != "eo" {
			return fmt.Errorf("%q is none of oe, eo and n", message.Short(v))
		}
		if r.join = v != "n"; v == "eo" {
			r.changed("both go into the file of the output")
		}
		return nil
	}},
	{"-k", 1, func(r *reader, v string) error {
		r.changed("the files are written where they belong, while the job runs")
		return nil
	}},
	{"-m", 1, mailLetters(map[rune]string{'b': "begin", 'e': "end", 'a': "fail"})},
	{"-M", 1, firstAddress},
	{"-W", 1, pbsAttributes},
	{"-V", 0, func(r *reader, _ string) error { r.job.Export = []string{"ALL"}; r.fills(fExport); return nil }},
	{"-v", 1, func(r *reader, v string) error { return r.environment(commaList(v)) }},
	{"-S", 1, func(r *reader, v string) error {
		r.shell = strings.Fields(strings.Split(v, ",")[0])
		if len(r.shell) > 0 {
			r.shell[0], _, _ = strings.Cut(r.shell[0], "@")
		}
		return nil
	}},
	{"-r", 1, requeue},
	{"-a", 1, dateTime},
	{"-h", 0, setFlag(fHold, func(j *job.Job) { j.Hold = true })},
	{"-I", 0, setFlag(fInteractive, func(j *job.Job) { j.Interactive = true })},
	{"-d -w", 1, func(r *reader, v string) error { return r.directory(v) }}, // Torque's
	{"-z -f -X -x", 0, outside},
	{"-C", 1, refuse("hpcc reads directives that begin with #PBS")},
}, natives(1, "-c -G -p -R -u -L -T"))

// pbsArray reads A-B[:S][%N].
func pbsArray(r *reader, v string) (err error) {
	r.job.Array, err = job.ParseArray(v)
	r.fills(fArray)
	return err
}

// pbsUnits are those of pbs_resources(7B): bytes, and powers of 1024.
var pbsUnits = quantity.Units{"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "Gb": 1 << 30, "Mb": 1 << 20}

// pbsResources reads -l: select and place, or a list of NAME=VALUE.
func pbsResources(r *reader, v string) error {
	if s, ok := strings.CutPrefix(v, "select="); ok {
		return pbsSelect(r, s)
	}
	if s, ok := strings.CutPrefix(v, "place="); ok {
		return pbsPlace(r, s)
	}
	var odd []string
	for _, item := range listOf(v, ",") {
		name, value, _ := strings.Cut(item, "=")
		err := error(nil)
		if read := pbsResource[name]; read != nil {
			err = read(r, value)
		} else {
			err = r.native("-l " + item)
		}
		if err != nil {
			odd = append(odd, item+": "+err.Error())
		}
	}
	switch {
	case len(odd) == 0:
		return nil
	case len(r.row.fields) == 0:
		return fmt.Errorf("%s", strings.Join(odd, "; "))
	}
	r.changed("without %s", strings.Join(odd, "; "))
	return nil
}

var pbsResource = map[string]func(r *reader, v string) error{
	"walltime": func(r *reader, v string) (err error) {
		r.job.Time, err = quantity.Seconds(v)
		r.fills(fTime)
		return err
	},
	"nodes":  torqueNodes,
	"select": pbsSelect,
	"place":  pbsPlace,
	"ncpus":  setNumber(fCPUs, func(j *job.Job) *int { return &j.CPUs }),
	"ngpus":  setNumber(fGPUs, func(j *job.Job) *int { return &j.GPUs }),
	"gpus":   setNumber(fGPUs, func(j *job.Job) *int { return &j.GPUs }),
	"mem": func(r *reader, v string) (err error) {
		r.n.perJob, err = quantity.Size(v, pbsUnits)
		r.fills(fMemory)
		return err
	},
	"vmem": func(r *reader, v string) (err error) {
		r.n.perJob, err = quantity.Size(v, pbsUnits)
		r.fills(fMemory)
		return err
	},
	"pmem": func(r *reader, v string) (err error) {
		r.n.perTask, err = quantity.Size(v, pbsUnits)
		r.fills(fMemory)
		return err
	},
	"pvmem": func(r *reader, v string) (err error) {
		r.n.perTask, err = quantity.Size(v, pbsUnits)
		r.fills(fMemory)
		return err
	},
}

// pbsSelect reads N:ncpus=C:mpiprocs=P:mem=M:ngpus=G. Chunks of several kinds
// are no job of equal nodes.
func pbsSelect(r *reader, v string) (err error) {
	chunks := strings.Split(v, "+")
	for _, c := range chunks[1:] {
		if strings.TrimLeft(c, "0123456789") != strings.TrimLeft(chunks[0], "0123456789") {
			return errors.New("hpcc has nodes that are all alike, not chunks of several kinds")
		}
	}
	total := 0
	for _, c := range chunks {
		first, _, _ := strings.Cut(c, ":")
		n := 1
		if strings.Trim(first, "0123456789") == "" && first != "" {
			if n, err = r.number(first, ""); err != nil {
				return err
			}
		}
		total += n
	}
	r.n.chunks, r.n.chunkCPUs, r.n.chunkProcesses = total, 0, 0
	r.fills(fNodes, fTasks, fTasksPerNode)
	for _, item := range strings.Split(strings.TrimLeft(chunks[0], "0123456789"), ":") {
		if err := pbsChunkItem(r, item); err != nil {
			r.changed("without %s: %v", message.Short(item), err)
		}
	}
	return nil
}

// pbsChunkItem reads one resource of a chunk.
func pbsChunkItem(r *reader, item string) (err error) {
	name, value, ok := strings.Cut(item, "=")
	switch {
	case item == "":
	case !ok:
		return fmt.Errorf("not of the form NAME=VALUE")
	case name == "ncpus":
		r.n.chunkCPUs, err = r.number(value, "")
		r.fills(fCPUs)
	case name == "mpiprocs":
		r.n.chunkProcesses, err = r.number(value, "")
	case name == "ompthreads":
		r.job.CPUs, err = r.number(value, "")
		r.fills(fCPUs)
	case name == "mem" || name == "vmem":
		r.job.Memory, err = quantity.Size(value, pbsUnits)
		r.fills(fMemory)
	case name == "ngpus":
		r.job.GPUs, err = r.number(value, "")
		r.fills(fGPUs)
	case name == "host" && hostName().MatchString(value):
		r.job.Hosts = []string{value}
		r.fills(fHosts)
	case value == "true" || value == "True" || value == "TRUE":
		r.job.Features = append(r.job.Features[:len(r.job.Features):len(r.job.Features)], name)
		r.fills(fFeatures)
	default:
		return fmt.Errorf("only this site's PBS has it")
	}
	return err
}

// torqueNodes reads nodes=N:ppn=P:gpus=G:feature and nodes=host1.
func torqueNodes(r *reader, v string) (err error) {
	if strings.Contains(v, "+") {
		return errors.New("hpcc has nodes that are all alike, not several kinds")
	}
	items := strings.Split(v, ":")
	r.job.Nodes = 1
	r.fills(fNodes)
	if strings.Trim(items[0], "0123456789") == "" {
		if r.job.Nodes, err = r.number(items[0], ""); err != nil {
			return err
		}
	} else {
		r.job.Hosts = []string{items[0]}
		r.fills(fHosts)
	}
	for _, item := range items[1:] {
		name, value, ok := strings.Cut(item, "=")
		switch {
		case name == "ppn":
			r.job.TasksPerNode, err = r.number(value, "")
			r.fills(fTasksPerNode)
		case name == "gpus":
			r.job.GPUs, err = r.number(value, "")
			r.fills(fGPUs)
		case !ok:
			r.job.Features = append(r.job.Features[:len(r.job.Features):len(r.job.Features)], item)
			r.fills(fFeatures)
		default:
			err = fmt.Errorf("%s is not known", message.Short(item))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pbsPlace reads scatter, pack, free, excl, exclhost, shared.
func pbsPlace(r *reader, v string) error {
	for _, w := range listOf(v, ":") {
		switch w {
		case "excl", "exclhost":
			r.job.Exclusive = true
			r.fills(fExclusive)
		case "scatter":
			r.scatter = true
			r.fills(fNodes)
		case "pack":
			r.job.Nodes = 1
			r.fills(fNodes)
		case "free", "shared":
		default:
			return fmt.Errorf("hpcc does not know the placement %s", message.Short(w))
		}
	}
	return nil
}

// pbsAttributes reads -W depend=…,block=true,….
func pbsAttributes(r *reader, v string) error {
	name, value, _ := strings.Cut(v, "=")
	switch name {
	case "block":
		return outside(r, v)
	case "depend":
	default:
		return r.native("-W " + v)
	}
	for _, part := range strings.Split(value, ",") {
		kind, ids, _ := strings.Cut(part, ":")
		if kind == "before" || kind == "after" || kind == "on" || strings.HasPrefix(kind, "before") {
			return r.native("-W " + v)
		}
		list := listOf(ids, ":")
		for i, id := range list {
			if n, server, ok := strings.Cut(id, "."); ok && r.t.To != job.PBS && strings.Trim(n, "0123456789") == "" {
				list[i] = n
				r.changed("%s without the server %s", n, server)
			}
		}
		if err := r.after(strings.TrimSuffix(kind, "array"), list); err != nil {
			return err
		}
	}
	return nil
}

var pbsLetters = pattern{sign: "^", letters: []string{"^array_index^", "{task}", "$PBS_JOBID", "{job}", "${PBS_JOBID}", "{job}"}}

// pbsOutput reads [HOST:]FILE; a directory gets the file's usual name.
func pbsOutput(f field) func(*reader, string) error {
	return func(r *reader, v string) error {
		if host, file, ok := strings.Cut(v, ":"); ok && !strings.Contains(host, "/") {
			v = file
			r.changed("without the host %s", host)
		}
		if v == "." || strings.HasSuffix(v, "/") {
			r.setFile(f, r.inside(v, f))
			return nil
		}
		return r.output(v, f, pbsLetters)
	}
}

// pbsFinish turns chunks into nodes, or into processes where they are of one
// processor and may lie anywhere.
func pbsFinish(r *reader) {
	j, n := r.job, &r.n
	if n.chunks > 0 {
		pbsChunks(r)
	} else if j.TasksPerNode > 0 && j.Nodes > 0 {
		j.Tasks = j.Nodes * j.TasksPerNode
	}
	if n.perJob > 0 && j.Memory == 0 {
		j.Memory = n.perJob / int64(max(j.Nodes, 1))
		r.tell(fMemory, func(row *Row) error {
			if j.Nodes > 1 {
				row.become(Changed, fmt.Sprintf("of the whole job: %s on each of %d nodes", quantity.FormatMemory(j.Memory), j.Nodes))
			}
			return nil
		})
	}
	if n.perTask > 0 && j.Memory == 0 {
		j.MemoryPerCPU = (n.perTask + int64(max(j.CPUs, 1)) - 1) / int64(max(j.CPUs, 1))
		r.tell(fMemory, func(row *Row) error {
			row.become(Changed, fmt.Sprintf("%s for each processor", quantity.FormatMemory(j.MemoryPerCPU)))
			return nil
		})
	}
}

func pbsChunks(r *reader) {
	j, n := r.job, &r.n
	processes, cpus := max(n.chunkProcesses, 1), max(n.chunkCPUs, 1)
	if j.CPUs == 0 && (n.chunkCPUs > 0 || n.chunkProcesses > 0) {
		j.CPUs = max(cpus/processes, 1)
	}
	if j.CPUs == 1 && n.chunkCPUs <= processes {
		j.CPUs = 0
	}
	how := ""
	switch {
	case r.scatter || n.chunks == 1 || processes > 1 || cpus > 1 || j.GPUs > 0 || j.Exclusive:
		j.Nodes, j.TasksPerNode, j.Tasks = n.chunks, processes, n.chunks*processes
		if !r.scatter && n.chunks > 1 {
			how = "each chunk becomes a node; PBS may put several on one"
		}
	default:
		j.Tasks = n.chunks
		if j.Memory > 0 {
			j.MemoryPerCPU, j.Memory = j.Memory, 0
		}
	}
	if how != "" {
		r.tell(fTasksPerNode, func(row *Row) error { row.become(Changed, how); return nil })
	}
}

// pbsDefaults are PBS's where nothing is said. Jobs start at home; files go to
// where the job was handed in.
func pbsDefaults(r *reader) {
	j := r.job
	if !slices.ContainsFunc(r.t.Rows, func(row *Row) bool { return slices.Contains(row.fields, fDir) && row.Fate != Refused }) {
		j.Script.Start = r.source.Home
		r.add(0, "(directory)").become(Emulated, "the script starts in "+r.source.Home+", as PBS has it; PBS_O_WORKDIR is "+r.source.Dir)
	}
	r.outputDefaults("{name}.o{job}", "{name}.e{job}", ".{task}")
	r.exportDefault("-V")
	s := j.Script
	switch {
	case len(r.shell) > 0:
		s.Shell = r.shell
	case len(s.Shell) == 0:
		s.Shell = []string{"/bin/bash"}
		r.add(1, "(no -S)").become(Changed, "bash runs it; PBS would take the user's login shell")
	}
}
