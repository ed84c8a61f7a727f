package artifact

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"hpcc/web"
)

func TestLocate(t *testing.T) {
	const v1, v2, index = "application/vnd.conda.package.v1", "application/vnd.conda.package.v2", "application/vnd.conda.repodata.v1+json"
	for _, c := range []struct{ u, ref, mediaType, err string }{
		{"oci://ghcr.io/channel-mirrors/conda-forge/linux-64/zlib-1.2.13-h1_0.conda", "ghcr.io/channel-mirrors/conda-forge/linux-64/zlib:1.2.13-h1_0", v2, ""},
		{"oci://h:5000/c/noarch/a-b-1!2.0+cu118-py=3_0.tar.bz2", "h:5000/c/noarch/a-b:1__e__2.0__p__cu118-py__eq__3_0", v1, ""},
		{"oci://h.example/c/noarch/a-1%212-0.conda", "h.example/c/noarch/a:1__e__2-0", v2, ""},
		{"oci://localhost/c/linux-64/_libgcc_mutex-0.1-main.tar.bz2", "localhost/c/linux-64/zzz_libgcc_mutex:0.1-main", v1, ""},
		{"oci://ghcr.io/c/noarch/repodata.json", "ghcr.io/c/noarch/repodata.json:latest", index, ""},
		{"oci://ghcr.io/c/noarch/repodata.json.zst", "ghcr.io/c/noarch/repodata.json:latest", index + "+zst", ""},
		{"oci://ghcr.io/c/noarch/xrepodata.json", "", "", "packages, repodata.json and repodata.json.zst only"},
		{"oci://ghcr.io/c/noarch/repodata_shards.msgpack.zst", "", "", "packages, repodata.json and repodata.json.zst only"},
		{"oci://ghcr.io/c/noarch/repodata-json.conda", "", "", `the package "repodata-json" is not name-version-build`},
		{"oci://ghcr.io/c/noarch/-1-0.conda", "", "", `the package "-1-0" is not name-version-build`},
		{"oci://me@ghcr.io/c/noarch/repodata.json", "", "", `run "hpcc login ghcr.io"`},
		{"oci://registry/c/noarch/repodata.json", "", "", "oci://registry:443/CHANNEL"},
		{"oci:c/noarch/repodata.json", "", "", "not of the form oci://HOST/CHANNEL"},
		{"oci://[/c", "", "", "not valid"},
	} {
		ref, mediaType, err := locate(c.u)
		if ref != c.ref || mediaType != c.mediaType || (c.err == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.err)) {
			t.Errorf("locate(%s) = %q, %q, %v; want %q, %q, %q", c.u, ref, mediaType, err, c.ref, c.mediaType, c.err)
		}
	}
	if _, _, err := locate("oci://ghcr.io/c/noarch/repodata_shards.msgpack.zst"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the error for a file that no channel has is %v; want fs.ErrNotExist", err)
	}
}

// TestPlainHTTP requests registries without TLS only if the context allows it.
func TestPlainHTTP(t *testing.T) {
	ctx := web.Attempts(t.Context(), 1)
	for _, plain := range []bool{false, true} {
		if plain {
			ctx = WithPlainHTTP(ctx)
		}
		_, err := Get(ctx, "oci://registry.invalid/c/noarch/repodata.json", "", "")
		requested := false
		for cause := err; cause != nil; cause = errors.Unwrap(cause) { // the message has no URL
			requested = requested || strings.Contains(cause.Error(), "http://registry.invalid/")
		}
		if err == nil || requested != plain {
			t.Errorf("Get with plain HTTP %t: %v; requested without TLS: %t", plain, err, requested)
		}
	}
}

// FuzzLocate checks that references stay on the host of the URL.
func FuzzLocate(f *testing.F) {
	f.Add("oci://ghcr.io/c/linux-64/_a-1!2+3-py=0.conda")
	f.Add("oci://h:1/c/noarch/repodata.json.zst")
	f.Add("oci://h.i/@sha256:00/a-1-0.tar.bz2")
	f.Fuzz(func(t *testing.T, u string) {
		ref, mediaType, err := locate(u)
		if err != nil {
			return
		}
		if mediaType == "" {
			t.Fatalf("locate(%q): no media type", u)
		}
		r, err := name.ParseReference(ref)
		if err != nil {
			return
		}
		host, _, _ := strings.Cut(ref, "/")
		if got := r.Context().RegistryStr(); !strings.EqualFold(got, host) && host != "docker.io" {
			t.Fatalf("locate(%q) = %q, which names the registry %q", u, ref, got)
		}
	})
}
