package conda

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A distMeta is what a distribution's METADATA says (core metadata).
type distMeta struct {
	name     string
	version  pipVersion
	requires []dependencyRow
	python   string // Requires-Python
}

// runsOn says whether the distribution is for a python. What it says of itself
// in no known way does not count, as with pip.
func (m *distMeta) runsOn(python string) bool { return pythonFits(m.python, python) }

func pythonFits(requires, python string) bool {
	spec, err := parsePipSpecs(requires)
	v, verr := parsePipVersion(python)
	return err != nil || verr != nil || spec.match(v)
}

// A dependencyRow is a line of Requires-Dist.
type dependencyRow struct {
	PipRequirement
	cond *marker
	spec pipSpecs
}

// parseDistMeta reads METADATA: fields, one a line, until the first empty line.
func parseDistMeta(b []byte) (*distMeta, error) {
	m := &distMeta{}
	format := ""
	err := fields(b, func(key, value string) error {
		var err error
		switch key {
		case "metadata-version":
			format = value
		case "name":
			m.name = value
		case "version":
			m.version, err = parsePipVersion(value)
		case "requires-python":
			m.python = value
		case "requires-dist":
			var d dependencyRow
			if d, err = parseDependency(value); err != nil {
				return fmt.Errorf("Requires-Dist: %w", err)
			}
			m.requires = append(m.requires, d)
		}
		return err
	})
	switch major, _, _ := strings.Cut(format, "."); {
	case err != nil:
	case major != "1" && major != "2":
		err = fmt.Errorf("Metadata-Version is %q; 1 and 2 are known", short(format))
	case !pipNameText().MatchString(m.name) || m.version.release == nil:
		err = fmt.Errorf("it has the name %q and the version %q", short(m.name), m.version)
	}
	if err != nil {
		return nil, fmt.Errorf("reading METADATA: %w", err)
	}
	return m, nil
}

func parseDependency(row string) (dependencyRow, error) {
	r, err := parseRow(row)
	if err == nil && r.Name == "" {
		err = fmt.Errorf("%q names no package", short(row))
	}
	if err != nil {
		return dependencyRow{}, err
	}
	return r.dependency()
}

// dependency reads a row's condition and specifier.
func (r PipRequirement) dependency() (d dependencyRow, err error) {
	d.PipRequirement = r
	if r.Marker != "" {
		if d.cond, err = parseMarker(r.Marker); err != nil {
			return d, err
		}
	}
	d.spec, err = parsePipSpecs(r.Specifier)
	return d, err
}

// fields reads "Key: value" lines; a line that begins with a blank goes with the
// one before. A line that is no field begins the text, as for readers of mail.
// Keys come in lower case.
func fields(b []byte, take func(key, value string) error) error {
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(make([]byte, 0, 4096), maxInfo)
	key, value := "", strings.Builder{}
	flush := func() error {
		if key == "" {
			return nil
		}
		return take(strings.ToLower(strings.TrimSpace(key)), strings.TrimSpace(value.String()))
	}
	for sc.Scan() {
		line := strings.TrimSuffix(sc.Text(), "\r")
		if line == "" {
			break
		}
		if line[0] == ' ' || line[0] == '\t' {
			value.WriteString(" " + strings.TrimSpace(line))
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			return nil
		}
		key = name
		value.Reset()
		value.WriteString(rest)
	}
	if sc.Err() != nil {
		return sc.Err()
	}
	return flush()
}

// A point is a program that stands for a function (entry_points.txt).
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
	for _, line := range lines(b) {
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
		err = fmt.Errorf("%q: not of the form command = module:function", short(line))
	case !commandText().MatchString(p.name) || !dottedText().MatchString(p.module) || !dottedText().MatchString(p.function):
		err = fmt.Errorf("%q: its command, module or function is no plain name", short(line))
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
	top, _, _ := strings.Cut(p.function, ".")
	return fmt.Appendf(nil, `#!%s
# -*- coding: utf-8 -*-
import re
import sys
from %s import %s
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])
    sys.exit(%s())
`, python, p.module, top, p.function)
}

// readSmall reads a file that is to be small.
func readSmall(r io.Reader, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("it is larger than %d bytes", most)
	}
	return b, err
}
