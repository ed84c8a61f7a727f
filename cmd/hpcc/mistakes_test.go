package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// mistakesFile lists mistakes of users with the full answers of hpcc:
//
//	$ COMMAND
//	lines of standard error
//	status N
//
// Lines that begin with # are comments. "go test -run TestMistakes -update" writes the
// answers; read them before you commit them.
const mistakesFile = "../../testdata/corpora/mistakes.txt"

// changing matches parts of messages that differ between runs.
var changing = []struct {
	re *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`\b\d+\.\d+s\b`), "TIME"},
	{regexp.MustCompile(`-\d{6}-\d{6}\b`), "-DATE"},
}

// TestMistakes makes each mistake and compares the messages, the hint and the exit status.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"busybox", "userns"} {
		testenv.Need(t, name, facilities[name]())
	}
	dir := t.TempDir()
	prepareMistakes(t, dir)
	text, err := os.ReadFile(mistakesFile)
	testenv.Check(t, err)
	var got bytes.Buffer
	mistakes := 0
	for line := range strings.Lines(string(text)) {
		command, ok := strings.CutPrefix(line, "$ ")
		switch {
		case ok:
			fmt.Fprintf(&got, "%s%s", line, answerTo(t, dir, strings.TrimSpace(command)))
			mistakes++
		case strings.HasPrefix(line, "#"), line == "\n":
			got.WriteString(line)
		}
	}
	if *update {
		testenv.Check(t, os.WriteFile(mistakesFile, got.Bytes(), 0o644))
		return
	}
	if mistakes < 40 {
		t.Errorf("%d mistakes; want 40", mistakes)
	}
	want := strings.Split(string(text), "\n$ ")
	for i, part := range strings.Split(got.String(), "\n$ ") {
		if i >= len(want) || part != want[i] {
			t.Errorf("$ %s\nwant\n%s", part, want[min(i, len(want)-1)])
		}
	}
}

// prepareMistakes creates a store with the image bb and the files that the mistakes name.
func prepareMistakes(t *testing.T, dir string) {
	t.Helper()
	for name, text := range map[string]string{
		"unknown/Dockerfile": "FROM bb\nRUNN make\n",
		"nobase/Dockerfile":  "FROM 127.0.0.1:1/base:1\nRUN true\n",
		"nofile/Dockerfile":  "FROM bb\nCOPY main.py /app/\n",
		"noprog/Dockerfile":  "FROM bb\nRUN nosuchprogram --install\n",
		"fails/Dockerfile":   "FROM bb\nRUN exit 3\n",
		"bad.env":            "A=1\nB B\n",
		"text.tar":           "hello\n",
		"full/file":          "",
		"plain.sh":           "#!/bin/sh\ntrue\n",
		"job.yaml":           "kind: Workflow\nspec:\n  templates:\n    - name: a\n      contaner: {}\n",
		"broken.yml":         "dependencies:\n  - numpy\n - scipy\n",
		"config.env":         "A=1\n",
	} {
		p := filepath.Join(dir, "work", name)
		testenv.Check(t, os.MkdirAll(filepath.Dir(p), 0o755))
		testenv.Check(t, os.WriteFile(p, []byte(text), 0o644))
	}
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	if _, status := askMistake(t, dir, fmt.Sprintf(`mkdir -p ../root/bin && cp %s ../root/bin/busybox && ln -s busybox ../root/bin/sh && ln -s busybox ../root/bin/true &&
		tar cf ../bb.tar -C ../root . && hpcc load ../bb.tar bb && hpcc tag bb trainer`, busy)); status != 0 {
		t.Fatal("no image bb")
	}
}

// answerTo returns the standard error and the exit status of a command.
func answerTo(t *testing.T, dir, command string) string {
	text, status := askMistake(t, dir, command)
	for _, c := range changing {
		text = c.re.ReplaceAllString(text, c.as)
	}
	text = strings.NewReplacer(bin, "BIN", dir, "DIR").Replace(text)
	return fmt.Sprintf("%sstatus %d\n", text, status)
}

func askMistake(t *testing.T, dir, command string) (stderr string, status int) {
	t.Helper()
	cmd := exec.Command("timeout", "60", "sh", "-c", command)
	cmd.Dir = filepath.Join(dir, "work")
	cmd.Env = []string{
		"HOME=" + dir, "HPCC_STORE=" + filepath.Join(dir, "store"), "PATH=" + bin + ":/usr/bin:/bin", "TMPDIR=" + dir, "USER=user",
		"http_proxy=", "https_proxy=", "LC_ALL=C",
	}
	var b bytes.Buffer
	cmd.Stderr = &b
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return b.String(), cmd.ProcessState.ExitCode()
}
