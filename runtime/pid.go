package runtime

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/runtime/process"
)

// A pid namespace needs processes that a run has not otherwise: one stays
// outside, because a process cannot move into a new one, and the first inside
// is an init (first.go). It passes signals on, reaps orphans, and when it ends
// the kernel ends whatever is left. The program is its only child, process 2.

// pidInitName is argv[0] of the init.
const pidInitName = "hpcc-pid-init"

// superviseInit runs s, in the namespaces that this process has, as a child in
// a pid namespace, and ends as it ends.
func superviseInit(s *specs.Spec) error {
	inner, linux := *s, *s.Linux
	linux.Namespaces = slices.DeleteFunc(slices.Clone(linux.Namespaces), func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	inner.Linux = &linux
	cmd, err := Command(context.Background(), &inner, nil)
	if err != nil {
		return err
	}
	cmd.Args = []string{pidInitName, "init"} // begin looks at no program without arguments
	cmd.SysProcAttr.AmbientCaps = setupCaps
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return waitAndExit(cmd)
}

// asInit starts the program as a child of this process, the first of its pid
// namespace, in a binary without the early entry point. It ends as the program ends. It returns only when it cannot be started.
func asInit(exe string, args, env []string) error {
	c := make(chan os.Signal, 16)
	signal.Notify(c, append(process.Relayed(), syscall.SIGCONT, syscall.SIGCHLD)...)
	pid, err := syscall.ForkExec(exe, args, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}})
	if err != nil {
		signal.Stop(c)
		return err
	}
	// What the terminal sends reaches the program by itself; what comes here
	// was passed on by the process outside.
	_ = syscall.Setpgid(0, 0)
	for s := range c {
		if s != syscall.SIGCHLD {
			_ = syscall.Kill(pid, s.(syscall.Signal)) // it may be gone; the next wait tells
			continue
		}
		for {
			var ws syscall.WaitStatus
			got, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
			if got <= 0 || (err != nil && err != syscall.EINTR) {
				break
			}
			if got != pid {
				continue
			}
			if ws.Signaled() {
				os.Exit(128 + int(ws.Signal()))
			}
			os.Exit(ws.ExitStatus())
		}
	}
	return nil
}
