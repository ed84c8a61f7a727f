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

// A scheduler takes the jobs of one target. Each target's file has its own.
type scheduler interface {
	// render writes the script of a job that was checked.
	render(j *Job) (script string, notes []string, err error)
	// here says whether this is the scheduler of this machine, and answers. Several
	// come with commands of one name: it is asked.
	here(ctx context.Context) bool
	// submit hands the script in and fills in the native id. What the scheduler
	// would take and never run is refused before, in its own words.
	submit(ctx context.Context, s *Submission, script string) error
	// ask tells, in one call for all of them, how jobs stand, by native id.
	ask(ctx context.Context, ids []string) (map[string]standing, error)
	// nodes tells what the nodes have and what of it is free; of queue alone, when
	// one is given and that makes a difference.
	nodes(ctx context.Context, queue string) (*cluster, error)
	// estimate has the scheduler say, where it can, when and where it would start
	// the job of a script; nil where it cannot. An error is its refusal.
	estimate(ctx context.Context, j *Job, script string) (*estimate, error)
	// used tells what jobs used, by native id, as far as the scheduler counts.
	used(ctx context.Context, ids []string) (map[string]usage, error)
	// history tells who had what of the cluster since from, as far as this user is told; a
	// noHistory where nobody keeps one.
	history(ctx context.Context, from time.Time) (*history, error)
	// cancel ends a job's tasks, those that wait and those that run.
	cancel(ctx context.Context, id string) error
	// beside makes of the words of a command those of one that runs it on the node of
	// a task that runs, with the caller's streams; nil where the scheduler cannot.
	beside(t *Task, terminal bool) func(words []string) []string
}

// A standing is what a scheduler says of a job; the zero value is one that it
// does not know, or that has ended.
type standing struct {
	running, waiting int       // tasks
	reason           string    // why they wait, in the scheduler's word
	alive            bool      // it goes on; which tasks run is not known
	tasks            []attempt // where the target keeps the records, and not the tasks
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
