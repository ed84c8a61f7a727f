package text

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestNearest(t *testing.T) {
	known := []string{"queue", "modules", "site", "id"}
	for word, want := range map[string]string{
		"quue": "queue", "modul": "modules", "Queue": "queue", "sit": "site",
		"queue":                    "", // known itself
		"nodes":                    "", // more than two edits
		"i":                        "", // one edit from id, but so are most pairs of letters
		"":                         "",
		"\x00\xff":                 "",
		strings.Repeat("q", 1<<16): "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%.20q) = %q, want %q", word, got, want)
		}
	}
	if got := Nearest("word", nil); got != "" {
		t.Errorf("Nearest without known words = %q", got)
	}
}

func TestNearestEntry(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for _, name := range []string{filepath.Join(a, "requirements.txt"), filepath.Join(b, "python"), filepath.Join(b, "ls")} {
		testenv.Check(t, os.WriteFile(name, nil, 0o644))
	}
	for _, c := range []struct{ name, want string }{
		{"requirments.txt", "requirements.txt"},
		{"pyhton", "python"},
		{"ruby", ""},
		{"sl", ""},
	} {
		if got := NearestEntry(c.name, a, "/missing", b); got != c.want {
			t.Errorf("NearestEntry(%q) = %q, want %q", c.name, got, c.want)
		}
	}
}
