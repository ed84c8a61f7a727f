package exports

import (
	"errors"
	"strings"
	"testing"

	"hpcc/conda/solve"
)

// variantsLock is a lock file with platforms of one subdir. The form is that of
// tests/data/satisfiability/conditional-dependency-cuda/pixi.lock of github.com/prefix-dev/pixi.
func variantsLock(platforms ...string) string {
	var head, env, packages strings.Builder
	for _, p := range platforms {
		name, needs, _ := strings.Cut(p, " ")
		head.WriteString("- name: " + name + "\n  subdir: linux-64\n  virtual-packages: [" + strings.ReplaceAll(needs, " ", ", ") + "]\n")
		env.WriteString("      " + name + ":\n      - conda: https://c/linux-64/" + name + "-1-0.conda\n")
		packages.WriteString("- conda: https://c/linux-64/" + name + "-1-0.conda\n")
	}
	return "version: 7\nplatforms:\n" + head.String() + "environments:\n  default:\n    packages:\n" + env.String() + "packages:\n" + packages.String()
}

func TestVariants(t *testing.T) {
	const defaults = " __unix=0=0 __linux=4.18 __glibc=2.28 __archspec=0=x86_64"
	for _, c := range []struct {
		name      string
		platforms []string
		machine   string // NAME=VERSION=BUILD
		want      string // the name of the chosen one, or the error
	}{
		{"the only one", []string{"cpu" + defaults}, "__glibc=2.17=0", "cpu"},
		{"without cuda", []string{"cpu" + defaults, "gpu __cuda=12" + defaults}, "__glibc=2.36=0 __archspec=1=x86_64", "cpu"},
		{"with cuda", []string{"cpu" + defaults, "gpu __cuda=12" + defaults}, "__glibc=2.36=0 __cuda=12.4=0", "gpu"},
		{"with an older cuda", []string{"cpu" + defaults, "gpu __cuda=12" + defaults}, "__cuda=11.8=0", "cpu"},
		{"the newest that fits", []string{"a __cuda=11", "b __cuda=12.4", "c __cuda=12"}, "__cuda=12.2=0", "c"},
		{"the newest glibc that fits", []string{"a __glibc=2.17", "b __glibc=2.28"}, "__glibc=2.36=0", "b"},
		{"an older glibc", []string{"a __glibc=2.17", "b __glibc=2.28"}, "__glibc=2.17=0", "a"},
		{"levels of processors", []string{"a __archspec=0=x86_64", "b __archspec=0=x86_64_v3", "c __archspec=0=x86_64_v4"}, "__archspec=1=x86_64_v3", "b"},
		{"a named processor", []string{"a", "b __archspec=0=zen3"}, "__archspec=1=zen3", "b"},
		{"an unknown virtual package", []string{"a", "b __other=1"}, "", "a"},
		{"a bare one", []string{"a", "b __cuda=12"}, "__cuda=12=0", "b"},
		{"none fits", []string{"gpu __cuda=12" + defaults}, "__glibc=2.36=0", "environment default has the platforms gpu (__cuda=12) for linux-64, but the target machine has the virtual packages of none: add --with-cuda 12 for gpu"},
		{"none of several fits", []string{"a __cuda=12", "b __archspec=0=x86_64_v3"}, "__archspec=1=x86_64", "environment default has the platforms a (__cuda=12) and b (__archspec=1=x86_64_v3) for linux-64, but the target machine has the virtual packages of none: add --with-cuda 12 for a or --virtual-package __archspec=1=x86_64_v3 for b"},
		{"ambiguous", []string{"a __cuda=12 __glibc=2.17", "b __glibc=2.34", "c"}, "__cuda=12.4=0 __glibc=2.36=0", "a (__cuda=12), b (__glibc=2.34) and c fit the target machine: set its virtual packages with --virtual-package NAME=VERSION so that only one does"},
	} {
		var machine []*solve.Record
		for _, f := range strings.Fields(c.machine) {
			v := strings.Split(f, "=")
			machine = append(machine, &solve.Record{Name: v[0], Version: v[1], Build: v[2]})
		}
		o := ReadOptions{Subdir: "linux-64", Virtual: func() ([]*solve.Record, error) { return machine, nil }}
		e, err := Read(strings.NewReader(variantsLock(c.platforms...)), "pixi.lock", o)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) || len(c.want) < 5 {
				t.Errorf("%s: Read = %v; want %s", c.name, err, c.want)
			}
			continue
		}
		if got := e.Entries[0].Name; got != c.want {
			t.Errorf("%s: Read chose %s; want %s", c.name, got, c.want)
		}
	}
	fails := ReadOptions{Subdir: "linux-64", Virtual: func() ([]*solve.Record, error) { return nil, errors.New("no machine") }}
	if _, err := Read(strings.NewReader(variantsLock("a", "b __cuda=12")), "pixi.lock", fails); err == nil || !strings.Contains(err.Error(), "no machine") {
		t.Errorf("Read = %v; want the error of the virtual packages", err)
	}
}
