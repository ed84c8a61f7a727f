package conda

import (
	"strings"
	"testing"
)

func TestVirtualPackages(t *testing.T) {
	glibc := func(v string) func() (Libc, error) { return func() (Libc, error) { return Libc{Glibc: v}, nil } }
	for _, c := range []struct {
		o    Options
		env  map[string]string
		want string
	}{
		{Options{Subdir: "linux-64"}, nil, "__unix=0=0 __linux=5.10=0 __glibc=2.28=0 __archspec=1=x86_64"},
		{Options{Subdir: "linux-ppc64le", Libc: glibc("2.36"), Cuda: "12.4"}, nil, "__unix=0=0 __linux=5.10=0 __glibc=2.36=0 __archspec=1=ppc64le __cuda=12.4=0"},
		{Options{Subdir: "linux-64", Libc: glibc("2.36")}, map[string]string{"CONDA_OVERRIDE_GLIBC": "2.17", "CONDA_OVERRIDE_CUDA": "11.8", "CONDA_OVERRIDE_ARCHSPEC": "zen3", "CONDA_OVERRIDE_LINUX": ""},
			"__unix=0=0 __glibc=2.17=0 __archspec=1=zen3 __cuda=11.8=0"},
		{Options{Subdir: "linux-64", Cuda: "12"}, map[string]string{"CONDA_OVERRIDE_CUDA": "", "CONDA_OVERRIDE_ARCHSPEC": ""}, "__unix=0=0 __linux=5.10=0 __glibc=2.28=0"},
		{Options{Libc: glibc("2/3")}, nil, `virtual package __glibc: "2/3" is not a version; set the version with CONDA_OVERRIDE_GLIBC`},
	} {
		list, err := virtualPackages(c.o, func(name string) (string, bool) { v, ok := c.env[name]; return v, ok })
		var got []string
		for _, r := range list {
			got = append(got, r.Name+"="+r.Version+"="+r.Build)
		}
		s := strings.Join(got, " ")
		if err != nil {
			s = err.Error()
		}
		if s != c.want {
			t.Errorf("virtualPackages(%v) = %q; want %q", c.o, s, c.want)
		}
	}
}
