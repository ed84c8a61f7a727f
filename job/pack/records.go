package pack

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"hpcc/files"
	"hpcc/job"
)

// A recordFile appends the records of a worker to its file. One goroutine writes all records that
// have come meanwhile at once, so that a slow file system does not slow down short tasks.
type recordFile struct {
	worker *worker
	file   *os.File
	in     chan record
	done   chan struct{}
}

type record struct {
	task  *job.Task
	usage *syscall.Rusage
}

// Limits of the writing of records.
const (
	maxBatch   = 4096        // records that are written at once
	retryFor   = time.Minute // a full disk may have room again
	syncFrom   = time.Second // run time from which a task's record is synced to disk
	notedAfter = time.Second // run time after which a task gets a record of its start
)

func openRecords(name string, header []byte, w *worker) (*recordFile, error) {
	f, err := files.Create(name, os.O_WRONLY|os.O_APPEND)
	if err == nil {
		_, err = f.Write(append([]byte("\n"), header...)) // the last line of an earlier worker may lack its end
	}
	if err != nil {
		return nil, fmt.Errorf("opening the file of the records: %w", err)
	}
	r := &recordFile{worker: w, file: f, in: make(chan record, maxBatch), done: make(chan struct{})}
	go r.write()
	return r, nil
}

// add records the end of a slot's task, or its start.
func (r *recordFile) add(s *slot, t *job.Task, usage *syscall.Rusage) {
	r.worker.lock.Lock()
	s.begun = nil
	r.worker.lock.Unlock()
	r.in <- record{t, usage}
}

// close waits until all records are written.
func (r *recordFile) close() error {
	close(r.in)
	<-r.done
	return r.file.Close()
}

// write writes the records, and then reports the end of their tasks.
func (r *recordFile) write() {
	defer close(r.done)
	for first := range r.in {
		batch := []record{first}
	more:
		for len(batch) < maxBatch {
			select {
			case next, ok := <-r.in:
				if !ok {
					break more
				}
				batch = append(batch, next)
			default:
				break more
			}
		}
		r.writeAll(batch)
	}
}

func (r *recordFile) writeAll(batch []record) {
	lines, ends, sync := []byte("\n"), []byte(nil), false
	var tasks []int
	for _, b := range batch {
		t := b.task
		if !t.Ended() {
			lines = t.AppendPacked(lines, 0, 0, int64(t.PID))
			continue
		}
		lines = t.AppendPacked(lines, time.Duration(b.usage.Utime.Nano()), time.Duration(b.usage.Stime.Nano()), b.usage.Maxrss*1024)
		tasks, sync = append(tasks, t.Index), sync || t.End.Sub(t.Start) >= syncFrom
		signal, how := t.Signal, "ok"
		if signal == "" {
			signal = "-"
		}
		if t.Problem != "" {
			how = "problem"
		}
		ends = fmt.Appendf(ends, "end %d %d %d %s %s\n", t.Index, t.Attempt, t.Exit, signal, how)
	}
	if err := r.append(lines, sync); err != nil {
		r.worker.logf("warning: writing the records of %d tasks: %v; \"hpcc rerun\" runs them again", len(batch), err)
	}
	r.worker.ended(ends, tasks)
}

// append writes lines, and tries again for a while if that fails.
func (r *recordFile) append(lines []byte, sync bool) (err error) {
	for end := time.Now().Add(retryFor); ; time.Sleep(time.Second) {
		_, err = r.file.Write(lines)
		if err == nil && sync {
			err = r.file.Sync()
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// noteRunning writes records of the start of tasks that run for some time.
func (r *recordFile) noteRunning(ctx context.Context, slots []*slot) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(notedAfter):
		}
		var long []record
		r.worker.lock.Lock()
		for _, s := range slots {
			if s.begun != nil && !s.noted && time.Since(s.begun.Start) >= notedAfter {
				s.noted = true
				long = append(long, record{s.begun, &syscall.Rusage{}})
			}
		}
		r.worker.lock.Unlock()
		for _, b := range long {
			r.in <- b
		}
	}
}
