package text

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
	return "'" + quoting.Replace(s) + "'"
}

var quoting = strings.NewReplacer("'", `'\''`, "\n#", "\n''#")

// QuoteAlways quotes an argument even where [Quote] need not: csh and fish have other special characters.
func QuoteAlways(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Arguments returns arguments of a command as text of the shell.
func Arguments(list []string) string {
	quoted := make([]string, len(list))
	for i, arg := range list {
		quoted[i] = Quote(arg)
	}
	return strings.Join(quoted, " ")
}

// CommandLine returns argv as a command line of the shell, which [Words] reads, too. It quotes a program
// whose name means something else as the first word: A=b sets a variable, if begins a compound command.
func CommandLine(argv []string) string {
	if len(argv) > 0 && (isAssignment(argv[0]) || strings.Contains(reserved, " "+argv[0]+" ")) {
		return strings.TrimSuffix(QuoteAlways(argv[0])+" "+Arguments(argv[1:]), " ")
	}
	return Arguments(argv)
}

// reserved has the reserved words of bash (bash(1), RESERVED WORDS) that [Quote] does not quote.
const reserved = " case coproc do done elif else esac fi for function if in select then until while time "

// isAssignment reports whether the shell reads an unquoted word as NAME=VALUE or NAME+=VALUE.
func isAssignment(word string) bool {
	name, _, found := strings.Cut(word, "=")
	name = strings.TrimSuffix(name, "+")
	return found && name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '_' && (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9')
	})
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
