// Command channel makes a conda channel, for the tests, of real programs: Debian's
// packages of python, its standard library, numpy and the libraries they need, laid
// out as conda packages are, for amd64 and ppc64el. What it makes runs.
//
//	go run ./testdata/channel -cache /var/cache/hpcc-test/debs -out /var/cache/hpcc-test/channel
//
// It needs apt-get, dpkg-deb, patchelf and bzip2, no root, and leaves the host's
// apt alone. For a given set of Debian packages the channel is the same on every
// run. Beside the packages it writes exports as users have them (requirements.txt,
// explicit-<subdir>.txt) and base-<subdir>.tar, a C library and a shell to run on.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A recipe says which Debian packages make a conda package.
type recipe struct {
	name    string
	debs    []string
	depends []string
	kind    kind
	formats string // "conda", "bz2" or both; "" is conda
	change  func(t tree, r *recipe, a arch) error
}

// A kind is what a package depends on: a machine, a python on it, or nothing.
type kind int

const (
	native       kind = iota
	nativePython      // compiled modules
	noarchPython
	noarchGeneric
)

// python is the version of the suite.
const python = "3.11"

var recipes = []recipe{
	{name: "libgcc", debs: []string{"libgcc-s1"}},
	{name: "libstdcxx", debs: []string{"libstdc++6"}, depends: []string{"libgcc"}},
	{name: "libgfortran", debs: []string{"libgfortran5", "libquadmath0"}, depends: []string{"libgcc"}},
	{name: "libzlib", debs: []string{"zlib1g"}, formats: "conda bz2"},
	{name: "bzip2", debs: []string{"libbz2-1.0"}},
	{name: "liblzma", debs: []string{"liblzma5"}, formats: "bz2"},
	{name: "libffi", debs: []string{"libffi8"}, formats: "conda bz2"},
	{name: "libexpat", debs: []string{"libexpat1"}},
	{name: "libuuid", debs: []string{"libuuid1"}},
	{name: "libdb", debs: []string{"libdb5.3"}, formats: "bz2"},
	{name: "libxcrypt", debs: []string{"libcrypt1"}},
	{name: "ncurses", debs: []string{"libtinfo6", "libncursesw6", "ncurses-base"}},
	{name: "readline", debs: []string{"libreadline8"}, depends: []string{"ncurses >=6"}},
	{name: "libsqlite", debs: []string{"libsqlite3-0"}, depends: []string{"libzlib"}},
	{name: "openssl", debs: []string{"libssl3"}, change: opensslConfig},
	{name: "libopenblas", debs: []string{"libopenblas0-pthread"}, depends: []string{"libgfortran", "libgcc"}, change: blasNames},
	{name: "python", debs: []string{"python" + python + "-minimal", "libpython" + python + "-minimal", "libpython" + python + "-stdlib", "python" + python},
		depends: []string{"bzip2", "libexpat", "libffi >=3.4,<4", "liblzma", "libsqlite", "libuuid", "libxcrypt", "libdb", "libzlib", "ncurses", "openssl >=3,<4", "readline >=8", "tzdata"}, change: pythonLayout},
	{name: "numpy", debs: []string{"python3-numpy"}, kind: nativePython, depends: []string{"libopenblas", "libstdcxx"}},
	{name: "six", debs: []string{"python3-six"}, kind: noarchPython, formats: "conda bz2"},
	{name: "packaging", debs: []string{"python3-packaging"}, kind: noarchPython, formats: "bz2"},
	{name: "pygments", debs: []string{"python3-pygments"}, kind: noarchPython}, // has the command pygmentize
	{name: "tzdata", debs: []string{"tzdata"}, kind: noarchGeneric},
	{name: "prefixdemo", change: prefixDemo},
	{name: "legacy", kind: noarchGeneric, formats: "bz2", change: legacyFiles},
}

// exported are the packages that a user would have asked for; the exports list
// them with all that they need.
var exported = []string{"python", "numpy", "six", "pygments", "prefixdemo", "legacy"}

// An arch is a machine under its three names.
type arch struct{ debian, subdir, triplet, compiler, pageSize string }

var arches = []arch{
	{"amd64", "linux-64", "x86_64-linux-gnu", "x86_64-linux-gnu-gcc", "4096"},
	{"ppc64el", "linux-ppc64le", "powerpc64le-linux-gnu", "powerpc64le-linux-gnu-gcc", "65536"},
}

func main() {
	out := flag.String("out", "", "write the channel to `DIR`")
	cache := flag.String("cache", "", "keep Debian packages in `DIR`")
	suite := flag.String("suite", "bookworm", "take packages of Debian's `SUITE`")
	flag.Parse()
	if *out == "" || *cache == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*out, *cache, *suite); err != nil {
		fmt.Fprintln(os.Stderr, "channel:", err)
		os.Exit(1)
	}
	fmt.Println(*out)
}

// run makes the channel under another name and renames it, so that one that is
// there is whole.
func run(out, cache, suite string) error {
	for _, tool := range []string{"apt-get", "dpkg-deb", "patchelf", "bzip2", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is not there: install Debian's packages apt, dpkg, patchelf, bzip2, gcc", tool)
		}
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return err
	}
	fresh := out + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	c := &channel{dir: fresh, final: out, records: map[string]map[string]map[string]any{}}
	for i, a := range arches {
		debs, err := fetch(cache, suite, a.debian, wanted())
		if err != nil {
			return err
		}
		for n := range recipes {
			r := &recipes[n]
			if i > 0 && (r.kind == noarchPython || r.kind == noarchGeneric) {
				continue // the same for all
			}
			if err := c.make(r, a, debs); err != nil {
				return fmt.Errorf("making %s for %s: %w", r.name, a.subdir, err)
			}
		}
		if err := baseTar(filepath.Join(fresh, "base-"+a.subdir+".tar"), debs); err != nil {
			return fmt.Errorf("making the base for %s: %w", a.subdir, err)
		}
	}
	if err := c.index(); err != nil {
		return err
	}
	if err := c.exports(); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	return os.Rename(fresh, out)
}

// wanted lists all Debian packages.
func wanted() []string {
	list := []string{"libc6", "busybox-static"}
	for _, r := range recipes {
		list = append(list, r.debs...)
	}
	return list
}

// tool runs one of the programs that the work is left to.
func tool(name string, args ...string) ([]byte, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return out, nil
}
