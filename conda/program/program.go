// Package program holds the two kinds of programs that conda and Python packages ask
// for: those that stand for entry points in the image ([Program]), and those that have
// to run in the image while it is built ([Step]). It starts no process: package build does.
package program

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"hpcc/conda/input"
)

var (
	commandText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`) })
	dottedText  = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)
	})
)

// A Program is a program that stands for a function: of a wheel's
// entry_points.txt, or of a noarch package of conda.
type Program struct{ Name, module, function string }

// maxPrograms bounds the programs of one wheel.
const maxPrograms = 10_000

// ParseAll reads the console_scripts and gui_scripts of entry_points.txt; of
// two with one name the latter is taken.
func ParseAll(b []byte) (console, gui []Program, err error) {
	if bytes.IndexByte(b, 0) >= 0 {
		return nil, nil, errors.New("reading entry_points.txt: it is no text")
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
		if i, twice := at[key]; twice {
			(*to)[i] = p
			continue
		}
		at[key] = len(*to)
		if *to = append(*to, p); len(*to) > maxPrograms {
			return nil, nil, fmt.Errorf("reading entry_points.txt: it has more than %d programs", maxPrograms)
		}
	}
	return console, gui, nil
}

// Parse reads NAME = MODULE:FUNCTION [EXTRAS]; extras have no meaning since
// installers leave them to the user.
func Parse(line string) (p Program, err error) {
	name, ref, ok := strings.Cut(line, "=")
	if i := strings.IndexByte(ref, '['); i >= 0 && strings.HasSuffix(strings.TrimSpace(ref), "]") {
		ref = ref[:i]
	}
	module, function, colon := strings.Cut(ref, ":")
	p = Program{strings.TrimSpace(name), strings.TrimSpace(module), strings.TrimSpace(function)}
	switch {
	case !ok || !colon:
		err = fmt.Errorf("%q: not of the form command = module:function", input.Text(line))
	case !commandText().MatchString(p.Name) || !IsDotted(p.module) || !IsDotted(p.function):
		err = fmt.Errorf("%q: its command, module or function is no plain name", input.Text(line))
	}
	return p, err
}

func Drop(list []Program, drop func(name string) bool) []Program {
	var out []Program
	for _, p := range list {
		if !drop(p.Name) {
			out = append(out, p)
		}
	}
	return out
}

// Versioned gives pip and easy_install the programs of the target's python,
// as pip does: their wheels name those of the python that made them.
func Versioned(console []Program, python string) []Program {
	major, _, _ := strings.Cut(python, ".")
	for _, kind := range []struct {
		name  string
		fresh []string
	}{{"pip", []string{"pip", "pip" + major, "pip" + python}}, {"easy_install", []string{"easy_install", "easy_install-" + python}}} {
		for _, p := range console {
			if p.Name != kind.name {
				continue
			}
			console = Drop(console, func(name string) bool {
				rest, ok := strings.CutPrefix(name, kind.name)
				return ok && strings.Trim(rest, "-.0123456789") == ""
			})
			for _, n := range kind.fresh {
				console = append(console, Program{n, p.module, p.function})
			}
			break
		}
	}
	return console
}

// program is the text of an entry point's program, as pip writes it.
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

// condaProgram is the same as conda and mamba write it.
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

func (p Program) fill(text, python string) []byte {
	top, _, _ := strings.Cut(p.function, ".")
	return fmt.Appendf(nil, text, python, p.module, top, p.function)
}

// IsDotted reports whether s is a dotted name of Python, such as a.b.
func IsDotted(s string) bool { return dottedText().MatchString(s) }
