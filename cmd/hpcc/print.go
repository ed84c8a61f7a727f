package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"hpcc/text"
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
