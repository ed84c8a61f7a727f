package job

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hpcc/job/atomicfile"
	"hpcc/store/seal"
)

// A Task is the record of one task: the file task.<k>.json in the job's
// directory, written when the task begins and again when it ends.
type Task struct {
	Index   int             `json:"task"`
	Native  string          `json:"native,omitempty"`  // the scheduler's id of this task
	Step    string          `json:"step,omitempty"`    // of a workflow: its name there
	Attempt int             `json:"attempt,omitempty"` // how often it was run before
	Host    string          `json:"host"`
	Start   time.Time       `json:"start"`
	End     time.Time       `json:"end,omitzero"` // zero while it runs
	Exit    int             `json:"exit"`         // -1 when a signal ended it
	Signal  string          `json:"signal,omitempty"`
	Problem string          `json:"problem,omitempty"`  // why the program did not run
	Output  string          `json:"output,omitempty"`   // absolute
	Errors  string          `json:"errors,omitempty"`   // the file of standard error, where that is another; absolute
	PID     int             `json:"pid,omitempty"`      // of the program, on Host
	Usage   json.RawMessage `json:"usage,omitempty"`    // what was measured
	Gone    bool            `json:"log_gone,omitempty"` // its target kept what it wrote, and does no more

	Params map[string]string `json:"params,omitempty"` // what it was given for {name}
}

// Ended says whether the task is over.
func (t *Task) Ended() bool { return !t.End.IsZero() }

// OK says whether the task ended well.
func (t *Task) OK() bool { return t.Ended() && t.Exit == 0 && t.Signal == "" && t.Problem == "" }

// FileName returns the name of the task's record in the job's directory.
func (t *Task) FileName() string { return fmt.Sprintf("task.%d.json", t.Index) }

// Dir is where, below the job's directory, the task may leave its results: HPCC_TASK_DIR.
func (t *Task) Dir(dir string) string { return filepath.Join(dir, fmt.Sprintf("task.%d", t.Index)) }

// Write puts the record into the job's directory, whole or not at all.
func (t *Task) Write(dir string) error { return t.writeAs(dir, t.FileName()) }

// WriteEarlier puts the record of an attempt that is to be followed by another
// one where it stays.
func (t *Task) WriteEarlier(dir string) error {
	if err := t.writeAs(dir, t.EarlierName(t.Attempt)); err != nil {
		return err
	}
	t.moveMeasured(dir, t.Measured(), t.EarlierMeasured(t.Attempt))
	return os.Remove(filepath.Join(dir, t.FileName()))
}

// Last makes the record of an earlier attempt the task's own again: none follows.
func (t *Task) Last(dir string) error {
	t.moveMeasured(dir, t.EarlierMeasured(t.Attempt), t.Measured())
	return os.Rename(filepath.Join(dir, t.EarlierName(t.Attempt)), filepath.Join(dir, t.FileName()))
}

func (t *Task) writeAs(dir, name string) error {
	b, err := seal.JSON(t)
	if err == nil {
		err = atomicfile.MakeDir(dir)
	}
	if err == nil {
		write := atomicfile.Write
		if t.Ended() && t.End.Sub(t.Start) >= syncedTask {
			write = atomicfile.WriteSynced
		}
		err = write(filepath.Join(dir, name), b)
	}
	if err != nil {
		return fmt.Errorf("writing the record of task %d: %w", t.Index, err)
	}
	return nil
}

// EarlierName is the file of the record of an attempt, from 0, that is over.
func (t *Task) EarlierName(attempt int) string {
	return fmt.Sprintf("task.%d.%d.json", t.Index, attempt)
}

// syncedTask is how long a task ran whose record is on disk before it has its
// name. Synchronising costs milliseconds, which jobs of many short tasks would
// feel, and little is lost with such a task.
const syncedTask = time.Second

// FilesDir is where, below the jobs, files stand that came with jobs of other machines.
const FilesDir = ".files"

// KeepFile keeps a file that a job names, below dir, and returns its path: one
// for each content.
func KeepFile(dir, name string, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	file, err := filepath.Abs(filepath.Join(dir, FilesDir, hex.EncodeToString(sum[:8])+"-"+filepath.Base(name)))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = atomicfile.Write(file, data)
	}
	if err != nil {
		return "", fmt.Errorf("keeping file %q of a job: %w", name, err)
	}
	return file, nil
}

// Tasks reads the records of a job's directory, by index. Besides the records
// that can be read it returns a [RecordsError] if some cannot.
func Tasks(dir string) ([]Task, error) {
	last, _, bad, err := Attempts(dir, false)
	if err == nil && len(bad) > 0 {
		err = &RecordsError{bad}
	}
	return last, err
}

// A RecordsError reports records of tasks that cannot be read. Their tasks count
// as if they had no record: they are open, or lost once the scheduler does not
// know them.
type RecordsError struct{ Errs []error }

func (e *RecordsError) Error() string {
	text := e.Errs[0].Error()
	if n := len(e.Errs) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more records)", n)
	}
	return text + "; hpcc rerun runs such a task again"
}

// Readable returns the error of [Tasks] unless it is of single records, and a
// line about these.
func Readable(err error) (warning string, other error) {
	var bad *RecordsError
	if errors.As(err, &bad) {
		return bad.Error(), nil
	}
	return "", err
}

// Attempts reads the records of a job's directory, by index and attempt: of each task
// the last, and where they are wanted those of attempts before it. bad are errors of records that
// cannot be read, with their files.
func Attempts(dir string, before bool) (last, earlier []Task, bad []error, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil, fmt.Errorf("reading the job's records: %w", err)
	}
	for _, e := range entries {
		name, isTask := strings.CutSuffix(e.Name(), ".json")
		_, attempt, ok := TaskOf(name)
		if !isTask || !ok || (attempt >= 0 && !before) {
			continue
		}
		to := &last
		if attempt >= 0 {
			to = &earlier
		}
		var t Task
		if err := ReadJSON(filepath.Join(dir, e.Name()), &t); err != nil {
			bad = append(bad, err)
			continue
		}
		*to = append(*to, t)
	}
	for _, list := range [][]Task{last, earlier} {
		slices.SortFunc(list, func(a, b Task) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Attempt, b.Attempt)) })
	}
	return last, earlier, bad, nil
}

// TaskOf is the task that a file of a job's directory is of, by its name without the
// ending: task.3, or task.3.0 of an attempt before the last; that is -1.
func TaskOf(name string) (index, attempt int, ok bool) {
	k, ok := strings.CutPrefix(name, "task.")
	k, n, before := strings.Cut(k, ".")
	index, err := strconv.Atoi(k)
	attempt = -1
	if before && err == nil {
		attempt, err = strconv.Atoi(n)
	}
	return index, attempt, ok && err == nil && (!before || attempt >= 0)
}

// ReadRecord reads a record of a job's directory, if it is there and can be read.
func ReadRecord(dir, name string, t *Task) bool { return ReadJSON(filepath.Join(dir, name), t) == nil }

// ReadJSON reads one of our files, within bounds. Jobs' directories are handed on: what
// stands there under a record's name may be a pipe or a device, which has no end.
func ReadJSON(file string, v any) error {
	b, err := atomicfile.Read(file)
	if err == nil {
		if err = seal.CheckJSON(b); errors.Is(err, seal.ErrNoSum) { // of an older version, or another program
			err = nil
		}
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return &RecordError{file, err}
	}
	return nil
}

// A RecordError reports a file of a job that cannot be read.
type RecordError struct {
	File string
	Err  error
}

func (e *RecordError) Error() string { return fmt.Sprintf("reading %q: %v", e.File, e.Err) }
func (e *RecordError) Unwrap() error { return e.Err }

// Fill puts the task's index and its parameters into the words of its job.
func (t *Task) Fill(words []string) []string {
	pairs := []string{Placeholder, strconv.Itoa(t.Index)}
	for _, n := range slices.Sorted(maps.Keys(t.Params)) {
		pairs = append(pairs, "{"+n+"}", t.Params[n])
	}
	r := strings.NewReplacer(pairs...)
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = r.Replace(w)
	}
	return out
}

// File is the name of the task's output file for a target that does not fill
// patterns in itself. An id begins with the job's name; {job} is the rest of it.
func (t *Task) File(pattern, name, id string) string {
	id = strings.TrimPrefix(id, name+"-")
	return strings.NewReplacer("{name}", name, "{job}", id, Placeholder, strconv.Itoa(t.Index)).Replace(pattern)
}

// NoteLog notes in the record where the log is, or that there is none.
func (t *Task) NoteLog(home, file string, there bool) error {
	if t.Gone = !there; there {
		t.Output = file
	}
	return t.Write(home)
}

// Learn writes the record of an attempt, unless it is there and whole; keep writes before what was measured.
// Where names of pods come again, their beginning tells them apart.
func (t *Task) Learn(home string, last, again bool, keep func() error) error {
	same := func(o *Task) bool { return o.Native == t.Native && (!again || o.Start.Equal(t.Start)) }
	now := &Task{Index: t.Index}
	there := ReadRecord(home, now.FileName(), now)
	if there && same(now) {
		if now.Ended() {
			return nil
		}
		t.Attempt = now.Attempt
	} else {
		n := t.Attempts(home)
		for k := range n {
			before := &Task{}
			if !ReadRecord(home, t.EarlierName(k), before) || !same(before) {
				continue
			}
			if last && !there && k == n-1 { // no other followed after all
				return before.Last(home)
			}
			return nil
		}
		if there {
			now.Retire(home)
			n++
		}
		t.Attempt = n
	}
	if err := keep(); err != nil {
		return err
	}
	if last || !t.Ended() {
		return t.Write(home)
	}
	if err := t.Write(home); err != nil {
		return err
	}
	return t.WriteEarlier(home)
}

// Retire puts the record of an attempt that is over aside, and returns what puts
// it back.
func (t *Task) Retire(home string) (undo func()) {
	n := t.Attempts(home)
	name, old := filepath.Join(home, t.FileName()), filepath.Join(home, t.EarlierName(n))
	if os.Rename(name, old) != nil {
		return func() {}
	}
	t.moveMeasured(home, t.Measured(), t.EarlierMeasured(n))
	return func() {
		_ = os.Rename(old, name)
		t.moveMeasured(home, t.EarlierMeasured(n), t.Measured())
	}
}

// Attempts is how many records of earlier attempts the task has.
func (t *Task) Attempts(home string) int {
	for n := 0; ; n++ {
		if _, err := os.Lstat(filepath.Join(home, t.EarlierName(n))); err != nil {
			return n
		}
	}
}

// Ending tells how a task ended, in a word or two.
func (t *Task) Ending() string {
	switch {
	case t.Problem != "":
		return t.Problem
	case t.Signal != "":
		return t.Signal
	}
	return fmt.Sprintf("status %d", t.Exit)
}

// Taken says whether the task ended as those do whose node is taken away: the
// scheduler tells them to end, and then kills them.
func (t *Task) Taken() bool {
	return t.Ended() && (t.Signal == "SIGTERM" || t.Signal == "SIGKILL" || t.Exit == 128+int(syscall.SIGTERM) || t.Exit == 128+int(syscall.SIGKILL))
}
