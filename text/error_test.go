package text

import (
	"errors"
	"fmt"
	"testing"
)

// typed is an error with a hint of its own, or none, around another one.
type typed struct {
	error
	advice string
}

func (e typed) Unwrap() error  { return e.error }
func (e typed) Advice() string { return e.advice }

// TestAdvice checks that an error without a hint does not hide that of an error which it wraps.
func TestAdvice(t *testing.T) {
	plain := errors.New("plain")
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{plain, ""},
		{typed{plain, "a"}, "a"},
		{fmt.Errorf("x: %w", typed{typed{plain, "inner"}, ""}), "inner"},
		{typed{typed{plain, "inner"}, "outer"}, "outer"},
		{typed{Hint(plain, "hint"), "typed"}, "hint"},
		{&Error{Err: Hint(plain, "inner"), Status: 3}, "inner"},
		{&Error{Err: typed{plain, "a"}}, "a"},
		{errors.Join(plain, typed{plain, "second"}), "second"},
	} {
		if got := Advice(c.err); got != c.want {
			t.Errorf("Advice(%v) = %q; want %q", c.err, got, c.want)
		}
	}
}
