package conda

import (
	"slices"
	"strings"
	"testing"
)

func TestPin(t *testing.T) {
	const secret = "s3cret"
	p := &Plan{Subdir: "linux-64", Prefix: "/opt/conda", export: &Export{File: "env.yml", PipIndexes: PipIndexes{URL: "https://me:" + secret + "@pypi.example/simple", Extra: []string{"https://extra.example/whl"}, FindLinks: []string{"/srv/wheels", "https://links.example/"}}}, pkgs: []*record{
		{Name: "pip", url: "https://conda.example/t/" + secret + "/c/noarch/pip-1-0.conda", SHA256: shaA, MD5: md5A},
		{Name: "zlib", url: "https://conda.example/c/linux-64/zlib-1-0.tar.bz2", MD5: md5A},
		{Name: "bare", url: "https://conda.example/c/linux-64/bare-1%212-0.conda"}}}
	wheels := []Wheel{
		{Name: "torch", Version: "2.1+cu118", URL: "https://pypi.example/torch.whl", address: "https://pypi.example/torch.whl", SHA256: shaA, asked: true},
		{Name: "mine", Version: "1", URL: "https://git.example/mine.whl", address: "https://me:" + secret + "@git.example/mine.whl", SHA256: shaA, direct: true},
	}
	got, err := p.Pin(wheels, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"https://conda.example/c/noarch/pip-1-0.conda#sha256:" + shaA, "https://conda.example/c/linux-64/zlib-1-0.tar.bz2#" + md5A, "https://conda.example/c/linux-64/bare-1%212-0.conda"}; !slices.Equal(got.Explicit, want) {
		t.Errorf("Explicit = %q; want %q", got.Explicit, want)
	}
	if want := []string{"--index-url https://pypi.example/simple", "--extra-index-url https://extra.example/whl", "--find-links https://links.example/",
		"torch==2.1+cu118 --hash=sha256:" + shaA, "mine @ https://git.example/mine.whl --hash=sha256:" + shaA}; !slices.Equal(got.Requirements, want) {
		t.Errorf("Requirements = %q; want %q", got.Requirements, want)
	}
	if want := []string{"pip", "https://pypi.example/simple", "mine"}; !slices.Equal(got.Hidden, want) {
		t.Errorf("Hidden = %q; want %q", got.Hidden, want)
	}
	if all := strings.Join(slices.Concat(got.Explicit, got.Requirements, got.Hidden), " "); strings.Contains(all, secret) {
		t.Errorf("a credential is in %s", all)
	}
	if !got.Pip || !got.Hashed {
		t.Errorf("Pip, Hashed = %v, %v", got.Pip, got.Hashed)
	}
	wheels[0].SHA256 = ""
	if got, err := p.Pin(wheels, Options{Indexes: PipIndexes{NoIndex: true}}); err != nil || got.Hashed || got.Requirements[0] != "--no-index" {
		t.Errorf("Pin without a hash = %+v, %v", got, err)
	}
	wheels[0].URL = ""
	_, err = p.Pin(wheels, Options{})
	refused(t, nil, "a wheel of this machine", err, "env.yml: 1 packages lie in directories of this machine, where nobody else can fetch them: torch; name")
	p.pkgs[1].url = "file:///srv/c/linux-64/zlib-1-0.tar.bz2"
	_, err = p.Pin(nil, Options{})
	refused(t, nil, "a package of this machine", err, "zlib")
}
