package message

import (
	"strings"
	"testing"
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
