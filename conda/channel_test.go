package conda

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"hpcc/conda/exports"
	"hpcc/store"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// This file writes packages and channels, in the form of conda-build and in invalid forms.

// A testPkg is a package to write. Only the name is required.
type testPkg struct {
	name, version, build string // "": 1.0, 0
	subdir               string // "": linux-64
	noarch               string
	number               int
	timestamp            int64
	depends              []string
	site                 string // python_site_packages_path
	format               string // "": .conda
	files                []testFile
	entryPoints          []string
	legacy               bool              // info/files and not info/paths.json
	info                 map[string]string // files below info/; "-" omits one
	members              func([]zipMember) []zipMember
	record               map[string]any // fields in the index; nil values are omitted
}

// A testFile is one file of a package, with its entry in info/paths.json.
type testFile struct {
	path, text       string
	link, hard       string // target of a symbolic or hard link
	dir              bool
	mode             int64 // 0: 0644
	prefix           string
	binary           bool
	unlisted, absent bool // not in paths.json, not in the archive
	list             map[string]any
	header           func(*tar.Header)
}

type zipMember struct {
	name   string
	data   []byte
	method uint16
}

// born is the modification time of all files of the packages.
var born = time.Date(2023, 4, 5, 6, 7, 8, 0, time.UTC)

func (p *testPkg) fill() {
	for _, d := range []struct {
		to   *string
		text string
	}{{&p.version, "1.0"}, {&p.build, "0"}, {&p.subdir, "linux-64"}, {&p.format, ".conda"}} {
		if *d.to == "" {
			*d.to = d.text
		}
	}
}

func (p *testPkg) dist() string { return p.name + "-" + p.version + "-" + p.build }

// line returns the package's line of an export.
func (p *testPkg) line() string { p.fill(); return p.name + "=" + p.version + "=" + p.build + "\n" }

func export(pkgs ...*testPkg) string {
	s := "# platform: linux-64\n"
	for _, p := range pkgs {
		s += p.line()
	}
	return s
}

func mustJSON(v any) []byte {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		panic(err)
	}
	return b
}

// index returns the content of info/index.json.
func (p *testPkg) index() map[string]any {
	m := map[string]any{"name": p.name, "version": p.version, "build": p.build, "build_number": p.number, "subdir": p.subdir,
		"depends": append([]string{}, p.depends...), "timestamp": p.timestamp, "license": "MIT"}
	if p.noarch != "" {
		m["noarch"] = p.noarch
	}
	if p.site != "" {
		m["python_site_packages_path"] = p.site
	}
	return m
}

// infoFiles returns the files below info/.
func (p *testPkg) infoFiles() map[string]string {
	out := map[string]string{"index.json": string(mustJSON(p.index())), "about.json": "{}"}
	if p.entryPoints != nil {
		out["link.json"] = string(mustJSON(map[string]any{"noarch": map[string]any{"type": "python", "entry_points": p.entryPoints}, "package_metadata_version": 1}))
	}
	paths := []map[string]any{}
	var files, prefixes []string
	for _, f := range p.files {
		if f.unlisted {
			continue
		}
		files = append(files, f.path)
		e := map[string]any{"_path": f.path, "path_type": "hardlink", "sha256": condatest.SHA256([]byte(f.text)), "size_in_bytes": len(f.text)}
		switch {
		case f.dir:
			e = map[string]any{"_path": f.path, "path_type": "directory"}
		case f.link != "":
			e["path_type"] = "softlink"
		}
		if f.prefix != "" {
			e["prefix_placeholder"], e["file_mode"] = f.prefix, "text"
			if f.binary {
				e["file_mode"] = "binary"
			}
			prefixes = append(prefixes, fmt.Sprintf("%s %s %s", f.prefix, e["file_mode"], f.path))
		}
		maps.Copy(e, f.list)
		paths = append(paths, e)
	}
	if p.legacy {
		out["files"], out["has_prefix"] = strings.Join(files, "\n")+"\n", strings.Join(prefixes, "\n")+"\n"
	} else {
		out["paths.json"] = string(mustJSON(map[string]any{"paths": paths, "paths_version": 1}))
	}
	for name, text := range p.info {
		if out[name] = text; text == "-" {
			delete(out, name)
		}
	}
	return out
}

func (p *testPkg) tarInfo(w *tar.Writer) error {
	files := p.infoFiles()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: "info/" + name, Mode: 0o644, Size: int64(len(files[name])), ModTime: born}); err != nil {
			return err
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			return err
		}
	}
	return nil
}

func (p *testPkg) tarFiles(w *tar.Writer) error {
	for _, f := range p.files {
		if f.absent {
			continue
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.text)), ModTime: born}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		switch {
		case f.dir:
			h.Typeflag, h.Size = tar.TypeDir, 0
		case f.link != "":
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, f.link, 0
		case f.hard != "":
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, f.hard, 0
		}
		if f.header != nil {
			f.header(h)
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, f.text); err != nil {
				return err
			}
		}
	}
	return nil
}

func tarOf(fill ...func(*tar.Writer) error) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range fill {
		if err := f(w); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// packer returns an encoder for zstd.
var packer = sync.OnceValue(func() *zstd.Encoder {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	return z
})

func zst(b []byte) []byte { return packer().EncodeAll(b, nil) }

// bytes returns the package's archive.
func (p *testPkg) bytes(t testing.TB) []byte {
	t.Helper()
	p.fill()
	if p.format == ".tar.bz2" {
		return bz2(t, tarOf(p.tarFiles, p.tarInfo))
	}
	members := []zipMember{
		{"metadata.json", []byte(`{"conda_pkg_format_version": 2}`), zip.Store},
		{"pkg-" + p.dist() + ".tar.zst", zst(tarOf(p.tarFiles)), zip.Store},
		{"info-" + p.dist() + ".tar.zst", zst(tarOf(p.tarInfo)), zip.Store},
	}
	if p.members != nil {
		members = p.members(members)
	}
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, m := range members {
		f, err := w.CreateHeader(&zip.FileHeader{Name: m.name, Method: m.method, Modified: born})
		if err == nil {
			_, err = f.Write(m.data)
		}
		testenv.Check(t, err)
	}
	testenv.Check(t, w.Close())
	return b.Bytes()
}

// bz2 compresses with the program bzip2, because Go can only decompress.
func bz2(t testing.TB, b []byte) []byte {
	t.Helper()
	testenv.NeedProgram(t, "bzip2")
	cmd := exec.Command("bzip2", "-c")
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("bzip2: %v", err)
	}
	return out
}

// channelAt writes packages and their indexes into dir.
func channelAt(t testing.TB, dir string, pkgs ...*testPkg) {
	t.Helper()
	index := map[string]map[string]map[string]any{}
	for _, sub := range []string{"linux-64", "noarch"} {
		index[sub] = map[string]map[string]any{"packages": {}, "packages.conda": {}}
	}
	for _, p := range pkgs {
		b := p.bytes(t)
		fn := p.dist() + p.format
		if index[p.subdir] == nil {
			index[p.subdir] = map[string]map[string]any{"packages": {}, "packages.conda": {}}
		}
		rec := p.index()
		m := md5.Sum(b)
		rec["sha256"], rec["md5"], rec["size"] = condatest.SHA256(b), hex.EncodeToString(m[:]), len(b)
		maps.Copy(rec, p.record)
		maps.DeleteFunc(rec, func(_ string, v any) bool { return v == nil })
		list := "packages.conda"
		if p.format == ".tar.bz2" {
			list = "packages"
		}
		index[p.subdir][list][fn] = rec
		testenv.Write(t, filepath.Join(dir, p.subdir, fn), b)
	}
	for sub, lists := range index {
		all := map[string]any{"info": map[string]any{"subdir": sub}, "repodata_version": 1, "removed": []string{"gone-1-0.conda"}}
		for k, v := range lists {
			all[k] = v
		}
		testenv.Write(t, filepath.Join(dir, sub, "repodata.json"), mustJSON(all))
	}
}

// newChannel writes a channel and returns its directory.
func newChannel(t testing.TB, pkgs ...*testPkg) string {
	t.Helper()
	dir := t.TempDir()
	channelAt(t, dir, pkgs...)
	return dir
}

// A result is an installed environment.
type result struct {
	plan   *Plan
	env    *Environment
	layers []v1.Layer
	files  map[string]condatest.Entry // by path, without the leading slash
}

// install reads, resolves and installs an export. "CHANNEL" in text is replaced with the
// first channel.
func install(t testing.TB, s *store.Store, text string, o Options) (*result, error) {
	t.Helper()
	if o.Subdir == "" {
		o.Subdir = "linux-64"
	}
	if len(o.Channels) > 0 {
		text = strings.ReplaceAll(text, "CHANNEL", o.Channels[0])
	}
	e, err := exports.Read(strings.NewReader(text), "env.txt", exports.ReadOptions{})
	if err != nil {
		return nil, err
	}
	plan, err := Resolve(condatest.Quick(t), e, o)
	if err != nil {
		return nil, err
	}
	return carryOut(t, s, plan, o)
}

// carryOut installs a plan.
func carryOut(t testing.TB, s *store.Store, plan *Plan, o Options) (*result, error) {
	t.Helper()
	layers, env, err := plan.Layers(condatest.Quick(t), s, o)
	if err != nil {
		return nil, err
	}
	return &result{plan, env, layers, condatest.ReadLayers(t, layers)}, nil
}

// mustInstall installs packages from a new channel.
func mustInstall(t testing.TB, pkgs ...*testPkg) *result {
	t.Helper()
	r, err := install(t, condatest.NewStore(t), export(pkgs...), Options{Request: Request{Channels: []string{newChannel(t, pkgs...)}}})
	testenv.Check(t, err)
	return r
}

// notes returns all notes of a result.
func (r *result) notes() string {
	return strings.Join(append(slices.Clone(r.plan.Notes), r.env.Notes...), "\n")
}

// clean checks that a store has no unfinished work, and only complete packages in its cache.
func clean(t testing.TB, s *store.Store) {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(s.Dir(), "tmp"))
	testenv.Check(t, err)
	for _, e := range left {
		t.Errorf("tmp/%s is left in the store", e.Name())
	}
	blobs, err := filepath.Glob(filepath.Join(s.Dir(), "blobs/sha256/*"))
	testenv.Check(t, err)
	for _, b := range append(blobs, cache(t, s)...) {
		data, err := os.ReadFile(b)
		testenv.Check(t, err)
		digest, _, _ := strings.Cut(filepath.Base(b), "-")
		m := md5.Sum(data)
		if condatest.SHA256(data) != digest && hex.EncodeToString(m[:]) != digest {
			t.Errorf("the digest of %s differs from its name", b)
		}
	}
}

// cache lists the packages in the store's cache.
func cache(t testing.TB, s *store.Store) []string {
	t.Helper()
	out, err := filepath.Glob(filepath.Join(s.Dir(), "cache/conda/*"))
	testenv.Check(t, err)
	return out
}

// refused checks an error, and that the store is clean.
func refused(t testing.TB, s *store.Store, name string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v; want an error with %q", name, err, want)
	}
	if s != nil {
		clean(t, s)
	}
}
