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
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// A channel is a channel that is being written.
type channel struct {
	dir, final string // temporary and final path
	level      int
	machines   []*machine

	mu      sync.Mutex
	records map[string]map[string]record // by subdir and file name
	needs   map[string]map[string]string // by subdir and library, a file that needs it
	has     map[string]map[string]bool   // by subdir, the names of files in lib
}

// A record is a package's part of the index.
type record map[string]any

// stamp is the time of all files and records.
var stamp = time.Unix(1700000000, 0)

// put sets a value in a map of maps, and creates the maps if necessary.
func put[M ~map[string]V, V any](outer *map[string]M, key, name string, v V) {
	if *outer == nil {
		*outer = map[string]M{}
	}
	if (*outer)[key] == nil {
		(*outer)[key] = M{}
	}
	(*outer)[key][name] = v
}

// make writes one package in its formats.
func (c *channel) make(r recipe, m *machine) error {
	t, err := stage(r, m)
	if err != nil {
		return err
	}
	if r.change != nil {
		err := r.change(t, r, m)
		if errors.Is(err, errNoCompiler) {
			fmt.Fprintf(os.Stderr, "%-13s %s left out: %v\n", m.subdir, r.name, err)
			return nil
		} else if err != nil {
			return err
		}
	}
	t.prune()
	var points []string
	if r.kind == noarchPython {
		points = t.entryPoints()
	}
	needs, err := t.finish(r, m)
	if err != nil {
		return err
	}
	if err := c.pack(r, describe(r, m), t, points); err != nil {
		return err
	}
	c.note(m.subdir, t, needs)
	return nil
}

// pack writes a package in its formats.
func (c *channel) pack(r recipe, index record, t tree, points []string) error {
	info := infoFiles(r, t, index, points)
	dist := fmt.Sprintf("%s-%s-%s", index["name"], index["version"], index["build"])
	formats := r.formats
	if formats == "" {
		formats = "conda"
	}
	for _, f := range strings.Fields(formats) {
		var err error
		name, b := dist+".conda", []byte(nil)
		if f == "bz2" {
			name = dist + ".tar.bz2"
			b, err = bzip(tarball(info, t))
		} else {
			b, err = c.condaArchive(dist, tarball(info), tarball(t))
		}
		if err == nil {
			err = c.add(index, name, b)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	fmt.Fprintf(os.Stderr, "%-13s %-40s %-9s %5d files\n", index["subdir"], dist, formats, len(t))
	return nil
}

// note records the names and the needed libraries of the files of a package.
func (c *channel) note(subdir string, t tree, needs map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l, file := range needs {
		put(&c.needs, subdir, l, file)
	}
	for p := range t {
		if name, ok := strings.CutPrefix(p, "lib/"); ok {
			put(&c.has, subdir, name, true)
		}
	}
}

// linked returns an error if files need libraries that no package provides.
func (c *channel) linked(subdir string) error {
	var missing []string
	for l, file := range c.needs[subdir] {
		if !c.has[subdir][l] {
			missing = append(missing, l+" ("+file+")")
		}
	}
	if len(missing) == 0 {
		return nil
	}
	sort.Strings(missing)
	return fmt.Errorf("linking the packages of %s: no package provides %s", subdir, strings.Join(missing, ", "))
}

// describe returns the info/index.json of a package.
func describe(r recipe, m *machine) record {
	version, seed := "1.0", r.name
	if len(r.debs) > 0 {
		version = upstream(m.debs[r.debs[0]])
		seed += filepath.Base(m.debs[r.debs[0]])
	}
	index := record{"name": r.name, "version": version, "build_number": 0, "license": "OTHER", "timestamp": stamp.UnixMilli(),
		"arch": nil, "platform": nil, "subdir": "noarch"}
	depends := slices.Clone(r.depends)
	if !r.kind.noarch() {
		seed += m.debian
		index["arch"], index["platform"], index["subdir"] = m.uname, "linux", m.subdir
		depends = append(depends, "__glibc >="+upstream(m.debs["libc6"])+",<3.0.a0")
	}
	sum := sha1.Sum([]byte(seed))
	build := "h" + hex.EncodeToString(sum[:])[:7] + "_0"
	switch r.kind {
	case nativePython:
		build = "py" + strings.ReplaceAll(m.python, ".", "") + build
		depends = append(depends, fits(m.python))
	case noarchPython:
		build, index["noarch"] = "py"+build, "python"
		depends = append(depends, "python >=3.8")
	case noarchGeneric:
		index["noarch"] = "generic"
	}
	if r.name == "python" {
		build += "_cpython"
		index["python_site_packages_path"] = "lib/python" + m.python + "/site-packages"
	}
	sort.Strings(depends)
	index["build"], index["depends"] = build, append([]string{}, depends...)
	return index
}

// infoFiles returns the files below info/ (CEP 34). The legacy package has only the files
// that existed before paths.json.
func infoFiles(r recipe, t tree, index record, points []string) tree {
	ph := []byte(placeholder(r.name))
	var paths []map[string]any
	var files, prefixes []string
	for _, p := range t.names() {
		n, e := t[p], map[string]any{"_path": p, "path_type": "hardlink"}
		if n.link != "" {
			e["path_type"] = "softlink"
			if n = t.follow(p); n == nil {
				n = &node{}
			}
		} else if bytes.Contains(n.data, ph) {
			mode := "text"
			if bytes.IndexByte(n.data, 0) >= 0 {
				mode = "binary"
			}
			e["file_mode"], e["prefix_placeholder"] = mode, string(ph)
			prefixes = append(prefixes, fmt.Sprintf("%q %s %q", ph, mode, p))
		}
		e["sha256"], e["size_in_bytes"] = digest(n.data), len(n.data) // of the target of a link
		paths, files = append(paths, e), append(files, p)
	}
	text := func(v any) *node { b, _ := json.MarshalIndent(v, "", "  "); return &node{data: b} }
	info := tree{
		"info/index.json": text(index),
		"info/about.json": text(map[string]any{"license": index["license"], "summary": r.name + " of Debian as a conda package"}),
		"info/files":      {data: []byte(strings.Join(files, "\n") + "\n")},
	}
	if len(prefixes) > 0 {
		info["info/has_prefix"] = &node{data: []byte(strings.Join(prefixes, "\n") + "\n")}
	}
	if r.name == "legacy" {
		return info
	}
	info["info/paths.json"] = text(map[string]any{"paths": paths, "paths_version": 1})
	if kind, ok := index["noarch"]; ok {
		link := map[string]any{"type": kind}
		if r.kind == noarchPython {
			link["entry_points"] = points
		}
		info["info/link.json"] = text(map[string]any{"noarch": link, "package_metadata_version": 1})
	}
	return info
}

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// tarball returns a tar archive of trees. Writing to memory cannot fail.
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

// condaArchive returns a package in the newer format: an uncompressed zip of two tar archives (CEP 35).
func (c *channel) condaArchive(dist string, info, pkg []byte) ([]byte, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(c.level)))
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

// bzip compresses with the program bzip2, because Go's package only decompresses.
func bzip(b []byte) ([]byte, error) {
	cmd := exec.Command("bzip2", "-c")
	cmd.Stdin = bytes.NewReader(b)
	return cmd.Output()
}

// add writes a package and adds its record to the index.
func (c *channel) add(index record, name string, b []byte) error {
	subdir, rec := index["subdir"].(string), maps.Clone(index)
	m := md5.Sum(b)
	rec["md5"], rec["sha256"], rec["size"] = hex.EncodeToString(m[:]), digest(b), len(b)
	c.mu.Lock()
	put(&c.records, subdir, name, rec)
	c.mu.Unlock()
	if err := os.MkdirAll(filepath.Join(c.dir, subdir), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, subdir, name), b, 0o644)
}

// index writes the indexes (CEP 36).
func (c *channel) index() error {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(c.level)))
	if err != nil {
		return err
	}
	for subdir, recs := range c.records {
		old, conda := map[string]record{}, map[string]record{}
		for name, r := range recs {
			if strings.HasSuffix(name, ".conda") {
				conda[name] = r
			} else {
				old[name] = r
			}
		}
		b, err := json.MarshalIndent(map[string]any{"info": map[string]any{"subdir": subdir}, "packages": old, "packages.conda": conda, "removed": []string{}, "repodata_version": 1}, "", "  ")
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
