package usertext

import (
	"os"
	"path/filepath"
	"testing"

	"hpcc/testdata/testenv"
)

func TestSimilar(t *testing.T) {
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
		if got := Similar(c.name, a, "/missing", b); got != c.want {
			t.Errorf("Similar(%q) = %q, want %q", c.name, got, c.want)
		}
	}
}
