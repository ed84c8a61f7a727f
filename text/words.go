package text

import (
	"errors"
	"fmt"
	"strings"
)

// A Word is one argument of a line: its text without quotes, and its position.
type Word struct {
	Text       string
	Start, End int
	Live       bool // contains text that a shell would expand: $NAME, $(…) or `…`
}

// ErrOperator is the error for a line that is more than one simple command.
var ErrOperator = errors.New("more than one simple command")

// Words splits a line into arguments. It understands the quoting that sh and the directives of all
// batch systems share, and expands nothing. A # at the start of an argument begins a
// comment. In a directive (shell is false) every character except quotes belongs to an
// argument. In a command line (shell is true) pipes, lists and redirections end the
// arguments with [ErrOperator].
func Words(line string, shell bool) (args []Word, err error) {
	for i := 0; i < len(line); {
		switch c := line[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		case c == '\\' && i+1 < len(line) && line[i+1] == '\n':
			i += 2
		case c == '#':
			end := strings.IndexByte(line[i:], '\n')
			if end < 0 {
				return args, nil
			}
			i += end
		case shell && strings.IndexByte("|&;<>()", c) >= 0:
			return args, ErrOperator
		default:
			w, err := oneWord(line, i, shell)
			if err != nil {
				return args, err
			}
			args, i = append(args, w), w.End
		}
	}
	return args, nil
}

// oneWord reads the word that begins at line[i].
func oneWord(line string, i int, shell bool) (Word, error) {
	w := Word{Start: i}
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
			w.Text, w.End = text.String(), i
			return w, nil
		default:
			w.Live = w.Live || c == '$' || c == '`'
			text.WriteByte(c)
		}
	}
	if quote != 0 {
		return w, fmt.Errorf("the quotation mark %c is not closed", quote)
	}
	w.Text, w.End = text.String(), i
	return w, nil
}
