package dispatch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"hpcc/job"
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
			tasks, err := job.Tasks(filepath.Join(dir, s.ID))
			if err != nil {
				return err
			}
			st := &Status{Submission: s, Total: s.Job.Count(), Tasks: tasks}
			if st.count(); st.Done < st.Total {
				return fmt.Errorf("dependency %s (%s): %d of %s did not succeed", s.ID, id, st.Total-st.Done, message.Count(st.Total, "task"))
			}
			continue next
		}
		for _, d := range describe() {
			if d.Succeeded != nil && os.Getenv(d.Node.IDs[0]) != "" { // the batch system that runs this task
				if err := d.Succeeded(ctx, id); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
