package message

import (
	"fmt"

	"github.com/moby/buildkit/util/suggest"
)

// Nearest returns the known word that differs from word by the fewest edits, at most two, or
// "" if there is none. Words of one or two letters are similar to too many others.
func Nearest(word string, known []string) string {
	if len(word) < 3 {
		return ""
	}
	near, _ := suggest.Search(word, known, true)
	return near
}

// Count formats a number of things: "1 node", "2 nodes".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
