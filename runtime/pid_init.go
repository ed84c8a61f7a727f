//go:build !start

package runtime

import (
	"os"
	"os/signal"
	"syscall"
)

// pidInit is what the init does.
func pidInit() error {
	s, err := readSpec()
	if err != nil {
		return err
	}
	foreign, err := settle(s)
	if err != nil {
		return failed(err)
	}
	return launch(s, foreign, asInit)
}

// asInit starts the program as a child of this process, the first of its pid
// namespace, and ends as it ends. It returns only when it cannot be started.
func asInit(exe string, args, env []string) error {
	c := make(chan os.Signal, 16)
	signal.Notify(c, append(relayed(), syscall.SIGCONT, syscall.SIGCHLD)...)
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
			if got <= 0 || err != nil && err != syscall.EINTR {
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
