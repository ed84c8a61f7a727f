package runtime

import (
	"strings"
	"testing"
	"unsafe"
)

// The entry point does nothing for command lines that it does not handle.
func TestBegin(t *testing.T) {
	for _, c := range []struct {
		line    string
		entered int64
		env     string
	}{
		{"hpcc", 0, ""},
		{"hpcc pull x", 0, ""},
		{"hpcc runs x", 0, ""},
		{"hpcc buildx", 0, ""},
		{"hpcc ru", 0, ""},
		{"hpcc entry -- x -j", 0, ""},
		{"hpcc entryx", 0, ""},
		{"hpcc run -j x", later, ""},
		{"hpcc-oci-init run --join", later, ""},
		{"hpcc run --join-tag=a x -- y", later, ""},
		{"hpcc run x -j", later, ""},
		{"hpcc run --measure=f x", later, ""},
		{"hpcc run x --joi --join", later, ""},
		{"hpcc run --stage x", staging, ""},
		{"hpcc run -stage x -- y", staging, ""},
		{"hpcc run --join --stage x", later, ""},
		{"hpcc run x.sqfs", staging, ""},
		{"hpcc run x.squashfs", staging, ""},
		{"hpcc run ./x.sfs -- y", staging, ""},
		{"hpcc run x.sif y", staging, ""},
		{"hpcc run x", staging, "HPCC_STAGE=/scratch"},
		{"hpcc pull x.sqfs", 0, "HPCC_STAGE=1"},
	} {
		argv := strings.Fields(c.line)
		stack := make([]*byte, len(argv)+4) // argc, argv, a zero, a variable, a zero
		if c.env != "" {
			stack[len(argv)+2] = unsafe.StringData(c.env + "\x00")
		}
		*(*uintptr)(unsafe.Pointer(&stack[0])) = uintptr(len(argv))
		for i, w := range argv {
			stack[i+1] = unsafe.StringData(w + "\x00")
		}
		entered = 0
		if begin(unsafe.Pointer(&stack[0])); entered != c.entered {
			t.Errorf("%s: entered %d; want %d", c.line, entered, c.entered)
		}
		entered = 0
	}
	for line, want := range map[string]bool{"": false, "x --": false, "-- -j": false, "-jx": false, "--jo": false, "-j": true, "--join": true, "x y --join-pid=1": true, "--measure": true, "-measure=f x": true, "--meas x": false, "x -- --measure": false} {
		var argv []*byte
		for _, w := range strings.Fields(line) {
			argv = append(argv, unsafe.StringData(w+"\x00"))
		}
		if got := asksForLater(argv); got != want {
			t.Errorf("asksForLater(%q) = %v", line, got)
		}
	}
}

func TestAsksForStage(t *testing.T) {
	for _, c := range []struct {
		line, env string
		want      bool
	}{
		{"x", "", false}, {"x", "HPCC_STAGE=", false}, {"x", "HPCC_STAGE=0", false}, {"x", "HPCC_STAGE=false", false}, {"x", "HPCC_STAGE=/", true}, {"x", "HPCC_STAGE=1", true}, {"x", "HPCC_STAGES=1", false},
		{"x --", "HPCC_STAGE=01", true}, {"x -- --stage", "", false}, {"x -- y.sqfs", "", false}, {"x -- y.sif", "", false}, {"x.sqfs2", "", false}, {"sqfs", "", false}, {".sfs", "", true},
	} {
		var argv []*byte
		for _, w := range strings.Fields(c.line) {
			argv = append(argv, unsafe.StringData(w+"\x00"))
		}
		env := []*byte{nil, nil}
		if c.env != "" {
			env[0] = unsafe.StringData(c.env + "\x00")
		}
		if got := asksForStage(argv, unsafe.Pointer(&env[0])); got != c.want {
			t.Errorf("asksForStage(%q, %q) = %v", c.line, c.env, got)
		}
	}
}

// A setuid or setgid file is visible in the auxiliary vector: real and effective IDs differ.
// The test cannot create such a file for another user.
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
