package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// A channel is the channel being made: subdir → file name → record.
type channel struct {
	dir, final string
	records    map[string]map[string]map[string]any
}

// stamp is the time of all files and records.
var stamp = time.Unix(1700000000, 0)

// make makes one package in its formats.
func (c *channel) make(r *recipe, a arch, debs map[string]string) error {
	t, err := stage(r, a, debs)
	if err != nil {
		return err
	}
	if r.change != nil {
		if err := r.change(t, r, a); err != nil {
			return err
		}
	}
	var points []string
	if r.kind == noarchPython {
		points = t.entryPoints()
	}
	if err := t.finish(r, a); err != nil {
		return err
	}
	index := describe(r, a, debs)
	info, err := infoFiles(r, t, index, points)
	if err != nil {
		return err
	}
	dist := fmt.Sprintf("%s-%s-%s", index["name"], index["version"], index["build"])
	formats := r.formats
	if formats == "" {
		formats = "conda"
	}
	for _, f := range strings.Fields(formats) {
		var b []byte
		name := dist + ".conda"
		if f == "bz2" {
			name = dist + ".tar.bz2"
			b, err = bzip(tarball(info, t))
		} else {
			b, err = condaArchive(dist, tarball(info), tarball(t))
		}
		if err == nil {
			err = c.add(index, name, b)
		}
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "%-13s %s\n", index["subdir"], dist)
	return nil
}

// describe is a package's info/index.json.
func describe(r *recipe, a arch, debs map[string]string) map[string]any {
	subdir, version := a.subdir, "1.0"
	depends := slices.Clone(r.depends)
	seed := r.name + a.debian
	if len(r.debs) > 0 {
		version = upstream(debs[r.debs[0]])
		seed += filepath.Base(debs[r.debs[0]])
	}
	sum := sha1.Sum([]byte(seed))
	build := "h" + hex.EncodeToString(sum[:])[:7] + "_0"
	index := map[string]any{"name": r.name, "version": version, "build_number": 0, "license": "OTHER", "timestamp": stamp.UnixMilli()}
	switch r.kind {
	case nativePython:
		build = "py" + strings.ReplaceAll(python, ".", "") + build
		depends = append(depends, "python >="+python+",<3.12.0a0")
	case noarchPython:
		subdir, build, index["noarch"] = "noarch", "py"+build, "python"
		depends = append(depends, "python >=3.8")
	case noarchGeneric:
		subdir, index["noarch"] = "noarch", "generic"
	}
	if r.kind == native || r.kind == nativePython {
		depends = append(depends, "__glibc >=2.36,<3.0.a0")
	}
	if r.name == "python" {
		build += "_cpython"
	}
	if depends == nil {
		depends = []string{}
	}
	sort.Strings(depends)
	index["subdir"], index["build"], index["depends"] = subdir, build, depends
	return index
}

var packaging = regexp.MustCompile(`[+~.](dfsg|ds|really|git).*`)

// upstream is the version in the name of a Debian package, without Debian's part.
func upstream(deb string) string {
	v := strings.Split(filepath.Base(deb), "_")[1]
	v = strings.ReplaceAll(v, "%3a", ":")
	if _, rest, ok := strings.Cut(v, ":"); ok {
		v = rest
	}
	if i := strings.LastIndexByte(v, '-'); i > 0 {
		v = v[:i]
	}
	return strings.ReplaceAll(packaging.ReplaceAllString(v, ""), "~", ".")
}

// infoFiles are the files below info/ (CEP 34). The legacy package has only
// those from before paths.json.
func infoFiles(r *recipe, t tree, index map[string]any, points []string) (tree, error) {
	ph := []byte(placeholder(r.name))
	var paths []map[string]any
	var files, prefixes []string
	for _, p := range t.names() {
		n := t[p]
		files = append(files, p)
		if n.link != "" {
			e := map[string]any{"_path": p, "path_type": "softlink", "sha256": digest(nil), "size_in_bytes": 0}
			if to := t[path.Join(path.Dir(p), n.link)]; to != nil { // of what it leads to
				e["sha256"], e["size_in_bytes"] = digest(to.data), len(to.data)
			}
			paths = append(paths, e)
			continue
		}
		e := map[string]any{"_path": p, "path_type": "hardlink", "sha256": digest(n.data), "size_in_bytes": len(n.data)}
		if bytes.Contains(n.data, ph) {
			mode := "text"
			if bytes.IndexByte(n.data, 0) >= 0 {
				mode = "binary"
			}
			e["file_mode"], e["prefix_placeholder"] = mode, string(ph)
			prefixes = append(prefixes, fmt.Sprintf("%q %s %q", ph, mode, p))
		}
		paths = append(paths, e)
	}
	text := func(v any) *node { b, _ := json.MarshalIndent(v, "", "  "); return &node{data: b} }
	info := tree{
		"info/index.json": text(index), "info/about.json": text(map[string]any{"summary": r.name + " of Debian as a conda package"}),
		"info/files": {data: []byte(strings.Join(files, "\n") + "\n")},
	}
	if len(prefixes) > 0 {
		info["info/has_prefix"] = &node{data: []byte(strings.Join(prefixes, "\n") + "\n")}
	}
	if r.name != "legacy" {
		info["info/paths.json"] = text(map[string]any{"paths": paths, "paths_version": 1})
	}
	if r.kind == noarchPython {
		sort.Strings(points)
		info["info/link.json"] = text(map[string]any{"noarch": map[string]any{"type": "python", "entry_points": points}, "package_metadata_version": 1})
	}
	return info, nil
}

func (t tree) names() []string {
	names := make([]string, 0, len(t))
	for p := range t {
		names = append(names, p)
	}
	sort.Strings(names)
	return names
}

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// tarball is a tar archive of trees. Writing to memory does not fail.
func tarball(trees ...tree) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, t := range trees {
		for _, p := range t.names() {
			n := t[p]
			h := &tar.Header{Typeflag: tar.TypeReg, Name: p, Mode: 0o644, Size: int64(len(n.data)), ModTime: stamp}
			if n.exec {
				h.Mode = 0o755
			}
			if n.link != "" {
				h.Typeflag, h.Linkname, h.Mode, h.Size = tar.TypeSymlink, n.link, 0o777, 0
			}
			w.WriteHeader(h)
			if n.link == "" {
				w.Write(n.data)
			}
		}
	}
	w.Close()
	return out.Bytes()
}

// condaArchive is the newer format: a zip of two tar archives, stored (CEP 35).
func condaArchive(dist string, info, pkg []byte) ([]byte, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, m := range []struct {
		name string
		data []byte
	}{{"metadata.json", []byte(`{"conda_pkg_format_version": 2}`)}, {"pkg-" + dist + ".tar.zst", enc.EncodeAll(pkg, nil)}, {"info-" + dist + ".tar.zst", enc.EncodeAll(info, nil)}} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: m.name, Method: zip.Store})
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(m.data); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// bzip packs with the program: Go's library only reads the format.
func bzip(b []byte) ([]byte, error) {
	cmd := exec.Command("bzip2", "-c")
	cmd.Stdin = bytes.NewReader(b)
	return cmd.Output()
}

// add writes a package and keeps its record.
func (c *channel) add(index map[string]any, name string, b []byte) error {
	subdir := index["subdir"].(string)
	rec := map[string]any{}
	for k, v := range index {
		rec[k] = v
	}
	m := md5.Sum(b)
	rec["md5"], rec["sha256"], rec["size"] = hex.EncodeToString(m[:]), digest(b), len(b)
	if c.records[subdir] == nil {
		c.records[subdir] = map[string]map[string]any{}
	}
	c.records[subdir][name] = rec
	if err := os.MkdirAll(filepath.Join(c.dir, subdir), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, subdir, name), b, 0o644)
}

// index writes the indexes (CEP 36).
func (c *channel) index() error {
	for subdir, recs := range c.records {
		old, conda := map[string]any{}, map[string]any{}
		for name, r := range recs {
			if strings.HasSuffix(name, ".conda") {
				conda[name] = r
			} else {
				old[name] = r
			}
		}
		b, err := json.Marshal(map[string]any{"info": map[string]any{"subdir": subdir}, "packages": old, "packages.conda": conda, "removed": []string{}, "repodata_version": 1})
		if err != nil {
			return err
		}
		enc, err := zstd.NewWriter(nil)
		if err != nil {
			return err
		}
		for name, data := range map[string][]byte{"repodata.json": b, "repodata.json.zst": enc.EncodeAll(b, nil)} {
			if err := os.WriteFile(filepath.Join(c.dir, subdir, name), data, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// exports writes what conda would of an environment with these packages.
func (c *channel) exports() error {
	for _, a := range arches {
		list := c.closure(a.subdir)
		var spec, urls []string
		for _, name := range list {
			r := c.records[a.subdir][name]
			subdir := a.subdir
			if r == nil {
				r, subdir = c.records["noarch"][name], "noarch"
			}
			spec = append(spec, fmt.Sprintf("%s=%s=%s", r["name"], r["version"], r["build"]))
			urls = append(urls, fmt.Sprintf("file://%s/%s/%s#%s", c.final, subdir, name, r["md5"]))
		}
		head := "# This file may be used to create an environment using:\n# $ conda create --name <env> --file <this file>\n# platform: " + a.subdir + "\n"
		files := map[string]string{"explicit-" + a.subdir + ".txt": head + "@EXPLICIT\n" + strings.Join(urls, "\n") + "\n"}
		if a.subdir == "linux-64" {
			files["requirements.txt"] = head + strings.Join(spec, "\n") + "\n"
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// closure lists the file names of the exported packages and all they need,
// sorted, the newer format where there are both.
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
	var visit func(name string)
	visit = func(name string) {
		if seen[name] || byName[name] == "" {
			return
		}
		seen[name] = true
		for _, d := range depends[name] {
			visit(strings.Fields(d)[0])
		}
	}
	for _, n := range exported {
		visit(n)
	}
	var out []string
	for n := range seen {
		out = append(out, byName[n])
	}
	sort.Strings(out)
	return out
}

// baseTar is a root directory with a C library and a static busybox under the
// names that scripts call.
func baseTar(file string, debs map[string]string) error {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, d := range []string{"bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr", "usr/bin", "opt"} {
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755, ModTime: stamp})
	}
	for _, name := range []string{"libc6", "busybox-static"} {
		if err := each(debs[name], func(h *tar.Header, r io.Reader) error {
			if h.Typeflag == tar.TypeDir || strings.HasPrefix(h.Name, "usr/share") || strings.Contains(h.Name, "gconv") {
				return nil
			}
			h.ModTime, h.Format = stamp, tar.FormatUnknown
			if err := w.WriteHeader(h); err != nil {
				return err
			}
			_, err := io.Copy(w, r)
			return err
		}); err != nil {
			return err
		}
	}
	for _, n := range strings.Fields("sh ls cat env echo id mkdir rm cp ln pwd true false grep sed find uname sleep") {
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + n, Linkname: "busybox", Mode: 0o777, ModTime: stamp})
	}
	for _, f := range [][2]string{{"etc/group", "root:x:0:\n"}, {"etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"}} {
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f[0], Mode: 0o644, Size: int64(len(f[1])), ModTime: stamp})
		io.WriteString(w, f[1])
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}
