package runtime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// squashfuse_ll is tried first if it supports the owner options.
func TestServers(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"none", nil, nil},
		{"old", map[string]string{"squashfuse_ll": "ELF offset=%zu", "squashfuse": "ELF"}, []string{"squashfuse", "squashfuse_ll"}},
		{"new", map[string]string{"squashfuse_ll": "ELF offset=%zu\x00uid=%d\x00gid=%d", "squashfuse": "ELF"}, []string{"squashfuse_ll", "squashfuse"}},
		{"one", map[string]string{"squashfuse_ll": "ELF"}, []string{"squashfuse_ll"}},
	} {
		dir := t.TempDir()
		t.Setenv("PATH", dir)
		for n, text := range c.files {
			testenv.Check(t, os.WriteFile(filepath.Join(dir, n), []byte(text), 0o755))
		}
		var got []string
		for _, s := range servers() {
			got = append(got, filepath.Base(s[0]))
			if !strings.HasPrefix(s[1], "uid=") || strings.Contains(s[1], "timeout") != (filepath.Base(s[0]) == "squashfuse") {
				t.Errorf("%s: %s gets the options %q", c.name, s[0], s[1])
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: servers() = %q; want %q", c.name, got, c.want)
		}
	}
}
