// Package envfile reads the files of "--set-env": lines of NAME=VALUE.
//
// The rules are those of Charliecloud's ch-run, so that files written for it
// mean the same here. A line is split at its first "=". Everything before is
// the name and everything after the value, byte for byte: blanks, "#", double
// quotes and backslashes are kept. One pair of single quotes around a whole
// value is taken off. Then the value is split at colons, and an item "$NAME"
// becomes that variable's value; when it is unset or empty, the item vanishes
// with one colon, so that "/opt/bin:$PATH" never ends in a colon.
//
// Three things are read here that ch-run refuses or loses: a line that begins
// with "#" is a comment; CR LF ends a line; and "${NAME}" or "$NAME/rest" at the
// head of an item expand instead of vanishing.
package envfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxSize is the largest file that is read, in bytes.
const maxSize = 16 << 20

// Bounds of what expansion comes to, in bytes. The kernel takes 128 KiB a
// variable where pages have 4 KiB, and 2 MiB where they have 64 KiB.
const (
	maxValue = 2 << 20
	maxEnv   = 16 << 20
)

// A Change is one step from one environment to the next: a variable to set, or
// a pattern of names to remove.
type Change struct {
	name, value string
	unset       bool   // name is a pattern
	exact       bool   // value is not expanded
	at          string // FILE:LINE, "" for one of the command line
}

// Options say how a file is written. The zero value is lines.
type Options struct {
	NUL bool // records end with a NUL byte and may hold newlines ("--set-env0")
}

// Read reads the assignments of r. Errors name file and line, or record, counted
// from 1 over all of them.
func Read(r io.Reader, file string, o Options) ([]Change, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("reading %s: larger than %d bytes", file, maxSize)
	}
	end := byte('\n')
	if o.NUL {
		end = 0
	}
	var out []Change
	for n := 1; len(data) > 0; n++ {
		record := data
		if i := bytes.IndexByte(data, end); i >= 0 {
			record, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		line := string(record)
		if o.NUL {
			line = strings.TrimSuffix(line, "\n")
		} else {
			line = strings.TrimSuffix(line, "\r")
			if strings.HasPrefix(line, "#") {
				continue
			}
		}
		if line == "" {
			continue
		}
		c, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		c.at = fmt.Sprintf("%s:%d", file, n)
		out = append(out, c)
	}
	return out, nil
}

// Literal reads one assignment of the command line, "--set-env=NAME=VALUE".
func Literal(arg string) (Change, error) { return parse(arg) }

// Exact sets a variable to a value that is not expanded and keeps its quotes.
func Exact(name, value string) (Change, error) {
	c, err := parse(name + "=" + value)
	c.value, c.exact = value, true
	return c, err
}

// Unset removes the variables whose names match glob: "*", "?", "[a-z]" and the
// extended patterns "@(a|b)", "?(a)", "*(a)", "+(a)", "!(a)" of fnmatch(3).
func Unset(glob string) (Change, error) {
	if glob == "" {
		return Change{}, errors.New("the pattern is empty")
	}
	if len(glob) > maxPattern {
		return Change{}, fmt.Errorf("the pattern is longer than %d bytes", maxPattern)
	}
	return Change{name: glob, unset: true}, nil
}

// parse splits NAME=VALUE.
func parse(line string) (Change, error) {
	name, value, ok := strings.Cut(line, "=")
	if !ok {
		return Change{}, fmt.Errorf("%q has no \"=\"; write NAME=VALUE, or begin a comment with #", shorten(line))
	}
	if name == "" {
		return Change{}, fmt.Errorf("%q has no name before its \"=\"", shorten(line))
	}
	if strings.ContainsRune(name, 0) || strings.ContainsRune(value, 0) {
		return Change{}, fmt.Errorf("variable %q holds a NUL byte, which no environment can", shorten(name))
	}
	if len(value) >= 2 && value[0] == '\'' && value[len(value)-1] == '\'' {
		value = value[1 : len(value)-1]
	}
	return Change{name: name, value: value}, nil
}

func shorten(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// Apply makes the changes in order and returns the new environment; env is not
// changed. Values are expanded with the environment as it is at that point,
// unless expand is false. A value of more than 2 MiB, or an environment of more
// than 16 MiB, is an error that names the line: A=$B:$B doubles.
func Apply(env []string, changes []Change, expand bool) ([]string, error) {
	out := append([]string(nil), env...)
	size := 0
	for _, kv := range out {
		size += len(kv)
	}
	for _, c := range changes {
		if c.unset {
			kept := out[:0]
			for _, kv := range out {
				name, _, _ := strings.Cut(kv, "=")
				if !match(c.name, name) {
					kept = append(kept, kv)
				}
			}
			out = kept
			continue
		}
		value := c.value
		if expand && !c.exact {
			var ok bool
			if value, ok = expandItems(value, out); !ok {
				return nil, c.tooLarge("a value", maxValue)
			}
		}
		if size += len(c.name) + len(value); size > maxEnv { // those that are replaced count too
			return nil, c.tooLarge("the environment", maxEnv)
		}
		out = Set(out, c.name, value)
	}
	return out, nil
}

func (c *Change) tooLarge(what string, most int) error {
	err := fmt.Errorf("variable %q: %s may come to %d bytes at most", shorten(c.name), what, most)
	if c.at != "" {
		err = fmt.Errorf("%s: %w", c.at, err)
	}
	return err
}

// Set sets a variable of an environment, a list of NAME=VALUE, where it stands, or adds it.
func Set(env []string, name, value string) []string {
	for i, kv := range env {
		if strings.HasPrefix(kv, name+"=") {
			env[i] = name + "=" + value
			return env
		}
	}
	return append(env, name+"="+value)
}

// Lookup returns the value of a variable of an environment, or "".
func Lookup(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// expandItems replaces the items of a colon-separated list that begin with "$".
// Results are not expanded again. It is not ok when they come to more than maxValue.
func expandItems(value string, env []string) (expanded string, ok bool) {
	if !strings.Contains(value, "$") {
		return value, true
	}
	var out strings.Builder
	first := true // nothing stands before the next item's colon
	for item := range strings.SplitSeq(value, ":") {
		text := item
		if len(item) > 1 && item[0] == '$' {
			if text = expandItem(item, env); text == "" {
				// The item goes with the colon before it; the first one, with the colon after it.
				continue
			}
		}
		if !first {
			out.WriteByte(':')
		}
		out.WriteString(text)
		first = false
		if out.Len() > maxValue {
			return "", false
		}
	}
	return out.String(), true
}

// expandItem expands "$NAME", "${NAME}rest" and "$NAME/rest".
func expandItem(item string, env []string) string {
	name := item[1:]
	if v := Lookup(env, name); v != "" {
		return v
	}
	if rest, ok := strings.CutPrefix(name, "{"); ok {
		if name, tail, ok := strings.Cut(rest, "}"); ok && isName(name) {
			if v := Lookup(env, name); v != "" {
				return v + tail
			}
		}
		return ""
	}
	if i := strings.IndexByte(name, '/'); i > 0 && isName(name[:i]) {
		if v := Lookup(env, name[:i]); v != "" {
			return v + name[i:]
		}
	}
	return ""
}

// isName says whether s can be a shell's variable.
func isName(s string) bool {
	for i, r := range s {
		switch {
		case r == '_', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', i > 0 && r >= '0' && r <= '9':
		default:
			return false
		}
	}
	return s != ""
}
