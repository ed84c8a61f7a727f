package jobscript

import (
	"fmt"
	"strings"
)

// Options is a list of formatted options.
type Options []string

// Add appends a formatted option if present is true.
func (o *Options) Add(present bool, format string, a ...any) {
	if present {
		*o = append(*o, fmt.Sprintf(format, a...))
	}
}

// DigitsOf removes the separators of a date and time: CCYYMMDDhhmm, or hhmm for a time of day.
func DigitsOf(moment string) string {
	return strings.NewReplacer("-", "", "T", "", ":", "").Replace(moment)
}
