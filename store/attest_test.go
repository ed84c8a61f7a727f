package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/testdata/helpers/testenv"
)

const sbomType = "https://spdx.dev/Document"

// emptyConfigImage returns an attestation in BuildKit's format since 0.31: an OCI artifact
// with the empty configuration.
type emptyConfigImage struct {
	manifest  []byte
	statement []byte
}

func (e *emptyConfigImage) RawConfigFile() ([]byte, error)      { return []byte("{}"), nil }
func (e *emptyConfigImage) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (e *emptyConfigImage) RawManifest() ([]byte, error)        { return e.manifest, nil }
func (e *emptyConfigImage) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) {
	return &statementLayer{e.statement}, nil
}

type statementLayer struct{ b []byte }

func (l *statementLayer) Digest() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(l.b))
	return h, err
}
func (l *statementLayer) Size() (int64, error)                { return int64(len(l.b)), nil }
func (l *statementLayer) MediaType() (types.MediaType, error) { return inTotoStatement, nil }
func (l *statementLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.b)), nil
}

// attested returns an index with an image for each architecture and BuildKit's attestations
// of each.
func attested(t *testing.T, archs ...string) v1.ImageIndex {
	t.Helper()
	idx := v1.ImageIndex(mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	var attestations []mutate.IndexAddendum
	for _, a := range archs {
		img, err := random.Image(1000, 1)
		testenv.Check(t, err)
		cfg, _ := img.ConfigFile()
		cfg.OS, cfg.Architecture = "linux", a
		img, err = mutate.ConfigFile(mutate.MediaType(img, types.OCIManifestSchema1), cfg)
		testenv.Check(t, err)
		d, _ := img.Digest()
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: a}}})
		st := statementLayer{[]byte(`{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + sbomType + `","predicate":{"arch":"` + a + `"}}`)}
		layer, _ := st.Digest()
		config, n, _ := v1.SHA256(strings.NewReader("{}"))
		m, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
			Config: v1.Descriptor{MediaType: "application/vnd.oci.empty.v1+json", Digest: config, Size: n, Data: []byte("{}")},
			Layers: []v1.Descriptor{{MediaType: inTotoStatement, Digest: layer, Size: int64(len(st.b)), Annotations: map[string]string{predicateType: sbomType}}}})
		testenv.Check(t, err)
		att, err := partial.CompressedToImage(&emptyConfigImage{m, st.b})
		testenv.Check(t, err)
		attestations = append(attestations, mutate.IndexAddendum{Add: att, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"},
			Annotations: map[string]string{referenceType: attestationManifest, referenceDigest: d.String()}}})
	}
	return mutate.AppendManifests(idx, attestations...)
}

// registryWithout starts a registry and returns its address. The registry accepts uploads to
// all paths, but does not find those for which missing returns true.
func registryWithout(t *testing.T, missing func(path string) bool) string {
	t.Helper()
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut && missing(r.URL.Path) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		reg.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// TestForeignAttestations checks that attestations pass through the store, a registry and
// files, and that commands select the platform's image, never an attestation.
func TestForeignAttestations(t *testing.T) {
	ctx := t.Context()
	host := registryWithout(t, func(string) bool { return false })
	from := open(t)
	ppc := &v1.Platform{OS: "linux", Architecture: "ppc64le"}
	for n, archs := range map[string][]string{"one": {"ppc64le"}, "two": {"s390x", "ppc64le"}} {
		d, err := from.PutIndex(ctx, n, attested(t, archs...))
		testenv.Check(t, err)
		_, err = from.Push(ctx, n, host+"/"+n+":1", Remote{})
		testenv.Check(t, err)
		to := open(t)
		img, err := to.Pull(ctx, host+"/"+n+":1", Remote{Name: n, Platform: ppc})
		testenv.Check(t, err)
		if cfg, err := img.ConfigFile(); err != nil || cfg.Architecture != "ppc64le" {
			t.Errorf("%s: pulled %v, %v", n, cfg, err)
		}
		list, err := to.Images()
		if err != nil || len(list) != 1 || len(list[0].Platforms) != 1 || list[0].Platforms[0] != "linux/ppc64le" {
			t.Errorf("%s: images %+v, %v", n, list, err)
		}
		if same := list[0].Digest == d; same != (len(archs) == 1) {
			t.Errorf("%s: the store has the digest %s; the registry has %s", n, list[0].Digest, d)
		}
		file := filepath.Join(t.TempDir(), "x.tar")
		testenv.Check(t, to.Save(ctx, n, file))
		third := open(t)
		_, err = third.Load(ctx, file, n, nil)
		testenv.Check(t, err)
		_, err = third.Push(ctx, n, host+"/again:1", Remote{})
		testenv.Check(t, err)
		for _, s := range []*Store{to, third} {
			if p, err := s.Attestation(n, nil, sbomType); err != nil || string(p) != `{"arch":"ppc64le"}` {
				t.Errorf("Attestation(%q) = %s, %v", n, p, err)
			}
			if _, err := s.GC(ctx, GCOptions{Age: -1}); err != nil {
				t.Error(err)
			}
			if _, err := s.Get(n, nil); err != nil {
				t.Error(err)
			}
		}
		var none *NoAttestationError
		if _, err := to.Attestation(n, nil, "https://slsa.dev/provenance/v1"); !errors.As(err, &none) {
			t.Errorf("%s: provenance: %v; want a NoAttestationError", n, err)
		}
	}
}

// TestPullMissingAttestations checks that an image is pulled even if a mirror lacks its
// attestations.
func TestPullMissingAttestations(t *testing.T) {
	ctx := t.Context()
	idx := attested(t, "amd64")
	m, err := idx.IndexManifest()
	testenv.Check(t, err)
	gone := m.Manifests[1].Digest.String()
	host := registryWithout(t, func(path string) bool { return strings.HasSuffix(path, gone) })
	from := open(t)
	_, err = from.PutIndex(ctx, "a", idx)
	testenv.Check(t, err)
	_, err = from.Push(ctx, "a", host+"/a:1", Remote{})
	testenv.Check(t, err)
	to := open(t)
	img, err := to.Pull(ctx, host+"/a:1", Remote{Name: "a"})
	testenv.Check(t, err)
	if d, _ := img.Digest(); d != m.Manifests[0].Digest {
		t.Errorf("pulled %s; want %s", d, m.Manifests[0].Digest)
	}
	var none *NoAttestationError
	if _, err := to.Attestation("a", nil, sbomType); !errors.As(err, &none) {
		t.Errorf("attestation: %v; want a NoAttestationError", err)
	}
}
