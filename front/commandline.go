package front

import (
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hpcc/envfile"
	"hpcc/text"
)

// A commandLine is a command line of a program whose subcommands have options of their own.
type commandLine struct {
	program  string                   // as called, with the subcommand
	verb     string                   // the subcommand
	version  string                   // the program whose options hpcc reads, for messages
	longName func(name string) string // long name of an option, which messages and tables use
	environ  []string                 // variables of the caller
	dir      string                   // the current directory

	on     map[string]string   // options without a value, by long name, as written
	values map[string][]string // options with a value
	text   map[string]string   // these options as written
}

func newCommandLine(program string, environ []string) (*commandLine, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("%s: finding the current directory: %w", program, err)
	}
	return &commandLine{program: program, environ: environ, dir: dir, on: map[string]string{},
		values: map[string][]string{}, text: map[string]string{}}, nil
}

// env returns a variable of the caller, or "".
func (l *commandLine) env(name string) string { return envfile.Lookup(l.environ, name) }

// option reads the options of the first argument, which is one.
func (l *commandLine) option(table map[string]Role, args []Word) (rest []Word, err error) {
	found, rest, why := next(table, args)
	if why != "" {
		return nil, refusal(l.program, args[0].Text, why,
			spelling(args[0].Text, maps.Keys(table), "check its spelling, or leave it out; hpcc reads the options of "+l.version))
	}
	for _, o := range found {
		name := l.longName(o.Name)
		l.text[name] = o.Text
		switch off, bad := isOff(o.Value.Text); {
		case bad && !o.Role.takesValue():
			return nil, refusal(l.program, o.Text, o.Name+" takes no value", "")
		case o.Role == idleFlag || o.Role == idleValue:
		case o.Role.takesValue():
			l.values[name] = append(l.values[name], o.Value.Text)
		case off && o.Value.Text != "":
			delete(l.on, name)
		default:
			l.on[name] = o.Name
		}
	}
	return rest, nil
}

// spelling returns the advice on an unknown option or subcommand: the known one that was probably
// meant, or else the given advice.
func spelling(word string, known iter.Seq[string], advice string) string {
	name, _, _ := strings.Cut(word, "=")
	if near := text.Nearest(name, slices.Sorted(known)); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return advice
}

// isOff reports whether the value of an option, or of the variable for it, is false. bad means
// that it is not a boolean.
func isOff(value string) (off, bad bool) {
	switch strings.ToLower(value) {
	case "", "0", "n", "no", "f", "false":
		return true, false
	case "1", "y", "yes", "t", "true":
		return false, false
	}
	return false, true
}

// all reads options and arguments in any order.
func (l *commandLine) all(table map[string]Role, args []Word) (rest []string, err error) {
	for len(args) > 0 {
		switch {
		case args[0].Text == "--":
			for _, w := range args[1:] {
				rest = append(rest, w.Text)
			}
			return rest, nil
		case IsOption(args[0]):
			if args, err = l.option(table, args); err != nil {
				return nil, err
			}
		default:
			rest, args = append(rest, args[0].Text), args[1:]
		}
	}
	return rest, nil
}

// last returns the last value of an option, or "".
func (l *commandLine) last(name string) string {
	if v := l.values[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// absolute returns a path of the host as an absolute one.
func (l *commandLine) absolute(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(l.dir, path)
}

// refuse returns an error if an option of reasons is set.
func (l *commandLine) refuse(reasons map[string][2]string) error {
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		if why := reasons[name]; l.on[name] != "" || len(l.values[name]) > 0 {
			return refusal(l.program, l.text[name], why[0], why[1])
		}
	}
	return nil
}
