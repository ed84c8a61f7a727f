package conda

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/exports"
	"hpcc/conda/input"
	"hpcc/conda/solve"
	"hpcc/files"
	"hpcc/text"
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
	"linux-64": "x86_64", "linux-32": "x86", "linux-aarch64": "aarch64", "linux-ppc64le": "ppc64le",
	"linux-s390x": "s390x", "linux-riscv64": "riscv64",
}

// maxVirtual limits the size of a file of virtual packages, in bytes.
const maxVirtual = 256 << 10

// SetVirtual sets the virtual packages of the target machine that values name. A value is
// NAME=VERSION, NAME=VERSION=BUILD, or a file in the format of conda-lock's virtual-packages.yml,
// of which the platform's packages count. The last value of a name wins. A package without a
// version is absent from the machine.
func (o *Options) SetVirtual(values []string) error {
	found := map[string]*solve.Record{}
	for _, v := range values {
		if !strings.HasPrefix(v, "__") {
			if err := readVirtualFile(v, o.Subdir, found); err != nil {
				return err
			}
			continue
		}
		name, version, ok := strings.Cut(v, "=")
		version, build, _ := strings.Cut(version, "=")
		if !ok {
			return fmt.Errorf("virtual package %q has no version; write it as %s=VERSION", text.Short(v), text.Short(name))
		}
		r, err := virtualRecord(name, version, build)
		if err != nil {
			return err
		}
		found[name] = r
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		o.Virtual = append(o.Virtual, found[name])
	}
	return nil
}

// virtualRecord returns the record of a virtual package.
func virtualRecord(name, version, build string) (*solve.Record, error) {
	r := &solve.Record{Name: name, Version: version, Build: cmp.Or(build, "0")}
	switch {
	case !solve.IsName(name) || !strings.HasPrefix(name, "__"):
		return nil, fmt.Errorf("%q is not the name of a virtual package, such as __cuda", text.Short(name))
	case name == "__archspec" && version != "" && build == "":
		return nil, fmt.Errorf("virtual package %s has no build, the name of a processor; write it as __archspec=1=x86_64_v3", name)
	case !solve.IsBuild(r.Build):
		return nil, fmt.Errorf("virtual package %s: %q is not a build string", name, text.Short(build))
	case version != "":
		if err := solve.CheckVersion(version); err != nil {
			return nil, fmt.Errorf("virtual package %s: %w", name, err)
		}
	}
	return r, nil
}

// readVirtualFile adds a platform's virtual packages in a file. A version and its build are
// separated by a blank.
func readVirtualFile(file, subdir string, found map[string]*solve.Record) error {
	f, err := files.Open(file)
	if err != nil {
		return fmt.Errorf("reading virtual packages: %w; a value is NAME=VERSION, such as __cuda=12.4, or a file", err)
	}
	defer f.Close()
	b, err := input.ReadAll(f, maxVirtual)
	if err != nil {
		return fmt.Errorf("reading virtual packages: %s: %w", file, err)
	}
	root, err := exports.ParseYAML(string(b))
	if err != nil {
		return fmt.Errorf("reading virtual packages: %s: %w", file, err)
	}
	var list struct {
		Subdirs map[string]struct {
			Packages map[string]yaml.Node
		}
	}
	if err := root.Decode(&list); err != nil {
		return fmt.Errorf("reading virtual packages: %s: %w", file, err)
	}
	if len(list.Subdirs) == 0 {
		return fmt.Errorf("reading virtual packages: %s has no \"subdirs:\" with packages", file)
	}
	for name, v := range list.Subdirs[subdir].Packages {
		version, build, _ := strings.Cut(v.Value, " ")
		r, err := virtualRecord(name, version, build)
		if err != nil {
			return &exports.LineError{File: file, Line: v.Line, Err: err}
		}
		found[name] = r
	}
	return nil
}

// VirtualPackages returns the virtual packages of the target machine, without those that an
// export declares.
func (o Options) VirtualPackages() ([]*solve.Record, error) {
	list, _, err := virtualPackages(o, nil, os.LookupEnv)
	return list, err
}

// virtualPackages returns the virtual packages of the target machine (CEP 30), never of the build
// host, by name. In order of preference, they are those of the options, those of conda's
// variables, such as CONDA_OVERRIDE_GLIBC, which lookup reads, those that the export declares, and
// the defaults. An empty version removes a package.
func virtualPackages(o Options, declared []exports.Entry,
	lookup func(string) (string, bool)) (out []*solve.Record, notes []string, err error) {
	m := map[string]*solve.Record{}
	set := func(name, version, build string) {
		m[name] = &solve.Record{Name: name, Version: version, Build: cmp.Or(build, "0")}
	}
	set("__unix", "0", "0")
	set("__linux", defaultLinux, "0")
	set("__archspec", "1", microarchitectures[o.Subdir])
	set("__glibc", "", "")
	set("__cuda", "", "")
	for _, e := range declared {
		set(e.Name, e.Version, e.Build)
	}
	imageGlibc := true
	for name := range maps.Clone(m) {
		variable := "CONDA_OVERRIDE_" + strings.ToUpper(name[2:])
		v, ok := lookup(variable)
		switch {
		case !ok || name == "__unix":
			continue
		case name == "__archspec" && v != "":
			set(name, "1", v)
		case v != "" && solve.CheckVersion(v) != nil:
			return nil, nil, fmt.Errorf("virtual package %s: %w; set the version with %s", name, solve.CheckVersion(v), variable)
		default:
			set(name, v, "")
		}
		imageGlibc = imageGlibc && name != "__glibc"
	}
	for _, r := range o.Virtual {
		m[r.Name] = r
		imageGlibc = imageGlibc && r.Name != "__glibc"
	}
	if imageGlibc {
		if m["__glibc"], notes, err = o.glibc(declared); err != nil {
			return nil, nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name].Version != "" {
			out = append(out, m[name])
		}
	}
	return out, notes, nil
}

// glibc returns the C library of the image or, if it is unknown, the one that the export declares.
// It notes that the image's is older than the declared one.
func (o Options) glibc(declared []exports.Entry) (*solve.Record, []string, error) {
	r := &solve.Record{Name: "__glibc", Build: "0"}
	if o.Libc != nil {
		l, err := o.Libc()
		if err != nil {
			return nil, nil, fmt.Errorf("finding the image's C library: %w", err)
		}
		if r.Version = l.Glibc; r.Version != "" && solve.CheckVersion(r.Version) != nil {
			return nil, nil, fmt.Errorf("virtual package __glibc: %w; set the version with CONDA_OVERRIDE_GLIBC",
				solve.CheckVersion(r.Version))
		}
	}
	i := slices.IndexFunc(declared, func(e exports.Entry) bool { return e.Name == "__glibc" })
	switch {
	case i < 0 && r.Version == "" && o.Libc != nil:
		r.Version = anyGlibc // an image without a C library accepts every package
	case i < 0 && r.Version == "":
		r.Version = defaultGlibc
	case i < 0:
	case r.Version == "":
		r.Version = declared[i].Version
	case !r.AtLeast(declared[i].Version):
		e := declared[i]
		return r, []string{fmt.Sprintf("line %d declares glibc %s, but the image has %s, for which the packages are chosen; use an image with a newer one with --from", e.Line, e.Version, r.Version)}, nil
	}
	return r, nil, nil
}
