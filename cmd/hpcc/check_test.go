package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"hpcc/build"
	"hpcc/runtime/check"
	"hpcc/testdata/helpers/testenv"
)

// cured implements "cured DOCKERFILE FINDINGS OUT": it writes a Dockerfile with the lines that
// "hpcc check --json" recommends, in the place that its hint names.
func cured(ts *testscript.TestScript, _ bool, args []string) {
	lines := strings.Split(strings.TrimSpace(ts.ReadFile(args[0])), "\n")
	user := ""
	for _, l := range lines {
		if u, ok := strings.CutPrefix(l, "USER "); ok {
			user = u
		}
	}
	lines = append(lines, "USER 0")
	for text := range strings.Lines(ts.ReadFile(args[1])) {
		var f check.Finding
		ts.Check(json.Unmarshal([]byte(text), &f))
		if i := slices.Index(lines, f.Replaces); f.Replaces != "" {
			if i < 0 {
				ts.Fatalf("the Dockerfile has no line %q to replace", f.Replaces)
			}
			lines = slices.Replace(lines, i, i+1, f.Cure...)
			continue
		}
		if f.Level == "error" && len(f.Cure) == 0 {
			ts.Fatalf("nothing cures %+v", f)
		}
		for _, l := range f.Cure {
			if u, ok := strings.CutPrefix(l, "USER "); ok {
				user = u
			} else if !slices.Contains(lines, l) {
				lines = append(lines, l)
			}
		}
	}
	if user != "" {
		lines = append(lines, "USER "+user)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(strings.Join(lines, "\n")+"\n"), 0o644))
}

// TestEntryPart checks that images get only the small program of a file of hpcc, and that it runs.
func TestEntryPart(t *testing.T) {
	file, err := os.ReadFile(filepath.Join(bin, "hpcc"))
	testenv.Check(t, err)
	part, err := build.EntryProgram(goruntime.GOARCH, string(file))
	testenv.Check(t, err)
	if len(part) > 4<<20 || len(part) > len(file)/4 {
		t.Errorf("the part has %d of %d bytes", len(part), len(file))
	}
	alone := filepath.Join(t.TempDir(), "hpcc-entry")
	testenv.Check(t, os.WriteFile(alone, part, 0o755))
	out, err := exec.Command(alone, "entry", "--", "echo", "it runs").CombinedOutput()
	if err != nil || string(out) != "it runs\n" {
		t.Errorf("%v: %s", err, out)
	}
	out, err = exec.Command(alone, "entry", "--nothing").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "usage: hpcc-entry entry [--measure[=FILE]] [--] CMD") {
		t.Errorf("%v: %s", err, out)
	}
	// Files that consist of only one of the two programs stay unchanged.
	for _, name := range []string{filepath.Join(full, "hpcc"), alone} {
		b, err := os.ReadFile(name)
		testenv.Check(t, err)
		if got, err := build.EntryProgram(goruntime.GOARCH, string(b)); err != nil || len(got) != len(b) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(b), err)
		}
	}
}

// TestEntryIsTheSame checks that both programs behave in the same way as an entry point.
func TestEntryIsTheSame(t *testing.T) {
	for _, line := range []string{"", "--", "--help", "-x echo", "--x=1 -- echo", "nosuch", "-- nosuch", "/etc", "-- /etc/passwd", "echo hi", "-- echo hi", "-- -- x", "-- -x", "sh -c exit\\x203", "-- env -i pwd"} {
		args := []string{"entry"}
		for _, w := range strings.Fields(line) {
			args = append(args, strings.ReplaceAll(w, `\x20`, " "))
		}
		run := func(dir string) string {
			cmd := exec.Command(filepath.Join(dir, "hpcc"), args...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
			cmd.Dir = "/"
			out, _ := cmd.CombinedOutput()
			return fmt.Sprintf("%d %s", cmd.ProcessState.ExitCode(), out)
		}
		if got, want := run(bin), run(full); got != want {
			t.Errorf("hpcc entry %s: %s; the full program: %s", line, got, want)
		}
	}
}
