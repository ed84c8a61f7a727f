package fakeroot

import (
	"strings"
	"testing"
)

func TestKeptIDs(t *testing.T) {
	for _, c := range []struct {
		args     string
		uid, gid bool
	}{
		{"chown 5 f", false, true},
		{"/bin/chown -R web f", false, true},
		{"busybox chown :staff f", true, false},
		{"chown web:staff f", false, false},
		{"chown -h 0:0 f", false, false},
		{"chown web: f", false, false}, // its login group
		{"chgrp -R staff f", true, false},
		{"busybox", false, false},
		{"", false, false},
		{"chown", false, false},
		{"tar xf chown", false, false},
	} {
		if uid, gid := keptIDs(strings.Split(c.args, " ")); uid != c.uid || gid != c.gid {
			t.Errorf("keptIDs(%q) = %v, %v; want %v, %v", c.args, uid, gid, c.uid, c.gid)
		}
	}
}
