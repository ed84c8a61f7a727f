package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/term"

	"hpcc/store/wait"
)

// timeoutVariable sets how long a server may be silent.
const timeoutVariable = "HPCC_HTTP_TIMEOUT"

// patient returns a context whose transfers report on standard error why they
// wait, with the limits that the user set.
func patient(ctx context.Context) context.Context {
	p := wait.Within(0)
	if text := os.Getenv(timeoutVariable); text != "" {
		d, err := httpTimeout(text)
		if err != nil {
			say("%s: %v; servers may be silent for %v", timeoutVariable, err, p.Header)
		} else {
			p = wait.Within(d)
		}
	}
	p.Notice = func(line string) {
		if term.IsTerminal(int(os.Stderr.Fd())) {
			line = "\r\x1b[Khpcc: " + cleaned(line) // over a progress bar
		} else {
			line = "hpcc: " + cleaned(line)
		}
		fmt.Fprintln(os.Stderr, line)
	}
	return wait.With(ctx, p)
}

// httpTimeout reads a duration; a number alone is seconds.
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
