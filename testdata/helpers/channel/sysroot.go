package main

import (
	"archive/tar"
	"io"
	"path"
	"strings"
)

// sysrootDebs are the Debian packages of a sysroot.
var sysrootDebs = []string{"libc6", "libc-bin", "libc6-dev"}

// sysroots writes a machine's sysroot packages in the layout of conda-forge: a C library
// with headers and programs, below <triplet>/sysroot. It also writes version 9999, which
// has no C library and would use the host's.
func (c *channel) sysroots(m *machine) error {
	triplet := strings.Replace(m.triplet, "-linux-", "-conda-linux-", 1)
	t := tree{"bin/" + triplet + ".cfg": {data: []byte("--sysroot=/" + triplet + "/sysroot\n")}}
	for _, deb := range sysrootDebs {
		if err := walk(m.debs[deb], func(h *tar.Header, r io.Reader) error { return t.addSysroot(m, triplet+"/sysroot/", h, r) }); err != nil {
			return err
		}
	}
	root := triplet + "/sysroot/"
	t[root+"usr/lib"] = &node{link: "lib64"}
	if merged(m) {
		t[root+"lib64"], t[root+"lib"] = &node{link: "usr/lib64"}, &node{link: "usr/lib64"}
		t[root+"bin"], t[root+"sbin"] = &node{link: "usr/bin"}, &node{link: "usr/sbin"}
	} else {
		t[root+"lib"] = &node{link: "lib64"}
	}
	t[root+"usr/share/zoneinfo"] = &node{link: "../../../../share/zoneinfo"}
	r := recipe{name: "sysroot_" + m.subdir, debs: sysrootDebs, kind: noarchGeneric, depends: []string{"kernel-headers_" + m.subdir, "tzdata"}}
	if err := c.pack(r, describe(r, m), t, nil); err != nil {
		return err
	}
	r.depends = []string{"__linux"}
	index := describe(r, m)
	index["version"], index["track_features"] = "9999", "cf_sysroot_p_10"
	hosts := tree{"bin/" + triplet + ".cfg": {data: []byte("--sysroot=/\n")}, "bin/." + r.name + "-post-link.sh": {exec: true, data: []byte("ln -s /usr \"$PREFIX/" + root + "usr\"\n")}}
	return c.pack(r, index, hosts, nil)
}

// merged reports whether a sysroot has all files below usr, like that of glibc 2.39.
// Otherwise it has lib64 and sbin next to usr, like that of glibc 2.17. The channel has
// both kinds, one per machine.
func merged(m *machine) bool { return m.debian == "amd64" }

// addSysroot adds a file of a Debian package to a sysroot.
func (t tree) addSysroot(m *machine, root string, h *tar.Header, r io.Reader) error {
	p := root + sysrootPath(m, h.Name)
	switch h.Typeflag {
	case tar.TypeSymlink:
		to := path.Join(path.Dir(h.Name), h.Linkname)
		if path.IsAbs(h.Linkname) {
			to = path.Clean(h.Linkname[1:])
		}
		if to = root + sysrootPath(m, to); to != p && t[p] == nil {
			t[p] = &node{link: relative(p, to)}
		}
	case tar.TypeReg:
		b, err := io.ReadAll(r)
		t[p] = &node{exec: h.Mode&0o111 != 0, data: b}
		return err
	}
	return nil
}

// sysrootPath returns the path of a Debian file in a sysroot.
func sysrootPath(m *machine, p string) string {
	usr := strings.HasPrefix(p, "usr/")
	top, below, _ := strings.Cut(strings.TrimPrefix(p, "usr/"), "/")
	if top == "lib" || top == "include" {
		below = strings.TrimPrefix(below, m.triplet+"/")
	}
	if top == "lib" {
		top = "lib64"
	}
	if usr || (merged(m) && (top == "lib64" || top == "bin" || top == "sbin")) {
		top = "usr/" + top
	}
	return path.Join(top, below)
}
