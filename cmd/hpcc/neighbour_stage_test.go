package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// A sharedDir is a directory that two users can enter. The victim has a store in it with the image
// "base", whose file /which contains "genuine".
type sharedDir struct {
	victim, attacker account
	dir              string // owned by root
}

func newSharedDir(t *testing.T) *sharedDir {
	t.Helper()
	victim, attacker := neighbours(t)
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	dir, err := os.MkdirTemp("/tmp", "hpcc-shared-")
	testenv.Check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &sharedDir{victim, attacker, dir}
	s.asRoot(t, `chmod 755 . && mkdir -p root/bin store && cp "$1" root/bin/busybox && echo genuine >root/which
		for n in sh cat readlink sleep true; do ln -s busybox root/bin/$n; done
		tar --owner=0 --group=0 -cf base.tar -C root . && chown "$2" store`, busy, s.owner(victim))
	if out := s.hpcc(t, nil, "load", "base.tar", "base"); out.status != 0 {
		t.Fatalf("loading the image: %s", out.stderr)
	}
	return s
}

// owner returns UID:GID for chown(1).
func (s *sharedDir) owner(a account) string { return fmt.Sprintf("%d:%d", a.uid, a.gid) }

// path returns a path in the directory.
func (s *sharedDir) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// asRoot runs a script in the directory as root.
func (s *sharedDir) asRoot(t *testing.T, script string, args ...string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-ec", script, "sh"}, args...)...)
	cmd.Dir = s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// attack runs a script in the directory as the attacker.
func (s *sharedDir) attack(t *testing.T, script string, args ...string) {
	t.Helper()
	if _, stderr, status := s.attacker.run(t, s.dir, nil, append([]string{"sh", "-ec", script, "sh"}, args...)...); status != 0 {
		t.Fatalf("the attacker's %q: status %d: %s", script, status, stderr)
	}
}

type result struct {
	stdout, stderr string
	status         int
}

// hpcc runs hpcc as the victim, for at most two minutes.
func (s *sharedDir) hpcc(t *testing.T, env []string, args ...string) (r result) {
	t.Helper()
	env = append([]string{"HPCC_STORE=" + s.path("store")}, env...)
	r.stdout, r.stderr, r.status = s.victim.run(t, s.dir, env, append([]string{"timeout", "120", "hpcc"}, args...)...)
	return r
}

// stages copies the image to a stage in the directory "genuine". It copies that stage to "evil",
// which belongs to the attacker, where /which contains "evil". It returns the stage's name.
func (s *sharedDir) stages(t *testing.T) string {
	t.Helper()
	name := "hpcc-" + strconv.Itoa(int(s.victim.uid))
	s.asRoot(t, `install -d -o "${1%:*}" -g "${1#*:}" genuine`, s.owner(s.victim))
	if out := s.hpcc(t, []string{"HPCC_STAGE=" + s.path("genuine")}, "run", "base", "--", "cat", "/which"); out.stdout != "genuine\n" || !strings.Contains(out.stderr, "copying") {
		t.Fatalf("the first staged run: status %d, %q, %s", out.status, out.stdout, out.stderr)
	}
	s.asRoot(t, `mkdir evil; cp -a "genuine/$1" evil/; for f in evil/*/trees/*/which; do echo evil >$f; done; chown -R "$2" evil; chmod 755 evil evil/*`, name, s.owner(s.attacker))
	return name
}

// exchange lets the attacker, as a member of groups, exchange two paths as fast as possible. stop
// ends this and returns the number of exchanges.
func (s *sharedDir) exchange(t *testing.T, groups []uint32, a, b string) (stop func() int) {
	t.Helper()
	self := s.path("attacker")
	if _, err := os.Stat(self); err != nil {
		s.asRoot(t, `cp "$1" attacker && chmod 755 attacker`, os.Args[0])
	}
	cmd := s.attacker.command(s.dir, []string{"HPCC_TEST_EXCHANGE=" + a + ":" + b, "HPCC_TEST_BUILT=" + filepath.Dir(bin)}, groups, self, "-test.run=^TestExchangeHelper$")
	in, err := cmd.StdinPipe()
	testenv.Check(t, err)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	testenv.Check(t, cmd.Start())
	return func() int {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Fatalf("the attacker: %v: %s", err, out.String())
		}
		n := 0
		_, _ = fmt.Sscanf(out.String(), "exchanged %d times", &n)
		return n
	}
}

// TestExchangeHelper is the process of the attacker in the tests below.
func TestExchangeHelper(t *testing.T) {
	a, b, ok := strings.Cut(os.Getenv("HPCC_TEST_EXCHANGE"), ":")
	if !ok {
		t.Skip("a helper process of other tests")
	}
	end := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(end)
	}()
	for n := 0; ; {
		select {
		case <-end:
			fmt.Printf("exchanged %d times\n", n)
			return
		default:
		}
		if unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) == nil {
			n++
		}
	}
}

// stageRounds is the number of runs that the attacker attacks, in all situations together.
const stageRounds = 2000

// TestNeighbourStageRace lets an attacker rename directories on the path of the stage all the time.
// hpcc must not execute or read files of the attacker.
func TestNeighbourStageRace(t *testing.T) {
	s := newSharedDir(t)
	name := s.stages(t)
	group := []uint32{s.victim.gid}
	victim, attacker := s.owner(s.victim), s.owner(s.attacker)
	situations := []struct {
		name, script string // arguments: the stage's name, the victim and the attacker
		stage        string // $HPCC_STAGE
		a, b         string // paths to exchange
	}{
		{"a member of the group", `mkdir group; cp -a genuine/$1 group/; cp -a evil/$1 group/evil; chown $2 group; chmod 2770 group`, "group", "group/" + name, "group/evil"},
		{"the owner of the directory", `mkdir theirs; cp -a genuine/$1 theirs/; cp -a evil/$1 theirs/evil; chown $3 theirs; chmod 755 theirs`, "theirs", "theirs/" + name, "theirs/evil"},
		{"the owner of a directory with the sticky bit", `mkdir sticky; cp -a genuine/$1 sticky/; cp -a evil/$1 sticky/evil; chown $3 sticky; chmod 1777 sticky`, "sticky", "sticky/" + name, "sticky/evil"},
		{"a member of the group of a directory above", `mkdir above; cp -a genuine above/own; cp -a evil above/evil; chown $2 above above/own; chmod 770 above`, "above/own", "above/own", "above/evil"},
	}
	for _, c := range situations {
		t.Run(c.name, func(t *testing.T) {
			s.asRoot(t, c.script, name, victim, attacker)
			stop := s.exchange(t, group, s.path(c.a), s.path(c.b))
			for i := range stageRounds / len(situations) {
				out := s.hpcc(t, []string{"HPCC_STAGE=" + s.path(c.stage)}, "run", "base", "--", "cat", "/which")
				if out.stdout != "genuine\n" || out.status != 0 {
					t.Errorf("round %d: status %d, /which contains %q; %s", i, out.status, out.stdout, out.stderr)
					break
				}
			}
			if n := stop(); n < stageRounds {
				t.Errorf("the attacker exchanged only %d times", n)
			}
		})
	}
}

// taken are ways in which an attacker can occupy a name. The arguments of the scripts are the name, a
// directory of the attacker that imitates the expected one, and a file of the victim.
var taken = []struct{ name, script string }{
	{"directory", `mkdir -m 777 "$1"`},
	{"closed directory", `mkdir -m 700 "$1"`},
	{"directory like the real one", `cp -r "$2" "$1" && chmod 755 "$1"`},
	{"file", `echo x >"$1"`},
	{"FIFO", `mkfifo -m 666 "$1"`},
	{"link to a directory like the real one", `ln -s "$2" "$1"`},
	{"link to the victim's directory", `ln -s "${3%/*}" "$1"`},
	{"link to the victim's file", `ln -s "$3" "$1"`},
	{"link to itself", `ln -s "$1" "$1"`},
}

// TestNeighbourStageNames checks that staging works if the attacker occupies its name first.
func TestNeighbourStageNames(t *testing.T) {
	s := newSharedDir(t)
	name := s.stages(t)
	precious := s.preciousFile(t)
	for i, k := range taken {
		t.Run(k.name, func(t *testing.T) {
			tmpDir := s.path("tmp" + strconv.Itoa(i))
			s.asRoot(t, `mkdir -m 1777 "$1"`, tmpDir)
			s.attack(t, k.script, filepath.Join(tmpDir, name), s.path("evil", name), precious)
			before := s.listing(t, filepath.Dir(precious))
			env := []string{"HPCC_STAGE=" + tmpDir}
			stop := s.exchange(t, nil, filepath.Join(tmpDir, name), s.path("evil", name))
			for _, copied := range []bool{true, false} {
				out := s.hpcc(t, env, "run", "base", "--", "cat", "/which")
				if out.stdout != "genuine\n" || out.status != 0 || strings.Contains(out.stderr, "copying base to "+tmpDir) != copied {
					t.Errorf("status %d, /which contains %q; copied: want %v, %s", out.status, out.stdout, copied, out.stderr)
				}
			}
			stop()
			if out := s.hpcc(t, env, "gc", "--age", "0"); out.status != 0 {
				t.Errorf("gc: status %d, %s", out.status, out.stderr)
			}
			if after := s.listing(t, filepath.Dir(precious)); after != before {
				t.Errorf("the victim's files were %s and are %s", before, after)
			}
		})
	}
}

// TestNeighbourStageFile runs a SquashFS file while TMPDIR belongs to the attacker. hpcc must write
// nothing to it.
func TestNeighbourStageFile(t *testing.T) {
	s := newSharedDir(t)
	name := s.stages(t)
	s.asRoot(t, `mkdir theirs; cp -a "evil/$1" theirs/; chown "$2" theirs; chmod 1777 theirs; mkdir work; chown "$3" work`, name, s.owner(s.attacker), s.owner(s.victim))
	if out := s.hpcc(t, nil, "save", "base", "work/base.sqfs"); out.status != 0 {
		t.Fatal(out.stderr)
	}
	before := s.listing(t, s.path("theirs"))
	for _, args := range [][]string{{"run", "work/base.sqfs", "--", "cat", "/which"}, {"run", "--stage", "--cd", "/", "work/base.sqfs", "--", "cat", "/which"}} {
		if out := s.hpcc(t, []string{"TMPDIR=" + s.path("theirs")}, args...); out.status != 0 || out.stdout != "genuine\n" || !strings.Contains(out.stderr, "belongs to user") {
			t.Errorf("hpcc %s: status %d, %s%s", strings.Join(args, " "), out.status, out.stdout, out.stderr)
		}
	}
	if after := s.listing(t, s.path("theirs")); after != before {
		t.Errorf("the attacker's directory had %s and has %s", before, after)
	}
}

// preciousFile creates a file of the victim in a private directory.
func (s *sharedDir) preciousFile(t *testing.T) string {
	t.Helper()
	s.asRoot(t, `mkdir -m 700 home; echo precious >home/file; chmod 600 home/file; chown -R "$1" home`, s.owner(s.victim))
	return s.path("home", "file")
}

// listing describes the files in a directory, with their content.
func (s *sharedDir) listing(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	testenv.Check(t, err)
	var text []string
	for _, e := range entries {
		fi, err := e.Info()
		testenv.Check(t, err)
		b, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		text = append(text, fmt.Sprintf("%s %v %d %q", e.Name(), fi.Mode(), fi.Sys().(*syscall.Stat_t).Uid, b))
	}
	return strings.Join(text, ", ")
}
