package main

import (
	"bytes"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// An account is an ordinary user of this machine. Tests that run as root start programs as two
// accounts: the victim uses hpcc, and the attacker attacks.
type account struct {
	name     string
	uid, gid uint32
	home     string
}

// neighbours returns the two users named in HPCC_TEST_USERS (VICTIM:ATTACKER).
// It skips the test unless it runs as root with that variable set. .ci/run runs
// these tests as root and sets it, so there they fail instead.
func neighbours(t *testing.T) (victim, attacker account) {
	t.Helper()
	v, a, ok := strings.Cut(os.Getenv("HPCC_TEST_USERS"), ":")
	if os.Geteuid() != 0 || !ok {
		if ok {
			t.Fatal("HPCC_TEST_USERS is set, but switching users needs root")
		}
		t.Skip("needs root and HPCC_TEST_USERS=VICTIM:ATTACKER, two ordinary users")
	}
	return lookupAccount(t, v), lookupAccount(t, a)
}

func lookupAccount(t *testing.T, name string) account {
	t.Helper()
	u, err := user.Lookup(name)
	testenv.Check(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	testenv.Check(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	testenv.Check(t, err)
	if uid == 0 {
		t.Fatalf("%s is root; want an ordinary user", name)
	}
	return account{name: name, uid: uint32(uid), gid: uint32(gid), home: u.HomeDir}
}

// command returns a command that runs as the account with only its own
// environment, extended by env. groups are supplementary group IDs.
func (a account) command(dir string, env []string, groups []uint32, argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	if argv[0] == "hpcc" {
		cmd = exec.Command(filepath.Join(bin, "hpcc"), argv[1:]...)
	}
	cmd.Dir = dir
	cmd.Env = append([]string{
		"HOME=" + a.home, "USER=" + a.name, "LOGNAME=" + a.name, "LC_ALL=C.UTF-8",
		"PATH=" + bin + ":" + os.Getenv("PATH"),
	}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: groups}}
	return cmd
}

// run runs a command as the account and returns its output streams and its exit
// status.
func (a account) run(t *testing.T, dir string, env []string, argv ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := a.command(dir, env, nil, argv...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatalf("running %q as %s: %v", argv, a.name, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// ownDir returns a new directory of the account with mode 0700.
func (a account) ownDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "hpcc-neighbour-")
	testenv.Check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	testenv.Check(t, os.Chown(dir, int(a.uid), int(a.gid)))
	return dir
}
