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

// A sysroot package (sysroot_linux-64 and its like, noarch, of conda-forge and of
// Anaconda) holds the whole glibc of a distribution for compilers to link with,
// below <triplet>/sysroot: loader, libraries, programs, headers. In an image it
// becomes the system's own. Which of its directories are links to which changed
// over the years (2.17 has lib64 and usr/lib64 apart, some 2.28 has bin where
// usr/bin was meant, since 2.39 lib64 leads to usr/lib64), so that files are
// placed one by one and links to directories left out.

// loaders are the file names of dynamic loaders, which every program has in it
// below /lib or /lib64: here both are one directory.
var loaders = map[string]string{
	"linux-64": "ld-linux-x86-64.so.2", "linux-32": "ld-linux.so.2", "linux-aarch64": "ld-linux-aarch64.so.1", "linux-ppc64le": "ld64.so.2",
	"linux-s390x": "ld64.so.1", "linux-riscv64": "ld-linux-riscv64-lp64d.so.1",
}

// sysrootName is the package that has a platform's C library.
func sysrootName(subdir string) string { return "sysroot_" + subdir }

// glibcVersion is a version of a sysroot that is one of glibc. conda-forge has a
// 9999 too, which holds nothing and leads to the /usr of the host.
var glibcVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^2\.[0-9]{1,3}$`) })

// chooseSysroot takes a version of glibc, or the newest, from the first channel
// that has any. Of one version there are packages with track_features, which only
// lead the solver of compilers; those without go first.
func chooseSysroot(all []*solve.Record, version, subdir string) (*solve.Record, error) {
	var best *solve.Record
	var there []string
	origin := ""
	for _, r := range all {
		if r.Name != sysrootName(subdir) || !glibcVersion().MatchString(r.Version) || (origin != "" && r.Origin != origin) {
			continue
		}
		origin, there = r.Origin, append(there, r.Version)
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
	case len(there) == 0:
		return nil, fmt.Errorf("the channels have no C library for %s (%s); conda-forge has: add --channel conda-forge, or name an image with --from", subdir, sysrootName(subdir))
	}
	return nil, fmt.Errorf("glibc %s is not in the channels for %s; there are %s: name one of them, or leave it out for the newest", version, subdir, input.List(there))
}

// layOut decides where the files of a sysroot go below /usr. Of several for one
// place a file goes before a link, then the first that the package lists.
func (p *pkg) layOut(subdir string) error {
	p.places = map[string]string{}
	from := map[string]string{}
	link := func(src string) bool { return p.meta.paths[src].Type == "softlink" }
	for _, src := range p.meta.order {
		dst := sysrootPlace(src)
		other := from[dst]
		if dst == "" || (other != "" && (link(src) || !link(other))) {
			continue
		}
		delete(p.places, other)
		p.places[src], from[dst] = dst, src
	}
	for _, file := range []string{"libc.so.6", loaders[subdir]} {
		if from["lib/"+file] == "" {
			return fmt.Errorf("it holds no %s; name another version with --from conda:2.N, or an image", cmp.Or(file, "loader for "+subdir))
		}
	}
	return nil
}

// sysrootPlace is where a file of a sysroot goes below /usr; "" is nowhere: what
// only compilers read, other languages, documentation, and the configuration
// that hpcc writes. C.utf8 is the only locale that is a directory and small; all
// of them are an archive of 200 MB.
func sysrootPlace(src string) string {
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
			slices.Contains([]string{"systemd", ".build-id", "debug", "tmpfiles.d", "rpm"}, dir) || (dir == "locale" && !strings.HasPrefix(rest, "C.")) {
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

// relink makes a link of a sysroot lead to where its target was placed; "" is one
// whose target is left out.
func (p *pkg) relink(src, target string) string {
	if path.IsAbs(target) { // within the image
		return target
	}
	dst, to := p.places[src], path.Join(path.Dir(src), target)
	place := sysrootPlace(to)
	if place == "" && !strings.Contains(to, "/sysroot/") && filepath.IsLocal(to) {
		place = to // another package's file
	}
	rel, err := filepath.Rel(path.Dir(dst), place)
	if place == "" || place == dst || err != nil {
		return ""
	}
	return rel
}
