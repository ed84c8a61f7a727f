package exports

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// templateText matches a placeholder or statement of Jinja and similar programs.
var templateText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{\{.*\}\}|\{%.*%\}`) })

// commandText matches a shell command that installs packages.
var commandText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:[$!%]\s*)?(?:sudo\s+)?(?:conda|mamba|micromamba|pip3?|python3?|apt|apt-get)\s+(?:install|create|activate|env|update|config|-m)\s`)
})

// cause returns a common reason for which a file with mistakes is not an export, and its line; ""
// if none applies.
func cause(lines []string) (line int, text string) {
	conflict := slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), ">>>>>>> ") })
	for i, l := range lines {
		l = strings.TrimSpace(l)
		switch {
		case conflict && strings.HasPrefix(l, "<<<<<<< "):
			return i + 1, "the file has an unresolved merge conflict: keep the rows of one side, and remove the lines with <<<<<<<, ======= and >>>>>>>"
		case strings.HasPrefix(l, "#"):
		case templateText().MatchString(l):
			return i + 1, "the file is a template: fill in its placeholders, {{…}} or {%…%}, and use the result"
		case commandText().MatchString(l):
			return i + 1, "the row is a shell command, not a package: run the commands, and write the environment with \"conda list -e\""
		}
	}
	return 0, ""
}
