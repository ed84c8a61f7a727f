package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
)

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
