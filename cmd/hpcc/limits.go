package main

import (
	"context"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"hpcc/text"
	"hpcc/text/terminal"
	"hpcc/web"
)

// watchCPU ends hpcc with a message shortly before it reaches the limit of CPU time
// (ulimit -t), where the kernel would kill it without one. The limit applies to each process,
// so it does not count programs that hpcc starts.
func watchCPU() {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CPU, &l) != nil || l.Cur > 1<<30 { // 34 years; infinity
		return
	}
	cores := time.Duration(goruntime.GOMAXPROCS(0))
	allowed := time.Duration(l.Cur) * time.Second
	allowed -= min(allowed/5, 500*time.Millisecond) // a busy machine may wake this late
	go func() {
		for {
			var used unix.Rusage
			if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
				return
			}
			left := allowed - time.Duration(used.Utime.Nano()+used.Stime.Nano())
			if left <= 0 {
				break
			}
			time.Sleep(max(left/(2*cores), 2*time.Millisecond))
		}
		os.Exit(printError(text.Hint(fmt.Errorf("hpcc has reached the limit of CPU time (%d s)", l.Cur),
			"raise the limit with \"ulimit -t unlimited\", or run the command in a job")))
	}()
}

// timeoutVariable is the environment variable with the timeout for a silent server.
const timeoutVariable = "HPCC_HTTP_TIMEOUT"

// withTimeout returns a context whose transfers wait for a silent server as long as the user
// allows, and report on standard error why they wait.
func withTimeout(ctx context.Context) context.Context {
	p := web.Within(0)
	if text := os.Getenv(timeoutVariable); text != "" {
		d, err := httpTimeout(text)
		if err != nil {
			say("%s: %v; using %v", timeoutVariable, err, p.Header)
		} else {
			p = web.Within(d)
		}
	}
	p.Notice = func(line string) {
		if term.IsTerminal(int(os.Stderr.Fd())) {
			line = "\r\x1b[Khpcc: " + terminal.Clean(line) // over a progress bar
		} else {
			line = "hpcc: " + terminal.Clean(line)
		}
		fmt.Fprintln(os.Stderr, line)
	}
	return web.With(ctx, p)
}

// httpTimeout parses a duration. A number without a unit is in seconds.
func httpTimeout(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if n, nerr := strconv.Atoi(text); nerr == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < time.Second || d > 24*time.Hour {
		return 0, fmt.Errorf("%q is not a duration between 1s and 24h (for example 90s or 5m)", text)
	}
	return d, nil
}
