// Package job describes a job independently of the target, and keeps the records of its tasks.
//
//	command line or script ─► Job ─► Check ─► script of a target
//	hpcc task on the node  ─► Task ─► jobs/<id>/task.<k>.json ─► status, rerun, report
//
// Quantities are explicit: times are durations, memory is in bytes and per node, GPUs are
// per node, CPUs are per process. Records are replaced by rename, and stay when the scheduler
// has forgotten the job. The package does not call schedulers.
package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/text"
)

// A Target is a kind of scheduler.
type Target string

// The targets that other packages treat separately. Local runs the tasks on this machine.
const (
	Kubernetes Target = "kubernetes"
	OpenShift  Target = "openshift"
	Argo       Target = "argo"
	Local      Target = "local"
)

// A Job describes what to run, where and with which resources. A zero field means the target's
// default.
type Job struct {
	Name         string        `json:"name"`
	Array        Array         `json:"array,omitzero"`  // indices of the tasks; empty for a single task
	Pack         *packing      `json:"pack,omitempty"`  // one allocation runs all tasks
	ArraySize    int           `json:"whole,omitempty"` // size of the full array if the job holds only some of its tasks, else 0
	Nodes        int           `json:"nodes,omitempty"`
	Tasks        int           `json:"tasks,omitempty"` // processes of each task, on all its nodes together
	TasksPerNode int           `json:"tasks_per_node,omitempty"`
	CPUs         int           `json:"cpus,omitempty"`         // per process
	Memory       int64         `json:"memory_bytes,omitempty"` // per node
	GPUs         int           `json:"gpus,omitempty"`         // per node
	Time         time.Duration `json:"time_ns,omitempty"`
	TimeMin      time.Duration `json:"time_min_ns,omitempty"` // the scheduler may shorten Time to this value to start the job earlier
	Queue        string        `json:"queue,omitempty"`
	Account      string        `json:"account,omitempty"`
	Exclusive    bool          `json:"exclusive,omitempty"` // do not share the nodes with other jobs
	After        []string      `json:"after,omitempty"`     // native IDs of jobs that must succeed first
	Output       string        `json:"output,omitempty"`    // file for the program's output; {name}, {job} and {task} are replaced
	Error        string        `json:"error,omitempty"`     // the same for standard error; "": Output
	Mail         string        `json:"mail,omitempty"`      // address for mail when the job ends or fails
	Dir          string        `json:"dir"`                 // absolute: working directory on the host
	Env          []string      `json:"env,omitempty"`       // NAME=VALUE for the lines of the script, on the host; empty if EnvFile holds them
	EnvFile      string        `json:"env_file,omitempty"`  // absolute: the file with these variables, which the script reads; see HideValues
	Filled       []string      `json:"filled,omitempty"`    // {task} and {NAME} in the value files; see HideValues
	Native       []string      `json:"native,omitempty"`    // options for the target, unchanged
	Interactive  bool          `json:"interactive,omitempty"`
	Ray          bool          `json:"ray,omitempty"`     // hpcc 0.9.0 started a Ray cluster for the job; such a job cannot be submitted again
	Measure      bool          `json:"measure,omitempty"` // record the resource usage of each task
	Retry        Retry         `json:"retry,omitzero"`
	Params       Params        `json:"params,omitzero"`       // parameters of each task, by its index
	Tensorboard  string        `json:"tensorboard,omitempty"` // log directory of a TensorBoard next to the first task
	Modules      []string      `json:"modules,omitempty"`     // environment modules of the host, loaded before the program
	Rules        Rules         `json:"rules,omitzero"`
	Pod          Pod           `json:"pod,omitzero"`        // settings for targets with pods
	Steps        []*Job        `json:"steps,omitempty"`     // steps that run instead of Args, ordered by their dependencies; see NewSteps
	Workflow     *Workflow     `json:"workflow,omitempty"`  // a user's workflow that runs instead of Args
	Artifacts    []Artifact    `json:"artifacts,omitempty"` // output files and directories of the job
	Constraints
	Script *Script `json:"script,omitempty"` // runs instead of Args

	Program string   `json:"program"`       // absolute: hpcc on the nodes
	Store   string   `json:"store"`         // absolute: the image store
	Run     []string `json:"run,omitempty"` // flags of "hpcc run"; those that change the environment also apply without an image
	Image   string   `json:"image"`         // as given; "" for a translated script that runs on the host
	Args    []string `json:"args"`          // the program and its arguments; {task} is the task's index
	ImageVersion

	// CallerFile is the absolute path of shell commands that the script runs first, for a batch
	// system that does not pass on the caller's variables, umask and limits.
	CallerFile string `json:"caller_file,omitempty"`
}

// Placeholder is replaced by a task's index in the arguments of a job.
const Placeholder = "{task}"

// Count returns the number of tasks.
func (j *Job) Count() int { return max(1, j.Array.Count()) }

// FullCount returns the value of HPCC_TASK_COUNT: the size of the full array.
func (j *Job) FullCount() int { return max(j.Count(), j.ArraySize) }

// OutputPattern returns the file name pattern for the program's output.
func (j *Job) OutputPattern() string {
	switch {
	case j.Output != "":
		return j.Output
	case j.Array.Count() > 0:
		return "{name}-{job}_{task}.out"
	}
	return "{name}-{job}.out"
}

// MultiProcess reports whether the job requests more than one process.
func (j *Job) MultiProcess() bool { return j.Tasks > 1 || j.Nodes > 1 || j.TasksPerNode > 1 }

// StartsProcesses reports whether the target has to start several processes. Scripts start their own.
func (j *Job) StartsProcesses() bool {
	return j.MultiProcess() && j.Script == nil && j.Pack == nil
}

// Argv returns the command that runs one process of the job.
func (j *Job) Argv() []string {
	switch {
	case j.Script != nil:
		return append([]string{"bash", "-s", "--"}, j.Script.Args...)
	case j.Image == "":
		return j.OnHostArgv(j.Args)
	}
	return append(j.inImage(), j.Args...)
}

// OnHostArgv returns the argv that runs a program without an image, with the changes that the flags make
// to its environment.
func (j *Job) OnHostArgv(argv []string) []string {
	flags := slices.DeleteFunc(slices.Clone(j.Run), func(f string) bool { return !ChangesEnv(f) })
	if len(flags) == 0 {
		return argv
	}
	return slices.Concat([]string{j.Program, "env"}, flags, []string{"--"}, argv)
}

// inImage returns the argv prefix that runs a program in the image. If the target starts several
// processes, those of a node share memory, and all see the files of their launcher.
func (j *Job) inImage() []string {
	w := []string{j.Program, "run"}
	given := func(flag string) bool {
		return slices.ContainsFunc(j.Run, func(r string) bool { return r == flag || strings.HasPrefix(r, flag+"=") })
	}
	canMount := j.Nodes > 1 && j.ProcessesPerNode() == 1 // a SquashFS file on each node
	if j.StartsProcesses() && !canMount && !slices.ContainsFunc([]string{"--join", "--join-ct",
		"--join-tag", "--join-pid", "--pid"}, given) {
		w = append(w, "--join")
	}
	if j.StartsProcesses() && !given("--mpi") {
		w = append(w, "--mpi=pmix")
	}
	return append(append(w, j.Run...), j.ExactImage(), "--")
}

// RunPrefix returns the argv prefix for a program that a script starts in the image.
func (j *Job) RunPrefix() []string {
	return slices.Concat([]string{j.Program, "run"}, j.Run, []string{j.ExactImage(), "--"})
}

var (
	// NameText matches names that every scheduler accepts, also in the names of output files.
	NameText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9._-]{0,63}$`) })
	EnvName  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })
	// WordText matches queues, accounts, IDs and addresses. It excludes blanks and characters that
	// end a directive.
	WordText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._@:,+/=\[\]-]{1,255}$`) })
)

// Check returns an error for a job that no target could run.
func (j *Job) Check() error {
	switch {
	case !NameText().MatchString(j.Name):
		return fmt.Errorf("job name %q: use at most 64 letters, digits and ._-, and start with a letter", j.Name)
	case j.Image == "" && j.Script == nil && !j.OnHost && len(j.Steps) == 0 && j.Workflow == nil:
		return errors.New("the job has no image")
	case j.Ray:
		return errors.New("the job was submitted with --ray, which hpcc no longer has; submit it again as a program that starts " +
			"its own Ray cluster (ray symmetric-run)")
	case !filepath.IsAbs(j.Dir):
		return fmt.Errorf("the job's directory %q: not absolute", j.Dir)
	case j.Interactive && j.Array.Count() > 0:
		return errors.New("an interactive job cannot be an array")
	case j.Interactive && j.Tensorboard != "":
		return errors.New("--tensorboard cannot be used with an interactive job; start TensorBoard in the job and use \"hpcc forward\"")
	case strings.ContainsAny(j.Tensorboard, "\x00\n\r"):
		return fmt.Errorf("TensorBoard directory %q: contains a line break or a NUL byte", j.Tensorboard)
	case j.Tasks > 0 && j.TasksPerNode > 0 && j.Nodes > 0 && j.Tasks > j.Nodes*j.TasksPerNode:
		return fmt.Errorf("%d tasks do not fit on %s with %d each", j.Tasks, text.Count(j.Nodes, "node", "nodes"), j.TasksPerNode)
	}
	for _, request := range []struct {
		what string
		n    int64
	}{
		{"number of nodes", int64(j.Nodes)}, {"number of tasks", int64(j.Tasks)}, {"number of tasks per node", int64(j.TasksPerNode)},
		{"number of CPUs", int64(j.CPUs)}, {"number of GPUs", int64(j.GPUs)}, {"memory", j.Memory}, {"time limit", int64(j.Time)},
	} {
		if request.n < 0 {
			return fmt.Errorf("the requested %s is negative", request.what)
		}
	}
	if err := checkWords(words{"queue", []string{j.Queue}}, words{"account", []string{j.Account}}, words{"mail address", []string{j.Mail}},
		words{"job ID", j.After}); err != nil {
		return err
	}
	for _, e := range j.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || !EnvName().MatchString(k) {
			return fmt.Errorf("variable %q: not of the form NAME=VALUE", e)
		}
	}
	if err := j.Constraints.check(); err != nil {
		return err
	}
	if err := j.checkPack(); err != nil {
		return err
	}
	if err := j.Pod.check(); err != nil {
		return err
	}
	if err := j.checkSteps(); err != nil {
		return err
	}
	if err := j.CheckGrowth(); err != nil {
		return err
	}
	return j.checkText()
}

// words are values of a kind, for directives.
type words struct {
	kind string
	list []string
}

// checkWords returns an error for the first word that a directive cannot hold. Empty words are not
// written.
func checkWords(all ...words) error {
	for _, w := range all {
		for _, s := range w.list {
			if s != "" && !WordText().MatchString(s) {
				return fmt.Errorf("%s %q: contains characters that directives cannot hold", w.kind, s)
			}
		}
	}
	return nil
}

// checkText returns an error for text that would break out of its line, and for output files
// that several tasks would overwrite.
func (j *Job) checkText() error {
	for _, s := range j.Modules {
		if !WordText().MatchString(s) {
			return fmt.Errorf("module %q: not a module name", s)
		}
	}
	for _, s := range []string{j.Output, j.Error, j.Dir, j.Program, j.Store, j.ExactImage(), j.ImageFile} {
		if strings.ContainsAny(s, "\n\r\x00\"") {
			return fmt.Errorf("%q: contains a line break or a quotation mark, which a directive cannot hold", s)
		}
	}
	given := append(slices.Clone(j.Run), j.Args...)
	if j.Script != nil {
		given = append(slices.Clone(j.Run), j.Script.Args...)
	}
	given = slices.Concat(given, j.Filled, j.Pod.Env)
	for _, s := range append(append([]string{j.Image}, j.Env...), given...) {
		if strings.ContainsRune(s, 0) {
			return fmt.Errorf("%q: contains a NUL byte", s)
		}
	}
	array := j.Array.Count() > 0 || (j.Pack != nil && j.Pack.Array.Count() > 0)
	if n := j.Params.unused(given); n != "" {
		return fmt.Errorf("parameter %s: no argument of the job uses {%s}", n, n)
	}
	for k := range j.Array.All() {
		if !j.Params.IsZero() && (k < 1 || k > j.Params.Count()) {
			return fmt.Errorf("task %d: the parameters only cover tasks 1 to %d", k, j.Params.Count())
		}
	}
	for _, s := range given {
		if !array && strings.Contains(s, Placeholder) {
			return fmt.Errorf("%q: %s needs an array job; give --array", s, Placeholder)
		}
	}
	for _, arg := range j.Run {
		if used := j.placeholders(arg); len(used) > 0 && j.Script != nil {
			flag, _, _ := strings.Cut(arg, "=")
			return fmt.Errorf("%s: %s is not replaced in the flags of a script; read HPCC_TASK_ID in the script", flag, used[0])
		}
	}
	for _, e := range j.Pod.Env {
		if used := j.placeholders(e); len(used) > 0 {
			name, _, _ := strings.Cut(e, "=")
			return fmt.Errorf("variable %s: pods do not replace %s in variables; write it in the program's arguments", name, used[0])
		}
	}
	for _, s := range []string{j.Output, j.Error} {
		if array && s != "" && s != "/dev/null" && !strings.Contains(s, Placeholder) && !strings.Contains(s, "%") {
			return fmt.Errorf("output file %q: without %s, %d tasks would overwrite each other's output", s, Placeholder, j.Count())
		}
	}
	return nil
}

// CleanName converts a string to a job name: letters, digits and ._-.
func CleanName(s string) string {
	if s = strings.Trim(nameChars(s), "-"); s == "" {
		return "job"
	}
	if c := s[0]; !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_') {
		s = "j" + s
	}
	return s[:min(len(s), 64)]
}

// interpreters are the beginnings of the names of programs that run a script.
var interpreters = []string{"python", "bash", "sh", "Rscript", "julia", "perl", "ruby", "node"}

// NameOf derives a job name from a program, or from its script if the program is an interpreter.
func NameOf(argv []string) string {
	name := filepath.Base(argv[0])
	runs := func(p string) bool { return strings.HasPrefix(name, p) }
	if len(argv) > 1 && !strings.HasPrefix(argv[1], "-") && slices.ContainsFunc(interpreters, runs) {
		name = strings.TrimSuffix(filepath.Base(argv[1]), filepath.Ext(argv[1]))
	}
	if name = strings.TrimLeft(nameChars(name), "._-0123456789"); name == "" {
		return "job"
	}
	return name[:min(len(name), 40)]
}

// nameChars replaces the characters that a job name cannot have with hyphens.
func nameChars(s string) string {
	return strings.Map(func(c rune) rune {
		if (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strings.ContainsRune("._-", c) {
			return c
		}
		return '-'
	}, s)
}

// BaseName returns the name of a file without its directory and extensions.
func BaseName(file string) string {
	file = file[strings.LastIndexByte(file, '/')+1:]
	if base, _, ok := strings.Cut(file, "."); ok && base != "" {
		return base
	}
	return file
}

// MaxScript limits a job script, in bytes. As JSON it may be six times as large, which is below
// [files.MaxSize].
const MaxScript = 128 << 10

// SignalName returns the signal's name without SIG, given as USR1, SIGUSR1 or 10.
func SignalName(s string) (string, error) {
	s = strings.TrimPrefix(strings.ToUpper(s), "SIG")
	names := map[string]string{"1": "HUP", "2": "INT", "3": "QUIT", "9": "KILL", "10": "USR1",
		"12": "USR2", "15": "TERM", "18": "CONT", "23": "URG"}
	if n, ok := names[s]; ok {
		s = n
	}
	switch s {
	case "HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "URG", "XCPU":
		return s, nil
	}
	return "", fmt.Errorf("%q is not a known signal", text.Short(s))
}

// Prepare checks the job's directory, and creates the directories of its output files, but not in a dry
// run. If they are missing or not writable, a scheduler may end the job, or hold it, without any
// message. The output of pods is only written to files that the user names.
func (j *Job) Prepare(to Target, dry bool) error {
	fi, err := os.Stat(j.Dir)
	if err != nil || !fi.IsDir() {
		return fmt.Errorf("the job's directory %q does not exist", j.Dir)
	}
	output := j.OutputPattern()
	if to.Pods() {
		output = j.Output
	}
	for _, p := range []string{output, j.Error} {
		d := filepath.Dir(p)
		if p == "" {
			continue
		}
		if strings.ContainsAny(d, "{%") {
			return fmt.Errorf("output file %q: only the file name may have a pattern, because the directory must exist before the job starts", p)
		}
		if !filepath.IsAbs(d) {
			d = filepath.Join(j.Dir, d)
		}
		if !dry {
			if err := os.MkdirAll(d, 0o777); err != nil {
				return fmt.Errorf("creating the directory of output file %q: %w", p, err)
			}
		}
		if err := checkWritable(filepath.Join(d, filepath.Base(p))); err != nil && !j.Interactive {
			return fmt.Errorf("output file %q: %w; name another file with --output or --error", p, err)
		}
	}
	for _, s := range j.Steps {
		if err := s.Prepare(to, dry); err != nil {
			return err
		}
	}
	return nil
}

// checkWritable returns an error if the user can neither write nor create a file and its directories.
func checkWritable(file string) error {
	err := unix.Access(file, unix.W_OK)
	for errors.Is(err, fs.ErrNotExist) && file != filepath.Dir(file) {
		file = filepath.Dir(file)
		err = unix.Access(file, unix.W_OK)
	}
	if err != nil {
		return fmt.Errorf("writing to %s: %w", file, err)
	}
	return nil
}

// Title returns a one-line description of the program, for a comment.
func (j *Job) Title() string {
	s := j.Image
	switch {
	case j.Script != nil && j.Image != "":
		s = j.Script.Name + " in " + j.Image
	case j.Script != nil:
		s = j.Script.Name
	case j.Image == "":
		s = strings.Join(j.Args, " ")
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
}
