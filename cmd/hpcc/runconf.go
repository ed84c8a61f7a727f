package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/runtime/runconf"
)

// commandLineOnly are flags that defaults may not have: they would change images
// unasked, or come too late.
var commandLineOnly = []string{"write", "join", "join-ct", "join-tag", "join-pid", "no-config", "entrypoint", "stage"}

// defaults are the flags of all files.
type defaults struct {
	lines   []runconf.Line
	context *cli.Context
}

// readDefaults reads the files that there are; nil when none says anything.
func readDefaults() (*defaults, error) {
	lines, err := runconf.Read()
	if err != nil {
		m := &message{err: err}
		if closed := new(fs.PathError); !errors.As(err, &closed) {
			m.status = exitUsage
		}
		return nil, m.hint("--no-config ignores the files of defaults")
	}
	if len(lines) == 0 {
		return nil, nil
	}
	d := &defaults{lines: lines}
	var all []string
	for _, l := range lines {
		if err := checkDefaults(l.Words); err != nil {
			return nil, usagef("%s:%d: %w", l.File, l.Number, err).hint(`write flags of "hpcc run" there; --no-config ignores the file`)
		}
		all = append(all, l.Words...)
	}
	d.context, err = parseRunFlags(all)
	return d, err
}

// checkDefaults refuses words that are not flags of run alone.
func checkDefaults(words []string) error {
	if !strings.HasPrefix(words[0], "-") {
		return fmt.Errorf("%q is no flag", words[0])
	}
	c, err := parseRunFlags(words)
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
func parseRunFlags(words []string) (*cli.Context, error) {
	var parsed *cli.Context
	a := &cli.App{
		Name: "run", Flags: runFlags(new(envChanges)), HideHelp: true, HideVersion: true, DisableSliceFlagSeparator: true, Writer: io.Discard, ErrWriter: io.Discard,
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
