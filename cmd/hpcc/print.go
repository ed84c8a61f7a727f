package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"

	"hpcc/text"
	"hpcc/text/terminal"
	"hpcc/web"
)

// say prints a message to standard error. It escapes control characters, because messages
// contain text of other programs.
func say(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "hpcc: %s\n", text.Printable(fmt.Sprintf(format, a...)))
}

// sayLine prints a message that another package composed.
func sayLine(line string) { say("%s", line) }

// warn prints warnings, each on one line.
func warn(warnings []string) {
	for _, w := range warnings {
		say("warning: %s", strings.NewReplacer("\n", " ", "\r", " ").Replace(w))
	}
}

// printObjects prints each element of a list as a JSON object on its own line.
func printObjects[T any](list []T) error {
	enc := json.NewEncoder(os.Stdout)
	for _, v := range list {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

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
