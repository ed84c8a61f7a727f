package pip

import (
	"strings"
	"testing"
)

func TestMarkers(t *testing.T) {
	for _, c := range []struct {
		in   string
		want verdict
	}{
		{"sys_platform == 'linux'", yes}, {"'win' in sys_platform", no}, {"'win' not in sys_platform", yes}, {"python_version < '3'", unknown},
		{"python_version < '3' and os_name == 'nt'", no}, {"python_version < '3' or os_name == 'posix'", yes}, {"os_name == 'nt' or os_name == 'x'", no},
		{"(platform_machine == 'ppc64le' or extra == 'x') and platform_system != \"Windows\"", yes}, {"extra == 'x'", no}, {"os_name == 'nt' and python_version < '3' or os_name == 'posix'", yes},
	} {
		if m, err := parseMarker(c.in); err != nil {
			t.Errorf("parseMarker(%q): %v", c.in, err)
		} else if got := m.decide(markerValues("linux-ppc64le")); got != c.want {
			t.Errorf("%q is %v; want %v", c.in, got, c.want)
		}
	}
	for _, in := range []string{"", "os_name", "os_name ==", "(os_name == 'x'", "os_name == 'x' junk", "os_name == 'x", "os_name not 'x'", strings.Repeat("(", 100)} {
		if _, err := parseMarker(in); err == nil {
			t.Errorf("parseMarker(%q) succeeded; want an error", in)
		}
	}
}
