// Package text prepares text for people and for the shell: it shortens foreign text, makes it
// unable to imitate a message, counts things, suggests a known name for an unknown one, and
// quotes arguments.
//
//	text of a file, a server or another user  ── OneLine, Cut, Printable ──►  part of a message
//	argv  ── CommandLine ──►  line of the shell  ── Words ──►  argv
//
// It is one of the foundations, which every package may import.
package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Prefix returns the longest prefix of s with whole characters that has at most n bytes.
func Prefix(s string, n int) string {
	if len(s) <= n {
		return s
	}
	least := n - utf8.UTFMax
	for n > 0 && n > least && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:max(n, 0)]
}

// Cut returns s, or if it has more than n bytes, its [Prefix] of n bytes and an ellipsis.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return Prefix(s, n) + "…"
}

// Short cuts s to 80 bytes, for quoting it in a message.
func Short(s string) string { return Cut(s, 80) }

// OneLine joins the lines of foreign text and drops characters that are not printable.
func OneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || (!unicode.IsPrint(r) && !unicode.IsSpace(r)) {
			return -1
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// Count formats a number of things: Count(1, "node", "nodes") is "1 node".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
