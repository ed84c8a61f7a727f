package dispatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/text"
)

// A batch system can queue a job whose submission seems to fail: the answer is late or lost, or hpcc is killed
// before it comes. So job.json is written before the submission, and only a clear refusal removes it:
//
//	after the error          the job is in the queue   it is not
//	a refusal                adopted                   refused: its files go
//	any other, or none       adopted                   unanswered: its files stay, and each status looks again
//
// A job that the batch system starts in spite of its refusal finds no job.json, and does not start its program.

// An unansweredError reports that a batch system may have queued a job.
type unansweredError struct {
	id, system string
	err        error
}

func (e *unansweredError) Error() string {
	return fmt.Sprintf("%v; it is unknown whether %s has the job", e.err, e.system)
}

func (e *unansweredError) Unwrap() error { return e.err }

// Advice returns what to do next.
func (e *unansweredError) Advice() string {
	return fmt.Sprintf("\"hpcc status %s\" looks for the job; submit it again only if that shows it as lost", e.id)
}

// findTime limits the search for a job after an error.
const findTime = 20 * time.Second

// settleError decides about the error of a submission: it is nil if the batch system has the job in spite of it.
func (s *Submission) settleError(ctx context.Context, r *batch.Request, known []string, err error) error {
	if !r.Sent {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), findTime)
	defer cancel()
	if r.Native, _ = s.find(ctx, r, known); r.Native != "" {
		return nil
	}
	if !invoke.Unclear(err) {
		return err
	}
	return &unansweredError{s.ID, descriptionOf(s.Target).Title, err}
}

// find returns the native ID of a submission by hpcc's ID, other than the known ones; "" if the batch system does
// not have it, or cannot look for it.
func (s *Submission) find(ctx context.Context, r *batch.Request, known []string) (native string, err error) {
	f, ok := systemOf(s.Target).(batch.Finder)
	if !ok {
		return "", nil
	}
	var started []string
	tasks, _ := job.Tasks(filepath.Dir(r.Script))
	for _, t := range tasks {
		if t.Native != "" {
			started = append(started, t.Native)
		}
	}
	list, err := f.Find(s.Within(ctx), r, started)
	list = slices.DeleteFunc(list, func(id string) bool { return slices.Contains(known, id) })
	if len(list) == 0 {
		return "", err
	}
	return list[len(list)-1], nil
}

// adopt looks for a submission of the job below dir whose native ID is not known, because its answer was lost or
// has not come yet, and records the ID.
func (s *Submission) adopt(ctx context.Context, dir string) error {
	n := slices.IndexFunc(s.Reruns, func(r Rerun) bool { return r.Native == "" })
	if (s.Native != "" && n < 0) || s.Job.Interactive {
		return nil
	}
	home := filepath.Join(dir, s.ID)
	if s.resubmitted(dir) { // the process that submits it has the answer
		return nil
	}
	r := &batch.Request{ID: s.ID, Job: s.Job, Script: filepath.Join(home, "script")}
	if s.Native != "" {
		r.Script += "." + strconv.Itoa(n+1)
	}
	native, err := s.find(ctx, r, s.natives())
	switch {
	case native == "":
		return err
	case s.Native == "":
		s.Native = native
	default:
		s.Reruns[n].Native = native
	}
	s.noteNative(dir)
	return s.write(home)
}

// claim creates the script of a rerun, which is the claim of the process that reruns the job: a file system may
// have no locks. It fails if another process has created it.
func claim(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return text.Hint(fmt.Errorf("another process runs tasks of the job again at this moment: it has created %s", file),
			"repeat the command when it has ended; if it was killed, remove the file first")
	}
	if err != nil {
		return err
	}
	return f.Close()
}
