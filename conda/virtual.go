package conda

import (
	"cmp"
	"fmt"
	"strings"

	"hpcc/conda/solve"
)

// Versions of Linux and the C library where those of the image are unknown. Tools that follow
// CEP 30, such as conda-lock, assume the same versions of Linux and glibc.
const (
	defaultGlibc = "2.28"
	defaultLinux = "5.10"
	defaultMusl  = "1.2"
)

// anyGlibc is newer than every C library that a package requires.
const anyGlibc = "2.999"

// A Libc holds the version of an image's C library, glibc or musl. If both are empty, the
// image has none: the environment may include its own, or be copied into another image.
type Libc struct{ Glibc, Musl string }

// microarchitectures maps platforms to archspec's names of their processors.
var microarchitectures = map[string]string{
	"linux-64": "x86_64", "linux-32": "x86", "linux-aarch64": "aarch64", "linux-ppc64le": "ppc64le", "linux-s390x": "s390x", "linux-riscv64": "riscv64",
}

// virtualPackages returns the virtual packages of the target machine (CEP 30), never of
// the build host. lookup reads conda's variables, such as CONDA_OVERRIDE_GLIBC; an empty
// value removes the package.
func virtualPackages(o Options, lookup func(string) (string, bool)) ([]*solve.Record, error) {
	glibc := defaultGlibc
	if o.Libc != nil {
		l, err := o.Libc()
		if err != nil {
			return nil, fmt.Errorf("finding the image's C library: %w", err)
		}
		glibc = cmp.Or(l.Glibc, anyGlibc) // an image without a C library accepts every package
	}
	var out []*solve.Record
	for _, p := range []struct{ name, version, build string }{
		{"__unix", "0", "0"}, {"__linux", defaultLinux, "0"}, {"__glibc", glibc, "0"}, {"__archspec", "1", microarchitectures[o.Subdir]}, {"__cuda", o.Cuda, "0"},
	} {
		variable := "CONDA_OVERRIDE_" + strings.ToUpper(p.name[2:])
		if v, ok := lookup(variable); ok && p.name == "__archspec" {
			if p.build = v; v == "" {
				continue
			}
		} else if ok && p.name != "__unix" {
			p.version = v
		}
		if p.version == "" {
			continue
		}
		if err := solve.CheckVersion(p.version); err != nil {
			return nil, fmt.Errorf("virtual package %s: %w; set the version with %s", p.name, err, variable)
		}
		out = append(out, &solve.Record{Name: p.name, Version: p.version, Build: p.build})
	}
	return out, nil
}
