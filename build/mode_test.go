package build

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestParseMode(t *testing.T) {
	tests := []struct {
		in   string
		old  fs.FileMode
		dir  bool
		want fs.FileMode
	}{
		{"755", 0o600, false, 0o755},
		{"0644", 0o600, false, 0o644},
		{"1777", 0o700, true, 0o777 | fs.ModeSticky},
		{"4755", 0, false, 0o755 | fs.ModeSetuid},
		{"u+x", 0o644, false, 0o744},
		{"+x", 0o644, false, 0o755},
		{"a-w", 0o666, false, 0o444},
		{"go=", 0o777, false, 0o700},
		{"u=rwX,go=rX", 0o600, false, 0o644},
		{"u=rwX,go=rX", 0o700, false, 0o755},
		{"u=rwX,go=rX", 0o600, true, 0o755},
		{"g+s,o+t", 0o755, true, 0o755 | fs.ModeSetgid | fs.ModeSticky},
		{"u=rw,u+x", 0, false, 0o700},
		{"g=u", 0o640, false, 0o660},
		{"u=g,g=o", 0o751, false, 0o511},
		{"o+g", 0o641, false, 0o645},
	}
	for _, test := range tests {
		f, err := parseMode(test.in)
		if err != nil {
			t.Errorf("parseMode(%q): %v", test.in, err)
			continue
		}
		if got := f(test.old, test.dir); got != test.want {
			t.Errorf("parseMode(%q) changes %v to %v; want %v", test.in, test.old, got, test.want)
		}
	}
	for _, bad := range []string{"", "8", "77777", "u", "u~x", "x+u", "u+q", "u+x,", "rwx", "-1", "u=gr"} {
		if _, err := parseMode(bad); err == nil {
			t.Errorf("parseMode(%q) = nil error; want an error", bad)
		}
	}
}

func TestParseSecret(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("TOKEN", "x")
	os.WriteFile("file", []byte("s"), 0o600)
	tests := []struct{ in, id, file, env, err string }{
		{"id=a,src=file", "a", "file", "", ""},
		{"type=file,id=a,source=file", "a", "file", "", ""},
		{"id=a,env=TOKEN", "a", "", "TOKEN", ""},
		{"type=env,id=a,src=TOKEN", "a", "", "TOKEN", ""},
		{"type=env,id=TOKEN", "TOKEN", "", "TOKEN", ""},
		{"id=TOKEN", "TOKEN", "", "TOKEN", ""},
		{"id=file", "file", "file", "", ""},
		{"id=a,src=nosuch", "", "", "", "no such file"},
		{"id=a,env=NOSUCH", "", "", "", "variable NOSUCH is not set"},
		{"src=file", "", "", "", "needs id=NAME"},
		{"id=a/b,src=file", "", "", "", "needs id=NAME"},
		{"id=a,src=file,env=TOKEN", "", "", "", "either"},
		{"file", "", "", "", `"file" is not`},
	}
	for _, test := range tests {
		id, s, err := ParseSecret(test.in)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("ParseSecret(%q) = %v; want an error with %q", test.in, err, test.err)
			}
			continue
		}
		if err != nil || id != test.id || s.File != test.file || s.Env != test.env {
			t.Errorf("ParseSecret(%q) = %q, %+v, %v; want %q, file %q, variable %q", test.in, id, s, err, test.id, test.file, test.env)
		}
	}
}

func TestParseOwner(t *testing.T) {
	dir := t.TempDir()
	testenv.Write(t, filepath.Join(dir, "etc/passwd"), "root:x:0:0::/:\nweb:x:42:43::/:\nodd\n")
	os.WriteFile(filepath.Join(dir, "etc/group"), []byte("staff:x:50:\n"), 0o644)
	tests := []struct {
		in       string
		uid, gid int
		err      string
	}{
		{"7", 7, 7, ""},
		{"7:8", 7, 8, ""},
		{"web", 42, 43, ""},
		{"web:staff", 42, 50, ""},
		{"web:9", 42, 9, ""},
		{"9:staff", 9, 50, ""},
		{"9:", 9, 9, ""},
		{"web:", 42, 43, ""},
		{"root", 0, 0, ""},
		{"web:root", 42, 0, ""},
		{"99999999999", 0, 0, "does not have"},
		{"ghost", 0, 0, `does not have "ghost"`},
		{"web:ghosts", 0, 0, `does not have "ghosts"`},
		{"-5", 0, 0, "negative"},
	}
	for _, test := range tests {
		o, err := parseOwner(dir, test.in)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("parseOwner(%q) = %v; want an error with %q", test.in, err, test.err)
			}
			continue
		}
		if err != nil || o.uid != test.uid || o.gid != test.gid {
			t.Errorf("parseOwner(%q) = %+v, %v; want %d:%d", test.in, o, err, test.uid, test.gid)
		}
	}
	if o, err := parseOwner(t.TempDir(), "root:root"); err != nil || o.uid != 0 || o.gid != 0 {
		t.Errorf("root without a passwd file: %+v, %v; want 0:0", o, err)
	}
	if _, err := parseOwner(t.TempDir(), "web"); err == nil || !strings.Contains(err.Error(), "give a number") {
		t.Errorf("parseOwner without a passwd file: %v", err)
	}
}
