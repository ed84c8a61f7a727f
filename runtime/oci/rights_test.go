package oci

import (
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/runtime/rootfs"
)

// TestRemoveCapabilities checks that a program loses the capabilities that could lead back to
// a lowest root, whatever the container's configuration requests.
func TestRemoveCapabilities(t *testing.T) {
	names := func() []string { return []string{"CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_UNKNOWN", "CAP_SYS_PTRACE"} }
	c := &specs.LinuxCapabilities{Bounding: names(), Effective: names(), Inheritable: names(), Permitted: names(), Ambient: names()}
	removeCapabilities(c, rootfs.EscapeCapabilities)
	for _, set := range [][]string{c.Bounding, c.Effective, c.Inheritable, c.Permitted, c.Ambient} {
		if want := []string{"CAP_CHOWN", "CAP_UNKNOWN"}; !slices.Equal(set, want) {
			t.Errorf("set is %q; want %q", set, want)
		}
	}
	removeCapabilities(nil, rootfs.EscapeCapabilities)
}
