// Package probe finds out which features of runs and builds a host allows, for hpcc doctor.
//
// Checks ─► Run (all in parallel) ─► Features: state, reason, remedy
//
// It tries features instead of reading settings, which do not show unknown obstacles: a child
// of hpcc uses them in its own namespaces ([Child]). It changes nothing on the host. Compute
// nodes may differ from the login node.
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"hpcc/runtime"
	"hpcc/text/terminal"
)

// A Feature is something that runs or builds need and a host may not allow.
type Feature struct {
	Name  string `json:"name"`  // "user namespaces", …
	State State  `json:"state"` // whether the host allows it
	Why   string `json:"why"`   // what was found, or the kernel's reason for refusing
	Do    string `json:"do"`    // what the user can do about it; empty if nothing
	Ask   string `json:"ask"`   // line to send to the administrator; empty if none
	Vital bool   `json:"vital"` // no image runs without it
}

// Write writes the feature as text, or as a JSON object with all fields, even empty ones.
func (f Feature) Write(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(struct {
			Type string `json:"type"`
			Feature
		}{"feature", f})
	}
	text := fmt.Sprintf("%-8s %-20s %s\n", f.State, f.Name, terminal.Cell(f.Why))
	if f.Do != "" && f.State != OK {
		text += fmt.Sprintf("%29s you: %s\n", "", terminal.Cell(f.Do))
	}
	if f.Ask != "" && f.State != OK {
		text += fmt.Sprintf("%29s ask: %s\n", "", terminal.Cell(f.Ask))
	}
	_, err := io.WriteString(w, text)
	return err
}

// State reports how far a host allows a feature.
type State string

// The states of a Feature.
const (
	OK      State = "ok"
	Limited State = "limited" // there is a workaround, or a part is missing
	No      State = "no"
)

// A Check tests one feature. Run sets the name and Vital of the result.
type Check struct {
	Name  string
	Vital bool
	Look  func(ctx context.Context) Feature
}

// checkTime is the time limit of a check: a dead mount or server must not delay the report
// forever. A busy or emulated machine needs several seconds, so a check that took slowTime
// is reported as slow.
const (
	checkTime = 30 * time.Second
	slowTime  = 3 * time.Second
)

// Run runs checks in parallel and returns their results in order. A check that
// takes longer than checkTime has the state No.
func Run(ctx context.Context, checks []Check) []Feature {
	out := make([]Feature, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			ctx, cancel := context.WithTimeout(ctx, checkTime)
			defer cancel()
			start := time.Now()
			found := make(chan Feature, 1)
			go func() { found <- c.Look(ctx) }()
			select {
			case out[i] = <-found:
				if took := time.Since(start); took > slowTime {
					out[i].Why += fmt.Sprintf(" (slow: the answer took %.0f s)", took.Seconds())
				}
			case <-ctx.Done(): // the thread of the check may hang in the kernel and cannot be ended
				out[i] = Feature{State: No, Why: fmt.Sprintf("no answer within %v: a server or file system may not be responding", checkTime)}
			}
			out[i].Name, out[i].Vital = c.Name, c.Vital
		}()
	}
	wg.Wait()
	return out
}

// Checks returns the checks of this kernel, this machine and the site around it. dir is the directory
// of the store. schedulers are the checks of batch systems, in which this package has no part.
func Checks(dir string, schedulers ...Check) []Check {
	work := dir + "/tmp" // of builds
	checks := []Check{
		{"user namespaces", true, userNamespaces},
		{"mount namespaces", true, func(ctx context.Context) Feature {
			return namespace(ctx, syscall.CLONE_NEWNS, "mnt", "no image can run")
		}},
		{"root file system", false, rootFeature},
		{"pid namespaces", false, func(ctx context.Context) Feature {
			return namespace(ctx, syscall.CLONE_NEWPID, "pid", "programs share the host's process ids")
		}},
		{"network namespaces", false, func(ctx context.Context) Feature {
			return namespace(ctx, syscall.CLONE_NEWNET, "net", "RUN --network=none cannot work")
		}},
		{"store's file system", false, func(context.Context) Feature { return storeFileSystem(work) }},
		{"overlay", false, func(ctx context.Context) Feature { return overlay(ctx, work) }},
		{"seccomp", false, seccompFeature},
		{"FUSE", false, fuse},
		{"subordinate ids", false, subordinate},
		{"other architectures", false, foreign},
		{"GPU", false, gpu},
		{"fabric", false, fabric},
		{"MPI", false, mpi},
		{"store", false, func(context.Context) Feature { return storeFeature(dir) }},
		{"node-local storage", false, func(context.Context) Feature { return localFeature() }},
		{"limits", false, func(context.Context) Feature { return limitsFeature() }},
	}
	return append(append(checks, schedulers...),
		Check{"proxies", false, func(context.Context) Feature { return proxiesFeature() }},
		Check{"git and ssh", false, func(context.Context) Feature { return gitFeature() }})
}

// Cure returns advice for a run that failed with err: the change to request from an
// administrator.
func Cure(err *runtime.NamespaceError) string {
	return "ask the administrator: " + askNamespaces(err.Err, "user")
}

// userNamespaces tests the namespaces that each run creates.
func userNamespaces(ctx context.Context) Feature {
	if err := try(ctx, syscall.CLONE_NEWNS); err != nil {
		if try(ctx, 0) == nil {
			return Feature{State: OK, Why: "useless without mount namespaces"}
		}
		return Feature{State: No, Why: err.Error(), Ask: askNamespaces(err, "user")}
	}
	allowed := limit("user")
	switch n, err := strconv.Atoi(allowed); {
	case allowed == "":
		return Feature{State: OK, Why: "no limit is known"}
	case err == nil && n < 256:
		return Feature{State: Limited, Why: fmt.Sprintf("a user may have only %d at a time: one for each program that runs", n), Ask: askLimit("user")}
	}
	return Feature{State: OK, Why: "a user may have " + allowed}
}

// namespace tests one kind of namespace below a user namespace.
func namespace(ctx context.Context, flag uintptr, kind, without string) Feature {
	err := try(ctx, flag)
	if err == nil {
		return Feature{State: OK, Why: "a user may have " + limit(kind)}
	}
	if try(ctx, 0) != nil {
		return Feature{State: No, Why: "needs user namespaces"}
	}
	return Feature{State: No, Why: fmt.Sprintf("%v; %s", err, without), Ask: askNamespaces(err, kind)}
}

func limit(kind string) string { return kernelFile("/proc/sys/user/max_" + kind + "_namespaces") }

func askLimit(kind string) string { return "sysctl -w user.max_" + kind + "_namespaces=15000" }

// kernelFile returns the text of a small file in /proc or /sys, or "".
func kernelFile(p string) string {
	b, _ := os.ReadFile(p)
	return strings.TrimSpace(string(b))
}

// askNamespaces returns the change that most likely allows a kind of namespaces that the
// kernel refused with err. user_namespaces(7) and namespaces(7) document the limits. The other
// switches are those of Debian, and of AppArmor on Ubuntu.
func askNamespaces(err error, kind string) string {
	switch {
	case limit(kind) == "0":
		return askLimit(kind)
	case kernelFile("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		return "sysctl -w kernel.unprivileged_userns_clone=1"
	case kernelFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		exe, _ := os.Executable()
		return fmt.Sprintf("an AppArmor profile for %s with \"userns,\", or: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0", exe)
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EUSERS):
		return askLimit(kind) + " (the limit is reached, or namespaces are nested too deeply)"
	case kernelFile("/sys/fs/selinux/enforce") == "1":
		return "SELinux may forbid it: ausearch -m avc -c hpcc shows what to allow (class user_namespace)"
	case errors.Is(err, syscall.EINVAL):
		return "a kernel with CONFIG_USER_NS=y"
	}
	return "does a container or a security policy forbid unshare(CLONE_NEWUSER)? Its seccomp profile must allow clone, unshare and mount; a process in a chroot is never allowed to"
}
