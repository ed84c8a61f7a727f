// Package program describes the two kinds of programs of conda and Python packages: scripts of
// entry points in the image ([Program]), and programs that run in the image during the
// build ([Step]). It does not start processes: package build does.
package program

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"hpcc/conda/input"
	"hpcc/text"
)

var (
	commandText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`) })
	dottedText  = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)
	})
)

// A Program is the script of an entry point, from a wheel's entry_points.txt or a noarch
// conda package.
type Program struct{ Name, module, function string }

// maxPrograms limits the programs of one wheel.
const maxPrograms = 10_000

// ParseAll parses the console_scripts and gui_scripts of entry_points.txt. If several have the
// same name, the last one wins.
func ParseAll(b []byte) (console, gui []Program, err error) {
	if bytes.IndexByte(b, 0) >= 0 {
		return nil, nil, errors.New("reading entry_points.txt: not a text file")
	}
	section, at := "", map[string]int{}
	for _, line := range input.Lines(b) {
		switch {
		case line[0] == '#' || line[0] == ';':
			continue
		case line[0] == '[' && strings.HasSuffix(line, "]"):
			section = strings.TrimSpace(line[1 : len(line)-1])
			continue
		}
		to := &console
		switch section {
		case "console_scripts":
		case "gui_scripts":
			to = &gui
		default:
			continue
		}
		p, err := Parse(line)
		if err != nil {
			return nil, nil, fmt.Errorf("reading entry_points.txt: %w", err)
		}
		key := section + " " + p.Name
		if i, duplicate := at[key]; duplicate {
			(*to)[i] = p
			continue
		}
		at[key] = len(*to)
		if *to = append(*to, p); len(*to) > maxPrograms {
			return nil, nil, fmt.Errorf("reading entry_points.txt: more than %d programs", maxPrograms)
		}
	}
	return console, gui, nil
}

// Parse parses NAME = MODULE:FUNCTION [EXTRAS]. Extras are ignored, as by other installers.
func Parse(line string) (p Program, err error) {
	name, ref, ok := strings.Cut(line, "=")
	if i := strings.IndexByte(ref, '['); i >= 0 && strings.HasSuffix(strings.TrimSpace(ref), "]") {
		ref = ref[:i]
	}
	module, function, colon := strings.Cut(ref, ":")
	p = Program{strings.TrimSpace(name), strings.TrimSpace(module), strings.TrimSpace(function)}
	switch {
	case !ok || !colon:
		err = fmt.Errorf("%q: not of the form command = module:function", text.Short(line))
	case !commandText().MatchString(p.Name) || !IsDotted(p.module) || !IsDotted(p.function):
		err = fmt.Errorf("%q: invalid command, module or function name", text.Short(line))
	}
	return p, err
}

// Drop returns the programs of a list without those for which drop returns true.
func Drop(list []Program, drop func(name string) bool) []Program {
	var out []Program
	for _, p := range list {
		if !drop(p.Name) {
			out = append(out, p)
		}
	}
	return out
}

// Versioned renames the programs of pip and easy_install for the target's python X.Y, as pip
// does. Their wheels list names such as pip3.9, with the version of the python that built them.
func Versioned(console []Program, python string) []Program {
	major, _, _ := strings.Cut(python, ".")
	for _, kind := range []struct {
		name     string
		versions []string // the new names
	}{{"pip", []string{"pip", "pip" + major, "pip" + python}}, {"easy_install", []string{"easy_install", "easy_install-" + python}}} {
		for _, p := range console {
			if p.Name != kind.name {
				continue
			}
			console = Drop(console, func(name string) bool {
				rest, ok := strings.CutPrefix(name, kind.name)
				return ok && strings.Trim(rest, "-.0123456789") == ""
			})
			for _, n := range kind.versions {
				console = append(console, Program{n, p.module, p.function})
			}
			break
		}
	}
	return console
}

// Text returns the script of an entry point as pip writes it. python is the path of the
// interpreter.
func (p Program) Text(python string) []byte {
	return p.fill(`#!%s
# -*- coding: utf-8 -*-
import re
import sys
from %s import %s
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])
    sys.exit(%s())
`, python)
}

// CondaText returns the script of an entry point as conda and mamba write it. python is the
// path of the interpreter.
func (p Program) CondaText(python string) []byte {
	return p.fill(`#!%s
# -*- coding: utf-8 -*-
import re
import sys

from %s import %s

if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\.pyw?|\.exe)?$', '', sys.argv[0])
    sys.exit(%s())
`, python)
}

// fill fills in a template of a script: interpreter, module, imported name and function.
func (p Program) fill(text, python string) []byte {
	top, _, _ := strings.Cut(p.function, ".")
	return fmt.Appendf(nil, text, python, p.module, top, p.function)
}

// IsDotted reports whether s is a dotted name of Python, such as a.b.
func IsDotted(s string) bool { return dottedText().MatchString(s) }
