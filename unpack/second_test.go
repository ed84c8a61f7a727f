package unpack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// Copies instead of hard links are bounded, because archives can request them with few
// bytes. Opening other file types does not block, and nothing is overwritten.
func TestCopyName(t *testing.T) {
	dir := t.TempDir()
	tr, err := openTree(dir, &Notes{})
	testenv.Check(t, err)
	defer tr.close()
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "file"), []byte("0123456789"), 0o640))
	testenv.Check(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	try := func(from, to, want string) {
		t.Helper()
		err := tr.copyName(tr.root.fd, from, tr.root.fd, to)
		if (want == "" && err != nil) || (want != "" && (err == nil || !strings.Contains(err.Error(), want))) {
			t.Errorf("copyName(%s, %s): %v; want %q", from, to, err, want)
		}
	}
	try("pipe", "x", "")
	try("file", "pipe", "file exists")
	tr.copied = maxCopied - 19
	try("file", "one", "")
	try("file", "two", "copies instead of hard links may have")
	if b, err := os.ReadFile(filepath.Join(dir, "one")); err != nil || string(b) != "0123456789" {
		t.Errorf("the copy holds %q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "two")); err == nil {
		t.Error("more was copied than may be")
	}
}
