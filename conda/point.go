package conda

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"hpcc/conda/archive"
	"hpcc/conda/brief"
)

var (
	commandText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`) })
	dottedText  = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)
	})
)

// A point is a program that stands for a function: of a wheel's
// entry_points.txt, or of a noarch package of conda.
type point struct{ name, module, function string }

// maxPoints bounds the programs of one wheel.
const maxPoints = 10_000

// parsePoints reads the console_scripts and gui_scripts of entry_points.txt; of
// two with one name the latter is taken.
func parsePoints(b []byte) (console, gui []point, err error) {
	if bytes.IndexByte(b, 0) >= 0 {
		return nil, nil, errors.New("reading entry_points.txt: it is no text")
	}
	section, at := "", map[string]int{}
	for _, line := range archive.Lines(b) {
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
		p, err := parsePoint(line)
		if err != nil {
			return nil, nil, fmt.Errorf("reading entry_points.txt: %w", err)
		}
		key := section + " " + p.name
		if i, twice := at[key]; twice {
			(*to)[i] = p
			continue
		}
		at[key] = len(*to)
		if *to = append(*to, p); len(*to) > maxPoints {
			return nil, nil, fmt.Errorf("reading entry_points.txt: it has more than %d programs", maxPoints)
		}
	}
	return console, gui, nil
}

// parsePoint reads NAME = MODULE:FUNCTION [EXTRAS]; extras have no meaning since
// installers leave them to the user.
func parsePoint(line string) (p point, err error) {
	name, ref, ok := strings.Cut(line, "=")
	if i := strings.IndexByte(ref, '['); i >= 0 && strings.HasSuffix(strings.TrimSpace(ref), "]") {
		ref = ref[:i]
	}
	module, function, colon := strings.Cut(ref, ":")
	p = point{strings.TrimSpace(name), strings.TrimSpace(module), strings.TrimSpace(function)}
	switch {
	case !ok || !colon:
		err = fmt.Errorf("%q: not of the form command = module:function", brief.Text(line))
	case !commandText().MatchString(p.name) || !dottedText().MatchString(p.module) || !dottedText().MatchString(p.function):
		err = fmt.Errorf("%q: its command, module or function is no plain name", brief.Text(line))
	}
	return p, err
}

func dropPoints(list []point, drop func(name string) bool) []point {
	var out []point
	for _, p := range list {
		if !drop(p.name) {
			out = append(out, p)
		}
	}
	return out
}

// versioned gives pip and easy_install the programs of the target's python,
// as pip does: their wheels name those of the python that made them.
func versioned(console []point, python string) []point {
	major, _, _ := strings.Cut(python, ".")
	for _, kind := range []struct {
		name  string
		fresh []string
	}{{"pip", []string{"pip", "pip" + major, "pip" + python}}, {"easy_install", []string{"easy_install", "easy_install-" + python}}} {
		for _, p := range console {
			if p.name != kind.name {
				continue
			}
			console = dropPoints(console, func(name string) bool {
				rest, ok := strings.CutPrefix(name, kind.name)
				return ok && strings.Trim(rest, "-.0123456789") == ""
			})
			for _, n := range kind.fresh {
				console = append(console, point{n, p.module, p.function})
			}
			break
		}
	}
	return console
}

// program is the text of an entry point's program, as pip writes it.
func (p point) program(python string) []byte {
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
func (p point) condaProgram(python string) []byte {
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

func (p point) fill(text, python string) []byte {
	top, _, _ := strings.Cut(p.function, ".")
	return fmt.Appendf(nil, text, python, p.module, top, p.function)
}
