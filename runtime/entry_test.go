package runtime

import "testing"

// A file with setuid or setgid bits, which this user cannot make for another,
// shows in the auxiliary vector: real and effective ids differ.
func TestSetuidIsRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		ids  [4]uintptr // uid, euid, gid, egid
		ok   bool
	}{
		{"a user's", [4]uintptr{1000, 1000, 100, 100}, true},
		{"root's", [4]uintptr{0, 0, 0, 0}, true},
		{"setuid", [4]uintptr{1000, 0, 100, 100}, false},
		{"setgid", [4]uintptr{1000, 1000, 100, 5}, false},
	} {
		auxv := [][2]uintptr{{6, 4096}}
		for i, id := range c.ids {
			auxv = append(auxv, [2]uintptr{atUID + uintptr(i), id})
		}
		uid, gid, err := hostIDs(auxv)
		if uid != int(c.ids[1]) || gid != int(c.ids[3]) || (err == nil) != c.ok {
			t.Errorf("%s: hostIDs = %d, %d, %v", c.name, uid, gid, err)
		}
	}
}
