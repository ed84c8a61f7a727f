package runtime

import (
	"os"
	"os/signal"
	"syscall"
)

// relaySignals passes what is sent to this process on to p until stop is called.
func relaySignals(p *os.Process) (stop func()) {
	c := make(chan os.Signal, 16)
	signal.Notify(c, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGWINCH, syscall.SIGALRM)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-c:
				_ = p.Signal(s) // the child may be gone already; Wait will tell
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(c); close(done) }
}
