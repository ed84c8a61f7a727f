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

	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/text"
)

// A Task is the record of one task: the file task.<k>.json in the job's directory, written when
// the task starts and again when it ends. In a large array, it becomes a line of a file for many
// tasks (see [Task.Collect]).
type Task struct {
	Index    int             `json:"task"`
	Native   string          `json:"native,omitempty"`  // the scheduler's id of this task
	Step     string          `json:"step,omitempty"`    // name of the step in a workflow
	Attempt  int             `json:"attempt,omitempty"` // number of earlier attempts
	Host     string          `json:"host"`
	Start    time.Time       `json:"start"`
	End      time.Time       `json:"end,omitzero"` // zero while it runs
	Exit     int             `json:"exit"`         // -1 when a signal ended it
	Signal   string          `json:"signal,omitempty"`
	Problem  string          `json:"problem,omitempty"`   // why the program did not run
	Stop     string          `json:"stop,omitempty"`      // the signal that asked the program to stop, or StopCancelled
	AtLimit  bool            `json:"at_limit,omitempty"`  // the signal warned of the time limit
	Output   string          `json:"output,omitempty"`    // absolute
	Errors   string          `json:"errors,omitempty"`    // file of standard error, if separate; absolute
	PID      int             `json:"pid,omitempty"`       // of the program, on Host
	Usage    json.RawMessage `json:"usage,omitempty"`     // measured resource usage
	OOMKills int64           `json:"oom_kills,omitempty"` // processes in the task's cgroup that the kernel killed for lack of memory
	Gone     bool            `json:"log_gone,omitempty"`  // the target held the output and has removed it

	Part *part `json:"output_part,omitempty"` // the task's part of Output, which has the output of several tasks

	Params map[string]string `json:"params,omitempty"` // values of {name}
	ImageVersion

	collected bool // the record is a line of a file for many tasks
	packed    bool // the same, of a packed job
}

// Ended reports whether the task has ended.
func (t *Task) Ended() bool { return !t.End.IsZero() }

// StopCancelled is the Stop of a task that someone cancelled, according to the batch system.
const StopCancelled = "cancelled"

// OK reports whether the task succeeded. A program that was asked to stop has not succeeded, whatever its exit
// status: it may have saved its state to continue later.
func (t *Task) OK() bool { return t.clean() && t.Stop == "" }

// stopped reports whether the program ended with status 0 after a signal asked it to stop.
func (t *Task) stopped() bool { return t.clean() && t.Stop != "" && t.Stop != StopCancelled }

func (t *Task) clean() bool { return t.Ended() && t.Exit == 0 && t.Signal == "" && t.Problem == "" }

// FileName returns the name of the task's record in the job's directory.
func (t *Task) FileName() string { return fmt.Sprintf("task.%d.json", t.Index) }

// Dir returns the task's directory for results below the job's directory: HPCC_TASK_DIR.
func (t *Task) Dir(dir string) string { return filepath.Join(dir, fmt.Sprintf("task.%d", t.Index)) }

// Write writes the record to the job's directory atomically.
func (t *Task) Write(dir string) error { return t.writeAs(dir, t.FileName()) }

// WriteEarlier writes the record as that of an earlier attempt.
func (t *Task) WriteEarlier(dir string) error {
	if err := t.writeAs(dir, t.EarlierName(t.Attempt)); err != nil {
		return err
	}
	t.moveMeasured(dir, t.Measured(), t.EarlierMeasured(t.Attempt))
	return os.Remove(filepath.Join(dir, t.FileName()))
}

// WriteSuperseded writes the record of an attempt after a later one has begun. Its measurements
// stay where the later attempt has moved them.
func (t *Task) WriteSuperseded(dir string) error { return t.writeAs(dir, t.EarlierName(t.Attempt)) }

// Last makes the record of the last attempt the task's record again, if no other follows.
func (t *Task) Last(dir string) error {
	t.moveMeasured(dir, t.EarlierMeasured(t.Attempt), t.Measured())
	return os.Rename(filepath.Join(dir, t.EarlierName(t.Attempt)), filepath.Join(dir, t.FileName()))
}

func (t *Task) writeAs(dir, name string) error {
	b, err := files.SealJSON(t)
	if err == nil {
		err = files.MakeDir(dir)
	}
	if err == nil {
		write := files.Write
		if t.Ended() && t.End.Sub(t.Start) >= syncedTask {
			write = files.WriteSynced
		}
		err = write(filepath.Join(dir, name), b)
	}
	if err != nil {
		return fmt.Errorf("writing the record of task %d: %w", t.Index, err)
	}
	return nil
}

// EarlierName returns the record's file name of an earlier attempt, counted from 0.
func (t *Task) EarlierName(attempt int) string {
	return fmt.Sprintf("task.%d.%d.json", t.Index, attempt)
}

// syncedTask is the run time from which a task's record is synced to disk. Syncing costs
// milliseconds, which would slow down jobs of many short tasks.
const syncedTask = time.Second

// FilesDir, below the jobs directory, holds files that came with jobs of other machines.
const FilesDir = ".files"

// KeepFile stores a file of a job below dir, once for each content, and returns its path.
func KeepFile(dir, name string, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	file, err := filepath.Abs(filepath.Join(dir, FilesDir, hex.EncodeToString(sum[:8])+"-"+filepath.Base(name)))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = files.Write(file, data)
	}
	if err != nil {
		return "", fmt.Errorf("storing file %q of a job: %w", name, err)
	}
	return file, nil
}

// Tasks reads the records of a job's directory, by index. If some are unreadable it returns the
// others and a [RecordsError].
func Tasks(dir string) ([]Task, error) {
	var r Records
	err := r.Read(dir, false)
	return r.Last, cmp.Or(err, r.Err())
}

// Err returns a [RecordsError] if some records are unreadable.
func (r *Records) Err() error {
	if len(r.Bad) == 0 {
		return nil
	}
	return &RecordsError{r.Bad}
}

// A RecordsError reports unreadable task records. Their tasks count as open, or as lost once
// the scheduler does not know them.
type RecordsError struct{ Errs []error }

func (e *RecordsError) Error() string {
	message := e.Errs[0].Error()
	if n := len(e.Errs) - 1; n > 0 {
		message += " (and " + text.Count(n, "more record", "more records") + ")"
	}
	return message + "; \"hpcc rerun\" runs such tasks again"
}

// Readable splits the error of [Tasks]: a warning for unreadable records, or any other error.
func Readable(err error) (warning string, other error) {
	var bad *RecordsError
	if errors.As(err, &bad) {
		return bad.Error(), nil
	}
	return "", err
}

// Records are the records of a job's directory.
type Records struct {
	Last      []Task    // the last attempt of each task, by index
	Earlier   []Task    // the attempts before it, by index and attempt
	Succeeded successes // of a packed job: set by Survey, and not in Last
	Runs      int       // of a packed job: how often it has begun
	Bad       []error   // unreadable records

	moved bool // a file that the directory listed was gone
}

// Read reads the records of dir and, with before, the earlier attempts.
func (r *Records) Read(dir string, before bool) error { return r.read(dir, before, nil) }

// Survey is Read for callers that need no details of successful tasks. Those of a packed job, which
// may have a million tasks, are only in Succeeded.
func (r *Records) Survey(dir string) error {
	return r.read(dir, false, func(_ int, ok bool) bool { return !ok })
}

// Select is Read for callers that need some tasks only. Others of a packed job are left out.
func (r *Records) Select(dir string, tasks []int) error {
	return r.read(dir, false, func(k int, _ bool) bool { return slices.Contains(tasks, k) })
}

// A selection chooses tasks of packed jobs by their index, and by whether they have succeeded.
type selection = func(index int, ok bool) bool

func (r *Records) read(dir string, before bool, want selection) error {
	for range attemptsToRead {
		*r = Records{}
		if err := r.readOnce(dir, before, want); err != nil {
			return fmt.Errorf("reading the job's records: %w", err)
		}
		if !r.moved {
			break
		}
	}
	for _, list := range [][]Task{r.Last, r.Earlier} {
		slices.SortFunc(list, func(a, b Task) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Attempt, b.Attempt)) })
	}
	return nil
}

// attemptsToRead is how often read reads a directory in which records move meanwhile.
const attemptsToRead = 5

func (r *Records) readOnce(dir string, before bool, want selection) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	r.readPacked(dir, names, before, want)
	collected := map[int]int{} // positions in r.Last
	for _, name := range names {
		if match, _ := filepath.Match(collectedName("*"), name); !match {
			continue
		}
		list, bad, err := readCollected(filepath.Join(dir, name))
		if err != nil {
			bad = append(bad, err)
		}
		r.Bad = append(r.Bad, bad...)
		for _, t := range list {
			if i, ok := collected[t.Index]; !ok {
				collected[t.Index], r.Last = len(r.Last), append(r.Last, t)
			} else if r.Last[i].Output == "" && !r.Last[i].Gone {
				r.Last[i] = t
			}
		}
	}
	for _, file := range names {
		name, isTask := strings.CutSuffix(file, ".json")
		index, attempt, ok := TaskOf(name)
		_, isCollected := collected[index]
		if !isTask || !ok || (attempt >= 0 && !before) || (attempt < 0 && isCollected) {
			continue
		}
		var t Task
		err := ReadJSON(filepath.Join(dir, file), &t)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			r.moved = true
		case err != nil:
			r.Bad = append(r.Bad, err)
		case attempt < 0:
			r.Last = append(r.Last, t)
		default:
			r.Earlier = append(r.Earlier, t)
		}
	}
	return nil
}

// TaskOf returns the task of a file in a job's directory, by its name without extension: task.3,
// or task.3.0 for an earlier attempt. The attempt is -1 for the last one.
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

// ReadRecord reads a record of a job's directory. It returns false if that fails.
func ReadRecord(dir, name string, t *Task) bool { return ReadJSON(filepath.Join(dir, name), t) == nil }

// ReadJSON reads a file of hpcc, up to a size limit. Job directories may come from other users,
// so the path may be a pipe or a device.
func ReadJSON(file string, v any) error {
	b, err := files.Read(file)
	if err == nil {
		if err = files.CheckJSON(b); errors.Is(err, files.ErrNoSum) { // an older hpcc or another program wrote it
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

// Fill replaces the placeholders for the task's index and parameters in arguments of its job.
func (t *Task) Fill(argv []string) []string {
	pairs := []string{Placeholder, strconv.Itoa(t.Index)}
	for _, n := range slices.Sorted(maps.Keys(t.Params)) {
		pairs = append(pairs, "{"+n+"}", t.Params[n])
	}
	r := strings.NewReplacer(pairs...)
	out := make([]string, len(argv))
	for i, w := range argv {
		out[i] = r.Replace(w)
	}
	return out
}

// File returns the task's output file, for a target that does not expand patterns itself. An ID
// starts with the job's name; {job} is the rest of it.
func (t *Task) File(pattern, name, id string) string {
	id = strings.TrimPrefix(id, name+"-")
	return strings.NewReplacer("{name}", name, "{job}", id, Placeholder, strconv.Itoa(t.Index)).Replace(pattern)
}

// NoteLog records the path of the task's log, or that the log is gone.
func (t *Task) NoteLog(home, file string, there bool) error {
	if t.Gone = !there; there {
		t.Output = file
	}
	if t.collected {
		return t.CollectWith(home)
	}
	return t.Write(home)
}

// WriteAttempt writes the record of an attempt unless a complete one exists. It calls keep first to save
// the measurements. Targets may reuse pod names; the start times distinguish them.
func (t *Task) WriteAttempt(home string, last, again bool, keep func() error) error {
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
			if last && !there && k == n-1 { // the last attempt
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

// Retire moves the record of a finished attempt aside and returns a function that restores it.
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

// Attempts returns the number of records of earlier attempts.
func (t *Task) Attempts(home string) int {
	for n := 0; ; n++ {
		if _, err := os.Lstat(filepath.Join(home, t.EarlierName(n))); err != nil {
			return n
		}
	}
}

// Status returns the exit status of the task's program as a shell has it: 128 and the number of a signal.
func (t *Task) Status() int {
	if n := unix.SignalNum(t.Signal); n != 0 {
		return 128 + int(n)
	}
	return t.Exit
}

// Ending describes briefly how a task ended.
func (t *Task) Ending() string {
	switch {
	case t.Problem != "":
		return t.Problem
	case t.OOMKills > 0:
		return "out of memory"
	case t.Signal != "":
		return t.Signal
	case t.stopped() && t.AtLimit:
		return "status 0 after " + t.Stop + ", which warned of its time limit"
	case t.stopped():
		return "status 0 after " + t.Stop
	case t.clean() && t.Stop == StopCancelled:
		return "status 0 after it was cancelled"
	}
	return fmt.Sprintf("status %d", t.Exit)
}

// Taken reports whether the task ended like one whose node was taken away: the scheduler
// sends SIGTERM, and then SIGKILL. Some send SIGINT first.
func (t *Task) Taken() bool {
	return t.Ended() && (t.stopped() || t.Signal == "SIGINT" || t.Exit == 128+int(syscall.SIGINT) || t.Signal == "SIGTERM" ||
		t.Signal == "SIGKILL" || t.Exit == 128+int(syscall.SIGTERM) || t.Exit == 128+int(syscall.SIGKILL))
}
