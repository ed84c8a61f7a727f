package dispatch

import (
	"context"
	"fmt"
	"path/filepath"

	"hpcc/job"
)

// Succeeded says whether jobs, named by the target's ids, have: by their records
// below dir, else by what the scheduler accounts. An error names the first that has not. It is for
// schedulers that start a job when those before it have ended, however they did.
func Succeeded(ctx context.Context, dir string, ids []string) error {
	subs, _, err := submissions(dir) // an unreadable one is asked of the scheduler
	if err != nil {
		return err
	}
next:
	for _, id := range ids {
		for _, s := range subs {
			if s.Native != id || descriptionOf(s.Target).Succeeded == nil {
				continue
			}
			tasks, err := job.Tasks(filepath.Join(dir, s.ID))
			if err != nil {
				return err
			}
			st := &Status{Submission: s, Total: s.Job.Count(), Tasks: tasks}
			if st.count(); st.Done < st.Total {
				return fmt.Errorf("job %s (%s), which had to succeed first, has %d of %d tasks that did not", s.ID, id, st.Total-st.Done, st.Total)
			}
			continue next
		}
		for _, d := range describe() {
			if d.Succeeded != nil {
				if err := d.Succeeded(ctx, id); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
