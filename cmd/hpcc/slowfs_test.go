package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/runtime"
	"hpcc/testdata/helpers/slowfs/mount"
	"hpcc/testdata/helpers/testenv"
)

// A slowStore is a directory on a network file system, with a store and an image.
type slowStore struct {
	disk, at string // the directory on the disk, and where it is mounted
	stage    string
	entries  int // files and directories of the image
}

// newSlowStore creates a store with the unpacked image "busy".
func newSlowStore(t *testing.T) *slowStore {
	t.Helper()
	needs(t, "slowfs", "busybox", "userns")
	s := &slowStore{disk: t.TempDir(), at: t.TempDir(), stage: t.TempDir()}
	root := testenv.BusyboxRoot(t)
	for i := range 100 {
		testenv.Write(t, filepath.Join(root, "data", fmt.Sprint(i)), "text")
	}
	testenv.Write(t, filepath.Join(root, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")
	tar := filepath.Join(t.TempDir(), "busy.tar")
	if out, err := exec.Command("tar", "-C", root, "-cf", tar, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	store := filepath.Join(s.disk, "store")
	hpccOut(t, store, "load", tar, "busy")
	hpccOut(t, store, "run", "busy", "--", "/bin/sh", "-c", ":") // unpacks it
	testenv.Check(t, filepath.Walk(root, func(string, os.FileInfo, error) error { s.entries++; return nil }))
	return s
}

// operations mounts the directory with empty caches, runs several copies of hpcc at once, and returns
// the number of operations of each kind. In args, AT is the mount point.
func (s *slowStore) operations(t *testing.T, copies int, args ...string) map[string]int {
	t.Helper()
	m, err := mount.New(filepath.Join(filepath.Dir(bin), "slowfs"), s.disk, s.at, "-delay", "0", "-cache", "1h")
	testenv.Check(t, err)
	defer func() { testenv.Check(t, m.Close()) }()
	for i := range args {
		args[i] = strings.Replace(args[i], "AT", s.at, 1)
	}
	var all []*exec.Cmd
	for range copies {
		cmd := exec.Command(filepath.Join(bin, "hpcc"), args...)
		cmd.Env = append(os.Environ(), "HPCC_STORE="+filepath.Join(s.at, "store"))
		if slices.Contains(args, "--stage") {
			cmd.Env = append(cmd.Env, "HPCC_STAGE="+s.stage)
		}
		cmd.Dir, cmd.Stderr = "/", os.Stderr
		testenv.Check(t, cmd.Start())
		all = append(all, cmd)
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("hpcc %s: %v", strings.Join(args, " "), err)
		}
	}
	counts, err := m.Counts()
	testenv.Check(t, err)
	t.Logf("hpcc %s: %v", strings.Join(args, " "), counts)
	return counts
}

// TestOperations bounds the operations of commands on a network file system, on which each takes a
// millisecond or more. It does not count reads, whose number depends on the kernel's read-ahead.
func TestOperations(t *testing.T) {
	s := newSlowStore(t)
	hpccOut(t, filepath.Join(s.disk, "store"), "save", "busy", filepath.Join(s.disk, "busy.sqfs"))
	program := []string{"--", "/bin/busybox", "true"}
	for _, c := range []struct {
		most int
		args []string
	}{
		{26, append([]string{"run", "busy"}, program...)},
		{18, append([]string{"run", "--stage", "busy"}, program...)},
		{12, append([]string{"run", "--stage", "busy"}, program...)}, // the copy exists
		{6*s.entries + 30, []string{"unpack", "busy", "AT/tree"}},
		{21, append([]string{"run", "AT/tree"}, program...)},
		{10, []string{"status"}},
		{20, []string{"images"}},
		{41, []string{"gc"}},
	} {
		counts := s.operations(t, 1, c.args...)
		if n := counts["total"] - counts["read"]; n > c.most {
			t.Errorf("hpcc %s: %d operations besides reads, want at most %d", strings.Join(c.args, " "), n, c.most)
		}
	}
	if runtime.CanMountSquashFS() != nil {
		return
	}
	counts := s.operations(t, 1, append([]string{"run", "AT/busy.sqfs"}, program...)...)
	if n := counts["total"] - counts["read"]; n > 4 {
		t.Errorf("a start from a SquashFS file: %d operations besides reads, want at most 4", n)
	}
}

// TestStageAtOnce: of many simultaneous starts on a node, one reads the image.
func TestStageAtOnce(t *testing.T) {
	s := newSlowStore(t)
	args := []string{"run", "--stage", "busy", "--", "/bin/busybox", "true"}
	one := s.operations(t, 1, args...)
	s.stage = t.TempDir()
	// Each start opens three files of the store, which the node has in its cache.
	if many := s.operations(t, 64, args...); many["read"] > one["read"]+4 || many["total"] > one["total"]+64*4 {
		t.Errorf("64 starts: %v operations; one start: %v", many, one)
	}
}
