package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hpcc/runtime"
	"hpcc/runtime/fakeroot"
)

// trialName is argv[0] of the child that tests a feature. argv[1] is the test, argv[2] its
// directory.
const trialName = "hpcc-trial"

// try starts a child in a user namespace with one more kind of namespace. Starting the child
// is the test.
func try(ctx context.Context, flag uintptr) error {
	_, err := trial(ctx, flag, "nothing", "")
	return err
}

// trial runs the named test in a child that is root of its own user namespace. If the kernel
// refused something, err is a syscall.Errno and step is the failed step of the test. step is
// "" if the child did not start.
func trial(ctx context.Context, flag uintptr, test, dir string) (step string, err error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{trialName, test, dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | flag, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}}
	cmd.Env = []string{}
	out, err := cmd.Output()
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) {
			return "", errno // without the text about fork and exec
		}
		return "", err
	}
	var errno int
	if _, err := fmt.Sscanf(string(out), "%d", &errno); err != nil {
		return "", fmt.Errorf("testing %s: unexpected answer %q", test, out)
	}
	_, step, _ = strings.Cut(string(out), " ")
	if errno != 0 {
		return step, syscall.Errno(errno)
	}
	return "", nil
}

// Child runs a test in a child process that [Run] started in its own namespaces. It returns
// false in any other process. It is a helper for [runtime.Init].
func Child(args []string) (child bool, err error) {
	if args[0] != trialName {
		return false, nil
	}
	runTrial(args)
	return true, nil
}

// runTrial runs a test in the child. It prints an error number (0: success) and the failed
// step.
func runTrial(args []string) {
	step, err := "", error(nil)
	if len(args) == 3 {
		switch args[1] {
		case "overlay":
			step, err = tryOverlay(args[2])
		case "seccomp":
			step, err = fakeroot.Try()
		case "binfmt":
			step, err = "mounting", unix.Mount("binfmt_misc", runtime.Handlers, "binfmt_misc",
				unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		}
	}
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		errno, step = syscall.EIO, step+": "+err.Error()
	}
	fmt.Fprintf(os.Stdout, "%d %s", int(errno), step)
}

// attrStep is the step of tryOverlay that fails on a file system without user extended
// attributes. An overlay can be mounted there, but a removed directory cannot be created
// again, because the attribute must hide the lower directory's files.
const attrStep = "setting a user attribute"

// tryOverlay mounts an overlay as builds do and makes changes that need attributes and
// whiteouts, because some file systems refuse only those.
func tryOverlay(dir string) (step string, err error) {
	at := func(p string) string { return filepath.Join(dir, p) }
	for _, d := range []string{"lower", "lower/d", "upper", "work", "merged"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			return "creating directories", err
		}
	}
	if err := os.WriteFile(at("lower/f"), nil, 0o644); err != nil {
		return "writing", err
	}
	if err := unix.Setxattr(at("upper"), "user.hpcc.trial", []byte("1"), 0); err != nil {
		return attrStep, err
	}
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,userxattr", at("lower"), at("upper"), at("work"))
	if err := os.Chdir(dir); err == nil { // relative paths are short and contain no commas or colons
		data = "lowerdir=lower,upperdir=upper,workdir=work,userxattr"
	}
	if err := unix.Mount("overlay", at("merged"), "overlay", 0, data); err != nil {
		return "mounting", err
	}
	defer unix.Unmount(at("merged"), unix.MNT_DETACH)
	if err := os.Remove(at("merged/f")); err != nil {
		return "removing a file", err
	}
	if err := os.Remove(at("merged/d")); err != nil {
		return "removing a directory", err
	}
	if err := os.Mkdir(at("merged/d"), 0o755); err != nil {
		return "recreating a directory", err
	}
	return "", nil
}
