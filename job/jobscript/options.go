package jobscript

import (
	"fmt"
	"strings"

	"hpcc/job"
)

// Options is a list of formatted options.
type Options []string

// Add appends a formatted option if present is true.
func (o *Options) Add(present bool, format string, a ...any) {
	if present {
		*o = append(*o, fmt.Sprintf(format, a...))
	}
}

// Dependencies returns the jobs that must end first, as TYPE:ID:ID,TYPE:ID, or "". types are the names of the
// types in the order of [job.Job.After], AfterAny, AfterFailed and AfterEach, without those that the batch
// system does not have.
func Dependencies(j *job.Job, types ...string) string {
	var parts []string
	for i, name := range types {
		if ids := [][]string{j.After, j.AfterAny, j.AfterFailed, j.AfterEach}[i]; len(ids) > 0 {
			parts = append(parts, name+":"+strings.Join(ids, ":"))
		}
	}
	return strings.Join(parts, ",")
}

// DigitsOf removes the separators of a date and time: CCYYMMDDhhmm, or hhmm for a time of day.
func DigitsOf(moment string) string {
	return strings.NewReplacer("-", "", "T", "", ":", "").Replace(moment)
}
