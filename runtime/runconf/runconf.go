// Package runconf reads run.conf, the files of default flags of hpcc run.
//
//	# all nodes have /scratch
//	--bind /scratch --bind /opt/site:/opt/site:ro
//	--set-env "LICENSE=27000@$USER-lic"
//
// The administrator's file applies to all users of the machine, followed by the user's own
// file. Quotes and variables of the caller's environment work as in a shell; other shell
// syntax does not.
package runconf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// adminDefaults is the path of the administrator's file.
const adminDefaults = "/etc/hpcc/run.conf"

// A Line is a line of run.conf that holds flags.
type Line struct {
	File   string
	Number int      // from 1
	Argv   []string // the flags and their values
}

// Read reads the existing default files in the order in which they apply. Every run calls
// it; without files, it costs two system calls.
func Read() ([]Line, error) {
	lines, err := readDefaults(adminDefaults)
	dir := os.Getenv("XDG_CONFIG_HOME")
	if home := os.Getenv("HOME"); !filepath.IsAbs(dir) && filepath.IsAbs(home) {
		dir = filepath.Join(home, ".config")
	}
	if err != nil || !filepath.IsAbs(dir) {
		return lines, err
	}
	own, err := readDefaults(filepath.Join(dir, "hpcc", "run.conf"))
	return append(lines, own...), err
}

// Hint returns the location and content of the line as a hint to an error message.
func (l *Line) Hint() string {
	return fmt.Sprintf("%s:%d contains %s; --no-config ignores it", l.File, l.Number, strings.Join(l.Argv, " "))
}

// Blame returns the line that likely caused an error of a run, because the error contains
// one of its arguments. It returns nil if no line matches.
func Blame(lines []Line, err error) *Line {
	for i, l := range lines {
		for _, arg := range l.Argv {
			_, value, ok := strings.Cut(arg, "=")
			if !ok {
				value = arg
			}
			if !strings.HasPrefix(value, "-") && len(value) > 1 && strings.Contains(err.Error(), value) {
				return &lines[i]
			}
		}
	}
	return nil
}

// maxDefaults bounds a file of defaults, in bytes.
const maxDefaults = 64 << 10

// readDefaults reads one file. A user's file that the user cannot read counts as missing:
// sudo keeps another user's HOME.
func readDefaults(file string) ([]Line, error) {
	text, err := readText(file)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || (errors.Is(err, unix.EACCES) && file != adminDefaults) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the default flags of run: %w", err)
	}
	return splitLines(file, text)
}

// readText returns the text of a file of at most maxDefaults bytes.
func readText(file string) (string, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	b := make([]byte, maxDefaults+1)
	size := 0
	for n := 1; n > 0 && size < len(b); size += n {
		if n, err = unix.Read(fd, b[size:]); err != nil {
			return "", &fs.PathError{Op: "read", Path: file, Err: err}
		}
	}
	if size > maxDefaults {
		return "", fmt.Errorf("%s is larger than %d bytes", file, maxDefaults)
	}
	return string(b[:size]), nil
}

// splitLines splits the text of a file into lines of arguments.
func splitLines(file, all string) (out []Line, err error) {
	number := 0
	for text := range strings.Lines(all) {
		number++
		argv, err := splitArgs(strings.TrimRight(text, "\r\n"), os.LookupEnv)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, number, err)
		}
		if len(argv) > 0 {
			out = append(out, Line{file, number, argv})
		}
	}
	return out, nil
}

// splitArgs splits a line as a shell does: blanks between words, '…' verbatim, "…" and bare
// text with \ and $NAME or ${NAME}, # for comments, ~/ at the start of a word or its value
// for the home directory.
func splitArgs(line string, lookup func(string) (string, bool)) ([]string, error) {
	s := splitter{rest: line, lookup: lookup}
	for s.rest != "" {
		c := s.rest[0]
		s.rest = s.rest[1:]
		switch {
		case c == ' ' || c == '\t':
			s.flush()
		case c == '#' && !s.inWord:
			return s.argv, nil
		case c == '\'':
			text, after, ok := strings.Cut(s.rest, "'")
			if !ok {
				return nil, errors.New("a ' is not closed")
			}
			s.add(text)
			s.rest = after
		case c == '"':
			if err := s.quoted(); err != nil {
				return nil, err
			}
		case c == '~' && (s.word.Len() == 0 || strings.HasSuffix(s.word.String(), "=")) &&
			(s.rest == "" || s.rest[0] == '/' || s.rest[0] == ':'):
			if err := s.variable("HOME"); err != nil {
				return nil, err
			}
		default:
			if err := s.char(c); err != nil {
				return nil, err
			}
		}
	}
	s.flush()
	return s.argv, nil
}

// A splitter holds the state of splitting a line.
type splitter struct {
	rest   string
	argv   []string
	word   strings.Builder
	inWord bool // so that '' gives an empty word
	lookup func(string) (string, bool)
}

func (s *splitter) add(text string) {
	s.word.WriteString(text)
	s.inWord = true
}

func (s *splitter) flush() {
	if s.inWord {
		s.argv = append(s.argv, s.word.String())
	}
	s.word.Reset()
	s.inWord = false
}

func (s *splitter) quoted() error {
	s.inWord = true
	for s.rest != "" {
		c := s.rest[0]
		s.rest = s.rest[1:]
		if c == '"' {
			return nil
		}
		if c == '\\' && s.rest != "" && !strings.ContainsRune(`"\$`, rune(s.rest[0])) {
			s.add(`\`)
			continue
		}
		if err := s.char(c); err != nil {
			return err
		}
	}
	return errors.New(`a " is not closed`)
}

// char adds one character, after handling \ and $.
func (s *splitter) char(c byte) error {
	switch {
	case c == '\\' && s.rest != "":
		c, s.rest = s.rest[0], s.rest[1:]
	case c == '$' && strings.HasPrefix(s.rest, "{"):
		name, after, ok := strings.Cut(s.rest[1:], "}")
		if !ok || name == "" || nameLen(name) != len(name) {
			return errors.New("a ${ is not followed by a name and }")
		}
		s.rest = after
		return s.variable(name)
	case c == '$' && nameLen(s.rest) > 0:
		n := nameLen(s.rest)
		name := s.rest[:n]
		s.rest = s.rest[n:]
		return s.variable(name)
	}
	s.add(string([]byte{c}))
	return nil
}

func (s *splitter) variable(name string) error {
	v, ok := s.lookup(name)
	if !ok {
		return fmt.Errorf("$%s is not set", name)
	}
	s.add(v)
	return nil
}

// nameLen returns the length of the variable name at the start of s, in bytes.
func nameLen(s string) int {
	isName := func(c rune) bool { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') }
	n := strings.IndexFunc(s, func(c rune) bool { return !isName(c) && (c < '0' || c > '9') })
	if n < 0 {
		n = len(s)
	}
	if n > 0 && !isName(rune(s[0])) {
		return 0
	}
	return n
}
