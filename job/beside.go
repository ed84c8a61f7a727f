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

	"hpcc/job/atomicfile"
	"hpcc/job/message"
	"hpcc/job/shellword"
)

// A Beside is a program that runs beside a task, as long as that does, and serves a port
// of the task's node: the file beside.<name>.json in the job's directory.
type Beside struct {
	Name    string    `json:"name"`
	Task    int       `json:"task"`
	Host    string    `json:"host"`
	Port    int       `json:"port"` // of the loopback interface
	Start   time.Time `json:"start"`
	End     time.Time `json:"end,omitzero"`
	Problem string    `json:"problem,omitempty"` // why it ended before the task
	Output  string    `json:"output"`            // absolute
}

func besideFile(dir, name string) string { return filepath.Join(dir, "beside."+name+".json") }

// Write puts the record into the job's directory.
func (b *Beside) Write(dir string) error {
	text, err := json.Marshal(b)
	if err == nil {
		err = atomicfile.Write(besideFile(dir, b.Name), append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("writing the record of %s beside task %d: %w", b.Name, b.Task, err)
	}
	return nil
}

// ReadBeside is nil where no such program was begun.
func ReadBeside(dir, name string) (*Beside, error) {
	b := &Beside{}
	err := ReadJSON(besideFile(dir, name), b)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && (b.Port < 1 || b.Port > MaxPort) {
		err = fmt.Errorf("reading %q: %d is no port", besideFile(dir, name), b.Port)
	}
	return b, err
}

// portPlaceholder stands for the port that a program beside a task shall serve.
const portPlaceholder = "{port}"

// Tensorboard is the name of the one program that a job can have beside it.
const Tensorboard = "tensorboard"

// beside are the words of the program beside the first task, in the image of the
// task; none in most jobs. It takes no part in the namespaces that tasks share: those
// are counted.
func (j *Job) beside() []string {
	if j.Tensorboard == "" {
		return nil
	}
	w := []string{Tensorboard, "--logdir", j.Tensorboard, "--host", "127.0.0.1", "--port", portPlaceholder}
	if j.Image == "" {
		return w
	}
	run := slices.DeleteFunc(slices.Clone(j.Run), func(f string) bool { return strings.HasPrefix(f, "--join") })
	return slices.Concat([]string{j.Program, "run"}, run, []string{"--entrypoint=", j.Image, "--"}, w)
}

// BesideArgs tell "hpcc task" of the program: one flag, which holds the task's
// index, the name and a line of quoted words.
func (j *Job) BesideArgs() []string {
	w := j.beside()
	if w == nil {
		return nil
	}
	first := 0
	for k := range j.Array.All() {
		first = k
		break
	}
	return []string{fmt.Sprintf("--beside=%d %s %s", first, Tensorboard, shellword.Join(w))}
}

// ParseBeside reads what a script says of the program beside task index: name
// and words. No words: there is none.
func ParseBeside(line string) (index int, name string, words []string, err error) {
	if line == "" {
		return 0, "", nil, nil
	}
	list, err := shellword.Split(line, false)
	if err == nil && len(list) < 3 {
		err = errors.New("not of the form INDEX NAME WORDS")
	}
	if err == nil {
		index, err = strconv.Atoi(list[0].Text)
	}
	if err == nil && !NameText().MatchString(list[1].Text) {
		err = errors.New("its name is none")
	}
	if err != nil {
		return 0, "", nil, fmt.Errorf("program %q beside a task: %w", message.Short(line), err)
	}
	for _, w := range list[2:] {
		words = append(words, w.Text)
	}
	return index, list[1].Text, words, nil
}

// FillPort puts a port into the words of a program beside a task.
func FillPort(words []string, port int) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = strings.ReplaceAll(w, portPlaceholder, strconv.Itoa(port))
	}
	return out
}

// MaxPort is the highest port of TCP.
const MaxPort = 1<<16 - 1

// services are the programs that can be named in the place of a port, with their usual one.
var services = map[string]int{Tensorboard: 6006, "jupyter": 8888}

// UsualPort is the port that a service takes where nobody says another; false
// where no service is called so.
func UsualPort(name string) (int, bool) {
	p, ok := services[name]
	return p, ok
}
