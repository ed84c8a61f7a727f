package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
)

// Files of defaults hold flags of "hpcc run", as they are written on a command
// line: the administrator's for everybody on the machine, then the user's own.
//
//	# scratch is everywhere
//	--bind /scratch --bind /opt/site:/opt/site:ro
//	--set-env "LICENSE=27000@$USER-lic"
//
// Quotes and variables of the caller's environment mean what they mean in a
// shell, nothing else does.
const adminDefaults = "/etc/hpcc/run.conf"

// commandLineOnly are flags that defaults may not have: they would change images
// unasked, or come too late.
var commandLineOnly = []string{"write", "join", "join-ct", "join-tag", "join-pid", "no-config", "entrypoint"}

// A defaultLine is a line of a file of defaults that has flags.
type defaultLine struct {
	file   string
	number int
	words  []string
}

// defaults are the flags of all files.
type defaults struct {
	lines   []defaultLine
	context *cli.Context
	env     envChanges
}

// defaultFiles are the files in the order in which they apply.
func defaultFiles() []string {
	files := []string{adminDefaults}
	dir := os.Getenv("XDG_CONFIG_HOME")
	if home := os.Getenv("HOME"); !filepath.IsAbs(dir) && filepath.IsAbs(home) {
		dir = filepath.Join(home, ".config")
	}
	if filepath.IsAbs(dir) {
		files = append(files, filepath.Join(dir, "hpcc", "run.conf"))
	}
	return files
}

// readDefaults reads the files that exist; nil when none says anything.
func readDefaults(files []string) (*defaults, error) {
	d := new(defaults)
	for _, file := range files {
		lines, err := readDefaultLines(file)
		if err != nil {
			return nil, err
		}
		d.lines = append(d.lines, lines...)
	}
	if len(d.lines) == 0 {
		return nil, nil
	}
	var all []string
	for _, l := range d.lines {
		if err := l.check(); err != nil {
			return nil, usagef("%s:%d: %w", l.file, l.number, err).hint(`write flags of "hpcc run" there; --no-config ignores the file`)
		}
		all = append(all, l.words...)
	}
	var err error
	d.context, err = parseRunFlags(&d.env, all)
	return d, err
}

// maxDefaults bounds a file of defaults.
const maxDefaults = 1 << 20

func readDefaultLines(file string) ([]defaultLine, error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) && file != adminDefaults {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the defaults of run: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDefaults+1))
	if err == nil && len(b) > maxDefaults {
		err = fmt.Errorf("%s is larger than %d bytes", file, maxDefaults)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the defaults of run: %w", err)
	}
	var out []defaultLine
	for i, text := range strings.Split(string(b), "\n") {
		words, err := splitWords(strings.TrimSuffix(text, "\r"), os.LookupEnv)
		if err != nil {
			return nil, usagef("%s:%d: %w", file, i+1, err).hint("--no-config ignores the file")
		}
		if len(words) > 0 {
			out = append(out, defaultLine{file, i + 1, words})
		}
	}
	return out, nil
}

// check refuses a line that is not made of flags of run alone.
func (l *defaultLine) check() error {
	if !strings.HasPrefix(l.words[0], "-") {
		return fmt.Errorf("%q is no flag", l.words[0])
	}
	var env envChanges
	c, err := parseRunFlags(&env, l.words)
	if err != nil {
		return err
	}
	if c.Args().Present() {
		return fmt.Errorf("%q belongs to no flag", c.Args().First())
	}
	for _, name := range commandLineOnly {
		if c.IsSet(name) && (name != "no-config" || c.Bool(name)) { // its variable may be set, and empty
			return fmt.Errorf("--%s may stand on the command line only", name)
		}
	}
	return nil
}

// parseRunFlags parses words by the table of run's flags.
func parseRunFlags(env *envChanges, words []string) (*cli.Context, error) {
	var parsed *cli.Context
	a := &cli.App{
		Name: "run", Flags: runFlags(env), HideHelp: true, HideVersion: true, DisableSliceFlagSeparator: true, Writer: io.Discard, ErrWriter: io.Discard,
		OnUsageError:   func(_ *cli.Context, err error, _ bool) error { return err },
		ExitErrHandler: func(*cli.Context, error) {},
		Action:         func(c *cli.Context) error { parsed = c; return nil },
	}
	err := a.Run(append([]string{"run"}, words...))
	if err == nil && parsed == nil {
		err = errors.New("no flags of run")
	}
	return parsed, err
}

// splitWords splits a line as a shell does: blanks between words, '…' verbatim,
// "…" and bare text with \ and $NAME or ${NAME}, # and what follows a comment, ~/
// at the head of a word or of its value the home directory.
func splitWords(line string, lookup func(string) (string, bool)) ([]string, error) {
	s := splitter{rest: line, lookup: lookup}
	for s.rest != "" {
		c := s.rest[0]
		s.rest = s.rest[1:]
		switch {
		case c == ' ' || c == '\t':
			s.flush()
		case c == '#' && !s.inWord:
			return s.words, nil
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
		case c == '~' && (s.word.Len() == 0 || strings.HasSuffix(s.word.String(), "=")) && (s.rest == "" || s.rest[0] == '/' || s.rest[0] == ':'):
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
	return s.words, nil
}

// A splitter is in the middle of a line.
type splitter struct {
	rest   string
	words  []string
	word   strings.Builder
	inWord bool // '' is a word
	lookup func(string) (string, bool)
}

func (s *splitter) add(text string) {
	s.word.WriteString(text)
	s.inWord = true
}

func (s *splitter) flush() {
	if s.inWord {
		s.words = append(s.words, s.word.String())
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

// char takes one character that may begin something.
func (s *splitter) char(c byte) error {
	switch {
	case c == '\\' && s.rest != "":
		c, s.rest = s.rest[0], s.rest[1:]
	case c == '$' && strings.HasPrefix(s.rest, "{"):
		name, after, ok := strings.Cut(s.rest[1:], "}")
		if !ok || name == "" || nameLen(name) != len(name) {
			return errors.New("a ${ has no name and }")
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

// nameLen is how many bytes of s are a variable's name.
func nameLen(s string) int {
	isName := func(c rune) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
	n := strings.IndexFunc(s, func(c rune) bool { return !isName(c) && (c < '0' || c > '9') })
	if n < 0 {
		n = len(s)
	}
	if n > 0 && !isName(rune(s[0])) {
		return 0
	}
	return n
}
