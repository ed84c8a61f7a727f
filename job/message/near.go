package message

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/moby/buildkit/util/suggest"
)

// maxEdits is the number of edits between a word and its suggestion, at most; see [suggest.Search].
const maxEdits = 2

// Nearest returns the known word that differs from word by the fewest edits, at most two, or
// "" if there is none. Words of one or two letters are similar to too many others.
func Nearest(word string, known []string) string {
	if len(word) < 3 {
		return ""
	}
	similar := func(k string) bool { return max(len(k)-len(word), len(word)-len(k)) <= maxEdits*utf8.UTFMax }
	near, _ := suggest.Search(word, slices.DeleteFunc(slices.Clone(known), func(k string) bool { return !similar(k) }), true)
	return near
}

// Count formats a number of things: "1 node", "2 nodes".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
