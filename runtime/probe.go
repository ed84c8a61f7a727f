package runtime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A Feature is something that runs or builds use and a host may not allow.
type Feature struct {
	Name string // "user namespaces", …
	OK   bool
	Why  string // why not, as the kernel said it
	Cure string // what to ask the administrator for
}

// Probe tries what this host allows the user and says what it found.
func Probe() []Feature {
	f := Feature{Name: "user namespaces"}
	cmd := exec.Command("/proc/self/exe", "--version")
	cmd.SysProcAttr = procAttr(&specs.Spec{Linux: newNamespaces(os.Geteuid(), os.Getegid())})
	err := cmd.Start()
	if err == nil {
		_ = cmd.Process.Kill() // it has shown what was asked
		_ = cmd.Wait()
		f.OK = true
		return []Feature{f}
	}
	f.Why, f.Cure = err.Error(), cureUserNamespaces(err)
	return []Feature{f}
}

// Cure says what an administrator must change so that a run refused with e works.
func (e *NamespaceError) Cure() string { return cureUserNamespaces(e.Err) }

// cureUserNamespaces names the switch that most likely said no.
func cureUserNamespaces(err error) string {
	read := func(p string) string {
		b, _ := os.ReadFile(p)
		return strings.TrimSpace(string(b))
	}
	switch {
	case read("/proc/sys/user/max_user_namespaces") == "0":
		return "ask the administrator for sysctl user.max_user_namespaces=15000 (it is 0)"
	case read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		return "ask the administrator for sysctl kernel.unprivileged_userns_clone=1 (it is 0)"
	case read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		exe, _ := os.Executable()
		return fmt.Sprintf("ask the administrator for an AppArmor profile that lets %s use userns, or for sysctl kernel.apparmor_restrict_unprivileged_userns=0", exe)
	case errors.Is(err, syscall.ENOSPC):
		return "too many user namespaces are in use, or nested: see sysctl user.max_user_namespaces"
	}
	return "ask the administrator whether a container or security policy forbids unshare(CLONE_NEWUSER)"
}
