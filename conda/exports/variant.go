package exports

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/input"
	"hpcc/conda/solve"
	"hpcc/text"
)

// A variant is a platform of a pixi file: a subdir, and the virtual packages that its machines
// have at least. A file can have several variants of one subdir, for example with and without
// __cuda.
type variant struct {
	line         int
	name, subdir string
	needs        []Entry
}

func (v variant) String() string {
	var needs []string
	for _, n := range v.needs {
		if !isPlain(n) {
			needs = append(needs, n.String())
		}
	}
	if len(needs) == 0 {
		return v.name
	}
	return v.name + " (" + strings.Join(needs, ", ") + ")"
}

// isPlain reports whether a virtual package is one of those that pixi declares by default. Every
// machine of the platform is assumed to have them.
func isPlain(n Entry) bool {
	switch n.Name {
	case "__unix":
		return true
	case "__linux", "__glibc":
		limit := map[string]string{"__linux": "4.18", "__glibc": "2.28"}[n.Name]
		return (&solve.Record{Version: limit}).AtLeast(n.Version)
	case "__archspec":
		return !strings.Contains(n.Build, "_v") &&
			slices.Contains([]string{"x86_64", "x86", "aarch64", "ppc64le", "s390x", "riscv64", "0"}, n.Build)
	}
	return false
}

// virtualEntry parses NAME=VERSION or NAME=VERSION=BUILD. As in conda, the version of __archspec
// is always 1, and its build is the processor.
func (r *reader) virtualEntry(line int, assignment string) (Entry, bool) {
	name, version, _ := strings.Cut(assignment, "=")
	version, build, _ := strings.Cut(version, "=")
	x := Entry{Line: line, Name: name, Version: version, Build: build}
	if name == "__archspec" {
		x.Version = "1"
		if build == "" {
			x.Build = version
		}
	}
	if !strings.HasPrefix(name, "__") || !solve.IsName(name) || solve.CheckVersion(x.Version) != nil ||
		(x.Build != "" && !solve.IsBuild(x.Build)) {
		r.wrong(line, "%q is not a virtual package, such as __cuda=12.4", text.Short(assignment))
		return x, false
	}
	return x, true
}

// met reports whether a machine with the given virtual packages has n. Versions of the C library
// and of Linux that are unknown suffice.
func met(n Entry, machine []*solve.Record) bool {
	i := slices.IndexFunc(machine, func(r *solve.Record) bool { return r.Name == n.Name })
	switch {
	case isPlain(n) && n.Name != "__linux" && n.Name != "__glibc":
		return true
	case i < 0:
		return n.Name == "__linux" || n.Name == "__glibc"
	case n.Name == "__archspec":
		have, level, leveled := strings.Cut(machine[i].Build, "_v")
		want, least, needsLevel := strings.Cut(n.Build, "_v")
		return machine[i].Build == n.Build || (leveled && needsLevel && have == want && input.CompareNumbers(level, least) >= 0)
	}
	return machine[i].AtLeast(n.Version)
}

// unmet returns the virtual packages of a variant that a machine lacks.
func (v variant) unmet(machine []*solve.Record) []Entry {
	return slices.DeleteFunc(slices.Clone(v.needs), func(n Entry) bool { return met(n, machine) })
}

// declare adds the virtual packages of a variant to the export, but only those that the target
// platform can have.
func (r *reader) declare(v variant) {
	for _, n := range v.needs {
		if v.subdir == r.target || slices.Contains([]string{"__cuda", "__glibc", "__linux"}, n.Name) {
			r.e.Virtual = append(r.e.Virtual, n)
		}
	}
}

// covers reports whether every machine of v is also one of w, so that v is the more specific one.
func (v variant) covers(w variant) bool {
	var machine []*solve.Record
	for _, n := range v.needs {
		machine = append(machine, &solve.Record{Name: n.Name, Version: n.Version, Build: n.Build})
	}
	return !slices.ContainsFunc(w.needs, func(n Entry) bool {
		i := slices.IndexFunc(machine, func(r *solve.Record) bool { return r.Name == n.Name })
		return (i < 0 && !isPlain(n)) || !met(n, machine)
	})
}

// machine returns the known virtual packages of the target machine.
func (r *reader) machine(line int) (list []*solve.Record, ok bool) {
	if r.virtual == nil {
		return nil, true
	}
	list, err := r.virtual()
	if err != nil {
		r.wrong(line, "%v", err)
	}
	return list, err == nil
}

// fitting returns the variants that fit a machine.
func fitting(list []variant, machine []*solve.Record) []variant {
	return slices.DeleteFunc(slices.Clone(list), func(v variant) bool { return len(v.unmet(machine)) > 0 })
}

// variant chooses the variant of a subdir for the target machine. The most specific one wins. It
// refuses the file if none fits, or if several fit and none of them is the most specific one.
func (r *reader) variant(environment string, list []variant) (v variant, ok bool) {
	if len(list) == 1 && !slices.ContainsFunc(list[0].needs, func(n Entry) bool { return !isPlain(n) }) {
		return list[0], true
	}
	machine, ok := r.machine(list[0].line)
	if !ok {
		return v, false
	}
	fit := fitting(list, machine)
	var best []variant
	for i, v := range fit {
		if !slices.ContainsFunc(slices.Delete(slices.Clone(fit), i, i+1), func(w variant) bool { return !v.covers(w) }) {
			best = append(best, v)
		}
	}
	have := fmt.Sprintf("environment %s has the platforms %s for %s", environment, input.Join(names(list), "and", 8), list[0].subdir)
	switch {
	case len(best) == 1:
		return best[0], true
	case len(fit) == 0:
		r.wrong(list[0].line, "%s, but the target machine has the virtual packages of none: %s", have, howTo(list, machine))
	default:
		r.wrong(list[0].line, "%s, and %s fit the target machine: set its virtual packages with --virtual-package NAME=VERSION so that only one does; an empty VERSION removes one", have, input.Join(names(fit), "and", 8))
	}
	return v, false
}

// howTo returns the flags with which each of the variants fits.
func howTo(list []variant, machine []*solve.Record) string {
	var out []string
	for _, v := range list {
		var flags []string
		for _, n := range v.unmet(machine) {
			if n.Name == "__cuda" {
				flags = append(flags, "--with-cuda "+n.Version)
			} else {
				flags = append(flags, "--virtual-package "+n.String())
			}
		}
		out = append(out, strings.Join(flags, " ")+" for "+v.name)
	}
	return "add " + input.Join(out, "or", 4)
}

func names(list []variant) (out []string) {
	for _, v := range list {
		out = append(out, v.String())
	}
	return out
}

// subdirsOf returns the subdirs of variants, each once.
func subdirsOf(list []variant) (out []string) {
	for _, v := range list {
		if !slices.Contains(out, v.subdir) {
			out = append(out, v.subdir)
		}
	}
	return out
}

// keysOf returns the keys of a mapping.
func keysOf(n *yaml.Node) (out []string) {
	for i := 0; n != nil && n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		out = append(out, n.Content[i].Value)
	}
	return out
}
