package runtime

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/testdata/testenv"
)

// alone runs the present test in a process of its own, with what attr asks
// for, and says whether this is that process.
func alone(t *testing.T, attr *syscall.SysProcAttr) bool {
	t.Helper()
	const mark = "HPCC_TEST_AGAIN"
	if os.Getenv(mark) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"=1")
	cmd.SysProcAttr = attr
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	testenv.Need(t, "user namespaces", cmd.Start())
	if err := cmd.Wait(); err != nil {
		t.Fatalf("in a process of its own: %v\n%s", err, &out)
	}
	if strings.Contains(out.String(), "--- SKIP: ") {
		testenv.Need(t, "what the test needs in a process of its own", errors.New(out.String()))
	}
	return false
}

// call makes a system call on this thread alone.
func call(nr uint32, args ...uintptr) (uintptr, error) {
	var a [6]uintptr
	copy(a[:], args)
	r, _, e := unix.RawSyscall6(uintptr(nr), a[0], a[1], a[2], a[3], a[4], a[5])
	if e != 0 {
		return r, e
	}
	return r, nil
}

// Each call of the filter succeeds and does nothing, whatever its arguments.
func TestFilter(t *testing.T) {
	if !alone(t, nil) {
		return
	}
	goruntime.LockOSThread() // for good: the filter stays on this thread
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	ids := func() (id [6]uint32) {
		unix.RawSyscall(unix.SYS_GETRESUID, uintptr(unsafe.Pointer(&id[0])), uintptr(unsafe.Pointer(&id[1])), uintptr(unsafe.Pointer(&id[2])))
		unix.RawSyscall(unix.SYS_GETRESGID, uintptr(unsafe.Pointer(&id[3])), uintptr(unsafe.Pointer(&id[4])), uintptr(unsafe.Pointer(&id[5])))
		return id
	}
	before := ids()
	if _, err := call(unix.SYS_FCHOWN, ^uintptr(0)); !errors.Is(err, unix.EBADF) {
		t.Fatalf("fchown of nothing, before the filter: %v; want EBADF", err)
	}
	if err := fakeOwnership(program(forgetCalls, false)); err != nil {
		t.Fatal(err)
	}
	const strange = 0x7ffffff0
	nrs := append([]uint32{unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
		unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS, unix.SYS_CAPSET, unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR}, faked...)
	for _, c := range fileCalls {
		if c.does == changeOwner {
			nrs = append(nrs, c.nr)
		}
	}
	for _, nr := range nrs {
		if r, err := call(nr, strange, strange, strange, strange, strange); r != 0 || err != nil {
			t.Errorf("call %d gives %d, %v; want 0", nr, r, err)
		}
	}
	if after := ids(); after != before {
		t.Errorf("the ids are %v now; want %v", after, before)
	}
	dir := t.TempDir()
	for _, m := range mknods {
		for _, k := range []struct {
			kind uintptr
			made bool
		}{{unix.S_IFCHR, false}, {unix.S_IFBLK, false}, {unix.S_IFIFO, true}, {unix.S_IFREG, true}, {0, true}, {unix.S_IFSOCK, true}} {
			p := filepath.Join(dir, "node")
			name, err := unix.BytePtrFromString(p)
			if err != nil {
				t.Fatal(err)
			}
			args := []uintptr{^uintptr(99), uintptr(unsafe.Pointer(name)), k.kind | 0o644, 1<<8 | 3}
			if _, err := call(m.nr, args[2-m.mode:]...); err != nil {
				t.Errorf("call %d of kind %o: %v", m.nr, k.kind, err)
			}
			if _, err := os.Lstat(p); (err == nil) != k.made {
				t.Errorf("call %d of kind %o made a file: %v; want %v", m.nr, k.kind, err == nil, k.made)
			}
			os.Remove(p)
		}
	}
	// All else goes to the kernel.
	if _, err := call(unix.SYS_FCHMOD, ^uintptr(0)); !errors.Is(err, unix.EBADF) {
		t.Errorf("fchmod of nothing: %v; want EBADF", err)
	}
	if r, err := call(unix.SYS_GETPID); int(r) != os.Getpid() || err != nil {
		t.Errorf("getpid gives %d, %v; want %d", r, err, os.Getpid())
	}
}

// A host that allows a user no user namespaces is told of, with the cure.
func TestProbe(t *testing.T) {
	if !alone(t, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}) {
		return
	}
	for _, c := range []struct {
		max   string
		state State
	}{{"1000", OK}, {"100", Limited}, {"0", No}} {
		// The limit of this namespace, which its root may set (namespaces(7)).
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte(c.max), 0); err != nil {
			t.Skip(err)
		}
		fs := Probe(context.Background(), Checks(t.TempDir()))
		f := fs[0]
		if f.Name != "user namespaces" || f.State != c.state || !f.Vital || f.Why == "" || strings.Contains(f.Ask, "user.max_user_namespaces") != (c.state != OK) {
			t.Errorf("with max_user_namespaces=%s: Probe says %+v; want %s, why, and the limit to ask for", c.max, f, c.state)
		}
		if c.state != No {
			continue
		}
		for _, f := range fs[1:] {
			if strings.Contains(f.Name, "namespaces") && (f.State != No || f.Ask != "") {
				t.Errorf("without user namespaces: %+v; want no, and nothing more to ask for", f)
			}
		}
	}
	err := supervise(&specs.Spec{Root: &specs.Root{Path: "/"}, Process: &specs.Process{Args: []string{"true"}, Cwd: "/"}, Linux: newNamespaces(0, 0)})
	var ne *NamespaceError
	if !errors.As(err, &ne) || !strings.Contains(ne.Cure(), "user.max_user_namespaces") {
		t.Errorf("a run: %v; want a NamespaceError with the cure", err)
	}
}
