package accounts

import (
	"os"
	"path/filepath"
	"testing"
)

func TestIDs(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"passwd": "root:x:0:0::/root:/bin/sh\nme:x:1000:50::/home/me:/bin/sh\nbad:x:-1:0::/:/bin/sh\n", "group": "users:x:100:\n"} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		user     string
		uid, gid int
		fails    bool
	}{
		{"", 0, 0, false}, {"root", 0, 0, false}, {"me", 1000, 50, false}, {"1000", 1000, 50, false}, {"5", 5, 0, false}, {"5:6", 5, 6, false},
		{"me:users", 1000, 100, false}, {"me:0", 1000, 0, false}, {"none", 0, 0, true}, {"me:none", 0, 0, true}, {"bad", 0, 0, true}, {"-5", 0, 0, true},
		{"4294967295", 0, 0, true}, {"5:", 0, 0, true},
	} {
		uid, gid, err := IDs(root, tt.user)
		if (err != nil) != tt.fails || (err == nil && (uid != tt.uid || gid != tt.gid)) {
			t.Errorf("IDs(%q) = %d, %d, %v; want %d, %d, fails %v", tt.user, uid, gid, err, tt.uid, tt.gid, tt.fails)
		}
	}
	if uid, gid, err := IDs(t.TempDir(), ""); uid != 0 || gid != 0 || err != nil {
		t.Errorf("without a passwd file: %d, %d, %v", uid, gid, err)
	}
}
