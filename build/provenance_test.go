package build

import (
	"encoding/json"
	"strings"
	"testing"

	"hpcc/conda"
	"hpcc/conda/pip"
	"hpcc/testdata/helpers/testenv"
)

func provenanceText(t *testing.T, in *Inputs, o ProvenanceOptions) string {
	t.Helper()
	b, err := json.Marshal(in.Provenance(o).Predicate)
	testenv.Check(t, err)
	return string(b)
}

// TestProvenanceContent checks the content of a provenance in both modes, and the absence
// of private data.
func TestProvenanceContent(t *testing.T) {
	in := &Inputs{}
	in.recipe(Options{
		Context: "/home/someone/project", Dockerfile: "/home/someone/project/sub/My.Dockerfile", Target: "app", Platform: hostPlatform(),
		Args: map[string]string{"TOKEN": "t0k", "https_proxy": "http://proxy"}, Labels: map[string]string{"who": "me"},
		Contexts: map[string]string{"more": "/home/someone/more", "img": "docker-image://alpine:3"},
	}, "/home/someone/project", []byte("FROM scratch\n"))
	in.add("https://example.org/x", "sha256", strings.Repeat("0", 64))
	in.repository("https://user:pass@example.org/r.git#v1", strings.Repeat("a", 40), false)
	in.did(0, "FROM scratch", nil, nil)
	for _, c := range []struct {
		max       bool
		has, lack []string
	}{
		{false, []string{`"path":"sub/My.Dockerfile"`, `"target":"app"`, `"context:more":"local:more"`, `"context:img":"docker-image://alpine:3"`,
			`"uri":"https://example.org/r.git#v1","digest":{"sha1":"aaaa`, `"locals":[{"name":"context"},{"name":"dockerfile"},{"name":"more"}]`,
			`"request":false,"resolvedDependencies":false`}, []string{"t0k", "who", "RlJPTS", "buildConfig"}},
		{true, []string{`"build-arg:TOKEN":"t0k"`, `"label:who":"me"`, `"data":"RlJPTSBzY3JhdGNoCg=="`, `"instruction":"FROM scratch"`, `"request":true`}, nil},
	} {
		got := provenanceText(t, in, ProvenanceOptions{Max: c.max})
		for _, w := range c.has {
			if !strings.Contains(got, w) {
				t.Errorf("max %v: %s lacks %s", c.max, got, w)
			}
		}
		for _, w := range append(c.lack, "someone", "proxy", "pass", "startedOn", "nvocation") {
			if strings.Contains(got, w) {
				t.Errorf("max %v: %s has %q", c.max, got, w)
			}
		}
	}
}

// TestProvenancePath checks that only the name of a Dockerfile outside of its context is
// recorded.
func TestProvenancePath(t *testing.T) {
	for _, c := range []struct{ file, context, want string }{
		{"", ".", "Dockerfile"}, {"-", ".", "Dockerfile"}, {"a/b", "a", "b"}, {"a/b/c", "a", "b/c"}, {"/x/y/F", "a", "F"}, {"../F", ".", "F"}, {"F", "https://h/r.git", "F"},
	} {
		in := &Inputs{}
		in.recipe(Options{Dockerfile: c.file, Context: c.context, Platform: hostPlatform()}, c.context, nil)
		if in.source.Path != c.want {
			t.Errorf("-f %q %q: %q; want %q", c.file, c.context, in.source.Path, c.want)
		}
	}
}

func TestProvenanceOfEnvironment(t *testing.T) {
	in := &Inputs{}
	in.environment(CondaOptions{Files: []string{"/home/someone/req.txt"}, From: "debian:12", Platform: hostPlatform()}, []conda.Package{
		{Name: "a", Version: "1", Build: "0", Subdir: "noarch", URL: "https://c/noarch/a-1-0.conda", SHA256: "ab", MD5: "cd"},
		{Name: "b", Version: "2", Build: "h_1", Subdir: "linux-64", MD5: "ef"},
	}, []pip.Wheel{{Name: "w", Version: "3", File: "w-3-py3-none-any.whl", URL: "https://i/w-3-py3-none-any.whl", SHA256: "01"}, {Name: "mine", Version: "0.1", SHA256: "23"}})
	got := provenanceText(t, in, ProvenanceOptions{Max: true})
	for _, w := range []string{`"buildType":"urn:hpcc:build:conda"`, `"filename":"req.txt","from":"debian:12"`, `{"uri":"https://c/noarch/a-1-0.conda","digest":{"sha256":"ab"}}`,
		`{"uri":"pkg:conda/b@2?build=h_1\u0026subdir=linux-64","digest":{"md5":"ef"}}`,
		`{"uri":"https://i/w-3-py3-none-any.whl","digest":{"sha256":"01"}}`, `{"uri":"pkg:pypi/mine@0.1","digest":{"sha256":"23"}}`} {
		if !strings.Contains(got, w) {
			t.Errorf("%s lacks %s", got, w)
		}
	}
	if strings.Contains(got, "someone") {
		t.Error(got)
	}
}
