package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"hpcc/testdata/helpers/testenv"
)

// TestStageHelper is a child process of the tests below.
func TestStageHelper(t *testing.T) {
	log := os.Getenv("HPCC_TEST_STAGE_LOG")
	if log == "" {
		t.Skip("it is for the tests below")
	}
	s, err := OpenStage("", true)
	testenv.Check(t, err)
	dir, err := s.Copy(context.Background(), "k", 0, func(dir string) error {
		f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.WriteString("copy\n"); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o600); err != nil {
			return err
		}
		if os.Getenv("HPCC_TEST_STAGE_HANG") != "" {
			time.Sleep(time.Hour)
		}
		time.Sleep(50 * time.Millisecond)
		return os.WriteFile(filepath.Join(dir, "whole"), nil, 0o600)
	})
	testenv.Check(t, err)
	if _, err := os.Stat(filepath.Join(dir, "whole")); err != nil {
		t.Error(err)
	}
}

func stageProcess(t *testing.T, place, log string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestStageHelper$")
	cmd.Env = append(append(os.Environ(), "HPCC_STAGE="+place, "HPCC_TEST_STAGE_LOG="+log), env...)
	testenv.Check(t, cmd.Start())
	return cmd
}

func copies(log string) int {
	b, _ := os.ReadFile(log)
	return strings.Count(string(b), "copy\n")
}

// TestStageOneCopy: concurrent processes on a new node, without even the stage, create one
// copy.
func TestStageOneCopy(t *testing.T) {
	for range 5 {
		place, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
		var all []*exec.Cmd
		for range 16 {
			all = append(all, stageProcess(t, place, log))
		}
		for _, c := range all {
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
		}
		if n := copies(log); n != 1 {
			t.Fatalf("%d copies were made", n)
		}
	}
}

// TestStageKilled: a process killed during a copy blocks nobody, and its leftovers are
// removed.
func TestStageKilled(t *testing.T) {
	place, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	first := stageProcess(t, place, log, "HPCC_TEST_STAGE_HANG=1")
	for range 500 {
		if copies(log) == 1 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	second := stageProcess(t, place, log)
	time.Sleep(100 * time.Millisecond)
	if n := copies(log); n != 1 {
		t.Fatalf("%d copies while one is under way", n)
	}
	testenv.Check(t, first.Process.Kill())
	_ = first.Wait()
	testenv.Check(t, second.Wait())
	if n := copies(log); n != 2 {
		t.Errorf("%d copies, want the killed one and one more", n)
	}
	left, err := filepath.Glob(filepath.Join(place, "hpcc-*", "tmp", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestStageRoomAndAge(t *testing.T) {
	t.Setenv("HPCC_STAGE", t.TempDir())
	s, err := OpenStage("", true)
	testenv.Check(t, err)
	fill := func(dir string) error { return os.WriteFile(filepath.Join(dir, "x"), nil, 0o600) }
	if _, err := s.Copy(context.Background(), "big", 1<<60, fill); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "are free") {
		t.Errorf("error is %v, want ENOSPC", err)
	}
	old, err := s.Copy(context.Background(), "old", 0, fill)
	testenv.Check(t, err)
	past := time.Now().Add(-8 * 24 * time.Hour)
	testenv.Check(t, os.Chtimes(old, past, past))
	again := func() {
		if _, err := s.Copy(context.Background(), "old", 0, func(string) error { return errors.New("it is there") }); err != nil {
			t.Error(err)
		}
	}
	again() // the use is noted
	if rep, err := s.GC(context.Background(), GCOptions{}); err != nil || rep.Trees != 0 {
		t.Errorf("GC removed what was just used: %+v %v", rep, err)
	}
	testenv.Check(t, os.Chtimes(old, past, past))
	_, err = s.Copy(context.Background(), "new", 0, fill)
	testenv.Check(t, err)
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a copy that nobody used for a week is still there (%v)", err)
	}
}

// TestStageSent checks which files of a job the stage takes.
func TestStageSent(t *testing.T) {
	ctx := context.Background()
	place := t.TempDir()
	s, err := OpenStage(place, true)
	testenv.Check(t, err)
	t.Setenv(sentTo, "")
	if got := s.Sent("k"); got != "" {
		t.Errorf("Sent without a job = %q", got)
	}
	if _, err := s.Receive(ctx, "full", 1<<60); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Receive of a file that does not fit: %v", err)
	}
	dir, err := s.Receive(ctx, "job1", 1)
	testenv.Check(t, err)
	if _, err := s.Receive(ctx, "job1", 1); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Receive twice: %v", err)
	}
	file := filepath.Join(dir, "k")
	testenv.Check(t, os.WriteFile(file, []byte("x"), 0o600))
	testenv.Check(t, os.Symlink(file, filepath.Join(dir, "link")))
	ofFile := filepath.Join(dir, "2-3") // for the key of a file, which begins with its device
	testenv.Check(t, os.WriteFile(ofFile, nil, 0o600))
	other := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(other, "k"), nil, 0o600))
	for _, c := range []struct{ env, key, want string }{
		{dir, "k", file}, {dir, "1-2-3", ofFile}, {dir, "other", ""}, {dir, "link", ""}, {other, "k", ""}, {filepath.Dir(dir), "k", ""}, {"", "k", ""},
	} {
		t.Setenv(sentTo, c.env)
		if got := s.Sent(c.key); got != c.want {
			t.Errorf("with %s=%q, Sent(%q) = %q; want %q", sentTo, c.env, c.key, got, c.want)
		}
	}
	t.Setenv(sentTo, other)
	s.Done("k")
	t.Setenv(sentTo, dir)
	s.Done("other")
	for _, f := range []string{file, filepath.Join(other, "k")} {
		if _, err := os.Stat(f); err != nil {
			t.Errorf("Done with another key or directory: %v", err)
		}
	}
	testenv.Check(t, os.Remove(filepath.Join(dir, "link")))
	s.Done("9-2-3")
	s.Done("k")
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of the job after Done: %v", err)
	}
	dir, err = s.Receive(ctx, "job2", 0)
	testenv.Check(t, err)
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "k"), nil, 0o600))
	testenv.Check(t, s.Refuse("job2"))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of the job after Refuse: %v", err)
	}
	// A job that was killed leaves its directory.
	dir, err = s.Receive(ctx, "job3", 0)
	testenv.Check(t, err)
	for _, c := range []struct {
		age  time.Duration
		kept bool
	}{{23 * time.Hour, true}, {25 * time.Hour, false}} {
		then := time.Now().Add(-c.age)
		testenv.Check(t, os.Chtimes(dir, then, then))
		_, err = s.GC(ctx, GCOptions{})
		testenv.Check(t, err)
		if _, err := os.Stat(dir); (err == nil) != c.kept {
			t.Errorf("GC of a directory that is %v old: %v", c.age, err)
		}
	}
}

// TestStageJoin checks that an image whose layers are parts of one file has the same layers.
func TestStageJoin(t *testing.T) {
	ctx := context.Background()
	s, err := OpenStage(t.TempDir(), true)
	testenv.Check(t, err)
	img, err := random.Image(5000, 3)
	testenv.Check(t, err)
	file, err := s.Join(ctx, img)
	testenv.Check(t, err)
	same, err := s.Split(img, file)
	testenv.Check(t, err)
	testenv.Check(t, validate.Image(same))
	testenv.Check(t, os.Truncate(file, 5000))
	if _, err := s.Split(img, file); err == nil || !strings.Contains(err.Error(), "bytes of the layers") {
		t.Errorf("Split of a short file: %v", err)
	}
}
