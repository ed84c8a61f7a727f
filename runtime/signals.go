package runtime

import (
	"os"
	"os/signal"
	"syscall"
)

// relayed are the signals that end or steer programs.
var relayed = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGWINCH, syscall.SIGALRM}

// relaySignals passes what is sent to this process on to p until stop is called.
func relaySignals(p *os.Process) (stop func()) {
	c := make(chan os.Signal, 16)
	signal.Notify(c, relayed...)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-c:
				if (s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGWINCH) && inForeground() {
					continue // from the terminal: the program had it, too
				}
				_ = p.Signal(s) // the child may be gone already; Wait will tell
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(c); close(done) }
}
