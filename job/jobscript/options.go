package jobscript

import (
	"fmt"
	"strings"
)

// An Options is a list of options being written.
type Options []string

// Add appends a formatted option if have is true.
func (o *Options) Add(have bool, format string, a ...any) {
	if have {
		*o = append(*o, fmt.Sprintf(format, a...))
	}
}

// DigitsOf of a moment: CCYYMMDDhhmm, or hhmm.
func DigitsOf(moment string) string {
	return strings.NewReplacer("-", "", "T", "", ":", "").Replace(moment)
}
