package caps

import (
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""}, {"CHOWN", "CAP_CHOWN"}, {"CHOWN,KILL,-CHOWN", "CAP_KILL"}, {"-KILL,KILL,KILL", "CAP_KILL"}, {"ALL,-ALL,KILL", "CAP_KILL"},
		{"FOO", "error"}, {"CAP_KILL", "error"}, {"-", "error"},
	} {
		set, err := Parse(tt.in)
		if got := strings.Join(set, " "); (err != nil) != (tt.want == "error") || (err == nil && got != tt.want) {
			t.Errorf("Parse(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
	if set, err := Parse("ALL,-CHOWN"); err != nil || len(set) != len(Names)-1 || set[0] != Names[1] {
		t.Errorf("all but the first: %q, %v", set, err)
	}
}

// TestApply checks the sets of a program, as root of a user namespace and as a user.
func TestApply(t *testing.T) {
	const unknown = "CAP_UNKNOWN" // to this kernel
	for _, tt := range []struct {
		name    string
		id      int
		c       *specs.LinuxCapabilities
		without []uintptr
		want    string // CapInh CapPrm CapEff CapBnd CapAmb
	}{
		{"none", 0, nil, nil, "0 0 0 0 0"},
		{"root", 0, &specs.LinuxCapabilities{Bounding: Names[:3], Effective: Names[:2], Permitted: Names[:2]}, nil, "0 7 7 7 0"}, // its programs have all of the bounding set
		{"user", 7, &specs.LinuxCapabilities{Bounding: Names[:3], Effective: Names[:2], Permitted: Names[:2]}, nil, "0 0 0 7 0"},
		{"ambient", 7, &specs.LinuxCapabilities{Bounding: Names[:3], Effective: Names[:2], Permitted: Names[:2], Inheritable: Names[:2], Ambient: []string{Names[0], unknown}}, nil, "3 1 1 7 1"},
		{"lowest", 0, &specs.LinuxCapabilities{Bounding: Names[19:23], Effective: Names[19:23], Permitted: Names[19:23]}, []uintptr{19, 21}, "0 500000 500000 500000 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{ContainerID: tt.id, HostID: os.Getuid(), Size: 1}}}
			if tt.id != 0 { // such a process loses the others at its exec
				attr.AmbientCaps = []uintptr{0, 1, unix.CAP_SETPCAP}
			}
			if !testenv.Alone(t, attr) {
				return
			}
			goruntime.LockOSThread()
			Names = append(Names, unknown)
			testenv.Check(t, Apply(tt.c, tt.without...))
			out, err := exec.Command("sed", "-n", "s/^Cap...:[ \t]*0*\\([0-9a-f]\\)/\\1/p", "/proc/self/status").Output()
			if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != tt.want {
				t.Errorf("CapInh CapPrm CapEff CapBnd CapAmb are %s, %v; want %s", got, err, tt.want)
			}
		})
	}
}
