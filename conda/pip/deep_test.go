package pip

import (
	"strings"
	"testing"
)

// TestDeepProject parses a deeply nested project file in bounded time.
func TestDeepProject(t *testing.T) {
	for name, text := range map[string]string{
		"arrays": "a=" + strings.Repeat("[", 300_000),
		"tables": "a=" + strings.Repeat("{a=", 300_000),
		"keys":   strings.Repeat("a.", 300_000) + "a=1",
	} {
		if _, err := parseBuildSystem([]byte(text)); err == nil || !strings.Contains(err.Error(), "nested deeper than 500 levels") {
			t.Errorf("%s: %v", name, err)
		}
	}
	text := "[build-system]\nrequires = [\"a[b]\", \"c\"]\n[tool.x]\n" + strings.Repeat("k.l = [[1, 2], {m = [3]}] # 1.2.3\n", 1)
	if b, err := parseBuildSystem([]byte(text)); err != nil || len(b.Requires) != 2 {
		t.Errorf("%v %v", b, err)
	}
}
