package dispatch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
)

// A Cluster is where jobs are handed in: a kind of scheduler, and which one of
// its kind. The zero Env is the one that this machine's commands speak to.
type Cluster struct {
	Target job.Target        `json:"target"`
	Site   string            `json:"site,omitempty"` // its name in the site files
	Env    map[string]string `json:"scheduler_env,omitempty"`
}

// key is the same for clusters that one call asks.
func (c Cluster) key() string {
	k := string(c.Target)
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		k += "\x00" + name + "=" + c.Env[name]
	}
	return k
}

// String names a cluster for people.
func (c Cluster) String() string {
	if c.Site != "" {
		return c.Site + " (" + string(c.Target) + ")"
	}
	return string(c.Target)
}

// Environ is the environment of the cluster's commands.
func (c Cluster) Environ() []string { return invoke.Environ(c.Within(context.Background())) }

// OutsideJob is the environment of commands that are not part of a job in which this process
// may run.
func (c Cluster) OutsideJob() []string { return outsideJob(c.Environ()) }

// Within is a context in which commands of schedulers speak to the cluster.
func (c Cluster) Within(ctx context.Context) context.Context { return invoke.Within(ctx, c.Env) }

// Query asks the cluster how jobs stand, by native id.
func (c Cluster) Query(ctx context.Context, ids []string, limit time.Duration) (map[string]batch.QueueState, error) {
	to, err := c.scheduler()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.Within(ctx), limit)
	defer cancel()
	known, err := to.Query(ctx, ids)
	switch {
	case err != nil && ctx.Err() == context.DeadlineExceeded: // its command was killed and has no words
		return nil, fmt.Errorf("%s does not answer within %v", c, limit)
	case err != nil && c.Site != "":
		return nil, fmt.Errorf("site %s: %w", c.Site, err)
	}
	return known, err
}
