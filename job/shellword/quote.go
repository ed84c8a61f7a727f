package shellword

import (
	"fmt"
	"strings"
)

// Quote returns s as one argument in shell syntax, with quotes only where needed. No line of the
// result begins with #: a batch system could read it as a directive of the script that contains
// the argument.
func Quote(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !((r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') || (r >= '0' && r <= '9') || strings.ContainsRune("%+,-./:=@_^", r))
	}) < 0 && s[0] != '~' {
		return s
	}
	return "'" + strings.NewReplacer("'", `'\''`, "\n#", "\n''#").Replace(s) + "'"
}

// Join returns argv as a command line of the shell.
func Join(argv []string) string {
	q := make([]string, len(argv))
	for i, arg := range argv {
		q[i] = Quote(arg)
	}
	return strings.Join(q, " ")
}

// Exports returns an export command for each NAME=VALUE of env.
func Exports(env []string) string {
	var b strings.Builder
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		fmt.Fprintf(&b, "export %s=%s\n", k, Quote(v))
	}
	return b.String()
}

// Delimiter returns a delimiter for a here-document of text: word, or word with a
// number if text has such a line.
func Delimiter(word, text string) string {
	for end, n := word, 2; ; n++ {
		if !strings.Contains("\n"+text, "\n"+end+"\n") {
			return end
		}
		end = fmt.Sprintf("%s_%d", word, n)
	}
}
