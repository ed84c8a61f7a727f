package bounded

import (
	"errors"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// TestTOML holds that nesting is refused on its line, and that what people write is not.
func TestTOML(t *testing.T) {
	deep := strings.Repeat
	for name, text := range map[string]string{
		"arrays":        "b = 1\na = " + deep("[", 40000),
		"inline tables": "b = 1\na = " + deep("{a=", 20000),
		"keys":          "b = 1\n" + deep("a.", 100000) + "a = 1",
		"tables":        "b = 1\n[" + deep("a.", 100000) + "a]",
	} {
		var into map[string]any
		_, err := TOML(text, &into)
		var pe toml.ParseError
		if !errors.As(err, &pe) || pe.Position.Line != 2 || !strings.Contains(pe.Message, "deeper than 500 levels") {
			t.Errorf("%s: %v", name, err)
		}
	}
	var into map[string]any
	usual := "a = 'x" + deep(".", 400) + "'" + "\nb = [1, 2] # ...\n[t.t]\n" + deep("[[l]]\nv = {w.x = 'a.b.c'}\n", 1000)
	if _, err := TOML(usual, &into); err != nil || len(into["l"].([]map[string]any)) != 1000 {
		t.Errorf("%d, %v", len(into), err)
	}
}
