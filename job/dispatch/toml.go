package dispatch

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"

	"hpcc/files"
	"hpcc/text"
)

// A tableFile is a TOML file in memory. Its errors have the file name and the line.
type tableFile struct{ name, text string }

// ReadTables reads a TOML file into a struct. A key that the struct does not have, or a
// value of another type, is an error with file and line. at wraps an error with the file's name
// and the line of a key, if found.
func ReadTables(file string, into any) (at func(key []string, err error) error, err error) {
	b, err := files.ReadFile(file, maxSiteFile)
	if err != nil {
		return nil, err
	}
	f := &tableFile{file, string(b)}
	md, err := files.TOML(f.text, into)
	if err != nil {
		return nil, f.wrong(err)
	}
	if unknown := md.Undecoded(); len(unknown) > 0 {
		key := unknown[0]
		word := key[len(key)-1]
		err := fmt.Errorf("unknown key %q", word)
		if near := text.Nearest(word, tomlKeys(reflect.TypeOf(into))); near != "" {
			err = fmt.Errorf("unknown key %q (did you mean %q?)", word, near)
		}
		return nil, f.atKey(key, err)
	}
	return f.atKey, nil
}

// atKey wraps an error with the file's name and the line of a key, if found.
func (f *tableFile) atKey(key []string, err error) error { return f.at(tomlLine(f.text, key), err) }

// wrong wraps an error of the library with the file's name and the line.
func (f *tableFile) wrong(err error) error { return f.at(tomlError(err)) }

func (f *tableFile) at(line int, err error) error {
	if line == 0 {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	return fmt.Errorf("%s:%d: %w", f.name, line, err)
}

// tomlKeys returns the keys of a struct and of the structs in it.
func tomlKeys(t reflect.Type) (names []string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		return tomlKeys(t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			name := f.Tag.Get("toml")
			if name == "-" {
				continue
			}
			if !f.Anonymous {
				names = append(names, name)
			}
			names = append(names, tomlKeys(f.Type)...)
		}
	}
	return names
}

// tomlError returns the line and the reason of a library error.
func tomlError(err error) (int, error) {
	if p := (toml.ParseError{}); errors.As(err, &p) {
		where := ""
		if p.LastKey != "" {
			where = fmt.Sprintf(" (after %q)", p.LastKey)
		}
		if p.Message == "" {
			return p.Position.Line, err
		}
		return p.Position.Line, fmt.Errorf("%s%s", p.Message, where)
	}
	// A type mismatch has the line only in its text.
	if m := tomlType().FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		return line, fmt.Errorf("%s: %s", m[2], m[3])
	}
	return 0, err
}

var tomlType = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^toml: line (\d+) \(last key "([^"]*)"\): (?:incompatible types: )?(.*)$`)
})

// tomlLine returns the line of a key, which the library does not report; 0 if it cannot
// find the key.
func tomlLine(text string, key toml.Key) int {
	bare := func(s string) string { return strings.NewReplacer(`"`, "", `'`, "", " ", "", "\t", "").Replace(s) }
	table, n := "", 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			head, _, _ := strings.Cut(strings.TrimLeft(line, "["), "]")
			if table = bare(head) + "."; table == strings.Join(key, ".")+"." {
				return n
			}
			continue
		}
		if name, _, ok := strings.Cut(line, "="); ok && table+bare(name) == strings.Join(key, ".") {
			return n
		}
	}
	if len(key) > 1 { // within the braces of a table
		return tomlLine(text, key[:len(key)-1])
	}
	return 0
}
