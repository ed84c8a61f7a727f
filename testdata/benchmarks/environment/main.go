// Command environment writes a conda channel for benchmarks. Its packages have generated
// content, and the sizes of a scientific environment: a few large ones, and many small
// ones. The same arguments give the same channel.
//
//	environment -out DIR [-packages 68] [-files 10803] [-bytes 313000000] [-random 0.2]
//
// It also writes exports: env.txt has all packages, changed.txt has another version of a
// small one, and added.txt has one additional small package.
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

var (
	out      = flag.String("out", "", "write the channel to `DIR`")
	packages = flag.Int("packages", 68, "number of packages")
	files    = flag.Int("files", 10803, "approximate number of files in all packages")
	total    = flag.Float64("bytes", 313e6, "approximate unpacked size in bytes")
	noise    = flag.Float64("random", 0.2, "incompressible `share` of the bytes of libraries")
)

// placeholder is the build prefix of the packages.
var placeholder = "/home/builder/" + strings.Repeat("placehold_", 24)

var words = bytes.Fields([]byte("import numpy as np def class return self for in range if not None True lambda x y shape dtype array float64 int32 axis sum mean reshape kernel index batch model layer weights bias ( ) [ ] { } : , = + - * / # \"\"\" assert raise ValueError"))

// born is the modification time of all files.
var born = time.Unix(1700000000, 0)

// A record is a package in the index.
type record map[string]any

func main() {
	log.SetFlags(0)
	flag.Parse()
	if *out == "" || *packages < 3 {
		log.Fatal("usage: environment -out DIR")
	}
	index := map[string]map[string]record{"linux-64": {}, "noarch": {}}
	var env, changed []string
	sizes, counts := shares(1.5, *total), shares(0.9, float64(*files))
	for i := range *packages {
		p := pkg{name: fmt.Sprintf("pkg%03d", i), version: "1.0", files: int(counts[i]), bytes: int(sizes[i]), seed: int64(i)}
		switch {
		case i == 0:
			p.name, p.version = "python", "3.11.4"
		case i >= *packages/2: // the smaller half is pure python
			p.noarch = true
		}
		p.write(index)
		env = append(env, p.line())
		if i == *packages-1 { // the smallest
			p.version, p.seed = "1.1", 1000
			p.write(index)
		}
		changed = append(changed, p.line())
	}
	extra := pkg{name: "extra", version: "1.0", files: 20, bytes: 200_000, seed: 2000, noarch: true}
	extra.write(index)
	for sub, list := range index {
		save(filepath.Join(sub, "repodata.json"), text(map[string]any{"info": map[string]any{"subdir": sub}, "packages": record{}, "packages.conda": list, "repodata_version": 1}))
	}
	head := "# platform: linux-64\n"
	save("env.txt", []byte(head+strings.Join(env, "")))
	save("changed.txt", []byte(head+strings.Join(changed, "")))
	save("added.txt", []byte(head+strings.Join(append(env, extra.line()), "")))
}

// shares distributes a sum over the packages by rank; the first gets the largest share.
func shares(power, sum float64) []float64 {
	list, all := make([]float64, *packages), 0.0
	for i := range list {
		list[i] = math.Pow(float64(i+1), -power)
		all += list[i]
	}
	for i := range list {
		list[i] *= sum / all
	}
	return list
}

type pkg struct {
	name, version string
	files, bytes  int
	seed          int64
	noarch        bool
}

func (p pkg) line() string { return p.name + "=" + p.version + "=0\n" }

func (p pkg) subdir() string {
	if p.noarch {
		return "noarch"
	}
	return "linux-64"
}

// write writes the package and its record.
func (p pkg) write(index map[string]map[string]record) {
	rec := record{"name": p.name, "version": p.version, "build": "0", "build_number": 0, "subdir": p.subdir(), "depends": []string{}, "timestamp": born.UnixMilli()}
	if p.noarch {
		rec["noarch"], rec["depends"] = "python", []string{"python >=3.8"}
	}
	var body bytes.Buffer
	paths := p.content(tar.NewWriter(&body))
	var info bytes.Buffer
	w := tar.NewWriter(&info)
	add(w, "info/index.json", 0o644, text(rec))
	add(w, "info/paths.json", 0o644, text(map[string]any{"paths": paths, "paths_version": 1}))
	if p.noarch {
		add(w, "info/link.json", 0o644, text(map[string]any{"noarch": map[string]any{"type": "python", "entry_points": []string{p.name + " = " + p.name + ":main"}}, "package_metadata_version": 1}))
	}
	check(w.Close())
	dist := p.name + "-" + p.version + "-0"
	var file bytes.Buffer
	z := zip.NewWriter(&file)
	for _, m := range []struct {
		name string
		data []byte
	}{{"metadata.json", []byte(`{"conda_pkg_format_version": 2}`)}, {"pkg-" + dist + ".tar.zst", pack(body.Bytes())}, {"info-" + dist + ".tar.zst", pack(info.Bytes())}} {
		f, err := z.CreateHeader(&zip.FileHeader{Name: m.name, Method: zip.Store})
		check(err)
		_, err = f.Write(m.data)
		check(err)
	}
	check(z.Close())
	save(filepath.Join(p.subdir(), dist+".conda"), file.Bytes())
	m := md5.Sum(file.Bytes())
	rec["md5"], rec["sha256"], rec["size"] = hex.EncodeToString(m[:]), digest(file.Bytes()), file.Len()
	index[p.subdir()][dist+".conda"] = rec
}

// content writes the package's files. A tenth of them are libraries, which have most of
// the bytes. Every thirtieth file contains the prefix.
func (p pkg) content(w *tar.Writer) (paths []record) {
	r := rand.New(rand.NewSource(p.seed))
	libs := max(1, p.files/10)
	for i := range max(1, p.files) {
		var data []byte
		name, mode := fmt.Sprintf("lib/python3.11/site-packages/%s/m%d/f%d.py", p.name, i%7, i), int64(0o644)
		size := 1 + p.bytes*3/10/max(1, p.files-libs)
		if i < libs {
			name, mode, size = fmt.Sprintf("lib/lib%s-%d.so", p.name, i), 0o755, p.bytes*7/10/libs
		}
		if p.noarch {
			name = strings.Replace(name, "lib/python3.11/", "", 1)
		}
		for len(data) < size {
			data = append(append(data, words[r.Intn(len(words))]...), " \n"[r.Intn(8)/7])
			if i < libs {
				block := make([]byte, int(float64(r.Intn(200))**noise))
				r.Read(block)
				data = append(append(data, block...), make([]byte, int(float64(r.Intn(60))*(1-*noise)))...)
			}
		}
		e := record{"_path": name, "path_type": "hardlink"}
		if i%30 == 0 {
			e["prefix_placeholder"], e["file_mode"] = placeholder, "text"
			if i < libs {
				e["file_mode"] = "binary"
				data = append(data, 0)
			}
			data = append(append(data, placeholder...), "/lib\x00"...)
		}
		e["sha256"], e["size_in_bytes"] = digest(data), len(data)
		paths = append(paths, e)
		add(w, name, mode, data)
	}
	if p.name == "python" {
		add(w, "bin/python3.11", 0o755, []byte("\x7fELF"))
		paths = append(paths, record{"_path": "bin/python3.11", "path_type": "hardlink", "sha256": digest([]byte("\x7fELF")), "size_in_bytes": 4})
	}
	check(w.Close())
	return paths
}

func add(w *tar.Writer, name string, mode int64, data []byte) {
	check(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data)), ModTime: born}))
	_, err := w.Write(data)
	check(err)
}

// pack compresses with the default level of conda-build, or fast with "-random 1", because
// such content is incompressible.
func pack(b []byte) []byte {
	level := zstd.SpeedBetterCompression
	if *noise == 1 {
		level = zstd.SpeedFastest
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(level))
	check(err)
	return z.EncodeAll(b, nil)
}

func text(v any) []byte {
	b, err := json.MarshalIndent(v, "", " ")
	check(err)
	return b
}

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func save(name string, b []byte) {
	file := filepath.Join(*out, name)
	check(os.MkdirAll(filepath.Dir(file), 0o755))
	check(os.WriteFile(file, b, 0o644))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
