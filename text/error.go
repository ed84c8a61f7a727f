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

// An ExitStatus is an error that ends hpcc with the status of another program, which has printed its own message.
type ExitStatus int

func (e ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Advice returns the first hint in the chain of an error: that of an [Error], else of another type with the method
// Advice, else "". An error without a hint of its own may wrap one that has it.
func Advice(err error) string {
	own := func(err error) string {
		if m, ok := err.(*Error); ok {
			return m.Advice
		}
		return ""
	}
	if advice := first(err, own); advice != "" {
		return advice
	}
	return first(err, func(err error) string {
		if advised, ok := err.(interface{ Advice() string }); ok {
			return advised.Advice()
		}
		return ""
	})
}

// first returns the first text that of returns for an error and those that it wraps, in the order of [errors.As].
func first(err error, of func(error) string) string {
	if err == nil {
		return ""
	}
	if s := of(err); s != "" {
		return s
	}
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		return first(x.Unwrap(), of)
	case interface{ Unwrap() []error }:
		for _, e := range x.Unwrap() {
			if s := first(e, of); s != "" {
				return s
			}
		}
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
