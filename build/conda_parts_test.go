package build

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"hpcc/conda"
	"hpcc/testdata/helpers/testenv"
	"hpcc/unpack"
)

// condaPackage writes a conda package with these files.
func condaPackage(t testing.TB, dir, name string, files map[string]string) string {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	testenv.Check(t, err)
	pack := func(files map[string]string) []byte {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		for name, text := range files {
			testenv.Check(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(text)), ModTime: time.Unix(1e9, 0)}))
			_, err := tw.Write([]byte(text))
			testenv.Check(t, err)
		}
		testenv.Check(t, tw.Close())
		return enc.EncodeAll(buf.Bytes(), nil)
	}
	var paths []string
	for f := range files {
		paths = append(paths, fmt.Sprintf(`{"_path": %q, "path_type": "hardlink"}`, f))
	}
	dist := name + "-1-0"
	var file bytes.Buffer
	z := zip.NewWriter(&file)
	for n, data := range map[string][]byte{
		"metadata.json":             []byte(`{"conda_pkg_format_version": 2}`),
		"pkg-" + dist + ".tar.zst":  pack(files),
		"info-" + dist + ".tar.zst": pack(map[string]string{"info/index.json": fmt.Sprintf(`{"name": %q, "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64"}`, name), "info/paths.json": `{"paths_version": 1, "paths": [` + strings.Join(paths, ",") + `]}`}),
	} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: n, Method: zip.Store})
		testenv.Check(t, err)
		_, err = w.Write(data)
		testenv.Check(t, err)
	}
	testenv.Check(t, z.Close())
	p := filepath.Join(dir, "linux-64", dist+".conda")
	testenv.Write(t, p, file.Bytes())
	return p
}

// TestCondaParts builds the tree of an environment without reading its layers again. The
// tree equals the unpacked layers.
func TestCondaParts(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	list := filepath.Join(dir, "list.txt")
	text := "@EXPLICIT\n"
	for i := range 5 {
		text += condaPackage(t, dir, fmt.Sprint("p", i), map[string]string{fmt.Sprintf("lib/p%d/x", i): strings.Repeat("x", i*100000), "share/all": fmt.Sprint(i)}) + "\n"
	}
	testenv.Check(t, os.WriteFile(list, []byte(text), 0o644))
	parts := unpack.NewParts(s)
	defer parts.Close()
	env, err := Conda(t.Context(), s, CondaOptions{Files: []string{list}, From: "scratch", Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}, NoRun: true, Request: conda.Request{PackageLayers: true}, Host: Host{Parts: parts}})
	testenv.Check(t, err)
	want := filepath.Join(dir, "want")
	rep, err := unpack.Image(t.Context(), env.Image, want, unpack.Options{})
	testenv.Check(t, err)
	layers, err := env.Image.Layers()
	if err != nil || len(layers) != 6 {
		t.Fatalf("%d layers, %v; want 6", len(layers), err)
	}
	for _, l := range layers {
		d, err := l.Digest()
		testenv.Check(t, err)
		testenv.Check(t, os.Remove(filepath.Join(s.Dir(), "blobs/sha256", d.Hex)))
	}
	got, gotRep, err := unpack.Tree(t.Context(), s, env.Image, unpack.Options{Parts: parts})
	if err != nil {
		t.Fatalf("Tree without the layers' blobs: %v", err)
	}
	if gotRep != rep {
		t.Errorf("Report = %+v; want %+v", gotRep, rep)
	}
	if a, b := outline(t, got), outline(t, want); a != b {
		t.Errorf("the tree is\n%s\nthe unpacked layers are\n%s", a, b)
	}
}

// outline lists a tree: modes, times, sizes.
func outline(t testing.TB, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if rel, _ := filepath.Rel(dir, p); err == nil && rel != "." && !strings.HasPrefix(rel, ".hpcc") {
			fmt.Fprintln(&out, rel, fi.Mode(), fi.ModTime().UnixNano(), fi.Size())
		}
		return err
	})
	testenv.Check(t, err)
	return out.String()
}
