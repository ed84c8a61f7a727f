package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/files"
	"hpcc/text"
)

// A Companion is the record of a companion: a program that runs next to a task until the task
// ends, and serves a port of its node. The file is beside.<name>.json in the job's directory.
type Companion struct {
	Name    string    `json:"name"`
	Task    int       `json:"task"`
	Host    string    `json:"host"`
	Port    int       `json:"port"` // on the loopback interface
	Start   time.Time `json:"start"`
	End     time.Time `json:"end,omitzero"`
	Problem string    `json:"problem,omitempty"` // why it ended before the task
	Output  string    `json:"output"`            // absolute path of its output file
}

func companionFile(dir, name string) string { return filepath.Join(dir, "beside."+name+".json") }

// Write writes the record to the job's directory.
func (b *Companion) Write(dir string) error {
	text, err := json.Marshal(b)
	if err == nil {
		err = files.Write(companionFile(dir, b.Name), append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("writing the record of %s for task %d: %w", b.Name, b.Task, err)
	}
	return nil
}

// ReadCompanion reads a companion's record. It returns nil if the companion was not started.
func ReadCompanion(dir, name string) (*Companion, error) {
	b := &Companion{}
	err := ReadJSON(companionFile(dir, name), b)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && (b.Port < 1 || b.Port > maxPort) {
		err = fmt.Errorf("reading %q: %d is not a port", companionFile(dir, name), b.Port)
	}
	return b, err
}

// portPlaceholder is replaced by the port that a companion serves.
const portPlaceholder = "{port}"

// Tensorboard is the name of the only supported companion.
const Tensorboard = "tensorboard"

// companion returns the argv of the companion of the first task, in the task's image, or nil. The
// companion does not join the namespaces that processes share, because --join expects a fixed
// number of processes.
func (j *Job) companion() []string {
	if j.Tensorboard == "" {
		return nil
	}
	w := []string{Tensorboard, "--logdir", j.Tensorboard, "--host", "127.0.0.1", "--port", portPlaceholder}
	if j.Image == "" {
		return j.OnHostArgv(w)
	}
	run := slices.DeleteFunc(slices.Clone(j.Run), func(f string) bool { return strings.HasPrefix(f, "--join") })
	return slices.Concat([]string{j.Program, "run"}, run, []string{"--entrypoint=", j.ExactImage(), "--"}, w)
}

// CompanionArgs returns the flag of "hpcc task" for the companion: the task's index, the name and
// the quoted argv.
func (j *Job) CompanionArgs() []string {
	w := j.companion()
	if w == nil {
		return nil
	}
	first := 0
	for k := range j.Array.All() {
		first = k
		break
	}
	return []string{fmt.Sprintf("--beside=%d %s %s", first, Tensorboard, text.Arguments(w))}
}

// ParseCompanion parses the value of --beside: the index of the task, the companion's name and its
// argv. If argv is empty, the job has no companion.
func ParseCompanion(line string) (index int, name string, argv []string, err error) {
	if line == "" {
		return 0, "", nil, nil
	}
	list, err := text.Words(line, false)
	if err == nil && len(list) < 3 {
		err = errors.New("not of the form INDEX NAME ARGV")
	}
	if err == nil {
		index, err = strconv.Atoi(list[0].Text)
	}
	if err == nil && !NameText().MatchString(list[1].Text) {
		err = errors.New("invalid name")
	}
	if err != nil {
		return 0, "", nil, fmt.Errorf("companion %q: %w", text.Short(line), err)
	}
	for _, w := range list[2:] {
		argv = append(argv, w.Text)
	}
	return index, list[1].Text, argv, nil
}

// FillPort replaces the port placeholder in a companion's argv.
func FillPort(argv []string, port int) []string {
	out := make([]string, len(argv))
	for i, w := range argv {
		out[i] = strings.ReplaceAll(w, portPlaceholder, strconv.Itoa(port))
	}
	return out
}

// maxPort is the highest TCP port number.
const maxPort = 1<<16 - 1

// services maps the programs that may be named instead of a port to their default port.
var services = map[string]int{Tensorboard: 6006, "jupyter": 8888}

// UsualPort returns the default port of a service, and false for an unknown service.
func UsualPort(name string) (int, bool) {
	p, ok := services[name]
	return p, ok
}
