package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestNeighbourJoinNames checks that tasks find each other although the attacker has created their
// directory. They must use a directory that no other user can write to.
func TestNeighbourJoinNames(t *testing.T) {
	s := newSharedDir(t)
	precious := s.preciousFile(t)
	s.attack(t, `mkdir -m 777 "$1/like" && echo '[]' >"$1/like/tag-t"`, s.attacker.ownDirIn(t, s.dir))
	name := "/dev/shm/hpcc-join-" + strconv.Itoa(int(s.victim.uid))
	// Root mounts a new /dev/shm, so that other runs do not interfere.
	const script = `mount -t tmpfs -o mode=1777 none /dev/shm
		as() { u=$1; shift; setpriv --reuid=$u --regid=$u --clear-groups env -i HOME=/nonexistent HPCC_STORE="$PWD/store" PATH="$BIN:$PATH" "$@"; }
		as $ATTACKER sh -ec "$TAKE" sh "$NAME" "$LIKE" "$PRECIOUS"
		for i in 1 2; do as $VICTIM timeout 60 hpcc run --join-ct 3 --join-tag t base -- sh -c 'cat /which; readlink /proc/self/ns/user; sleep 1' & done; wait
		find /dev/shm -maxdepth 1 -user $VICTIM ! \( -type d -perm 700 \) -exec echo exposed {} \;`
	for _, k := range taken {
		t.Run(k.name, func(t *testing.T) {
			before := s.listing(t, filepath.Dir(precious))
			cmd := exec.Command("unshare", "-m", "sh", "-ec", script)
			cmd.Dir = s.dir
			cmd.Env = append(os.Environ(), "BIN="+bin, "TAKE="+k.script, "NAME="+name, "LIKE="+s.path("theirs", "like"), "PRECIOUS="+precious,
				fmt.Sprintf("VICTIM=%d", s.victim.uid), fmt.Sprintf("ATTACKER=%d", s.attacker.uid))
			out, err := cmd.CombinedOutput()
			lines := strings.Fields(string(out))
			if err != nil || len(lines) != 4 || strings.Count(string(out), "genuine") != 2 || strings.Count(string(out), lines[len(lines)-1]) != 2 {
				t.Errorf("two tasks do not share a user namespace: %v\n%s", err, out)
			}
			if after := s.listing(t, filepath.Dir(precious)); after != before {
				t.Errorf("the victim's files were %s and are %s", before, after)
			}
		})
	}
}

// ownDirIn creates a directory of the account, named "theirs", in dir.
func (a account) ownDirIn(t *testing.T, dir string) string {
	t.Helper()
	own := filepath.Join(dir, "theirs")
	testenv.Check(t, os.Mkdir(own, 0o755))
	testenv.Check(t, os.Chown(own, int(a.uid), int(a.gid)))
	return own
}

// TestNeighbourContainers puts files of the attacker at the name of the state directory of containers.
// hpcc must not read them and must still run containers. Commands that only read must not create the
// directory.
func TestNeighbourContainers(t *testing.T) {
	s := newSharedDir(t)
	precious := s.preciousFile(t)
	// The attacker's container has a hook that deleting it would execute.
	s.attack(t, `mkdir -m 777 "$1/like" "$1/like/theirs" && cat >"$1/like/theirs/state.json" <<-E
		{"ociVersion":"1.0.2","id":"theirs","status":"stopped","pid":99999999,"bundle":"/","processStartTime":1,"hooks":{"poststop":[{"path":"/bin/touch","args":["touch","$2/hooked"]}]}}
		E`, s.attacker.ownDirIn(t, s.dir), filepath.Dir(precious))
	s.asRoot(t, `mkdir work && chown "$1" work`, s.owner(s.victim))
	if out := s.hpcc(t, nil, "unpack", "--bundle", "base", "work/bundle"); out.status != 0 {
		t.Fatal(out.stderr)
	}
	s.asRoot(t, `sed -i 's#"/bin/sh"#"/bin/cat", "/which"#' work/bundle/config.json`)
	name := "hpcc-oci-" + strconv.Itoa(int(s.victim.uid))
	for i, k := range append(taken, struct{ name, script string }{"nothing", ":"}) {
		t.Run(k.name, func(t *testing.T) {
			tmpDir := s.path("tmp" + strconv.Itoa(i))
			s.asRoot(t, `mkdir -m 1777 "$1"`, tmpDir)
			s.attack(t, k.script, filepath.Join(tmpDir, name), s.path("theirs", "like"), precious)
			env, before := []string{"TMPDIR=" + tmpDir}, s.listing(t, filepath.Dir(precious))
			entries, err := os.ReadDir(tmpDir)
			testenv.Check(t, err)
			if out := s.hpcc(t, env, "oci", "list"); out.status != 0 || out.stdout != "[]\n" {
				t.Errorf("list: status %d, %s%s", out.status, out.stdout, out.stderr)
			}
			for _, args := range [][]string{{"state", "theirs"}, {"start", "theirs"}, {"kill", "theirs"}, {"delete", "theirs"}} {
				if out := s.hpcc(t, env, append([]string{"oci"}, args...)...); out.status == 0 || !strings.Contains(out.stderr, "container does not exist") {
					t.Errorf("%s: status %d, %s%s", args[0], out.status, out.stdout, out.stderr)
				}
			}
			if out := s.hpcc(t, env, "oci", "delete", "--force", "theirs"); out.status != 0 {
				t.Errorf("delete --force: status %d, %s", out.status, out.stderr)
			}
			if now, err := os.ReadDir(tmpDir); err != nil || len(now) != len(entries) {
				t.Errorf("commands that only read created a directory: %v, %v", now, err)
			}
			if out := s.hpcc(t, env, "oci", "run", "--bundle", "work/bundle", "mine"); out.status != 0 || out.stdout != "genuine\n" {
				t.Errorf("run: status %d, %s%s", out.status, out.stdout, out.stderr)
			}
			if out := s.hpcc(t, env, "oci", "state", "mine"); out.status != 0 || !strings.Contains(out.stdout, `"id": "mine"`) {
				t.Errorf("state: status %d, %s%s", out.status, out.stdout, out.stderr)
			}
			if after := s.listing(t, filepath.Dir(precious)); after != before {
				t.Errorf("the victim's files were %s and are %s", before, after)
			}
		})
	}
}

// TestNeighbourContainersRoot checks that root, which queries containers of users for Slurm, creates
// no directory, and that hpcc refuses a --root that other users can replace.
func TestNeighbourContainersRoot(t *testing.T) {
	s := newSharedDir(t)
	s.asRoot(t, `mkdir -m 1777 tmp`)
	for _, verb := range [][]string{{"state", "x"}, {"kill", "x"}, {"delete", "--force", "x"}, {"list"}} {
		cmd := exec.Command(filepath.Join(bin, "hpcc"), append([]string{"oci", "--root", s.path("tmp", "of-user")}, verb...)...)
		out, err := cmd.CombinedOutput()
		if quiet := verb[0] == "list" || verb[0] == "delete"; (err == nil) != quiet {
			t.Errorf("%s: %v: %s", verb[0], err, out)
		}
	}
	if entries, err := os.ReadDir(s.path("tmp")); err != nil || len(entries) > 0 {
		t.Errorf("root created %v, %v", entries, err)
	}
	s.asRoot(t, `mkdir -m 770 group; chown "$1" group; mkdir -m 700 group/own; chown "$1" group/own`, s.owner(s.victim))
	for _, verb := range []string{"list", "run"} {
		args := []string{"oci", "--root", s.path("group", "own"), verb}
		if verb == "run" {
			args = append(args, "x")
		}
		if out := s.hpcc(t, nil, args...); out.status == 0 || !strings.Contains(out.stderr, "its group can replace the entries of") {
			t.Errorf("%s in a directory whose parent the group can write to: status %d, %s", verb, out.status, out.stderr)
		}
	}
}
