package dispatch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"hpcc/job"
)

// A Service is what a task serves on its node.
type Service struct {
	Port int
	URL  string // with path and token, as the program tells it; "" where it does not
	Why  string // how the port was found
}

// Service finds the port of a program that a task has started: by the record of one
// beside it, by what the program wrote, else the program's usual one.
func (s *Submission) Service(dir string, t *job.Task, name string) (*Service, error) {
	home := filepath.Join(dir, s.ID)
	b, err := job.ReadBeside(home, name)
	if err != nil {
		return nil, err
	}
	if b != nil && b.Task == t.Index {
		if !b.End.IsZero() && b.Problem != "" {
			return nil, fmt.Errorf("%s beside task %d ended: %s; what it wrote is in %s", name, b.Task, b.Problem, b.Output)
		}
		return &Service{Port: b.Port, URL: fmt.Sprintf("http://127.0.0.1:%d/", b.Port), Why: "its record"}, nil
	}
	for _, file := range []string{t.Output, t.Errors} {
		if file == "" {
			continue
		}
		text, err := ends(file)
		if err != nil {
			return nil, fmt.Errorf("looking for %s in the output of task %d: %w", name, t.Index, err)
		}
		if u := toldURL(name, text); u != nil {
			port, _ := strconv.Atoi(u.Port())
			return &Service{Port: port, URL: u.String(), Why: "what the task wrote"}, nil
		}
	}
	port, ok := job.UsualPort(name)
	if !ok {
		return nil, errors.New("no program is known by the name " + strconv.Quote(name))
	}
	return &Service{Port: port, Why: "nobody says another"}, nil
}

// ServiceTask is the task that has a program beside it by that name; [AnyTask]
// where none has.
func (s *Submission) ServiceTask(dir, name string) int {
	if b, err := job.ReadBeside(filepath.Join(dir, s.ID), name); err == nil && b != nil {
		return b.Task
	}
	if name == job.Tensorboard && s.Job.Tensorboard != "" {
		return s.indices()[0]
	}
	return AnyTask
}

// maxEnd is how much of a log is read at its head, and at its end.
const maxEnd = 1 << 20

// ends reads the head and the end of a log: programs tell their address when
// they begin, and a task that is tried again begins later.
func ends(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, maxEnd))
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil || fi.Size() <= maxEnd {
		return head, err
	}
	if _, err := f.Seek(max(maxEnd, fi.Size()-maxEnd), io.SeekStart); err != nil {
		return nil, err
	}
	end, err := io.ReadAll(io.LimitReader(f, maxEnd))
	return append(append(head, '\n'), end...), err
}

var (
	urlText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`https?://[!-~]+`) })
	// Older Jupyters write http://(n1 or 127.0.0.1):8888/.
	twoHosts = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\([!-~]+ or 127\.0\.0\.1\)`) })
)

// toldURL is the last address in a log that is the program's; nil without one.
func toldURL(name string, log []byte) *url.URL {
	var found *url.URL
	for line := range bytes.Lines(log) {
		if !bytes.Contains(line, []byte("://")) {
			continue
		}
		line = twoHosts().ReplaceAll(line, []byte("127.0.0.1"))
		for _, text := range urlText().FindAll(line, -1) {
			u, err := url.Parse(strings.TrimRight(string(text), `.,;)'"`))
			if err != nil || u.User != nil {
				continue
			}
			if p, err := strconv.Atoi(u.Port()); err != nil || p < 1 || p > job.MaxPort {
				continue
			}
			if serves(name, u, line) && (found == nil || found.Query().Get("token") == "" || u.Query().Get("token") != "") {
				found = u
			}
		}
	}
	return found
}

// serves says whether an address, in its line, is that of the program.
func serves(name string, u *url.URL, line []byte) bool {
	if name == job.Tensorboard {
		return bytes.Contains(line, []byte("TensorBoard"))
	}
	for _, p := range []string{"/lab", "/tree", "/notebooks"} {
		if strings.HasPrefix(u.Path, p) || strings.HasSuffix(u.Path, p) {
			return true
		}
	}
	return u.Query().Has("token") || bytes.Contains(bytes.ToLower(line), []byte("jupyter"))
}

// At is the service's address where its port is another's here; "" where it has told none.
func (v *Service) At(hostPort string) string {
	u, err := url.Parse(v.URL)
	if v.URL == "" || err != nil {
		return ""
	}
	u.Host = hostPort
	return u.String()
}
