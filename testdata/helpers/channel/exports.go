package main

import (
	"archive/tar"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
)

// exports writes the exports that conda would write for an environment of these packages.
// It writes the list of names only for the first machine, because tests move it to others.
func (c *channel) exports() error {
	for i, m := range c.machines {
		var specs, urls []string
		for _, name := range c.closure(m.subdir) {
			r := c.records[m.subdir][name]
			if r == nil {
				r = c.records["noarch"][name]
			}
			specs = append(specs, fmt.Sprintf("%s=%s=%s", r["name"], r["version"], r["build"]))
			at := url.URL{Scheme: "file", Path: path.Join(filepath.ToSlash(c.final), r["subdir"].(string), name)}
			urls = append(urls, fmt.Sprintf("%s#%s", at.String(), r["md5"]))
		}
		sort.Strings(specs)
		head := "# This file may be used to create an environment using:\n# $ conda create --name <env> --file <this file>\n# platform: " + m.subdir + "\n"
		files := map[string]string{"explicit-" + m.subdir + ".txt": head + "@EXPLICIT\n" + strings.Join(urls, "\n") + "\n"}
		if i == 0 {
			files["requirements.txt"] = head + strings.Join(specs, "\n") + "\n"
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// closure lists the file names of the exported packages and all their dependencies.
// Dependencies come first. If a package has both formats, closure lists the newer one.
func (c *channel) closure(subdir string) []string {
	byName := map[string]string{}
	depends := map[string][]string{}
	for _, sub := range []string{subdir, "noarch"} {
		for file, r := range c.records[sub] {
			name := r["name"].(string)
			if byName[name] == "" || strings.HasSuffix(file, ".conda") {
				byName[name] = file
			}
			depends[name] = r["depends"].([]string)
		}
	}
	seen := map[string]bool{}
	var out []string
	var visit func(name string)
	visit = func(name string) {
		if seen[name] || byName[name] == "" {
			return
		}
		seen[name] = true
		for _, d := range depends[name] {
			visit(strings.Fields(d)[0])
		}
		out = append(out, byName[name])
	}
	for _, n := range exported {
		visit(n)
	}
	return out
}

// applets are the names of links to busybox in the base.
const applets = "sh ls cat env echo id mkdir rm cp ln mv pwd true false test [ printf grep sed awk find head tail wc sort tr cut dirname basename readlink stat uname sleep date"

// base writes a root directory with a C library, a static busybox, and a link for each
// applet. The links are relative, so that an emulator can run programs from the directory.
func (c *channel) base(m *machine) (err error) {
	name := filepath.Join(c.dir, "base-"+m.subdir+".tar")
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			err = os.Link(name, filepath.Join(c.dir, "base-"+m.debian+".tar"))
		}
	}()
	w := tar.NewWriter(f)
	for _, d := range []string{"bin", "dev", "etc", "lib", "lib64", "opt", "proc", "root", "sys", "tmp", "usr", "usr/bin"} {
		h := &tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755, ModTime: stamp}
		if d == "tmp" {
			h.Mode = 0o1777
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
	}
	for _, deb := range []string{"libc6", "busybox-static"} {
		if err := walk(m.debs[deb], func(h *tar.Header, r io.Reader) error { return c.copyBase(w, m, h, r) }); err != nil {
			return err
		}
	}
	for _, n := range strings.Fields(applets) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + n, Linkname: "busybox", Mode: 0o777, ModTime: stamp}); err != nil {
			return err
		}
	}
	for _, f := range [][2]string{{"etc/group", "root:x:0:\n"}, {"etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f[0], Mode: 0o644, Size: int64(len(f[1])), ModTime: stamp}); err != nil {
			return err
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			return err
		}
	}
	return w.Close()
}

// copyBase copies a file of a Debian package into the base. Newer suites have all files
// below usr; copyBase moves these to /bin and /lib.
func (c *channel) copyBase(w *tar.Writer, m *machine, h *tar.Header, r io.Reader) error {
	for _, d := range []string{"bin/", "lib/", "lib64/"} {
		if strings.HasPrefix(h.Name, "usr/"+d) {
			h.Name = strings.TrimPrefix(h.Name, "usr/")
		}
	}
	if h.Typeflag == tar.TypeDir || strings.HasPrefix(h.Name, "usr/share") || strings.Contains(h.Name, "gconv") {
		return nil
	}
	if h.Typeflag == tar.TypeSymlink && path.IsAbs(h.Linkname) {
		h.Linkname = relative("/"+h.Name, strings.TrimPrefix(h.Linkname, "/usr"))
	}
	put(&c.has, m.subdir, path.Base(h.Name), true)
	h.ModTime, h.Format, h.Uname, h.Gname = stamp, tar.FormatUnknown, "", ""
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(w, r)
	return err
}
