package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// placeholder is the prefix that packages are made with: 255 bytes, in whose
// place any shorter one fits.
var placeholder = "/opt/" + strings.Repeat("placehold_", 25)

// subdirs are conda's names for architectures.
var subdirs = map[string]string{"amd64": "linux-64", "arm64": "linux-aarch64", "ppc64le": "linux-ppc64le"}

// A file of a package.
type file struct {
	path string
	mode int64
	data []byte
}

// makeChannel compiles the program and writes a channel of two packages.
func makeChannel(dir string) error {
	subdir, ok := subdirs[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("conda has no name for %s", runtime.GOARCH)
	}
	program := filepath.Join(dir, "simulate.bin")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./testdata/demo/simulate")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling simulate: %w\n%s", err, out)
	}
	code, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if err := makePackage(filepath.Join(dir, "channel"), subdir, "simulate", "1.0", "demo_0", []string{"simulate-data >=2"}, []file{
		{"bin/simulate", 0o755, code},
		{"etc/simulate.conf", 0o644, []byte("prefix " + placeholder + ", ")},
	}); err != nil {
		return err
	}
	units, err := os.ReadFile(filepath.Join(dir, "share/units.json"))
	if err != nil {
		return err
	}
	return makePackage(filepath.Join(dir, "channel"), "noarch", "simulate-data", "2.1", "0", nil, []file{{"share/simulate/units.json", 0o644, units}})
}

// makePackage writes one .conda archive (CEP 35) and the index of its
// subdirectory, which has no other package.
func makePackage(channel, subdir, name, version, build string, depends []string, files []file) error {
	dist := name + "-" + version + "-" + build
	index := map[string]any{"name": name, "version": version, "build": build, "build_number": 0, "depends": depends, "subdir": subdir, "timestamp": 1700000000000}
	if subdir == "noarch" {
		index["noarch"] = "generic"
	}
	var paths []map[string]any
	for _, f := range files {
		p := map[string]any{"_path": f.path, "path_type": "hardlink", "sha256": hash(f.data), "size_in_bytes": len(f.data)}
		if bytes.Contains(f.data, []byte(placeholder)) {
			p["file_mode"], p["prefix_placeholder"] = "text", placeholder
		}
		paths = append(paths, p)
	}
	info := []file{jsonFile("info/index.json", index), jsonFile("info/paths.json", map[string]any{"paths": paths, "paths_version": 1})}
	var archive bytes.Buffer
	z := zip.NewWriter(&archive)
	for _, part := range []struct {
		name string
		data []byte
	}{
		{"metadata.json", []byte(`{"conda_pkg_format_version": 2}`)},
		{"pkg-" + dist + ".tar.zst", tarball(files)},
		{"info-" + dist + ".tar.zst", tarball(info)},
	} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: part.name, Method: zip.Store})
		if err != nil {
			return err
		}
		if _, err := w.Write(part.data); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	index["sha256"], index["size"] = hash(archive.Bytes()), archive.Len()
	repodata := jsonFile("repodata.json", map[string]any{"info": map[string]any{"subdir": subdir}, "packages": map[string]any{}, "packages.conda": map[string]any{dist + ".conda": index}})
	dir := filepath.Join(channel, subdir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "repodata.json"), repodata.data, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, dist+".conda"), archive.Bytes(), 0o644)
}

func hash(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func jsonFile(name string, v any) file {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // only strings and numbers
	}
	return file{name, 0o644, b}
}

// tarball is a tar archive, packed with zstd. Writing to memory does not fail.
func tarball(files []file) []byte {
	var out bytes.Buffer
	z, _ := zstd.NewWriter(&out)
	t := tar.NewWriter(z)
	for _, f := range files {
		t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.data))})
		t.Write(f.data)
	}
	t.Close()
	z.Close()
	return out.Bytes()
}
