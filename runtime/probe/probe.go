// Package probe finds out what a host allows that runs and builds use, for hpcc doctor.
//
//	Checks ─► Run (all at the same time) ─► Features: state, reason, what to do or to ask for
//
// It tries things instead of reading settings, which show only the obstacles that one
// knows: a child of hpcc does it in namespaces of its own ([Child]). It changes nothing on
// the host. Compute nodes may allow something else than the login node.
package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"hpcc/runtime"
)

// A Feature is something that runs or builds use and a host may not allow.
type Feature struct {
	Name  string `json:"name"`  // "user namespaces", …
	State State  `json:"state"` // how far the host allows it
	Why   string `json:"why"`   // what was found; why not, as the kernel said it
	Do    string `json:"do"`    // what the user can do about it; "" nothing, or nothing is to be done
	Ask   string `json:"ask"`   // the line to send to the administrator; ""
	Vital bool   `json:"vital"` // without it no image runs
}

// A State says how far a host allows something.
type State string

// The states of a Feature.
const (
	OK      State = "ok"
	Limited State = "limited" // there is a way round, or a part is missing
	No      State = "no"
)

// A Check finds out about one feature. What it returns has its name and Vital.
type Check struct {
	Name  string
	Vital bool
	Look  func(ctx context.Context) Feature
}

// checkTime is how long a check may take: a dead mount or a server that does
// not answer must not hold up the others for ever. A busy or an emulated machine
// needs several seconds, so a check that took slowTime is reported as slow.
const (
	checkTime = 30 * time.Second
	slowTime  = 3 * time.Second
)

// Run carries out checks, all at the same time, and returns what they found in
// their order. One that has no answer in time is a feature that is not there.
func Run(ctx context.Context, checks []Check) []Feature {
	out := make([]Feature, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			ctx, cancel := context.WithTimeout(ctx, checkTime)
			defer cancel()
			begun := time.Now()
			found := make(chan Feature, 1)
			go func() { found <- c.Look(ctx) }()
			select {
			case out[i] = <-found:
				if took := time.Since(begun); took > slowTime {
					out[i].Why += fmt.Sprintf(" (slow: the answer took %.0f s)", took.Seconds())
				}
			case <-ctx.Done(): // its thread may hang in the kernel, where nothing ends it
				out[i] = Feature{State: No, Why: fmt.Sprintf("no answer within %v: a server or a file system that it needs may be dead", checkTime)}
			}
			out[i].Name, out[i].Vital = c.Name, c.Vital
		}()
	}
	wg.Wait()
	return out
}

// Checks are those of what the kernel and this machine allow. dir is where
// builds would work: a directory of the store's file system.
func Checks(dir string) []Check {
	return []Check{
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
		{"overlay", false, func(ctx context.Context) Feature { return overlay(ctx, dir) }},
		{"seccomp", false, seccompFeature},
		{"FUSE", false, fuse},
		{"subordinate ids", false, subordinate},
		{"other architectures", false, foreign},
		{"GPU", false, gpu},
		{"fabric", false, fabric},
		{"MPI", false, mpi},
	}
}

// Cure returns what an administrator must change so that a run refused with err works.
func Cure(err *runtime.NamespaceError) string {
	return "ask the administrator: " + askNamespaces(err.Err, "user")
}

// userNamespaces tries the namespaces that each run makes.
func userNamespaces(ctx context.Context) Feature {
	if err := try(ctx, syscall.CLONE_NEWNS); err != nil {
		if try(ctx, 0) == nil {
			return Feature{State: OK, Why: "without mount namespaces they are of no use"}
		}
		return Feature{State: No, Why: err.Error(), Ask: askNamespaces(err, "user")}
	}
	most := limit("user")
	switch n, err := strconv.Atoi(most); {
	case most == "":
		return Feature{State: OK, Why: "no limit is known"}
	case err == nil && n < 256:
		return Feature{State: Limited, Why: fmt.Sprintf("a user may have only %d at a time: one for each program that runs", n), Ask: askLimit("user")}
	}
	return Feature{State: OK, Why: "a user may have " + most}
}

// namespace tries one kind of namespace below a user namespace.
func namespace(ctx context.Context, flag uintptr, kind, without string) Feature {
	err := try(ctx, flag)
	if err == nil {
		return Feature{State: OK, Why: "a user may have " + limit(kind)}
	}
	if try(ctx, 0) != nil {
		return Feature{State: No, Why: "they need user namespaces"}
	}
	return Feature{State: No, Why: fmt.Sprintf("%v; %s", err, without), Ask: askNamespaces(err, kind)}
}

func limit(kind string) string { return kernelFile("/proc/sys/user/max_" + kind + "_namespaces") }

func askLimit(kind string) string { return "sysctl -w user.max_" + kind + "_namespaces=15000" }

// kernelFile is the text of a small file of /proc or /sys; "" when there is none.
func kernelFile(p string) string {
	b, _ := os.ReadFile(p)
	return strings.TrimSpace(string(b))
}

// askNamespaces is the line that most likely lets a user have namespaces of a
// kind that were refused with err. user_namespaces(7) and namespaces(7) have the
// limits; the other switches are of Debian and of Ubuntu's AppArmor.
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
		return askLimit(kind) + " (all that are allowed are in use, or they are nested too deep)"
	case kernelFile("/sys/fs/selinux/enforce") == "1":
		return "SELinux may forbid it: ausearch -m avc -c hpcc shows what to allow (class user_namespace)"
	case errors.Is(err, syscall.EINVAL):
		return "a kernel with CONFIG_USER_NS=y"
	}
	return "does a container or a security policy forbid unshare(CLONE_NEWUSER)? Its seccomp profile must allow clone, unshare and mount; a process in a chroot may not do it at all"
}
