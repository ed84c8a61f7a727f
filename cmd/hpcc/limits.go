package main

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/term"

	"hpcc/text/terminal"
	"hpcc/web"
)

// withTimeout returns a context whose transfers wait for a silent server as long as the user
// allows, and report on standard error why they wait.
func withTimeout(ctx context.Context) context.Context {
	ctx, err := web.FromEnvironment(ctx, func(line string) {
		if term.IsTerminal(int(os.Stderr.Fd())) {
			line = "\r\x1b[Khpcc: " + terminal.Clean(line) // over a progress bar
		} else {
			line = "hpcc: " + terminal.Clean(line)
		}
		fmt.Fprintln(os.Stderr, line)
	})
	if err != nil {
		say("%v", err)
	}
	return ctx
}
