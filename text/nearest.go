package text

import (
	"os"
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

// maxNames limits the entries of a directory that are compared with a name.
const maxNames = 10_000

// NearestEntry returns the [Nearest] entry of directories to a name that they lack, or "".
func NearestEntry(name string, dirs ...string) string {
	var names []string
	for _, dir := range dirs {
		d, err := os.Open(dir)
		if err != nil {
			continue
		}
		some, _ := d.Readdirnames(maxNames) // an error leaves out names
		d.Close()
		names = append(names, some...)
	}
	return Nearest(name, names)
}
