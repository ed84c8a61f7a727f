package text

import (
	"errors"
	"fmt"
)

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

// An ExitStatus is an error that ends hpcc with the status of another program, which has printed its own message.
type ExitStatus int

func (e ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Advice returns the hint of an error: that of an [Error], or of another type with the method Advice, or "".
func Advice(err error) string {
	var m *Error
	if errors.As(err, &m) && m.Advice != "" {
		return m.Advice
	}
	var advised interface{ Advice() string }
	if errors.As(err, &advised) {
		return advised.Advice()
	}
	return ""
}

// Usagef returns an error about the command line.
func Usagef(format string, args ...any) *Error {
	return &Error{Err: fmt.Errorf(format, args...), Status: StatusUsage}
}

// Hint adds a hint to an error.
func Hint(err error, format string, args ...any) *Error {
	return (&Error{Err: err}).Hint(format, args...)
}
