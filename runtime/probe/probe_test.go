package probe

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/runtime"
	"hpcc/testdata/helpers/testenv"
)

// TestRunHangs checks that a check that hangs, as a system call on a dead mount does, is
// reported and does not delay the others.
func TestRunHangs(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	fs := Run(ctx, []Check{
		{"dead", true, func(context.Context) Feature { select {} }},
		{"alive", false, func(context.Context) Feature { return Feature{State: OK, Why: "it is"} }},
	})
	if d := time.Since(start); d > checkTime {
		t.Errorf("Run took %v", d)
	}
	if f := fs[0]; f.Name != "dead" || !f.Vital || f.State != No || !strings.Contains(f.Why, "no answer") {
		t.Errorf("the check that hangs returns %+v", f)
	}
	if f := fs[1]; f != (Feature{Name: "alive", State: OK, Why: "it is"}) {
		t.Errorf("the other check returns %+v", f)
	}
}

// TestChecks checks that each check returns a result with a reason on any host, and leaves no
// files.
func TestChecks(t *testing.T) {
	dir := t.TempDir()
	for _, f := range Run(context.Background(), Checks(dir+"/not/there")) {
		if f.Name == "" || f.Why == "" || (f.State != OK && f.State != Limited && f.State != No) || (f.State == OK && f.Ask != "") {
			t.Errorf("Run returns %+v", f)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the checks left %v (%v)", left, err)
	}
}

// TestRun checks that a host that limits user namespaces is reported with the cure.
func TestRun(t *testing.T) {
	if !testenv.Alone(t, &syscall.SysProcAttr{
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
		// The limit of this namespace, which its root can set (namespaces(7)).
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte(c.max), 0); err != nil {
			t.Skip(err)
		}
		fs := Run(context.Background(), Checks(t.TempDir()))
		f := fs[0]
		if f.Name != "user namespaces" || f.State != c.state || !f.Vital || f.Why == "" || strings.Contains(f.Ask, "user.max_user_namespaces") != (c.state != OK) {
			t.Errorf("with max_user_namespaces=%s: Run returns %+v; want the state %s, a reason, and a request for a higher limit", c.max, f, c.state)
		}
		if c.state != No {
			continue
		}
		for _, f := range fs[1:] {
			if strings.Contains(f.Name, "namespaces") && (f.State != No || f.Ask != "") {
				t.Errorf("without user namespaces: %+v; want the state no, and no further request", f)
			}
		}
	}
	ids := []specs.LinuxIDMapping{{HostID: uint32(os.Geteuid()), Size: 1}}
	err := runtime.Exec(&specs.Spec{Root: &specs.Root{Path: "/"}, Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.UserNamespace}, {Type: specs.MountNamespace}}, UIDMappings: ids, GIDMappings: ids}})
	var ne *runtime.NamespaceError
	if !errors.As(err, &ne) || !strings.Contains(Cure(ne), "user.max_user_namespaces") {
		t.Errorf("a run: %v; want a NamespaceError with the cure", err)
	}
}

func TestNamespaceErrorHasACure(t *testing.T) {
	for _, err := range []error{os.ErrPermission, errors.New("no space left on device")} {
		e := &runtime.NamespaceError{Err: err}
		if Cure(e) == "" || !strings.Contains(e.Error(), "user namespaces") {
			t.Errorf("%v has the cure %q", e, Cure(e))
		}
	}
}
