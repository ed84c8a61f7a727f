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

// A Service is a port on which a task's program listens on its node.
type Service struct {
	Port int
	URL  string // with path and token, as the program printed it; "" if it did not
	Why  string // how the port was found
}

// Service finds the port of a program that a task has started: from the record of a
// companion, from the program's output, or its default port.
func (s *Submission) Service(dir string, t *job.Task, name string) (*Service, error) {
	home := filepath.Join(dir, s.ID)
	b, err := job.ReadCompanion(home, name)
	if err != nil {
		return nil, err
	}
	if b != nil && b.Task == t.Index {
		if !b.End.IsZero() && b.Problem != "" {
			return nil, fmt.Errorf("%s next to task %d ended: %s; its output is in %s", name, b.Task, b.Problem, b.Output)
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
		if u := reportedURL(name, text); u != nil {
			port, _ := strconv.Atoi(u.Port())
			return &Service{Port: port, URL: u.String(), Why: "the task's output"}, nil
		}
	}
	port, ok := job.UsualPort(name)
	if !ok {
		return nil, errors.New("unknown program " + strconv.Quote(name))
	}
	return &Service{Port: port, Why: "it is the program's default"}, nil
}

// serviceTask returns the task with a companion of that name, or [AnyTask] if there is none.
func (s *Submission) serviceTask(dir, name string) int {
	if b, err := job.ReadCompanion(filepath.Join(dir, s.ID), name); err == nil && b != nil {
		return b.Task
	}
	if name == job.Tensorboard && s.Job.Tensorboard != "" {
		return s.indices()[0]
	}
	return AnyTask
}

// maxEnd is how much of a log is read at its start, and at its end, in bytes.
const maxEnd = 1 << 20

// ends reads the start and the end of a log: programs print their address when they start,
// and a retried task starts later in the log.
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

// reportedURL returns the last address of the program in a log, or nil.
func reportedURL(name string, log []byte) *url.URL {
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
			if p, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || p == 0 {
				continue
			}
			if serves(name, u, line) && (found == nil || found.Query().Get("token") == "" || u.Query().Get("token") != "") {
				found = u
			}
		}
	}
	return found
}

// serves reports whether an address on a log line belongs to the program.
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

// At returns the service's address with another host and port; "" if the program printed none.
func (v *Service) At(hostPort string) string {
	u, err := url.Parse(v.URL)
	if v.URL == "" || err != nil {
		return ""
	}
	u.Host = hostPort
	return u.String()
}
