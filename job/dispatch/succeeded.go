package dispatch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hpcc/job/batch"
	"hpcc/job/message"
)

// Succeeded returns an error naming the first job that has not succeeded. ids are native IDs;
// it uses the records below dir, else the scheduler's accounting. Schedulers that start a
// job after any end of its dependencies need it.
func Succeeded(ctx context.Context, dir string, ids []string) error {
next:
	for _, id := range ids {
		for _, name := range jobsOfNative(dir, id) {
			s, err := ReadJob(filepath.Join(dir, name))
			if err != nil || s.Native != id || descriptionOf(s.Target).Succeeded == nil {
				continue // the scheduler reports on an unreadable one
			}
			st, err := s.atEnd(ctx, dir)
			if err != nil {
				return err
			}
			if st.Done < st.Total {
				return fmt.Errorf("dependency %s (%s): %d of %s did not succeed", s.ID, id, st.Total-st.Done, message.Count(st.Total, "task"))
			}
			continue next
		}
		_, target := OnNode().NativeIDs(os.Getenv)
		if succeeded := descriptionOf(target).Succeeded; succeeded != nil {
			if err := succeeded(ctx, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// atEnd returns the state of a dependency. It waits while the dependency is active, because a
// scheduler may start a job too early (volclava 2.2). If the scheduler does not answer, the records
// decide.
func (s *Submission) atEnd(ctx context.Context, dir string) (*Status, error) {
	for {
		st, err := s.status(ctx, dir)
		switch {
		case st == nil:
			return nil, err
		case err != nil || !st.Active():
			return st, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(batch.Poll):
		}
	}
}
