package job

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hpcc/files"
)

// The records of successful tasks of large arrays are lines of one file for each host,
// tasks.HOST.jsonl, instead of a file for each task. One write(2) appends a line, and the task's
// own file is removed after that. So a task that is killed between the two has both, and the line
// counts. A line that was cut off, by a crash or a full disk, has a wrong checksum. Every line
// starts with a line break, so that it does not continue such a line.
//
// Only successes are collected. Their records do not change, while those of failed tasks move when
// the tasks run again. The one exception is a task whose output a cluster keeps: once hpcc has saved
// the output, it adds another line, with the path of the file. That line counts.

// collectedName returns the name of the file with the collected records of a host.
func collectedName(host string) string {
	return "tasks." + strings.ReplaceAll(host, "/", "_") + ".jsonl"
}

// Collect adds the record of a successful task to those of its host, and removes the task's file.
func (t *Task) Collect(dir string) error { return collect(dir, t.Host, []Task{*t}) }

// CollectWith adds the record and more of successful tasks, which this host has read from a cluster,
// with one write(2), and removes the tasks' files.
func (t *Task) CollectWith(dir string, more ...Task) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	return collect(dir, host, append([]Task{*t}, more...))
}

// collect adds records to the collected ones of a host.
func collect(dir, host string, list []Task) error {
	var lines []byte
	sync := false
	for i := range list {
		b, err := files.SealJSON(&list[i])
		if err != nil {
			return err
		}
		lines = append(append(lines, '\n'), b...)
		sync = sync || list[i].End.Sub(list[i].Start) >= syncedTask
	}
	what := fmt.Sprintf("the record of task %d", list[0].Index)
	if len(list) > 1 {
		what = fmt.Sprintf("the records of %d tasks", len(list))
	}
	f, err := files.Create(filepath.Join(dir, collectedName(host)), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return fmt.Errorf("adding %s: %w", what, err)
	}
	_, err = f.Write(lines)
	if err == nil && sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("adding %s to %q: %w", what, f.Name(), err)
	}
	for i := range list {
		if err := os.Remove(filepath.Join(dir, list[i].FileName())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing the record of the start of task %d: %w", list[i].Index, err)
		}
	}
	return nil
}

// Collected reports whether the collected records in dir have the success of task t.Index, and
// sets t to it.
func (t *Task) Collected(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, collectedName("*")))
	for _, file := range files {
		records, _, err := readCollected(file)
		if err != nil {
			continue
		}
		for i := range records {
			if records[i].Index == t.Index {
				*t = records[i]
				return true
			}
		}
	}
	return false
}

// Limits of collected records, in bytes.
const (
	maxCollected     = files.MaxSize // of a line
	maxCollectedFile = 1 << 30       // of a file; three million records have that size
)

// readCollected reads the collected records of one host. bad lists the lines that are damaged.
func readCollected(file string) (list []Task, bad []error, err error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // do not block on a FIFO
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
	case !fi.Mode().IsRegular():
		err = errors.New("not a regular file")
	case fi.Size() > maxCollectedFile:
		err = fmt.Errorf("has more than %d bytes", maxCollectedFile)
	}
	if err != nil {
		return nil, nil, &RecordError{file, err}
	}
	lines := bufio.NewReaderSize(f, maxCollected)
	for n := 1; ; n++ {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF { // a line without an end is being written, or was cut off
			return list, bad, nil
		}
		if err != nil {
			return nil, nil, &RecordError{fmt.Sprintf("%s:%d", file, n), err}
		}
		if len(line) == 1 {
			continue
		}
		var t Task
		if err = files.CheckJSON(line); err == nil {
			err = json.Unmarshal(line, &t)
		}
		if err == nil && !t.OK() {
			err = errors.New("not the record of a successful task")
		}
		if err != nil {
			bad = append(bad, &RecordError{fmt.Sprintf("%s:%d", file, n), err})
			continue
		}
		t.collected = true
		list = append(list, t)
	}
}
