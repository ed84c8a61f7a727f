package files

import (
	"fmt"

	"github.com/BurntSushi/toml"
)

// maxNested bounds the nesting of TOML tables, arrays and dotted keys. The decoder's time
// and memory are quadratic in it: 16,000 dots take 2.6 GB.
const maxNested = 500

// TOML decodes TOML into a struct. It refuses keys and values nested deeper than 500 levels.
// Other errors are those of [toml.Decode].
func TOML(text string, into any) (toml.MetaData, error) {
	if line := tooDeep(text); line > 0 {
		return toml.MetaData{}, toml.ParseError{
			Message:  fmt.Sprintf("keys or values are nested deeper than %d levels", maxNested),
			Position: toml.Position{Line: line},
		}
	}
	return toml.Decode(text, into)
}

// tooDeep returns the line on which TOML is nested deeper than maxNested, or 0. It also
// counts brackets and dots in strings.
func tooDeep(text string) (line int) {
	depth, dots := 0, 0
	line = 1
	for i := range len(text) {
		switch text[i] {
		case '{', '[':
			depth, dots = depth+1, 0
		case '}', ']':
			depth, dots = max(depth-1, 0), 0
		case '.':
			dots++
		case '=', ',':
			dots = 0
		case '\n':
			dots = 0
			line++
		}
		if depth > maxNested || dots > maxNested {
			return line
		}
	}
	return 0
}
