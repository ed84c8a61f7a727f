package conda

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/conda/input"
	"hpcc/conda/solve"
)

// A sysroot package (sysroot_linux-64 and others; noarch) contains the complete glibc of a
// distribution for compilers to link with, below <triplet>/sysroot: loader, libraries,
// programs, headers. In an image it becomes the system's glibc. Versions differ in which
// directories are links: 2.17 has separate lib64 and usr/lib64, some 2.28 have bin instead
// of usr/bin, and since 2.39 lib64 links to usr/lib64. So files are placed one by one, and
// links to directories are left out.

// loaders maps platforms to the file names of dynamic loaders. Programs refer to them
// below /lib or /lib64, which are the same directory here.
var loaders = map[string]string{
	"linux-64": "ld-linux-x86-64.so.2", "linux-32": "ld-linux.so.2", "linux-aarch64": "ld-linux-aarch64.so.1", "linux-ppc64le": "ld64.so.2",
	"linux-s390x": "ld64.so.1", "linux-riscv64": "ld-linux-riscv64-lp64d.so.1",
}

// sysrootName returns the package with a platform's C library.
func sysrootName(subdir string) string { return "sysroot_" + subdir }

// glibcVersion matches versions of a sysroot that are versions of glibc. conda-forge's
// 9999 is an empty package that refers to the host's /usr.
var glibcVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^2\.[0-9]{1,3}$`) })

// chooseSysroot chooses a version of glibc, or the newest, from the first channel that has
// any. It prefers packages without track_features, which only guide the solver.
func chooseSysroot(all []*solve.Record, version, subdir string) (*solve.Record, error) {
	var best *solve.Record
	var available []string
	origin := ""
	for _, r := range all {
		if r.Name != sysrootName(subdir) || !glibcVersion().MatchString(r.Version) || (origin != "" && r.Origin != origin) {
			continue
		}
		origin, available = r.Origin, append(available, r.Version)
		if version != "" && r.Version != version {
			continue
		}
		order := 1
		if best != nil {
			order = cmp.Or(input.Compare(r.Version, best.Version), cmp.Compare(len(best.TrackFeatures), len(r.TrackFeatures)))
		}
		if order > 0 || (order == 0 && r.Better(best)) {
			best = r
		}
	}
	switch {
	case best != nil:
		return best, nil
	case len(available) == 0:
		return nil, fmt.Errorf("the channels have no C library for %s (%s); add --channel conda-forge, or name an image with --from", subdir, sysrootName(subdir))
	}
	return nil, fmt.Errorf("glibc %s is not in the channels for %s; available: %s (omit the version for the newest)",
		version, subdir, input.List(available))
}

// layOut sets the destinations of the files of a sysroot below /usr. If several sources have
// one destination, files win over links, then the first in the list.
func (p *pkg) layOut(subdir string) error {
	p.dsts = map[string]string{}
	from := map[string]string{}
	link := func(src string) bool { return p.meta.paths[src].Type == "softlink" }
	for _, src := range p.meta.order {
		dst := sysrootPath(src)
		other := from[dst]
		if dst == "" || (other != "" && (link(src) || !link(other))) {
			continue
		}
		delete(p.dsts, other)
		p.dsts[src], from[dst] = dst, src
	}
	for _, file := range []string{"libc.so.6", loaders[subdir]} {
		if from["lib/"+file] == "" {
			return fmt.Errorf("the package has no %s; name another version with --from conda:2.N, or an image",
				cmp.Or(file, "loader for "+subdir))
		}
	}
	return nil
}

// sysrootPath returns the destination of a sysroot file below /usr, or "" for files that
// are left out: compiler inputs, translations, documentation and configuration that hpcc
// writes itself. It keeps only the locale C.utf8, because the archive of all locales has 200 MB.
func sysrootPath(src string) string {
	triplet, file, ok := strings.Cut(src, "/sysroot/")
	if !ok || strings.Contains(triplet, "/") {
		return ""
	}
	top, below, _ := strings.Cut(strings.TrimPrefix(file, "usr/"), "/")
	switch top {
	case "bin", "sbin", "libexec":
	case "lib", "lib64":
		top = "lib"
		if dir, rest, _ := strings.Cut(below, "/"); slices.Contains([]string{".a", ".o", ".la"}, path.Ext(below)) ||
			slices.Contains([]string{"systemd", ".build-id", "debug", "tmpfiles.d", "rpm"}, dir) ||
			(dir == "locale" && !strings.HasPrefix(rest, "C.")) {
			return ""
		}
	default:
		return ""
	}
	if below == "" {
		return ""
	}
	return path.Join(top, below)
}

// relink returns the target of a sysroot link after placement, or "" if the target is left
// out.
func (p *pkg) relink(src, target string) string {
	if path.IsAbs(target) { // absolute in the image
		return target
	}
	dst, to := p.dsts[src], path.Join(path.Dir(src), target)
	linked := sysrootPath(to)
	if linked == "" && !strings.Contains(to, "/sysroot/") && filepath.IsLocal(to) {
		linked = to // a file of another package
	}
	rel, err := filepath.Rel(path.Dir(dst), linked)
	if linked == "" || linked == dst || err != nil {
		return ""
	}
	return rel
}
