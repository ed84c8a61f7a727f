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

// Nodes lists the nodes of a scheduler, what is most free first and what takes no
// jobs last; queue, when given, chooses those of one queue. Notes say what could
// not be learned.
func Nodes(ctx context.Context, t job.Target, queue string) (list []capacity.Node, notes []string, err error) {
	c, err := listNodes(ctx, t, queue)
	if err != nil {
		return nil, nil, err
	}
	if c.Keep(queue); len(c.Nodes) == 0 && queue != "" {
		return nil, nil, fmt.Errorf("no node has queue %q; \"hpcc nodes\" shows which there are", queue)
	}
	slices.SortFunc(c.Nodes, capacity.MoreFree)
	return c.Nodes, c.Notes, nil
}

// listNodes asks a scheduler. Of one whose queues share out a node's slots, those of
// the queue count.
func listNodes(ctx context.Context, t job.Target, queue string) (*capacity.Snapshot, error) {
	to := systemOf(t)
	if to == nil {
		return nil, unknownTarget(t)
	}
	lister, ok := to.(batch.NodeLister)
	if !ok {
		return nil, fmt.Errorf("target %s lists no nodes", t)
	}
	c, err := lister.Nodes(ctx, queue)
	if err != nil {
		return nil, err
	}
	c.Settle(time.Now())
	return c, nil
}
