package rootfs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestHostNetwork(t *testing.T) {
	sys := t.TempDir()
	testenv.Check(t, os.MkdirAll(filepath.Join(sys, "class/net"), 0o755))
	testenv.Check(t, os.WriteFile(filepath.Join(sys, "class/net/bonding_masters"), nil, 0o644))
	for name, dir := range map[string]string{"lo": "virtual/net", "ifb0": "virtual/net", "eth0": "pci0000:00/0000:00:03.0/net"} {
		testenv.Check(t, os.Symlink("../../devices/"+dir+"/"+name, filepath.Join(sys, "class/net", name)))
	}
	want := []string{"class/net", "devices/pci0000:00/0000:00:03.0/net", "devices/virtual/net"}
	if got := hostNetwork(sys); !slices.Equal(got, want) {
		t.Errorf("hostNetwork = %q; want %q", got, want)
	}
}
