package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"hpcc/store/wait"
)

// A scheduler submits jobs to one batch system and reports on them. Each batch
// system has its own package; optional abilities are separate interfaces.
type scheduler interface {
	// here reports whether this is the batch system of this host. Several products
	// share command names, so it asks the server.
	here(ctx context.Context) bool

	// render returns the script of a checked job, and notes on settings that the
	// batch system ignores. A setting that would change the meaning of the job is an
	// error.
	render(j *Job) (script string, notes []string, err error)

	// submit submits the script and fills in the native ID. It refuses a script that
	// the batch system would accept but never start.
	submit(ctx context.Context, r *request) error

	// ask returns the queue state of jobs, by native ID, with one request. Jobs that
	// the batch system no longer knows are missing from the result.
	ask(ctx context.Context, ids []string) (map[string]standing, error)

	// cancel ends all tasks of a job, running or queued.
	cancel(ctx context.Context, id string) error
}

// A nodeLister knows what the nodes have and what of it is free. queue selects the
// nodes of one queue where queues share the slots of a node.
type nodeLister interface {
	nodes(ctx context.Context, queue string) (*cluster, error)
}

// An estimator predicts when and where the job of a script would start. The error is
// the batch system's refusal; a nil estimate means that it makes no prediction.
type estimator interface {
	estimate(ctx context.Context, j *Job, script string) (*estimate, error)
}

// A usageCounter counts what jobs used, by native ID.
type usageCounter interface {
	used(ctx context.Context, ids []string) (map[string]usage, error)
}

// A historian knows which jobs ran since a time, as far as this user may see them. It
// returns a noHistory error if nobody keeps accounts.
type historian interface {
	history(ctx context.Context, from time.Time) (*history, error)
}

// An execer runs commands on the node of a running task. hpcc attach and hpcc forward
// need it. slow reports that the command may have to wait for a free slot.
type execer interface {
	execOn(t *Task, terminal bool) (wrap func(argv []string) []string, slow bool)
}

// A needAdjuster counts the needs of a job as the batch system does.
type needAdjuster interface {
	adjust(x *need, j *Job)
}

// A timeCutter may shorten the time limit of a job to Job.TimeMin by itself.
type timeCutter interface {
	cutsTime()
}

// A request is a job to submit.
type request struct {
	ID      string // of hpcc
	Job     *Job
	Script  string                  // path
	Rewrite func(text string) error // replaces the content of Script

	Native string          // the batch system's ID, set by submit
	Ended  <-chan struct{} // set by submit for a job that is a child of this process
}

// A standing is the batch system's view of a job. The zero value is a job that it does
// not know or that has ended.
type standing struct {
	running, waiting int       // number of tasks
	reason           string    // why tasks wait, in the batch system's words
	alive            bool      // the job goes on, and which tasks run is unknown
	tasks            []attempt // records of the tasks, if the batch system keeps them
}

func (s standing) gone() bool { return !s.alive && s.running+s.waiting == 0 }

// schedulers are all targets.
var schedulers = map[Target]scheduler{
	Slurm: slurm{}, LSF: lsf{}, GridEngine: gridEngine{}, PBS: pbs{}, Local: local{},
	Kubernetes: kubernetes{Kubernetes}, OpenShift: kubernetes{OpenShift}, Argo: argo{},
}

// targets are all that [Render] writes for, by name.
func targets() []Target { return slices.Sorted(maps.Keys(schedulers)) }

// Detect finds the scheduler of this machine; without one, tasks run here.
func Detect(ctx context.Context) Target {
	for _, t := range targets() {
		if t != Local && schedulers[t].here(ctx) {
			return t
		}
	}
	return Local
}

// commandTime bounds a command of a scheduler where the caller has no bound of its
// own: three minutes by default. Slurm's give up by themselves after
// MessageTimeout, which sites set to 60 s and more.
func commandTime(ctx context.Context) time.Duration { return 3 * wait.Limits(ctx).Header }

// A SilentError is a command of a scheduler that did not end in time.
type SilentError struct {
	Command string
	After   time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("%s did not answer within %v and was ended; see by hand what it waits for. What it was asked to do may have been done", e.Command, e.After)
}

// call runs a command of a scheduler; see [run].
func call(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	return feed(ctx, dir, nil, nil, name, args...)
}

// feed runs a command of a scheduler with standard input and more variables.
func feed(ctx context.Context, dir string, in io.Reader, env []string, name string, args ...string) ([]byte, error) {
	silent := &SilentError{name, commandTime(ctx)}
	ctx, cancel := context.WithTimeoutCause(ctx, silent.After, silent)
	defer cancel()
	cmd := command(ctx, dir, name, args...)
	cmd.Stdin, cmd.Env = in, append(cmd.Env, env...)
	out, err := run(cmd)
	if err != nil && context.Cause(ctx) == error(silent) {
		return nil, silent
	}
	return out, err
}

func command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(environ(ctx), "LC_ALL=C", "SLURM_TIME_FORMAT=standard")
	cmd.WaitDelay = answerTime // children of it may keep its output open
	return cmd
}

// run gives what a command says; standard error comes with the output only when
// the command fails.
func run(cmd *exec.Cmd) ([]byte, error) {
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return append(words.Bytes(), out.Bytes()...), err
	}
	return out.Bytes(), nil
}

// words makes an error of what a scheduler said; err where it said nothing.
func words(out []byte, err error) error {
	if text := strings.Join(strings.Fields(string(out)), " "); text != "" {
		return errors.New(text)
	}
	return err
}
