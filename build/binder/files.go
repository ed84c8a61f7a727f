package binder

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"

	"hpcc/conda/input"
	"hpcc/files"
	"hpcc/text"
)

// maxPackages limits the packages of an apt.txt.
const maxPackages = 5000

// aptName matches the name of a Debian package, with an architecture and a version as in
// apt-get. No such name is an option or has a meaning in the shell. apt-get would remove a
// package if a "-" ended its name.
var aptName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*[a-z0-9+.](:[a-z0-9-]*[a-z0-9])?(=[A-Za-z0-9][A-Za-z0-9+.:~-]*[A-Za-z0-9+.~])?$`)
})

// lines returns the lines of a file without comments, line ends and surrounding blanks.
func lines(text []byte) []string {
	var out []string
	for l := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		l, _, _ = bytes.Cut(l, []byte("#"))
		out = append(out, string(bytes.TrimSpace(l)))
	}
	return out
}

// hasRows reports whether a file has more than comments.
func hasRows(content []byte) bool {
	return slices.ContainsFunc(lines(content), func(l string) bool { return l != "" })
}

// parseAPT returns the packages of an apt.txt in order, without duplicates, and the first and the
// last line with a package. An error begins with the first bad line.
func parseAPT(content []byte) (names []string, at [2]int, err error) {
	var bad input.Faults
	seen := map[string]bool{}
	for i, l := range lines(content) {
		for _, name := range strings.Fields(l) {
			if !aptName().MatchString(name) {
				bad.Add("", i+1, fmt.Sprintf("%q is not the name of a package", text.Short(name)))
			}
			if !seen[name] {
				names = append(names, name)
			}
			if seen[name] = true; at[0] == 0 {
				at[0] = i + 1
			}
			at[1] = i + 1
		}
	}
	if len(names) > maxPackages {
		bad.Add("", at[1], fmt.Sprintf("more than %d packages", maxPackages))
	}
	if len(bad.Texts) > 0 {
		return nil, at, fmt.Errorf("%d: %s; write one package of Debian or Ubuntu on each line", bad.Line, bad.Join("; "))
	}
	slices.Sort(names)
	return names, at, nil
}

// runtimeForm matches NAME-VERSION, NAME-VERSION-DATE and NAME-DATE.
var runtimeForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-zA-Z]+)(?:-([^\s-]+))?(?:-(\d{4}-\d{2}-\d{2}))?$`)
})

// pythonVersion matches a version of python in runtime.txt.
var pythonVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\d{1,3}(\.\d{1,3}){0,2}$`) })

// parseRuntime returns the version of python in a runtime.txt.
func parseRuntime(content []byte) (python string, err error) {
	line := strings.TrimSpace(strings.TrimPrefix(string(content), "\ufeff"))
	m := runtimeForm().FindStringSubmatch(line)
	switch {
	case m == nil || m[2]+m[3] == "":
		return "", fmt.Errorf("%q is not a runtime; write python-X.Y", text.Short(line))
	case m[1] == "r":
		return "", errors.New("packages of R are not installed; name r-base and r-NAME packages in environment.yml, and remove runtime.txt")
	case m[1] != "python":
		return "", fmt.Errorf("runtime %q is not supported; write python-X.Y", text.Short(m[1]))
	case !pythonVersion().MatchString(m[2]):
		return "", fmt.Errorf("%q is not a version of python; write python-X.Y", text.Short(m[2]))
	}
	return m[2], nil
}

// requiredPython matches a requires-python that is a MatchSpec too.
var requiredPython = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(==|!=|<=|>=|<|>|~=)\d+(\.\d+)*(\.\*)?(,(==|!=|<=|>=|<|>|~=)\d+(\.\d+)*(\.\*)?)*$`)
})

// parseProject reports whether a pyproject.toml describes a project that pip can install, and
// returns the versions of python that it requires, as a MatchSpec. An error begins with the line.
func parseProject(text []byte) (isProject bool, python string, err error) {
	var file struct {
		Project *struct {
			Python string `toml:"requires-python"`
		} `toml:"project"`
		Build map[string]any `toml:"build-system"`
	}
	if _, err := files.TOML(string(text), &file); err != nil {
		line, pe := 1, toml.ParseError{}
		if errors.As(err, &pe) {
			line, err = pe.Position.Line, errors.New(pe.Message)
		}
		return false, "", fmt.Errorf("%d: reading TOML: %w", line, err)
	}
	if file.Project == nil {
		return false, "", nil
	}
	python = strings.Join(strings.Fields(file.Project.Python), "")
	if len(python) > 200 || !requiredPython().MatchString(python) {
		python = ""
	}
	return file.Build != nil, python, nil
}
