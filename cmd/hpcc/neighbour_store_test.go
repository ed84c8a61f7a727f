package main

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"hpcc/testdata/helpers/testenv"
)

// TestNeighbourSharedStore checks that members of a group can run and read images of another user's
// store. Changes must fail with a reason, and the owner must still be able to use the store.
func TestNeighbourSharedStore(t *testing.T) {
	s := newSharedDir(t)
	s.asRoot(t, `mkdir scratch && chown "$1" scratch`, s.owner(s.attacker))
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	if out := s.hpcc(t, nil, "push", "base", host+"/base"); out.status != 0 {
		t.Fatal(out.stderr)
	}
	colleague := func(env []string, args ...string) (r result) {
		t.Helper()
		cmd := s.attacker.command(s.dir, append([]string{"HPCC_STORE=" + s.path("store")}, env...), []uint32{s.victim.gid}, append([]string{"timeout", "120", "hpcc"}, args...)...)
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
	}
	for _, c := range []struct {
		env    []string
		args   []string
		status int
		text   string // in standard output or standard error
	}{
		{nil, []string{"run", "base", "--", "cat", "/which"}, 0, "genuine"},
		{[]string{"HPCC_STAGE=" + s.path("scratch")}, []string{"run", "base", "--", "cat", "/which"}, 0, "genuine"},
		{nil, []string{"images"}, 0, "base"},
		{nil, []string{"inspect", "base"}, 0, "architecture"},
		{nil, []string{"save", "base", "scratch/base.tar"}, 0, ""},
		{nil, []string{"load", "base.tar", "mine"}, 1, "set HPCC_STORE to a directory that you can write to"},
		{nil, []string{"pull", host + "/base"}, 1, "set HPCC_STORE to a directory that you can write to"},
		{[]string{"HPCC_STORE=" + s.path("scratch", "store")}, []string{"pull", host + "/base"}, 0, ""},
		{nil, []string{"rm", "base"}, 1, "permission denied"},
		{nil, []string{"gc", "--age", "0"}, 0, ""},
		{[]string{"HPCC_STORE=" + s.path("scratch", "store")}, []string{"load", "scratch/base.tar", "mine"}, 0, "mine"},
		{[]string{"HPCC_STORE=" + s.path("scratch", "store")}, []string{"run", "mine", "--", "cat", "/which"}, 0, "genuine"},
	} {
		if out := colleague(c.env, c.args...); out.status != c.status || !strings.Contains(out.stdout+out.stderr, c.text) {
			t.Errorf("the colleague's hpcc %s: status %d, %s%s; want %d with %q", strings.Join(c.args, " "), out.status, out.stdout, out.stderr, c.status, c.text)
		}
	}
	for _, args := range [][]string{{"load", "base.tar", "second"}, {"run", "second", "--", "cat", "/which"}, {"run", "base", "--", "cat", "/which"}, {"rm", "second"}, {"gc", "--age", "0"}, {"images"}} {
		if out := s.hpcc(t, nil, args...); out.status != 0 {
			t.Errorf("the owner's hpcc %s: status %d, %s", strings.Join(args, " "), out.status, out.stderr)
		}
	}
}

// TestNeighbourStoreInTheWay checks that hpcc refuses a store in /tmp that the attacker created.
func TestNeighbourStoreInTheWay(t *testing.T) {
	s := newSharedDir(t)
	s.asRoot(t, `mkdir -m 1777 tmp; cp -a store tmp/store; chown -R "$1" tmp/store`, s.owner(s.attacker))
	for _, args := range [][]string{{"images"}, {"load", "base.tar", "mine"}, {"run", "--stage", "base", "--", "cat", "/which"}} {
		if out := s.hpcc(t, []string{"HPCC_STORE=" + s.path("tmp", "store")}, args...); out.status == 0 || !strings.Contains(out.stderr, "another user created it in") {
			t.Errorf("hpcc %s: status %d, %s%s", strings.Join(args, " "), out.status, out.stdout, out.stderr)
		}
	}
}

// TestNeighbourOpenStore checks that every command refuses a store that other users can write to, and
// that the hint works.
func TestNeighbourOpenStore(t *testing.T) {
	s := newSharedDir(t)
	commands := [][]string{{"run", "base", "--", "cat", "/which"}, {"run", "--cd", "/", "base", "--", "cat", "/which"}, {"run", "-b", s.dir, "base", "--", "cat", "/which"}, {"images"}, {"load", "base.tar", "again"}, {"gc"}}
	for _, c := range []struct {
		path string
		mode os.FileMode
		text string
		from int // index of the first command that refuses
	}{
		{"store", 0o775, "its group can write to it (mode 775) and change what is run from it; run \"chmod go-w " + s.path("store"), 0},
		{"store", 0o777, "everybody can write to it (mode 777)", 0},
		{"store", 0o777 | os.ModeSticky, "everybody can write to it (mode 777)", 0},
		{".", 0o777, "every user can replace the entries of \"" + s.dir + "\" (mode 777, no sticky bit); set HPCC_STORE", 3},
	} {
		path := s.path(c.path)
		fi, err := os.Stat(path)
		testenv.Check(t, err)
		testenv.Check(t, os.Chmod(path, c.mode))
		for _, args := range commands[c.from:] {
			if out := s.hpcc(t, nil, args...); out.status == 0 || out.stdout != "" || !strings.Contains(out.stderr, c.text) {
				t.Errorf("%s with mode %v: hpcc %s: status %d, %s%s", c.path, c.mode, strings.Join(args, " "), out.status, out.stdout, out.stderr)
			}
		}
		if out := s.hpcc(t, nil, "doctor"); !strings.Contains(strings.Join(strings.Fields(out.stdout), " "), "refused") {
			t.Errorf("%s with mode %v: doctor prints\n%s", c.path, c.mode, out.stdout)
		}
		testenv.Check(t, os.Chmod(path, fi.Mode()))
		if out := s.hpcc(t, nil, "run", "base", "--", "cat", "/which"); out.stdout != "genuine\n" {
			t.Errorf("after following the hint: status %d, %s%s", out.status, out.stdout, out.stderr)
		}
	}
}
