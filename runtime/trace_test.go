package runtime

import (
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// oldVar is set in a test process that must run as on a kernel without seccomp notification
// and openat2(2).
const oldVar = "HPCC_TEST_OLD"

// execAsOld installs a filter that hides both features and executes the test binary again
// without oldVar.
func execAsOld() error {
	os.Unsetenv(oldVar)
	goruntime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
	)
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // the call's number
		{Code: equal, K: unix.SYS_OPENAT2, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: equal, K: unix.SYS_SECCOMP, Jf: 3},
		{Code: load, K: 16 + 8}, // args[1], the flags of seccomp(2)
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EINVAL)},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
	if err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// TestNotesByTracing checks that tracing records the same notes as seccomp notification.
func TestNotesByTracing(t *testing.T) {
	testenv.Slow(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^(TestNotes|TestNotesOfAttributes|TestTracing)$", "-test.v")
	cmd.Env = append(os.Environ(), oldVar+"=1", tracedVar+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP: ") {
		t.Skipf("skipped without notification:\n%s", out)
	}
	if n := strings.Count(string(out), "--- PASS: TestTracing"); n == 0 {
		t.Errorf("TestTracing did not run:\n%s", out)
	}
}

// tracedVar is set in a test process that must trace programs.
const tracedVar = "HPCC_TEST_TRACED"

// TestTracing checks that processes and signals behave under the tracer as without it.
func TestTracing(t *testing.T) {
	if os.Getenv(tracedVar) == "" {
		return // TestNotesByTracing runs it
	}
	root := testenv.BusyboxRoot(t)
	for _, c := range []struct{ name, script, out string }{
		{"traced", "grep TracerPid /proc/self/status | grep -vc '\t0$'", "1\n"},
		{"exit status", "sh -c 'exit 7'; echo $?", "7\n"},
		{"fatal signal", "sh -c 'kill -9 $$'; echo $?", "Killed\n137\n"},
		{"signal handler", "trap 'echo caught' USR1; kill -USR1 $$; echo after", "caught\nafter\n"},
		{"many children", "for i in 1 2 3 4 5 6 7 8 9; do (touch /c$i; chown $i:$i /c$i) & done; wait; echo done", "done\n"},
		{"stop and continue", `(while :; do echo >>/log; sleep 0.01; done) & p=$!; until test -s /log; do sleep 0.01; done; kill -STOP $p; sleep 0.2; a=$(wc -l </log); sleep 0.3; b=$(wc -l </log)
			kill -CONT $p; sleep 0.3; c=$(wc -l </log); kill $p; test $a = $b && echo stopped; test $c -gt $b && echo goes on`, "stopped\ngoes on\n"},
		{"orphan", "(sh -c 'sleep 0.1; touch /orphan; chown 5:6 /orphan' &); sleep 0.5; ls /orphan", "/orphan\n"},
		{"broken pipe", "yes | head -n 1", "y\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l ledger
			if got := l.run(t, root, c.script); got != c.out {
				t.Errorf("%q prints %q; want %q", c.script, got, c.out)
			}
		})
	}
}
