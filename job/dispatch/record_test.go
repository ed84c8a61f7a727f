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

func TestReadJob(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadJob(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no job: %v", err)
	}
	file := filepath.Join(dir, "job.json")
	for text, want := range map[string]string{`{"id":"a","job":{"name":"a"}}`: "", `{}`: "not a job", `{`: "unexpected end"} {
		testenv.Check(t, os.WriteFile(file, []byte(text), 0o644))
		if _, err := ReadJob(dir); (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
