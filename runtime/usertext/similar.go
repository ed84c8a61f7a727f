package usertext

import (
	"os"

	"github.com/moby/buildkit/util/suggest"
)

// maxNames limits the entries of a directory that are compared with a name.
const maxNames = 10_000

// Similar returns the entry of directories that a user probably meant by a name that they lack: the
// one that differs by the fewest edits, at most two. It returns "" if there is none, and for names of
// one or two letters, which resemble too many others.
func Similar(name string, dirs ...string) string {
	if len(name) < 3 {
		return ""
	}
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
	like, _ := suggest.Search(name, names, true)
	return like
}
