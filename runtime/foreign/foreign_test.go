package foreign

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"hpcc/runtime/accounts"
	"hpcc/testdata/helpers/testenv"
)

func TestNewName(t *testing.T) {
	const passwd = "root:x:0:0::/root:/bin/sh\nuser:x:5:5::/:\njovyan:x:1000:100::/home/jovyan:/bin/bash"
	for _, c := range []struct {
		uid    int
		wanted []string
		want   string
	}{
		{1000680000, nil, "user1000680000"},
		{1000680000, []string{"ana", "bo"}, "ana"},
		{1000680000, []string{"", "bo"}, "bo"},
		{1000680000, []string{"root", "jovyan"}, "user1000680000"},
		{1000680000, []string{"größe", "-x", "a b", "1st", strings.Repeat("x", 33)}, "user1000680000"},
		{0, []string{"ana"}, "root0"},
	} {
		if got, err := newName([]byte(passwd), c.uid, c.wanted...); got != c.want || err != nil {
			t.Errorf("newName(%d, %q) = %q, %v; want %q", c.uid, c.wanted, got, err, c.want)
		}
	}
	if got, _ := newName([]byte("user:x:1:1::/:\nuser7:x:2:2::/:\nuser7-2:x:3:3::/:\n"), 7); got != "user7-3" {
		t.Errorf("with all names in use: newName returns %q", got)
	}
	for _, bad := range []string{"a:b", "a\nb:x:0:0::/:/bin/sh", "a\rb", "\x00"} {
		if got, err := newName(nil, 7, bad); err == nil {
			t.Errorf("newName(%q) = %q; want an error", bad, got)
		}
	}
}

// FuzzRegister adds a line to any passwd file. Existing users must keep their names. The new
// line must define one user with an unused name, and nothing else.
func FuzzRegister(f *testing.F) {
	f.Add([]byte("root:x:0:0::/root:/bin/sh\nme:x:7:7::/:\n"), "me", "/tmp/h", 1000680000)
	f.Add([]byte("user:x:1:1::/:\r\nno newline:x:"), "root", "/a:b", 2)
	f.Add([]byte("::::::\n:x:3:\n"), "a\nb", "/", 3)
	f.Fuzz(func(t *testing.T, passwd []byte, user, home string, uid int) {
		if uid < 0 {
			return
		}
		u := strconv.Itoa(uid)
		if accounts.Entry(passwd, 2, u) != nil {
			return
		}
		name, err := newName(passwd, uid, user)
		if err != nil || strings.ContainsFunc(home, breaksField) {
			return
		}
		if accounts.Entry(passwd, 0, name) != nil {
			t.Fatalf("%q is already in use", name)
		}
		p := filepath.Join(t.TempDir(), "passwd")
		testenv.Check(t, os.WriteFile(p, passwd, 0o644))
		testenv.Check(t, appendTo(p, passwd, passwdLine(name, uid, 0, home)))
		after, err := os.ReadFile(p)
		testenv.Check(t, err)
		if !bytes.Equal(after, accounts.AppendLine(passwd, passwdLine(name, uid, 0, home))) {
			t.Fatalf("%q became %q", passwd, after)
		}
		got := accounts.Entry(after, 2, u)
		if len(got) != 7 || got[0] != name || got[3] != "0" || got[5] != home {
			t.Fatalf("the line is %q; want %q at home in %q", got, name, home)
		}
		if lines := bytes.Count(after, []byte("\n")); lines > bytes.Count(passwd, []byte("\n"))+2 {
			t.Fatalf("%q became %q", passwd, after)
		}
	})
}

// TestUsable checks that directories that are writable or contain files are usable.
func TestUsable(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root can write everywhere")
	}
	dir := t.TempDir()
	full, empty, file := filepath.Join(dir, "full"), filepath.Join(dir, "empty"), filepath.Join(dir, "file")
	for _, d := range []string{full, empty} {
		testenv.Check(t, os.Mkdir(d, 0o755))
	}
	for _, f := range []string{filepath.Join(full, "model"), file} {
		testenv.Check(t, os.WriteFile(f, nil, 0o644))
	}
	for _, d := range []string{full, empty} {
		testenv.Check(t, os.Chmod(d, 0o555))
		t.Cleanup(func() { os.Chmod(d, 0o755) })
	}
	for p, want := range map[string]bool{dir: true, full: true, empty: false, file: false, filepath.Join(full, "new"): false,
		filepath.Join(dir, "a", "b"): true, filepath.Join(file, "x"): false, "/": true} {
		if got := usable(p); got != want {
			t.Errorf("usable(%s) = %v; want %v", p, got, want)
		}
	}
}
