package pip

import (
	"fmt"
	"strings"

	"hpcc/conda/input"
	"hpcc/text"
)

// A distMeta holds the METADATA of a distribution (core metadata).
type distMeta struct {
	name     string
	version  pyVersion
	requires []dependencyRow
	python   string   // Requires-Python
	format   string   // Metadata-Version
	dynamic  []string // of sources: the fields that only a build determines (PEP 643), in lower case
}

// of reports whether the metadata describes the pick.
func (m *distMeta) of(p *pick) bool {
	return NormalName(m.name) == p.name && (p.version.release == nil || m.version.compare(p.version) == 0)
}

// runsOn reports whether the distribution supports a version of python. Like pip, it
// ignores a Requires-Python that cannot be parsed.
func (m *distMeta) runsOn(python string) bool { return pythonFits(m.python, python) }

func pythonFits(requires, python string) bool {
	spec, err := parseSpecifier(requires)
	v, verr := parseVersion(python)
	return err != nil || verr != nil || spec.match(v)
}

// A dependencyRow is a line of Requires-Dist.
type dependencyRow struct {
	Requirement
	cond *marker
	spec specifier
}

// parseDistMeta reads METADATA: one field per line, up to the first empty line.
func parseDistMeta(b []byte) (*distMeta, error) {
	m := &distMeta{}
	err := input.Fields(b, func(key, value string) error {
		var err error
		switch key {
		case "metadata-version":
			m.format = value
		case "dynamic":
			m.dynamic = append(m.dynamic, strings.ToLower(value))
		case "name":
			m.name = value
		case "version":
			m.version, err = parseVersion(value)
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
	switch major, _, _ := strings.Cut(m.format, "."); {
	case err != nil:
	case major != "1" && major != "2":
		err = fmt.Errorf("unsupported Metadata-Version %q: want 1 or 2", text.Short(m.format))
	case !nameText().MatchString(m.name) || m.version.release == nil:
		err = fmt.Errorf("invalid name %q or version %q", text.Short(m.name), m.version)
	}
	if err != nil {
		return nil, fmt.Errorf("reading METADATA: %w", err)
	}
	return m, nil
}

func parseDependency(row string) (dependencyRow, error) {
	r, err := parseRow(row)
	if err == nil && r.Name == "" {
		err = fmt.Errorf("%q: missing package name", text.Short(row))
	}
	if err != nil {
		return dependencyRow{}, err
	}
	return r.dependency()
}

// dependency parses a row's condition and specifier.
func (r Requirement) dependency() (d dependencyRow, err error) {
	d.Requirement = r
	if r.Marker != "" {
		if d.cond, err = r.condition(); err != nil {
			return d, err
		}
	}
	d.spec, err = parseSpecifier(r.Specifier)
	return d, err
}
