package dispatch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/queue"
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
func (c Cluster) Query(ctx context.Context, ids []string, limit time.Duration) (map[string]queue.State, error) {
	to, err := c.scheduler()
	if err != nil {
		return nil, err
	}
	return c.within(ctx, limit, func(ctx context.Context) (map[string]queue.State, error) { return to.Query(ctx, ids) })
}

// within calls a query, which fails after limit.
func (c Cluster) within(ctx context.Context, limit time.Duration, query func(context.Context) (map[string]queue.State, error)) (map[string]queue.State, error) {
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
