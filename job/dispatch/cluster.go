package dispatch

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/text"
)

// A Cluster identifies a scheduler: its kind, and which instance of that kind. With an
// empty Env it is the one that this machine's commands reach.
type Cluster struct {
	Target job.Target        `json:"target"`
	Site   string            `json:"site,omitempty"` // its name in the site files
	Env    map[string]string `json:"scheduler_env,omitempty"`
}

// key returns the same string for clusters that one query covers.
func (c Cluster) key() string {
	k := string(c.Target)
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		k += "\x00" + name + "=" + c.Env[name]
	}
	return k
}

// String returns the name for messages.
func (c Cluster) String() string {
	if c.Site != "" {
		return c.Site + " (" + string(c.Target) + ")"
	}
	return string(c.Target)
}

// Environ returns the environment of the cluster's commands.
func (c Cluster) Environ() []string { return invoke.Environ(c.Within(context.Background())) }

// OutsideJob returns Environ without the variables of a job in which this process may run.
func (c Cluster) OutsideJob() []string { return outsideJob(c.Environ()) }

// Within returns a context in which scheduler commands use the cluster's variables.
func (c Cluster) Within(ctx context.Context) context.Context { return invoke.Within(ctx, c.Env) }

// Query returns the queue state of jobs by native ID. It fails after limit.
func (c Cluster) Query(ctx context.Context, ids []string, limit time.Duration) (map[string]batch.State, error) {
	to, err := c.scheduler()
	if err != nil {
		return nil, err
	}
	return c.within(ctx, limit, func(ctx context.Context) (map[string]batch.State, error) { return to.Query(ctx, ids) })
}

// within calls a query, which fails after limit.
func (c Cluster) within(ctx context.Context, limit time.Duration,
	query func(context.Context) (map[string]batch.State, error)) (map[string]batch.State, error) {
	ctx, cancel := context.WithTimeout(c.Within(ctx), limit)
	defer cancel()
	known, err := query(ctx)
	switch {
	case err != nil && ctx.Err() == context.DeadlineExceeded: // the command was killed without a message
		return nil, fmt.Errorf("%s does not answer within %v", c, limit)
	case err != nil && c.Site != "":
		return nil, fmt.Errorf("site %s: %w", c.Site, err)
	}
	return known, err
}

// Nodes lists the nodes of a scheduler, or of one queue unless queue is "". The nodes with
// the most free resources come first, nodes that accept no jobs last. Notes list
// the queries that failed.
func Nodes(ctx context.Context, t job.Target, queue string) (list []capacity.Node, notes []string, err error) {
	c, err := listNodes(ctx, t, queue)
	if err != nil {
		return nil, nil, err
	}
	if c.Keep(queue); len(c.Nodes) == 0 && queue != "" {
		return nil, nil, fmt.Errorf("no node has queue %q; \"hpcc nodes\" lists the queues", queue)
	}
	slices.SortFunc(c.Nodes, capacity.MoreFree)
	return c.Nodes, c.Notes, nil
}

// listNodes queries a scheduler. Where queues divide the slots of a node, it counts those
// of queue.
func listNodes(ctx context.Context, t job.Target, queue string) (*capacity.Snapshot, error) {
	to := systemOf(t)
	if to == nil {
		return nil, unknownTarget(t)
	}
	lister, ok := to.(batch.NodeLister)
	if !ok {
		return nil, fmt.Errorf("target %s cannot list nodes", t)
	}
	c, err := lister.Nodes(ctx, queue)
	if err != nil {
		return nil, err
	}
	c.Settle(time.Now())
	return c, nil
}

// callerLimits prints shell commands that set the umask and the soft limits of this process for a job.
// A batch system may limit the resources d, f, m, t and v itself, so they are left alone where this process has no limit.
const callerLimits = `echo "umask $(umask)"
for o in c d f l m n s t u v; do
  n=$(ulimit -S -$o)
  case $o$n in [dfmtv]unlimited) ;; *) echo "ulimit -S -$o $n 2>/dev/null || ulimit -S -$o hard" ;; esac
done
echo true`

// notOfCaller matches variables that belong to a shell, a host or a job, or that a shell cannot set.
var notOfCaller = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(PWD|OLDPWD|SHLVL|_|HOSTNAME|SHELLOPTS|BASHOPTS|UID|EUID|PPID|TMP|TMPDIR|.*_VISIBLE_DEVICES|ZE_AFFINITY_MASK|GPU_DEVICE_ORDINAL|HPCC_(SUBMISSION|JOB|TASK_.*))$`)
})

// lacksCaller reports whether a job should have the umask and limits of its submitter, and the target does not pass
// them on. A script gets the variables, too, if its own batch system or its options export all of them.
func lacksCaller(j *job.Job, t job.Target) (lacks, exportsAll bool) {
	exportsNone := j.Script != nil && descriptionOf(j.Script.From).NoExports // by default
	exportsAll = slices.Contains(j.Export, "ALL") || (len(j.Export) == 0 && !exportsNone)
	return descriptionOf(t).NoExports && (exportsAll || !exportsNone), exportsAll
}

// Script is [Render] for a user who submits the script with the scheduler's own command.
func (c Cluster) Script(j *job.Job) (script string, notes []string, err error) {
	script, notes, err = Render(j, c.Target)
	if lacks, _ := lacksCaller(j, c.Target); err == nil && lacks {
		notes = append(notes, "qsub does not pass your variables, umask and limits to the job; \"hpcc submit\" does, in a file that only you can read")
	}
	return script, notes, err
}

// keepCaller records the variables, umask and limits of this process in a private file of the job's directory, for a
// batch system whose jobs have none of them. It could pass variables itself, but then shows them to all users.
func (s *Submission) keepCaller(home string) error {
	lacks, exportsAll := lacksCaller(s.Job, s.Target)
	if !lacks {
		return nil
	}
	d := descriptionOf(s.Target)
	cmd := exec.Command("/bin/bash", "-c", callerLimits)
	cmd.Env = []string{}
	limits, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("reading the limits of this process: %w", err)
	}
	own := regexp.MustCompile(d.VariableText)
	env := slices.DeleteFunc(s.OutsideJob(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return !exportsAll || !job.EnvName().MatchString(name) || notOfCaller().MatchString(name) || own.MatchString(name) ||
			slices.ContainsFunc(d.Variables, func(v job.Variable) bool { return v.Name == name })
	})
	s.Job.CallerFile = filepath.Join(home, "caller")
	return files.WritePrivate(s.Job.CallerFile, text.Exports(env)+string(limits))
}
