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

func (t *Task) fileName() string { return fmt.Sprintf("task.%d.json", t.Index) }

// Dir is where, below the job's directory, the task may leave its results: HPCC_TASK_DIR.
func (t *Task) Dir(dir string) string { return filepath.Join(dir, fmt.Sprintf("task.%d", t.Index)) }

// Write puts the record into the job's directory, whole or not at all.
func (t *Task) Write(dir string) error { return t.writeAs(dir, t.fileName()) }

// WriteEarlier puts the record of an attempt that is to be followed by another
// one where it stays.
func (t *Task) WriteEarlier(dir string) error {
	if err := t.writeAs(dir, t.earlierName(t.Attempt)); err != nil {
		return err
	}
	t.moveMeasured(dir, t.Measured(), t.EarlierMeasured(t.Attempt))
	return os.Remove(filepath.Join(dir, t.fileName()))
}

// Last makes the record of an earlier attempt the task's own again: none follows.
func (t *Task) Last(dir string) error {
	t.moveMeasured(dir, t.EarlierMeasured(t.Attempt), t.Measured())
	return os.Rename(filepath.Join(dir, t.earlierName(t.Attempt)), filepath.Join(dir, t.fileName()))
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

// earlierName is the file of the record of an attempt, from 0, that is over.
func (t *Task) earlierName(attempt int) string {
	return fmt.Sprintf("task.%d.%d.json", t.Index, attempt)
}

// syncedTask is how long a task ran whose record is on disk before it has its
// name. Synchronising costs milliseconds, which jobs of many short tasks would
// feel, and little is lost with such a task.
const syncedTask = time.Second

// filesDir is where, below the jobs, files stand that came with jobs of other machines.
const filesDir = ".files"

// KeepFile keeps a file that a job names, below dir, and returns its path: one
// for each content.
func KeepFile(dir, name string, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	file, err := filepath.Abs(filepath.Join(dir, filesDir, hex.EncodeToString(sum[:8])+"-"+filepath.Base(name)))
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

// readable returns the error of [Tasks] unless it is of single records, and a
// line about these.
func readable(err error) (warning string, other error) {
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
		if err := readJSON(filepath.Join(dir, e.Name()), &t); err != nil {
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

// readRecord reads a record of a job's directory, if it is there and can be read.
func readRecord(dir, name string, t *Task) bool { return readJSON(filepath.Join(dir, name), t) == nil }

// readJSON reads one of our files, within bounds. Jobs' directories are handed on: what
// stands there under a record's name may be a pipe or a device, which has no end.
func readJSON(file string, v any) error {
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
