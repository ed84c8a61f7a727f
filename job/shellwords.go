package job

import (
	"errors"
	"fmt"
	"strings"
)

// A shellWord is a word of a line: its text without the quotes, and where it stands.
type shellWord struct {
	text       string
	start, end int
	live       bool // holds what a shell would expand: $NAME, $(…) or `…`
}

// errOperator refuses a line that is more than one simple command.
var errOperator = errors.New("more than one simple command")

// shellWords splits a line into words by the quoting that shells and all
// schedulers share. A # at the beginning of a word begins a comment. Of a
// directive (shell false) every sign that is no quote is a word's; of a command
// line (shell true) pipes, lists and redirections are errOperator, with the words
// before it.
func shellWords(line string, shell bool) (words []shellWord, err error) {
	for i := 0; i < len(line); {
		switch c := line[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		case c == '\\' && i+1 < len(line) && line[i+1] == '\n':
			i += 2
		case c == '#':
			end := strings.IndexByte(line[i:], '\n')
			if end < 0 {
				return words, nil
			}
			i += end
		case shell && strings.IndexByte("|&;<>()", c) >= 0:
			return words, errOperator
		default:
			w, err := oneWord(line, i, shell)
			if err != nil {
				return words, err
			}
			words, i = append(words, w), w.end
		}
	}
	return words, nil
}

// oneWord reads the word that begins at line[i].
func oneWord(line string, i int, shell bool) (shellWord, error) {
	w := shellWord{start: i}
	var text strings.Builder
	quote := byte(0)
	for ; i < len(line); i++ {
		c := line[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == '\'':
			text.WriteByte(c)
		case c == '\\' && i+1 < len(line):
			i++
			if line[i] == '\n' {
				continue
			}
			if quote == '"' && strings.IndexByte("\\\"$`", line[i]) < 0 {
				text.WriteByte('\\')
			}
			text.WriteByte(line[i])
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r' || (shell && strings.IndexByte("|&;<>()", c) >= 0)):
			w.text, w.end = text.String(), i
			return w, nil
		default:
			w.live = w.live || c == '$' || c == '`'
			text.WriteByte(c)
		}
	}
	if quote != 0 {
		return w, fmt.Errorf("the quotation mark %c has no second", quote)
	}
	w.text, w.end = text.String(), i
	return w, nil
}
