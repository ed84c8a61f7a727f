package files

import (
	"errors"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// TestTOML checks that deep nesting is refused with its line, and that usual files are accepted.
func TestTOML(t *testing.T) {
	repeat := strings.Repeat
	for name, text := range map[string]string{
		"arrays":        "b = 1\na = " + repeat("[", 40000),
		"inline tables": "b = 1\na = " + repeat("{a=", 20000),
		"keys":          "b = 1\n" + repeat("a.", 100000) + "a = 1",
		"tables":        "b = 1\n[" + repeat("a.", 100000) + "a]",
	} {
		var into map[string]any
		_, err := TOML(text, &into)
		var pe toml.ParseError
		if !errors.As(err, &pe) || pe.Position.Line != 2 || !strings.Contains(pe.Message, "deeper than 500 levels") {
			t.Errorf("%s: %v; want a ParseError on line 2", name, err)
		}
	}
	var into map[string]any
	usual := "a = 'x" + repeat(".", 400) + "'" + "\nb = [1, 2] # ...\n[t.t]\n" + repeat("[[l]]\nv = {w.x = 'a.b.c'}\n", 1000)
	if _, err := TOML(usual, &into); err != nil || len(into["l"].([]map[string]any)) != 1000 {
		t.Errorf("usual file: %d keys, %v; want 1000 tables in l", len(into), err)
	}
}
