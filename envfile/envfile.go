// Package envfile holds the changes that flags make to an environment: --env, --set-env,
// --set-env0 and --unset-env. They apply in the order in which they were given, and later
// ones override earlier ones.
//
// The value of --env is used unchanged, as with docker. --set-env follows the rules of
// Charliecloud's ch-run, so that files written for ch-run have the same effect with hpcc. A
// line is split at its first "=". The text before it is the name, and the text after it is
// the value. Both are used unchanged: blanks, "#", double quotes and backslashes have no
// special meaning. If single quotes enclose the value, they are removed. Then the value is
// split at colons, and each item "$NAME" is replaced by the value of that variable. If the
// variable is unset or empty, the item is removed together with one colon, so that
// "/opt/bin:$PATH" never ends in a colon.
//
// The package accepts three forms that ch-run rejects or drops: comments, which are lines
// that begin with "#"; lines that end with CR LF; and items that begin with "${NAME}" or
// "$NAME/", which are expanded.
package envfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"hpcc/files"
	"hpcc/text"
)

// maxSize limits the size of a file, in bytes.
const maxSize = 16 << 20

// Limits on the results of expansion, in bytes. The kernel limits a variable to 128 KiB
// with pages of 4 KiB, and to 2 MiB with pages of 64 KiB.
const (
	maxValue = 2 << 20
	maxEnv   = 16 << 20
)

// A Change sets one variable, or removes all variables whose names match a pattern.
type Change struct {
	name, value string
	unset       bool   // name is a pattern
	exact       bool   // value is not expanded
	at          string // FILE:LINE, or "" for a change from the command line
}

// Options describe the format of a file. The zero value describes a file of lines.
type Options struct {
	NUL   bool // records end with a NUL byte and may contain newlines (--set-env0)
	Exact bool // the values are those of --env
}

// Read parses the assignments in r. Errors name the file and the number of the line or
// record. Numbers start at 1 and include comments and empty lines.
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
		c, err := parse(line, o.Exact)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		c.at = fmt.Sprintf("%s:%d", file, n)
		out = append(out, c)
	}
	return out, nil
}

// Literal parses one assignment of --set-env=NAME=VALUE.
func Literal(arg string) (Change, error) { return parse(arg, false) }

// Exact parses one assignment of --env=NAME=VALUE: the value is used without expansion and
// without removing quotes.
func Exact(arg string) (Change, error) { return parse(arg, true) }

// Unset returns a change that removes the variables whose names match glob. A glob
// contains "*", "?", "[a-z]" and the extended patterns "@(a|b)", "?(a)", "*(a)", "+(a)"
// and "!(a)" of fnmatch(3).
func Unset(glob string) (Change, error) {
	if glob == "" {
		return Change{}, errors.New("the pattern is empty")
	}
	if len(glob) > maxPattern {
		return Change{}, fmt.Errorf("the pattern is longer than %d bytes", maxPattern)
	}
	return Change{name: glob, unset: true}, nil
}

// parse parses NAME=VALUE.
func parse(line string, exact bool) (Change, error) {
	name, value, ok := strings.Cut(line, "=")
	if !ok {
		return Change{}, fmt.Errorf("%q has no \"=\"; write NAME=VALUE, or begin a comment with #", text.Short(line))
	}
	if name == "" {
		return Change{}, fmt.Errorf("%q has no name before its \"=\"", text.Short(line))
	}
	if strings.ContainsRune(name, 0) || strings.ContainsRune(value, 0) {
		return Change{}, fmt.Errorf("variable %q contains a NUL byte, which an environment cannot contain", text.Short(name))
	}
	if !exact && len(value) >= 2 && value[0] == '\'' && value[len(value)-1] == '\'' {
		value = value[1 : len(value)-1]
	}
	return Change{name: name, value: value, exact: exact}, nil
}

// Apply applies the changes in order and returns the new environment. It does not modify
// env. If expand is true, it expands each value with the environment that the preceding
// changes give. A value is limited to 2 MiB and the environment to 16 MiB, because lines
// such as A=$B:$B double a value. The error names the line that exceeds a limit.
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
				return nil, c.tooLarge("the value", maxValue)
			}
		}
		if size += len(c.name) + len(value); size > maxEnv { // replaced values count too
			return nil, c.tooLarge("the environment", maxEnv)
		}
		out = Set(out, c.name, value)
	}
	return out, nil
}

// tooLarge returns an error: subject, the value or the environment, exceeds limit bytes.
func (c *Change) tooLarge(subject string, limit int) error {
	err := fmt.Errorf("setting variable %q: %s would be larger than %d bytes", text.Short(c.name), subject, limit)
	if c.at != "" {
		err = fmt.Errorf("%s: %w", c.at, err)
	}
	return err
}

// Set sets a variable in env, a list of NAME=VALUE. It replaces an existing variable in
// place, or else appends the variable.
func Set(env []string, name, value string) []string {
	for i, kv := range env {
		if strings.HasPrefix(kv, name+"=") {
			env[i] = name + "=" + value
			return env
		}
	}
	return append(env, name+"="+value)
}

// Lookup returns the value of a variable in env, or "" if the variable is not set.
func Lookup(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// expandItems expands the items of a colon-separated list that begin with "$". It does not
// expand the results again. It returns false if the result exceeds maxValue.
func expandItems(value string, env []string) (expanded string, ok bool) {
	if !strings.Contains(value, "$") {
		return value, true
	}
	var out strings.Builder
	first := true // no item was written yet
	for item := range strings.SplitSeq(value, ":") {
		text := item
		if len(item) > 1 && item[0] == '$' {
			if text = expandItem(item, env); text == "" {
				// The item is removed with the colon before it; the first item, with the colon after it.
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

// expandItem expands "$NAME", "${NAME}rest" and "$NAME/rest". It returns "" if the variable
// is unset or empty.
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

// isName reports whether s is a valid name of a shell variable.
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

// Changes collects the changes of flags in the order of the command line.
type Changes struct {
	List     []Change
	Argv     []string // the flags as given, for a job script that repeats them
	Sources  []string // the flag, or the line of its file, of each change of List
	NoExpand bool     // the caller does not expand variables in values
	Deferred string   // files whose names contain it are not read, because each task reads its own; "" for none
}

// Add adds the changes of a flag: env, env0 (a file of NUL-terminated records as those of env), set-env, set-env0 or
// unset-env.
func (c *Changes) Add(flag, arg string) error {
	isFile := flag == "env0" || (strings.HasPrefix(flag, "set-env") && !strings.Contains(arg, "="))
	given := arg
	if isFile {
		given, _ = filepath.Abs(arg) // a job starts in another directory
	}
	c.Argv = append(c.Argv, "--"+flag+"="+given)
	list, err := c.read(flag, arg, isFile)
	for _, x := range list {
		c.List, c.Sources = append(c.List, x), append(c.Sources, cmp.Or(x.at, "--"+flag))
	}
	return err
}

// read returns the changes of a flag.
func (c *Changes) read(flag, arg string, isFile bool) ([]Change, error) {
	if isFile {
		return c.readFile(arg, Options{NUL: strings.HasSuffix(flag, "0"), Exact: flag == "env0"})
	}
	parse := Literal
	switch flag {
	case "unset-env":
		parse = Unset
	case "env":
		var err error
		if arg, err = withValue(arg); err != nil {
			return nil, err
		}
		parse = Exact
	}
	x, err := parse(arg)
	return []Change{x}, err
}

// readFile reads the assignments in a file.
func (c *Changes) readFile(name string, o Options) ([]Change, error) {
	if c.Deferred != "" && strings.Contains(name, c.Deferred) {
		return nil, nil
	}
	f, err := files.Open(name)
	if errors.Is(err, fs.ErrNotExist) && !o.Exact {
		return nil, fmt.Errorf("file %q: %w; NAME=VALUE sets one variable", name, syscall.ENOENT)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(f, name, o)
}

// withValue returns the assignment of an argument of --env: itself, or that of a variable of the caller.
func withValue(arg string) (string, error) {
	if strings.Contains(arg, "=") {
		return arg, nil
	}
	value, ok := os.LookupEnv(arg)
	if !ok {
		return "", fmt.Errorf("variable %q is not set; export it first, or write NAME=VALUE", arg)
	}
	return arg + "=" + value, nil
}

// ForJob returns the flags for a job, which starts with other variables than this process: --env has the values that
// it copies.
func (c *Changes) ForJob() []string {
	argv := slices.Clone(c.Argv)
	for i, flag := range argv {
		if arg, ok := strings.CutPrefix(flag, "--env="); ok {
			arg, _ = withValue(arg)
			argv[i] = "--env=" + arg
		}
	}
	return argv
}
