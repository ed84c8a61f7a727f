package dispatch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestReadTables: errors have the line of the file.
func TestReadTables(t *testing.T) {
	type row struct {
		Size int `toml:"size"`
	}
	for text, want := range map[string]string{
		"name = 'x'\n[row.a]\nsize = 3\n":              "",
		"name = 'x'\n[row.a]\nsise = 3\n":              `:3: unknown key "sise" (did you mean "size"?)`,
		"name = 'x'\n[row.a]\nsize = 'x'\n":            ":3: ",
		"name = 'x'\n[row.a\n":                         ":3: ",
		"a = 1\n" + strings.Repeat("#", maxSiteFile):   "has more than",
		"name = 'x'\nb = " + strings.Repeat("[", 1000): ":2: keys or values are nested deeper",
	} {
		file := filepath.Join(t.TempDir(), "a.toml")
		testenv.Check(t, os.WriteFile(file, []byte(text), 0o644))
		var into struct {
			Name string         `toml:"name"`
			Row  map[string]row `toml:"row"`
		}
		at, err := ReadTables(file, &into)
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v; want %q", text[:min(len(text), 40)], err, want)
		}
		if err == nil {
			if err := at([]string{"row", "a", "size"}, errors.New("too small")); into.Row["a"].Size != 3 || !strings.HasSuffix(err.Error(), "a.toml:3: too small") {
				t.Errorf("%+v, %v", into, err)
			}
		}
	}
	if _, err := ReadTables(filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
