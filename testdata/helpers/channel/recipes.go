package main

import (
	"fmt"
	"strings"
)

// A recipe describes how to make a conda package from Debian packages.
type recipe struct {
	name    string
	debs    []string // "a|b" is a if the suite has it, else b
	depends []string
	kind    kind
	formats string // "conda", "bz2" or both; "" is conda
	change  func(t tree, r recipe, m *machine) error
}

// A kind determines whether the files of a package depend on the architecture, and on the
// version of python.
type kind int

const (
	native       kind = iota
	nativePython      // compiled modules
	noarchPython
	noarchGeneric
)

func (k kind) noarch() bool { return k == noarchPython || k == noarchGeneric }

// exported are the packages that the user of the environment requested. The exports list
// them with all their dependencies.
var exported = []string{"python", "numpy", "scipy", "six", "click", "packaging", "pygments", "prefixdemo", "legacy"}

// recipes returns the recipes for a version of python, the slowest ones first.
func recipes(python string) []recipe {
	lib := "libpython" + python
	pyDebs := []string{"python" + python + "-minimal", lib + "-minimal", lib + "-stdlib", "python" + python}
	sslDepends := []string{"libzlib", "zstd"}
	numpyDebs := []string{"python3-numpy", "python3-numpy-dev"}
	var zstd []recipe
	if python == "3.11" { // of bookworm; later releases moved these
		pyDebs = append(pyDebs, "python3-distutils", "python3-lib2to3", "2to3")
		sslDepends, numpyDebs = nil, numpyDebs[:1]
	} else {
		zstd = []recipe{{name: "zstd", debs: []string{"libzstd1"}}}
	}
	return append([]recipe{
		{name: "python", debs: pyDebs, change: pythonLayout, depends: strings.Split("bzip2 >=1.0.8,<2.0a0;libdb;libexpat;libffi >=3.4,<4.0a0;"+
			"liblzma >=5;libsqlite >=3.40,<4.0a0;libuuid;libxcrypt;libzlib;ncurses >=6.4,<7.0a0;openssl >=3.0,<4.0a0;readline >=8.2,<9.0a0;tzdata", ";")},
		{name: "libopenblas", debs: []string{"libopenblas0-pthread"}, depends: []string{"libgcc", "libgfortran"}, change: blasNames},
		{name: "numpy", debs: numpyDebs, kind: nativePython, depends: []string{"libopenblas >=0.3.21,<0.4.0a0", "libstdcxx >=12"}},
		{name: "scipy", debs: []string{"python3-scipy", "liblbfgsb0"}, kind: nativePython, depends: []string{"libgfortran", "libopenblas >=0.3.21,<0.4.0a0", "libstdcxx >=12", "numpy"}},
		{name: "openssl", debs: []string{"libssl3t64|libssl3"}, depends: sslDepends, change: opensslConfig},
		{name: "pygments", debs: []string{"python3-pygments"}, kind: noarchPython}, // has the command pygmentize
		{name: "libdb", debs: []string{"libdb5.3t64|libdb5.3"}, formats: "bz2"},
		{name: "libstdcxx", debs: []string{"libstdc++6"}, depends: []string{"libgcc"}},
		{name: "libgfortran", debs: []string{"libgfortran5", "libquadmath0"}, depends: []string{"libgcc"}},
		{name: "libgcc", debs: []string{"libgcc-s1"}},
		{name: "libzlib", debs: []string{"zlib1g", "zlib1g-dev"}, formats: "conda bz2"},
		{name: "bzip2", debs: []string{"libbz2-1.0"}},
		{name: "liblzma", debs: []string{"liblzma5"}, formats: "bz2"},
		{name: "libffi", debs: []string{"libffi8"}, formats: "conda bz2"},
		{name: "libexpat", debs: []string{"libexpat1"}},
		{name: "libuuid", debs: []string{"libuuid1"}},
		{name: "libxcrypt", debs: []string{"libcrypt1"}},
		{name: "ncurses", debs: []string{"libtinfo6", "libncursesw6", "ncurses-base"}},
		{name: "readline", debs: []string{"libreadline8t64|libreadline8"}, depends: []string{"ncurses >=6.4,<7.0a0"}},
		{name: "libsqlite", debs: []string{"libsqlite3-0"}, depends: []string{"libzlib"}},
		{name: "six", debs: []string{"python3-six"}, kind: noarchPython, formats: "conda bz2"},
		{name: "click", debs: []string{"python3-click"}, kind: noarchPython},
		{name: "packaging", debs: []string{"python3-packaging"}, kind: noarchPython, formats: "bz2"},
		{name: "tzdata", debs: []string{"tzdata"}, kind: noarchGeneric},
		{name: "coreutils", debs: []string{"coreutils"}, depends: []string{"gmp", "libacl", "libselinux", "openssl"}},
		{name: "bash", debs: []string{"bash"}, depends: []string{"ncurses >=6.4,<7.0a0"}},
		{name: "grep", debs: []string{"grep"}, depends: []string{"libselinux"}},
		{name: "findutils", debs: []string{"findutils"}, depends: []string{"libselinux"}},
		{name: "sed", debs: []string{"sed"}, depends: []string{"libacl", "libselinux"}},
		{name: "gmp", debs: []string{"libgmp10"}},
		{name: "libacl", debs: []string{"libacl1", "libattr1"}},
		{name: "libselinux", debs: []string{"libselinux1", "libpcre2-8-0"}},
		{name: "ca-certificates", debs: []string{"ca-certificates"}, kind: noarchGeneric, change: certificates, depends: []string{"__unix"}},
		{name: "prefixdemo", change: prefixDemo},
		{name: "legacy", kind: noarchGeneric, formats: "bz2", change: legacyFiles},
	}, zstd...)
}

// fits returns the dependency of a compiled module on its version of python.
func fits(python string) string {
	var major, minor int
	fmt.Sscanf(python, "%d.%d", &major, &minor)
	return fmt.Sprintf("python >=%s,<%d.%d.0a0", python, major, minor+1)
}
