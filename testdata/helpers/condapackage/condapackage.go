// Package condapackage writes small conda channels for tests and the demo.
package condapackage

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Placeholder is the prefix that packages are built with: 255 bytes, which installers
// replace with the prefix of the environment.
var Placeholder = "/opt/" + strings.Repeat("placehold_", 25)

// A Package is one package of a channel.
type Package struct {
	Name, Version, Build string
	Depends              []string
	Files                []File
}

// A File is a file of a package; its path is relative to the prefix.
type File struct {
	Path string
	Mode int64
	Data []byte
}

// WriteSubdir writes the packages of one subdirectory of a channel, such as "noarch",
// and their index.
func WriteSubdir(channel, subdir string, packages ...Package) error {
	dir := filepath.Join(channel, subdir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	index := map[string]any{}
	for _, p := range packages {
		archive, record, err := p.archive(subdir)
		if err != nil {
			return err
		}
		name := p.dist() + ".conda"
		if err := os.WriteFile(filepath.Join(dir, name), archive, 0o644); err != nil {
			return err
		}
		index[name] = record
	}
	repodata := jsonFile("repodata.json", map[string]any{"info": map[string]any{"subdir": subdir}, "packages": map[string]any{}, "packages.conda": index})
	return os.WriteFile(filepath.Join(dir, repodata.Path), repodata.Data, 0o644)
}

func (p Package) dist() string { return p.Name + "-" + p.Version + "-" + p.Build }

// archive returns the package as a .conda archive (CEP 35), with its record in the index.
func (p Package) archive(subdir string) ([]byte, map[string]any, error) {
	record := map[string]any{"name": p.Name, "version": p.Version, "build": p.Build, "build_number": 0, "depends": p.Depends, "subdir": subdir, "timestamp": 1700000000000}
	if subdir == "noarch" {
		record["noarch"] = "generic"
	}
	paths := []map[string]any{}
	for _, f := range p.Files {
		row := map[string]any{"_path": f.Path, "path_type": "hardlink", "sha256": hash(f.Data), "size_in_bytes": len(f.Data)}
		if bytes.Contains(f.Data, []byte(Placeholder)) {
			row["file_mode"], row["prefix_placeholder"] = "text", Placeholder
		}
		paths = append(paths, row)
	}
	info := []File{jsonFile("info/index.json", record), jsonFile("info/paths.json", map[string]any{"paths": paths, "paths_version": 1})}
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, part := range []File{
		{Path: "metadata.json", Data: []byte(`{"conda_pkg_format_version": 2}`)},
		{Path: "pkg-" + p.dist() + ".tar.zst", Data: tarball(p.Files)},
		{Path: "info-" + p.dist() + ".tar.zst", Data: tarball(info)},
	} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: part.Path, Method: zip.Store})
		if err != nil {
			return nil, nil, err
		}
		if _, err := w.Write(part.Data); err != nil {
			return nil, nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, nil, err
	}
	record["sha256"], record["size"] = hash(out.Bytes()), out.Len()
	return out.Bytes(), record, nil
}

func hash(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func jsonFile(name string, v any) File {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // only strings and numbers
	}
	return File{name, 0o644, b}
}

// tarball returns a tar archive compressed with zstd. Writing to memory does not fail.
func tarball(files []File) []byte {
	var out bytes.Buffer
	z, _ := zstd.NewWriter(&out)
	t := tar.NewWriter(z)
	for _, f := range files {
		t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Mode: f.Mode, Size: int64(len(f.Data))})
		t.Write(f.Data)
	}
	t.Close()
	z.Close()
	return out.Bytes()
}
