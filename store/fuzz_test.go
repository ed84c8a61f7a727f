package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/store/ready"
	"hpcc/testdata/helpers/testenv"
)

// FuzzManifests writes an OCI layout with an index, a manifest and a configuration that
// reference each other, with otherwise arbitrary content. "@manifest", "@config" and
// "@layer" are replaced by their digest and size. It checks that the stored images can be
// listed and garbage-collected, and that no file outside the store changes.
func FuzzManifests(f *testing.F) {
	const (
		index = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.%s.v1+json",@manifest,` +
			`"platform":{"os":"linux","architecture":"amd64"},"annotations":{"org.opencontainers.image.ref.name":"x:1","io.containerd.image.name":"lab/x"}}]}`
		manifest = `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json",@config},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar",@layer}],"annotations":{}}`
		nested   = `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.docker.distribution.manifest.v2+json",@config,"platform":{"os":"linux","architecture":"ppc64le"}},{"mediaType":"application/vnd.oci.image.index.v1+json",@layer}]}`
		config   = `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]},"config":{"Env":["A=b"]},"history":[{}]}`
	)
	f.Add(fmt.Sprintf(index, "manifest"), manifest, config, "layer")
	f.Add(fmt.Sprintf(index, "index"), nested, manifest, "{}")
	f.Add(fmt.Sprintf(index, "manifest"), strings.Replace(manifest, "@config", `"digest":"sha256:../../x","size":-1`, 1), config, "")
	f.Add(`{"manifests":[null,{"mediaType":"","digest":"","size":9223372036854775807}]}`, "null", "[]", "\x1f\x8b\b\x00")
	f.Fuzz(func(t *testing.T, index, manifest, config, layer string) {
		top := t.TempDir()
		dir := filepath.Join(top, "layout")
		writeLayout(t, dir, index, manifest, config, layer)
		if img, err := Layout(dir, "", nil); err == nil {
			layers, _ := img.Layers()
			for _, l := range layers {
				if r, err := l.Uncompressed(); err == nil {
					_, _ = io.Copy(io.Discard, io.LimitReader(r, 1<<20))
					r.Close()
				}
			}
		}
		s, err := Open(filepath.Join(top, "store"))
		testenv.Check(t, err)
		names, err := s.Load(context.Background(), dir, "", nil)
		if _, err := s.Images(); err != nil {
			t.Errorf("Images: %v", err)
		}
		if _, gcerr := s.GC(context.Background(), GCOptions{}); gcerr != nil {
			t.Errorf("GC after Load = %q, %v: %v", names, err, gcerr)
		}
		for _, n := range names {
			if img, err := s.Get(n, nil); err == nil {
				_, _ = img.Layers()
			}
			var gone *NotFoundError
			if err := s.Remove(n); err != nil && !errors.As(err, &gone) { // two images may have the same name
				t.Errorf("removing %q: %v", n, err)
			}
		}
		if list, _ := os.ReadDir(top); len(list) != 2 {
			t.Errorf("files outside the store: %v", list)
		}
		if left, _ := os.ReadDir(filepath.Join(s.dir, "tmp")); len(left) > 0 {
			t.Errorf("temporary files remain: %v", left)
		}
	})
}

// writeLayout writes an OCI layout with the digests of the four parts.
func writeLayout(t *testing.T, dir, index, manifest, config, layer string) {
	t.Helper()
	blobs := filepath.Join(dir, "blobs/sha256")
	testenv.Check(t, os.MkdirAll(blobs, 0o755))
	known := []string{}
	write := func(name, text string) {
		text = strings.NewReplacer(known...).Replace(text)
		sum := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
		known = append(known, "@"+name, fmt.Sprintf(`"digest":"sha256:%s","size":%d`, sum, len(text)))
		testenv.Check(t, os.WriteFile(filepath.Join(blobs, sum), []byte(text), 0o644))
	}
	write("layer", layer)
	write("config", config)
	write("manifest", manifest)
	for name, text := range map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": strings.NewReplacer(known...).Replace(index)} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

// FuzzRef writes arbitrary bytes to the file of a name. If both package ready and the store
// accept the file, they must return the same tree. Package ready must reject truncated files,
// but does not otherwise validate the JSON.
func FuzzRef(f *testing.F) {
	hex := strings.Repeat("0a", 32)
	f.Add(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":4,"digest":"sha256:` + hex + `"}` + "\n")
	f.Add(`{"mediaType":"application/vnd.oci.image.index.v1+json","size":4,"digest":"sha256:` + hex + `","platform":{"os":"linux"}}`)
	f.Add(`{"mediaType":"application/vnd.docker.distribution.manifest.v2+json","size":-4,"digest":"sha256:../` + hex[3:] + `"}`)
	dir := f.TempDir()
	s, err := Open(filepath.Join(dir, "store"))
	testenv.Check(f, err)
	testenv.Check(f, os.Mkdir(s.path("trees", hex), 0o755))
	f.Fuzz(func(t *testing.T, ref string) {
		testenv.Check(t, os.WriteFile(s.path("refs", "x"), []byte(ref), 0o644))
		hex, ok := ready.Manifest(ref)
		got := s.path("trees", hex)
		want, err := s.TreeOf("x")
		differs := err == nil && got != want
		truncated := !strings.HasSuffix(ref, "}\n")
		outside := filepath.Dir(got) != s.path("trees")
		if ok && (differs || truncated || outside) {
			t.Errorf("ready.Manifest returns the tree %q; TreeOf = %q, %v", got, want, err)
		}
		if err == nil && filepath.Dir(want) != s.path("trees") {
			t.Errorf("TreeOf = %q, which is not in trees/", want)
		}
		_, _ = s.Images()
	})
}
