// Package message prepares foreign text for messages: it shortens it, removes
// characters that a terminal would interpret, and suggests a known name for an unknown one.
//
// It is a separate package because the lowest packages of job use it.
package message

import (
	"strings"
	"unicode"
)

// Short cuts s to 60 bytes, for quoting it in a message.
func Short(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

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
