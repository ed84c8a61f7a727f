package translate

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/gridengine"
	"hpcc/job/message"
	"hpcc/job/quantity"
)

// gridEngineDialect is what qsub(1) of Grid Engine reads: directives in the
// whole file, long options with one dash, values as words of their own.
var gridEngineDialect = dialect{
	target: job.GridEngine, name: "Grid Engine", prefix: "#$", command: "qsub", anywhere: true,
	options: gridEngineTable, finish: gridEngineFinish, defaults: gridEngineDefaults,
}.made()

var gridEngineTable = append([]option{
	{"-N", 1, setWord(fName, func(j *job.Job) *string { return &j.Name })},
	{"-t", 1, gridEngineArray},
	{"-tc", 1, func(r *reader, v string) (err error) { r.limit, err = r.number(v, ""); r.fills(fArray); return err }},
	{"-pe", 2, gridEngineSlots},
	{"-l", 1, gridEngineResources},
	{"-q", 1, gridEngineQueues},
	{"-P", 1, setWord(fAccount, func(j *job.Job) *string { return &j.Account })},
	{"-o", 1, gridEngineOutput(fOutput)},
	{"-e", 1, gridEngineOutput(fError)},
	{"-j", 1, func(r *reader, v string) (err error) { r.join, err = yes(v); return err }},
	{"-cwd", 0, func(r *reader, _ string) error { r.job.Dir = r.source.Dir; r.fills(fDir); return nil }},
	{"-wd", 1, func(r *reader, v string) error { return r.directory(v) }},
	{"-S", 1, func(r *reader, v string) error { r.shell = strings.Fields(v); return nil }},
	{"-V", 0, func(r *reader, _ string) error { r.job.Export = []string{"ALL"}; r.fills(fExport); return nil }},
	{"-v", 1, func(r *reader, v string) error { return r.environment(commaList(v)) }},
	{"-m", 1, mailLetters(map[rune]string{'b': "begin", 'e': "end", 'a': "fail"})},
	{"-M", 1, firstAddress},
	{"-hold_jid", 1, func(r *reader, v string) error { return r.waitsFor("afterany", v) }},
	{"-hold_jid_ad", 1, func(r *reader, v string) error {
		r.changed("the tasks before it must have succeeded; Grid Engine only waits for their end")
		return r.waitsFor("aftercorr", v)
	}},
	{"-r", 1, requeue},
	{"-notify", 0, func(r *reader, _ string) error {
		if r.t.To == job.GridEngine {
			return r.native("-notify")
		}
		r.job.Warning = job.Warning{Signal: "USR2", Lead: time.Minute}
		r.fills(fSignal)
		return nil
	}},
	{"-a", 1, dateTime},
	{"-h", 0, setFlag(fHold, func(j *job.Job) { j.Hold = true })},
	{"-b", 1, func(r *reader, v string) error { _, err := yes(v); return err }},
	{"-sync -w -now", 1, outside},
	{"-terse -verify", 0, outside},
	{"-i", 1, refuse("hpcc gives jobs nothing to read; redirect in the script: program < file")},
	{"-@ -jsv -C", 1, refuse("hpcc does not read options of other files; write them into the script")},
	{"-clear", 0, refuse("hpcc does not know the options that it would take back")},
}, natives(1, "-A -ac -ar -binding -bgp -c -ckpt -cmdname -dc -display -dl -js -masterq -masterl -mbind -p -pty -R -rou -sc -shell -si -tcon -xdv -xd -xd_run_as_image_user -par -umask"),
	natives(0, "-soft -hard -nostdin -noshell -adds -mods -clearp"))

func yes(v string) (bool, error) {
	switch v {
	case "y", "yes":
		return true, nil
	case "n", "no":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither y nor n", message.Short(v))
}

// gridEngineArray reads a-b:s. qsub takes 1,4,7 for 1-7:3 in silence, other
// lists it refuses; hpcc refuses both.
func gridEngineArray(r *reader, v string) error {
	if strings.ContainsAny(v, ",%") {
		return errors.New("qsub takes one range; of a list it would make another")
	}
	a, err := job.ParseArray(v)
	if err != nil {
		return err
	}
	if n, _ := a.Nth(1); n == 0 {
		return fmt.Errorf("0 is no index of Grid Engine's; they begin at 1")
	}
	r.job.Array = a
	r.fills(fArray)
	return nil
}

// gridEngineSlots reads -pe NAME N[-M].
func gridEngineSlots(r *reader, v string) (err error) {
	name, count, _ := strings.Cut(v, " ")
	if r.n.slots, err = r.number(count, "-,"); err != nil {
		return err
	}
	r.perCPU = gridengine.Threaded().MatchString(name)
	if r.t.To == job.GridEngine {
		r.job.Native = append(r.job.Native[:len(r.job.Native):len(r.job.Native)], "-pe "+v)
		r.fills(fNative)
	}
	if r.perCPU {
		r.changed("the slots of %s, by its name, are processors of one process", name)
		r.fills(fCPUs)
	} else {
		r.changed("the slots of %s, by its name, are processes; where they lie is not said", name)
		r.fills(fTasks)
	}
	return nil
}

// gridEngineUnits are those of sge_types(1): capitals are powers of 1024.
var gridEngineUnits = quantity.Units{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "k": 1000, "m": 1e6, "g": 1e9, "t": 1e12}

// gridEngineResources reads -l NAME=VALUE,…; each one that cannot be followed
// is told.
func gridEngineResources(r *reader, v string) error {
	var odd []string
	for _, item := range listOf(v, ",") {
		name, value, _ := strings.Cut(item, "=")
		read := gridEngineResource[name]
		err := error(nil)
		switch {
		case r.t.To == job.GridEngine && name != "h_rt": // the site's names are known there
			err = r.native("-l " + item)
		case read != nil:
			err = read(r, value)
		default:
			err = fmt.Errorf("only the site knows what it is")
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

var gridEngineResource = map[string]func(r *reader, v string) error{
	"h_rt": func(r *reader, v string) (err error) {
		r.job.Time, err = quantity.Seconds(v)
		r.fills(fTime)
		return err
	},
	"s_rt": func(r *reader, v string) error {
		d, err := quantity.Seconds(v)
		r.n.soft = int64(d / time.Second)
		r.fills(fSignal)
		return err
	},
	"h_vmem": gridEngineMemory(true), "s_vmem": gridEngineMemory(true), "h_rss": gridEngineMemory(true), "m_mem_free": gridEngineMemory(false),
	"mem_free": gridEngineMemory(false), "virtual_free": gridEngineMemory(false), "mem": gridEngineMemory(false), "memory": gridEngineMemory(false), "h_data": gridEngineMemory(true), "mem_req": gridEngineMemory(false), "ram": gridEngineMemory(false),
	"gpu": gridEngineGPUs, "gpus": gridEngineGPUs, "ngpus": gridEngineGPUs, "gpu_card": gridEngineGPUs, "cuda": gridEngineGPUs,
	"exclusive": gridEngineAlone, "excl": gridEngineAlone,
	"hostname": gridEngineHost, "h": gridEngineHost,
}

// gridEngineMemory reads memory of a slot. A limit of address space is taken
// for memory.
func gridEngineMemory(limit bool) func(*reader, string) error {
	return func(r *reader, v string) error {
		n, err := quantity.Size(v, gridEngineUnits)
		if err != nil {
			return err
		}
		if limit {
			r.changed("a limit of each slot, of address space, becomes %s of memory for each processor", quantity.FormatMemory(n))
		}
		r.job.MemoryPerCPU = max(r.job.MemoryPerCPU, n)
		r.fills(fMemory)
		return nil
	}
}

func gridEngineGPUs(r *reader, v string) (err error) {
	if v == "true" || v == "TRUE" || v == "" {
		v = "1"
	}
	r.n.gpusPerSlot, err = r.number(v, "")
	r.fills(fGPUs)
	return err
}

func gridEngineAlone(r *reader, v string) error {
	r.job.Exclusive = !strings.HasPrefix(strings.ToLower(v), "f") && v != "0"
	r.fills(fExclusive)
	return nil
}

var hostName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`) })

// gridEngineHost reads one host, or !(a|b): none of them.
func gridEngineHost(r *reader, v string) error {
	if not, ok := strings.CutPrefix(v, "!"); ok {
		list := listOf(strings.Trim(not, "()"), "|")
		for _, h := range list {
			if !hostName().MatchString(h) {
				return fmt.Errorf("%q is no host", message.Short(h))
			}
		}
		r.job.NotHosts = list
		r.fills(fNotHosts)
		return nil
	}
	if !hostName().MatchString(v) {
		return fmt.Errorf("it lets the scheduler choose among hosts")
	}
	r.job.Hosts = []string{v}
	r.fills(fHosts)
	return nil
}

// gridEngineQueues reads queues, each with @HOST where only one host of it is wanted.
func gridEngineQueues(r *reader, v string) error {
	queue, host, ok := strings.Cut(v, "@")
	switch {
	case !ok:
	case r.t.To == job.GridEngine:
		queue = v
	case strings.Contains(v, ",") || !hostName().MatchString(host):
		return fmt.Errorf("only Grid Engine has queues of hosts")
	default:
		r.job.Hosts = []string{host}
		r.fills(fHosts)
	}
	return setWord(fQueue, func(j *job.Job) *string { return &j.Queue })(r, queue)
}

var gridEngineLetters = pattern{sign: "$", letters: []string{"$JOB_ID", "{job}", "$TASK_ID", "{task}", "$JOB_NAME", "{name}"}}

// gridEngineOutput reads [HOST]:FILE; a directory gets the file's usual name.
func gridEngineOutput(f field) func(*reader, string) error {
	return func(r *reader, v string) error {
		if host, file, ok := strings.Cut(v, ":"); ok && !strings.Contains(host, "/") {
			v = file
		}
		v = strings.NewReplacer("$HOME", r.source.Home, "~", r.source.Home).Replace(v)
		if v == "." || strings.HasSuffix(v, "/") {
			r.setFile(f, r.inside(v, f))
			return nil
		}
		return r.output(v, f, gridEngineLetters)
	}
}

// inside is the usual name of an output file of Grid Engine and PBS, in a directory.
func (r *reader) inside(dir string, f field) string {
	name := strings.TrimSuffix(dir, "/") + "/" + map[field]string{fOutput: "{name}.o{job}", fError: "{name}.e{job}"}[f]
	if !r.job.Array.IsZero() {
		name += "." + job.Placeholder
	}
	r.changed("%s", name)
	return name
}

// mailLetters reads when to write, in letters; n is never.
func mailLetters(words map[rune]string) func(*reader, string) error {
	return func(r *reader, v string) error {
		r.job.MailOn = nil
		for _, c := range v {
			switch w, ok := words[c]; {
			case ok:
				r.mailOn(w)
			case c == 'n' || c == ',':
			default:
				r.changed("without %c", c)
			}
		}
		r.fills(fMailOn)
		return nil
	}
}

// firstAddress keeps one address of several.
func firstAddress(r *reader, v string) error {
	list := listOf(v, ",")
	if len(list) == 0 {
		return errNoValue
	}
	if len(list) > 1 {
		r.changed("%s alone", list[0])
	}
	return setWord(fMail, func(j *job.Job) *string { return &j.Mail })(r, list[0])
}

// waitsFor reads a list of jobs. Names of jobs only Grid Engine knows.
func (r *reader) waitsFor(kind, v string) error {
	ids := listOf(v, ",")
	for _, id := range ids {
		if strings.Trim(id, "0123456789") != "" && r.t.To != job.GridEngine && r.t.To != job.Argo {
			return fmt.Errorf("it names job %q, and the target knows jobs by their ids: give it with --after", message.Short(id))
		}
	}
	return r.after(kind, ids)
}

func requeue(r *reader, v string) error {
	on, err := yes(v)
	r.job.Requeue = map[bool]string{true: "yes", false: "no"}[on]
	r.fills(fRequeue)
	return err
}

var moment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(\d\d\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(?:\.00)?$`) })

// dateTime reads CCYYMMDDhhmm[.SS], and hhmm, which is PBS's.
func dateTime(r *reader, v string) error {
	r.fills(fBegin)
	if m := moment().FindStringSubmatch(v); m != nil {
		r.job.Begin = fmt.Sprintf("%s-%s-%sT%s:%s", m[1], m[2], m[3], m[4], m[5])
		return nil
	}
	if len(v) == 4 && strings.Trim(v, "0123456789") == "" && r.dialect.target == job.PBS {
		r.job.Begin = v[:2] + ":" + v[2:]
		return nil
	}
	return fmt.Errorf("%q lacks the year; write CCYYMMDDhhmm", message.Short(v))
}

// gridEngineFinish turns slots into processes or processors, and what is asked
// for each slot into what a node has.
func gridEngineFinish(r *reader) {
	j := r.job
	if n := r.n.slots; n > 0 && r.t.To != job.GridEngine {
		if r.perCPU {
			j.CPUs, j.Nodes = n, 1
		} else {
			j.Tasks = n
		}
	}
	if r.limit > 0 && !j.Array.IsZero() {
		j.Array.Limit = r.limit
	} else if r.limit > 0 {
		r.tell(fArray, func(*Row) error { return fmt.Errorf("without -t there is no array") })
	}
	if n := r.n.gpusPerSlot; n > 0 {
		slots := max(r.n.slots, 1)
		j.GPUs = n * slots
		r.tell(fGPUs, func(row *Row) error {
			if slots > 1 {
				row.become(Changed, fmt.Sprintf("%d for each of %d slots are %d in all", n, slots, j.GPUs))
			}
			return nil
		})
	}
	if s := time.Duration(r.n.soft) * time.Second; s > 0 {
		r.tell(fSignal, func(row *Row) error {
			switch {
			case j.Time == 0:
				return fmt.Errorf("without h_rt hpcc cannot say how long before the end it is")
			case s < j.Time:
				j.Warning = job.Warning{Signal: "USR1", Lead: j.Time - s}
				row.become(Changed, fmt.Sprintf("SIGUSR1 %s before the limit", j.Warning.Lead))
			}
			return nil
		})
	}
}

// gridEngineDefaults are Grid Engine's where nothing is said: names of files,
// the home directory, no environment, its own shell.
func gridEngineDefaults(r *reader) {
	j := r.job
	if !slices.ContainsFunc(r.t.Rows, func(row *Row) bool { return slices.Contains(row.fields, fDir) && row.Fate != Refused }) {
		j.Dir = r.source.Home
		r.add(0, "(no -cwd)").become("", "starts in "+j.Dir)
		r.fills(fDir)
	}
	r.outputDefaults("{name}.o{job}", "{name}.e{job}", ".{task}")
	r.exportDefault("-V")
	s := j.Script
	if m := exit99().FindStringIndex(s.Body); m != nil {
		r.add(strings.Count(s.Body[:m[1]], "\n")+1, strings.TrimSpace(s.Body[m[0]:m[1]])).become(Changed,
			"is a failure; Grid Engine runs the job again, for ever: say how often with --retry N --retry-on exit=99")
	}
	switch {
	case len(r.shell) > 0:
		s.Shell = r.shell
	case len(s.Shell) > 0:
		r.add(1, "#!"+strings.Join(s.Shell, " ")).become(Changed, "runs it; Grid Engine takes the shell of the queue, unless -S names one")
	default:
		s.Shell = []string{"/bin/sh"}
		r.add(1, "(no -S)").become("", "/bin/sh, as most queues have it")
	}
}

// exit99 is the status after which Grid Engine runs a job again.
var exit99 = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)\bexit[ \t]+99\b`) })

// outputDefaults names the files as Grid Engine and PBS do, standard error apart.
func (r *reader) outputDefaults(out, errs, each string) {
	j := r.job
	if !j.Array.IsZero() {
		out, errs = out+each, errs+each
	}
	if !r.outputSet {
		j.Output = out
		r.add(0, "(no -o)").become("", out)
		r.fills(fOutput)
	}
	switch {
	case r.join && r.errorSet:
		j.Error = ""
		r.tell(fError, func(row *Row) error {
			row.become(Changed, "-j joins it with the output")
			return nil
		})
	case !r.join && !r.errorSet:
		j.Error = errs
		r.add(0, "(no -e)").become("", errs)
		r.fills(fError)
	}
}

// exportDefault says that nothing of the environment is handed over, as with
// Grid Engine and PBS.
func (r *reader) exportDefault(flag string) {
	j := r.job
	if len(j.Export) > 0 || r.t.To == job.GridEngine || r.t.To == job.PBS || r.t.To == job.Local {
		return
	}
	j.Export = []string{"NONE"}
	r.add(0, "(no "+flag+")").become("", "nothing of the submitting shell's environment")
	r.fills(fExport)
}
