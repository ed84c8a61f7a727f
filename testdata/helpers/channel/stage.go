package main

import (
	"archive/tar"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

// A tree holds the files of a package, by path.
type tree map[string]*node

// A node is a file, or a symbolic link if link is set.
type node struct {
	exec bool
	data []byte
	link string
}

var (
	// Files that a conda package lacks: documentation, system configuration,
	// static libraries, and bytecode, which another python compiled.
	unwanted = regexp.MustCompile(`^(etc|var|usr/sbin|usr/bin/dh_.*|usr/lib/(valgrind|systemd|udev|binfmt\.d)|` +
		`usr/share/(doc|lintian|man|binfmts|applications|pixmaps|python3|perl5|bug|info|menu|locale|debconf|base-files|gcc|bash-completion))(/|$)|` +
		`__pycache__|\.pyc$|\.l?a$`)
	dist = regexp.MustCompile(`^lib/python3(?:\.\d+)?/dist-packages(/|$)`)
)

// stage arranges the files of Debian packages as in a conda package: no /usr, one lib
// directory, and Python modules in site-packages.
func stage(r recipe, m *machine) (tree, error) {
	t, hard := tree{}, map[string]string{}
	for _, name := range r.debs {
		if err := walk(m.debs[name], func(h *tar.Header, from io.Reader) error {
			if unwanted.MatchString(h.Name) || h.Typeflag == tar.TypeDir {
				return nil
			}
			p := place(h.Name, r.kind, m)
			switch h.Typeflag {
			case tar.TypeSymlink:
				target := path.Join(path.Dir(h.Name), h.Linkname)
				if path.IsAbs(h.Linkname) {
					target = path.Clean(h.Linkname[1:])
				}
				t[p] = &node{link: relative(p, place(target, r.kind, m))}
			case tar.TypeLink:
				hard[p] = place(path.Clean(h.Linkname), r.kind, m)
			case tar.TypeReg:
				b, err := io.ReadAll(from)
				t[p] = &node{exec: h.Mode&0o111 != 0, data: b}
				return err
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	for p, to := range hard {
		if n := t[to]; n != nil {
			same := *n
			t[p] = &same
		}
	}
	return t, nil
}

// prune removes links to missing files.
func (t tree) prune() {
	for again := true; again; {
		again = false
		for p, n := range t {
			if to := path.Join(path.Dir(p), n.link); n.link != "" && t[to] == nil && !t.isDir(to) {
				delete(t, p)
				again = true
			}
		}
	}
}

func (t tree) isDir(p string) bool {
	for q := range t {
		if strings.HasPrefix(q, p+"/") {
			return true
		}
	}
	return false
}

// follow returns the target of a link, the file itself if it is not a link, or nil for a directory.
func (t tree) follow(p string) *node {
	for range 40 {
		n := t[p]
		if n == nil || n.link == "" {
			return n
		}
		p = path.Join(path.Dir(p), n.link)
	}
	return nil
}

func (t tree) names() []string {
	names := make([]string, 0, len(t))
	for p := range t {
		names = append(names, p)
	}
	sort.Strings(names)
	return names
}

// place returns the path of a Debian file in a conda package.
func place(p string, k kind, m *machine) string {
	p = strings.TrimPrefix(p, "usr/")
	for _, dir := range []string{"lib", "include"} {
		if rest, ok := strings.CutPrefix(p, dir+"/"+m.triplet+"/"); ok {
			p = dir + "/" + strings.TrimPrefix(rest, "openblas-pthread/")
		}
	}
	if rest, ok := strings.CutPrefix(p, "lib/terminfo/"); ok {
		p = "share/terminfo/" + rest
	}
	site := "lib/python" + m.python + "/site-packages$1"
	if k == noarchPython {
		site = "site-packages$1"
	}
	return dist.ReplaceAllString(p, site)
}

func relative(from, to string) string {
	r, err := filepath.Rel(path.Dir(from), to)
	if err != nil {
		return to
	}
	return r
}
