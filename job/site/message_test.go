package site

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/testdata/helpers/testenv"
)

// TestMessage: a job arrives with the files that its arguments name.
func TestMessage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.env")
	testenv.Check(t, os.WriteFile(file, []byte("A=1\n"), 0o600))
	r := &Remote{Site: &dispatch.Site{Name: "far"}, Own: "1.2"}
	sent := &Message{Job: &job.Job{Run: []string{"hpcc", "run", "--set-env=" + file, "--set-env=B=2", "--env=C"}}, Target: job.Local, Follows: true}
	b, err := r.encode(sent)
	testenv.Check(t, err)
	m, err := Receive(strings.NewReader(b.String()), "1.3")
	testenv.Check(t, err)
	if m.Version != "1.2" || m.Target != job.Local || !m.Follows || len(m.Files) != 1 {
		t.Errorf("received %+v", m)
	}
	jobs := t.TempDir()
	testenv.Check(t, m.KeepFiles(jobs))
	_, kept, _ := strings.Cut(m.Job.Run[2], "=")
	text, err := os.ReadFile(kept)
	if !strings.HasPrefix(kept, jobs) || string(text) != "A=1\n" || err != nil {
		t.Errorf("%s has %q, %v", kept, text, err)
	}
	if got := strings.Join(m.Job.Run[3:], " "); got != "--set-env=B=2 --env=C" {
		t.Errorf("the other arguments changed: %s", got)
	}
	_, err = Receive(strings.NewReader(strings.Replace(b.String(), `"protocol":1`, `"protocol":2`, 1)), "1.3")
	if err == nil || !strings.Contains(err.Error(), "from hpcc 1.2 on another machine (this is 1.3): protocol version 2, not 1") {
		t.Errorf("another protocol: %v", err)
	}
	sent.Job.Run = []string{"--set-env0=c.{task}"}
	if _, err := r.encode(sent); err == nil || !strings.Contains(err.Error(), "files that are named after the task are not sent to site far") {
		t.Errorf("a file named after the task: %v", err)
	}
}

// TestDir: the directory of a job is below that of the site, which is below the home directory.
func TestDir(t *testing.T) {
	r := &Remote{Site: &dispatch.Site{Dir: "runs"}, Info: Info{Home: "/home/a"}}
	for chdir, want := range map[string]string{"": "/home/a/runs", "x/y": "/home/a/runs/x/y", "/scratch/../s": "/s", "~/z": "/home/a/runs/z"} {
		if got := r.Dir(chdir); got != want {
			t.Errorf("Dir(%q) = %s; want %s", chdir, got, want)
		}
	}
}
