package exports

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/conda/pip"
	"hpcc/text"
)

// isRequirements distinguishes pip's requirements.txt from a list for conda, whose lines
// have a single "=". If the content is ambiguous, the file name decides.
func isRequirements(lines []string, file string) bool {
	sure, maybe := false, false
	for _, l := range lines {
		l = strings.TrimSpace(l)
		switch {
		case strings.HasPrefix(l, "# $ conda create"), strings.HasPrefix(l, "# platform:"):
			return false
		case condaRow().MatchString(l):
			return false
		case l == "" || strings.HasPrefix(l, "#"):
			continue
		case strings.HasPrefix(l, "-"), strings.Contains(l, " @ "), strings.Contains(l, "; "),
			strings.Contains(l, " --"), strings.Contains(l, "git+"), strings.Contains(l, ".whl"):
			sure = true
			continue
		}
		name := requirementName().FindString(l)
		rest, _, _ := strings.Cut(strings.TrimSpace(l[len(name):]), " #")
		if strings.HasPrefix(rest, "[") {
			_, rest, _ = strings.Cut(rest, "]")
		}
		rest = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "\\"))
		switch {
		case name == "":
		case strings.HasPrefix(rest, "=") && !strings.HasPrefix(rest, "=="),
			strings.Count(strings.TrimLeft(rest, "="), "=") == 1 && strings.HasPrefix(rest, "==") && !strings.Contains(rest, ","):
			return false // name=version=build, name==version=build
		case strings.HasPrefix(rest, "==") || strings.Contains(l, "["):
			maybe = true
		}
	}
	name := path.Base(file)
	return sure || (maybe && strings.HasPrefix(name, "requirements")) ||
		(strings.HasPrefix(name, "requirements") && !strings.HasSuffix(name, ".yml"))
}

// condaRow matches rows that only conda accepts: channel::name, name[key=value], and a version or
// "*" after a blank.
var condaRow = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:[A-Za-z0-9*][^\s#;@]*::[A-Za-z0-9_]|[A-Za-z0-9_.-]+\s*\[[a-z0-9_]+\s*=|[A-Za-z0-9_.-]+\s+[0-9*])`)
})

// requirements reads a requirements.txt that a person, "pip freeze" or pip-compile wrote, with
// --hash, markers, continuation lines and options. The format lacks python and all packages
// that are not from pip.
func (r *reader) requirements(lines []string) {
	r.e.Format, r.e.PipOpen = "requirements.txt", true
	r.settle()
	r.requirementLines(lines)
}

// requirementLines reads the lines of a requirements file, some of which are continued.
func (r *reader) requirementLines(lines []string) {
	for i := 0; i < len(lines); i++ {
		first, row := i+1, lines[i]
		for strings.HasSuffix(row, "\\") && i+1 < len(lines) && len(row) <= maxLine {
			i++
			row = row[:len(row)-1] + lines[i]
		}
		r.addRequirement(first, strings.TrimSuffix(row, "\\"))
	}
}

// addRequirement reads one line of a requirements file, or of "pip:" in environment.yml.
func (r *reader) addRequirement(line int, row string) {
	if strings.HasPrefix(strings.TrimSpace(row), "#") {
		return
	}
	if i := strings.Index(row, " #"); i >= 0 {
		row = row[:i]
	}
	row = strings.TrimSpace(row)
	switch {
	case row == "":
	case strings.HasPrefix(row, "-") && !isEditable(row):
		r.pipOption(line, row)
	default:
		p, err := pip.ParseRequirement(r.withoutUnused(line, row))
		if err != nil {
			r.wrong(line, "%q: %v", text.Short(hideText(row)), err)
			return
		}
		p.Line = line
		r.keepRequirement(p)
	}
}

// unusedOptions are the options of pip that change nothing here.
var unusedOptions = []string{"--require-hashes", "--prefer-binary", "--only-binary", "--pre",
	"--use-pep517", "--no-binary", "--use-feature"}

// withoutUnused removes unused options from the end of a requirement, with a note.
func (r *reader) withoutUnused(line int, row string) string {
	at := strings.Index(row, " --")
	if at < 0 {
		return row
	}
	kept, unused := row[:at], false
	for f := range strings.FieldsSeq(row[at:]) {
		if name, _, _ := strings.Cut(f, "="); strings.HasPrefix(f, "--") {
			if unused = slices.Contains(unusedOptions, name); unused {
				r.note(line, "%s: %s is not used", text.Short(row[:at]), text.Short(f))
			}
		}
		if !unused {
			kept += " " + f
		}
	}
	return kept
}

// keepRequirement adds a requirement unless its marker excludes the platform.
func (r *reader) keepRequirement(p pip.Requirement) {
	holds, known, err := p.Decide(r.target)
	switch {
	case err != nil:
		r.wrong(p.Line, "%s: %v", p, err)
		return
	case known && !holds:
		r.note(p.Line, "%s is not for %s (%s) and is left out", p, r.target, text.Short(p.Marker))
		return
	case known:
		p.Marker = ""
	}
	r.keep(p)
}

// pipOption reads a line that begins with "-".
func (r *reader) pipOption(line int, row string) {
	name, arg, _ := strings.Cut(row, " ")
	if n, a, ok := strings.Cut(name, "="); ok && strings.HasPrefix(name, "--") {
		name, arg = n, a
	} else if len(name) > 2 && !strings.HasPrefix(name, "--") { // -rFILE
		name, arg = name[:2], name[2:]
	}
	arg = strings.TrimSpace(arg)
	addValue := func(list *[]string) {
		if arg == "" {
			r.wrong(line, "%s has no value", name)
			return
		}
		*list = append(*list, arg)
	}
	switch name {
	case "-i", "--index-url":
		var v []string
		if addValue(&v); len(v) > 0 {
			r.e.PipIndexes.URL = arg
		}
	case "--extra-index-url":
		addValue(&r.e.PipIndexes.Extra)
	case "-f", "--find-links":
		arg = r.rebase(arg)
		addValue(&r.e.PipIndexes.FindLinks)
	case "--no-index":
		r.e.PipIndexes.NoIndex = true
	case "-r", "--requirement", "-c", "--constraint":
		r.include(line, name, arg)
	case "--trusted-host":
		r.wrong(line, "--trusted-host is refused: TLS certificates are always checked; remove the line")
	default:
		if slices.Contains(unusedOptions, name) {
			r.note(line, "%s is not used", name)
			return
		}
		r.wrong(line, "unsupported option %q; remove the line", text.Short(name))
	}
}

// requirementName matches the name at the start of a line (PEP 508).
var requirementName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`) })

// isEditable reports whether a line is an editable requirement (-e or --editable).
func isEditable(line string) bool {
	rest, long := strings.CutPrefix(line, "--editable")
	return strings.HasPrefix(line, "-e") || (long && strings.IndexAny(rest, " \t\n\f\r=") == 0)
}
