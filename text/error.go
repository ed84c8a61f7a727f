package text

import "fmt"

// StatusUsage is the exit status for a wrong command line.
const StatusUsage = 2

// An Error is an error with a hint, which says what the user can do next, and the exit status of hpcc.
type Error struct {
	Err    error
	Advice string // the hint, or ""
	Status int    // exit status, or 0 for the usual one
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Hint sets the hint of the error.
func (e *Error) Hint(format string, args ...any) *Error {
	e.Advice = fmt.Sprintf(format, args...)
	return e
}

// Usagef returns an error about the command line.
func Usagef(format string, args ...any) *Error {
	return &Error{Err: fmt.Errorf(format, args...), Status: StatusUsage}
}

// Hint adds a hint to an error.
func Hint(err error, format string, args ...any) *Error {
	return (&Error{Err: err}).Hint(format, args...)
}
