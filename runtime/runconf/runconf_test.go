package runconf

import (
	"fmt"
	"strings"
	"testing"
)

func lookupForTest(name string) (string, bool) {
	v, ok := map[string]string{"USER": "me", "HOME": "/home/me", "EMPTY": "", "TWO": "a b"}[name]
	return v, ok
}

// TestSplitArgs checks that a line of run.conf is split into arguments as in a shell.
func TestSplitArgs(t *testing.T) {
	for _, c := range []struct{ in, want string }{ // argv joined by "|", or "!" and a part of the error
		{"", ""}, {"  # all of it", ""}, {"--bind /x", "--bind|/x"}, {"\t-b\t/x  ", "-b|/x"},
		{"-b /x#y #z", "-b|/x#y"}, {"'a b' \"c d\" e\\ f", "a b|c d|e f"}, {"a''b '' \"\"", "ab||"},
		{"/s/$USER ${USER}x $TWO", "/s/me|mex|a b"}, {"'$USER' \\$USER \"\\$USER \\n\"", "$USER|$USER|$USER \\n"}, {"x$EMPTY", "x"}, {"$EMPTY", ""},
		{"~/d --x=~/d a~ ~user ~:/h", "/home/me/d|--x=/home/me/d|a~|~user|/home/me:/h"}, {"$ $1 a$", "$|$1|a$"}, {"\\", "\\"},
		{"ü \"$USERü\"", "ü|meü"},
		{"'open", "!' is not closed"}, {"\"open", "!\" is not closed"}, {"$NO", "!$NO is not set"}, {"${NO", "!${"}, {"${}", "!${"}, {"${a-b}", "!${"},
	} {
		argv, err := splitArgs(c.in, lookupForTest)
		got := strings.Join(argv, "|")
		if err != nil {
			got = "!" + err.Error()
		}
		if want, refused := strings.CutPrefix(c.want, "!"); (refused && (err == nil || !strings.Contains(err.Error(), want))) || (!refused && got != c.want) {
			t.Errorf("splitArgs(%q) = %q; want %q", c.in, got, c.want)
		}
	}
}

// FuzzSplitArgs checks that a text in single quotes is one argument, unchanged.
func FuzzSplitArgs(f *testing.F) {
	for _, s := range []string{"", "a b", "$", "${", "\\", "\"$HOME\"", "~", "#", "'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, _ = splitArgs(s, lookupForTest)
		if strings.Contains(s, "'") {
			return
		}
		argv, err := splitArgs(fmt.Sprintf("'%s' x", s), lookupForTest)
		if err != nil || len(argv) != 2 || argv[0] != s || argv[1] != "x" {
			t.Errorf("quoted %q = %q, %v", s, argv, err)
		}
	})
}
