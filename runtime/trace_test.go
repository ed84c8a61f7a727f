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

	"hpcc/testdata/testenv"
)

// oldVar makes this program execute itself without the variable, as on a kernel without
// seccomp notification and openat2(2).
const oldVar = "HPCC_TEST_OLD"

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
		{Code: load, K: 0}, // the number
		{Code: equal, K: unix.SYS_OPENAT2, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: equal, K: unix.SYS_SECCOMP, Jf: 3},
		{Code: load, K: 16 + 8}, // the flags
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

// With tracing, the notes are the same as with notification.
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
		t.Errorf("no test of tracing ran:\n%s", out)
	}
}

// tracedVar marks that programs must be traced.
const tracedVar = "HPCC_TEST_TRACED"

// Traced programs handle processes and signals as without a tracer.
func TestTracing(t *testing.T) {
	if os.Getenv(tracedVar) == "" {
		return // TestNotesByTracing runs it
	}
	root := testenv.BusyboxRoot(t)
	for _, c := range []struct{ name, script, out string }{
		{"traced", "grep TracerPid /proc/self/status | grep -vc '\t0$'", "1\n"},
		{"a status", "sh -c 'exit 7'; echo $?", "7\n"},
		{"a signal", "sh -c 'kill -9 $$'; echo $?", "Killed\n137\n"},
		{"a handler", "trap 'echo caught' USR1; kill -USR1 $$; echo after", "caught\nafter\n"},
		{"many children", "for i in 1 2 3 4 5 6 7 8 9; do (touch /c$i; chown $i:$i /c$i) & done; wait; echo done", "done\n"},
		{"a group stop", `(while :; do echo >>/log; sleep 0.01; done) & p=$!; until test -s /log; do sleep 0.01; done; kill -STOP $p; sleep 0.2; a=$(wc -l </log); sleep 0.3; b=$(wc -l </log)
			kill -CONT $p; sleep 0.3; c=$(wc -l </log); kill $p; test $a = $b && echo stopped; test $c -gt $b && echo goes on`, "stopped\ngoes on\n"},
		{"an orphan", "(sh -c 'sleep 0.1; touch /orphan; chown 5:6 /orphan' &); sleep 0.5; ls /orphan", "/orphan\n"},
		{"a pipe that breaks", "yes | head -n 1", "y\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l ledger
			if got := l.run(t, root, c.script); got != c.out {
				t.Errorf("%q prints %q; want %q", c.script, got, c.out)
			}
		})
	}
}
