package dispatch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

func TestParseForwarding(t *testing.T) {
	for in, want := range map[string]string{
		"80":             "{80  -1 }",
		"8080:80":        "{80  8080 }",
		"0:80":           "{80  0 }",
		"tensorboard":    "{0 tensorboard -1 }",
		"9:jupyter":      "{0 jupyter 9 }",
		"/a:b/s:80":      "{80  -1 /a:b/s}",
		"./s:jupyter":    "{0 jupyter -1 ./s}",
		"0":              "refused",
		"65536":          "refused",
		"-1":             "refused",
		"x":              "{0 x -1 }", // may be the name of a port of the job
		"debug-1":        "{0 debug-1 -1 }",
		"Debug":          "refused",
		"80:":            "refused",
		":80":            "refused",
		"1:2:3":          "refused",
		"/sock":          "refused",
		"8080:127.0.0.1": "refused",
	} {
		f, err := ParseForwarding(in)
		got := fmt.Sprint(f)
		if err != nil {
			got = "refused"
		}
		if got != want {
			t.Errorf("ParseForwarding(%q) = %s, %v; want %s", in, got, err, want)
		}
	}
}

// TestForwardInterrupted checks that an interruption hides only the error that it causes.
func TestForwardInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := time.Now()
	for want, task := range map[string]*job.Task{
		"context canceled":         {Index: 1, Start: start, Host: "elsewhere"},
		"task 1 of job x-1 ended ": {Index: 1, Start: start, End: start, Host: "elsewhere"},
	} {
		dir, s := t.TempDir(), runningJob(t, "slurm", 1)
		writeRunning(t, dir, s, 0)
		testenv.Check(t, task.Write(filepath.Join(dir, s.ID)))
		_, err := s.Forward(ctx, dir, 1, Forwarding{Port: 80, Local: -1}, "", false, func(string) {})
		if err == nil || !strings.HasPrefix(err.Error(), want) || errors.Is(err, context.Canceled) != task.End.IsZero() {
			t.Errorf("a task that ended at %v: %v; want %q", task.End, err, want)
		}
	}
}
