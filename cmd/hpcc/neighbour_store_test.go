package main

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"hpcc/testdata/testenv"
)

// A store of one user serves others of the group: they run and read, what would
// change it says why not, and the owner notices nothing.
func TestNeighbourSharedStore(t *testing.T) {
	s := newStreet(t)
	s.asRoot(t, `mkdir scratch && chown "$1" scratch`, s.owner(s.attacker))
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	if out := s.hpcc(t, nil, "push", "house", host+"/house"); out.status != 0 {
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
		text   string // on either stream
	}{
		{nil, []string{"run", "house", "--", "cat", "/which"}, 0, "genuine"},
		{[]string{"HPCC_STAGE=" + s.path("scratch")}, []string{"run", "house", "--", "cat", "/which"}, 0, "genuine"},
		{nil, []string{"images"}, 0, "house"},
		{nil, []string{"inspect", "house"}, 0, "architecture"},
		{nil, []string{"save", "house", "scratch/house.tar"}, 0, ""},
		{nil, []string{"load", "house.tar", "mine"}, 1, "set HPCC_STORE to a directory that you can write to"},
		{nil, []string{"pull", host + "/house"}, 1, "set HPCC_STORE to a directory that you can write to"},
		{[]string{"HPCC_STORE=" + s.path("scratch", "store")}, []string{"pull", host + "/house"}, 0, ""},
		{nil, []string{"rm", "house"}, 1, "permission denied"},
		{nil, []string{"gc", "--age", "0"}, 0, ""},
		{[]string{"HPCC_STORE=" + s.path("scratch", "store")}, []string{"load", "scratch/house.tar", "mine"}, 0, "mine"},
		{[]string{"HPCC_STORE=" + s.path("scratch", "store")}, []string{"run", "mine", "--", "cat", "/which"}, 0, "genuine"},
	} {
		if out := colleague(c.env, c.args...); out.status != c.status || !strings.Contains(out.stdout+out.stderr, c.text) {
			t.Errorf("the colleague's hpcc %s: status %d, %s%s; want %d with %q", strings.Join(c.args, " "), out.status, out.stdout, out.stderr, c.status, c.text)
		}
	}
	for _, args := range [][]string{{"load", "house.tar", "second"}, {"run", "second", "--", "cat", "/which"}, {"run", "house", "--", "cat", "/which"}, {"rm", "second"}, {"gc", "--age", "0"}, {"images"}} {
		if out := s.hpcc(t, nil, args...); out.status != 0 {
			t.Errorf("the owner's hpcc %s: status %d, %s", strings.Join(args, " "), out.status, out.stderr)
		}
	}
}

// A store that the attacker made in /tmp, where the victim was to make one, is refused.
func TestNeighbourStoreInTheWay(t *testing.T) {
	s := newStreet(t)
	s.asRoot(t, `mkdir -m 1777 tmp; cp -a store tmp/store; chown -R "$1" tmp/store`, s.owner(s.attacker))
	for _, args := range [][]string{{"images"}, {"load", "house.tar", "mine"}, {"run", "--stage", "house", "--", "cat", "/which"}} {
		if out := s.hpcc(t, []string{"HPCC_STORE=" + s.path("tmp", "store")}, args...); out.status == 0 || !strings.Contains(out.stderr, "another user created it in") {
			t.Errorf("hpcc %s: status %d, %s%s", strings.Join(args, " "), out.status, out.stdout, out.stderr)
		}
	}
}

// A store that others can write to is refused by every command, with the cure.
func TestNeighbourOpenStore(t *testing.T) {
	s := newStreet(t)
	commands := [][]string{{"run", "house", "--", "cat", "/which"}, {"run", "--cd", "/", "house", "--", "cat", "/which"}, {"run", "-b", s.dir, "house", "--", "cat", "/which"}, {"images"}, {"load", "house.tar", "again"}, {"gc"}}
	for _, c := range []struct {
		path string
		mode os.FileMode
		text string
		from int // the first command that refuses
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
			t.Errorf("%s with mode %v: doctor says\n%s", c.path, c.mode, out.stdout)
		}
		testenv.Check(t, os.Chmod(path, fi.Mode()))
		if out := s.hpcc(t, nil, "run", "house", "--", "cat", "/which"); out.stdout != "genuine\n" {
			t.Errorf("after the cure: status %d, %s%s", out.status, out.stdout, out.stderr)
		}
	}
}
