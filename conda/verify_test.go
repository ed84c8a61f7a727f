package conda

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/conda/trust"
	"hpcc/testdata/condatest"
	"hpcc/testdata/testenv"
)

const (
	publisher = "https://git.example/lab/release.yaml@refs/tags/v1"
	verifier  = "https://login.example"
)

// policyFor writes a policy for a channel, and reads it.
func policyFor(t testing.TB, s *condatest.Sigstore, channel, target string) []*trust.Policy {
	t.Helper()
	dir := t.TempDir()
	testenv.Write(t, filepath.Join(dir, "root.json"), s.TrustedRoot(t))
	f := filepath.Join(dir, "trust.yaml")
	testenv.Write(t, f, "trusted_root: root.json\nchannels:\n- {channel: '"+channel+"', identity: "+publisher+", issuer: "+verifier+", target: '"+target+"'}\n")
	all, err := trust.ReadPolicies(func(string) string { return f })
	testenv.Check(t, err)
	return all
}

// attest returns the sidecar of a package file.
func attest(t testing.TB, s *condatest.Sigstore, file, target string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	testenv.Check(t, err)
	p := condatest.Publication{Identity: publisher, Issuer: verifier, File: filepath.Base(file), SHA256: condatest.SHA256(b), Target: target}
	return []byte("[" + string(s.Attest(t, p)) + "]")
}

// TestAttestations installs packages with attestations at the locations of CEP 50 and of
// prefix.dev, and refuses packages without a valid one.
func TestAttestations(t *testing.T) {
	const target = "https://c.example/lab"
	s := condatest.NewSigstore(t)
	a, b, other := &testPkg{name: "a", files: []testFile{{path: "share/a", text: "A"}}}, &testPkg{name: "b"}, &testPkg{name: "other"}
	dir := newChannel(t, a, b, other)
	at := func(p *testPkg) string { return filepath.Join(dir, p.subdir, p.dist()+p.format) }
	good, wrong := attest(t, s, at(a), target), attest(t, s, at(other), target)
	pinned := *a
	pinned.record = map[string]any{"attestations_sha256": condatest.SHA256(good)}
	plain := *a
	for _, c := range []struct {
		name  string
		pkg   *testPkg
		files map[string][]byte // sidecars, by the end of their names
		want  string
	}{
		{"in the index", &pinned, map[string][]byte{".sigs." + condatest.SHA256(good): good, ".sigs": wrong}, ""},
		{"of CEP 50", &plain, map[string][]byte{".sigs": good, ".v0.sigs": wrong}, ""},
		{"of prefix.dev", &plain, map[string][]byte{".v0.sigs": good}, ""},
		{"missing", &plain, nil, "the channel has no attestations of it (.sigs or .v0.sigs)"},
		{"in the index, missing", &pinned, map[string][]byte{".sigs": good}, ".conda.sigs." + condatest.SHA256(good) + ": the server returned 404"},
		{"in the index, changed", &pinned, map[string][]byte{".sigs." + condatest.SHA256(good): wrong}, "but the index has " + condatest.SHA256(good)},
		{"of another file", &plain, map[string][]byte{".sigs": wrong}, `the statement is about "other-1.0-0.conda", not a-1.0-0.conda`},
		{"for another channel", &plain, map[string][]byte{".sigs": attest(t, s, at(a), target+"2")}, `for the channel "https://c.example/lab2"`},
		{"garbled", &plain, map[string][]byte{".sigs": good[:100]}, "the attestations are not a JSON array"},
	} {
		channelDir := newChannel(t, c.pkg, b)
		for end, text := range c.files {
			testenv.Write(t, filepath.Join(channelDir, "linux-64", "a-1.0-0.conda"+end), text)
		}
		web := condatest.Serve(t, channelDir, nil)
		st := condatest.NewStore(t)
		o := Options{Channels: []string{web.URL}, Cache: t.TempDir(), Trust: policyFor(t, s, web.URL, target)}
		r, err := install(t, st, "a=1.0=0", o)
		if c.want != "" {
			refused(t, st, c.name, err, c.want)
			if text := "a-1.0-0.conda: the policy " + o.Trust[0].File + " requires an attestation of the publisher: "; err != nil && !strings.HasPrefix(err.Error(), text) {
				t.Errorf("%s: %v; want %q", c.name, err, text)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if want := "env.txt: valid attestations by " + publisher + ": 1"; !strings.Contains(r.notes(), want) {
			t.Errorf("%s: the notes are %q; want %q", c.name, r.notes(), want)
		}
		// The store keeps valid attestations.
		before := len(web.Asked)
		_, err = install(t, st, "a=1.0=0", o)
		if asked := strings.Join(web.Asked[before:], " "); err != nil || strings.Contains(asked, "sigs") {
			t.Errorf("%s, again: %v after %s", c.name, err, asked)
		}
		// A policy for another identity does not use them.
		o.Trust = policyFor(t, condatest.NewSigstore(t), web.URL, target)
		_, err = install(t, st, "a=1.0=0", o)
		refused(t, st, c.name, err, "requires an attestation of the publisher")
	}
}

// TestAttestationsPolicy covers mirrors, lists and channels without a rule.
func TestAttestationsPolicy(t *testing.T) {
	const target = "https://c.example/lab"
	s := condatest.NewSigstore(t)
	a := &testPkg{name: "a"}
	dir := newChannel(t, a)
	file := filepath.Join(dir, "linux-64", "a-1.0-0.conda")
	good := attest(t, s, file, target)
	b, err := os.ReadFile(file)
	testenv.Check(t, err)
	a.record = map[string]any{"attestations_sha256": condatest.SHA256(good)}
	channelAt(t, dir, a)
	url := condatest.FileURL(dir)
	explicit := "@EXPLICIT\n" + url + "/linux-64/a-1.0-0.conda"

	const note = "1 of 1 package has attestations, which are not verified because no policy covers their channels"
	for _, policy := range [][]*trust.Policy{nil, policyFor(t, s, "https://other.example", "")} {
		r, err := install(t, condatest.NewStore(t), "a=1.0=0", Options{Channels: []string{url}, Trust: policy})
		if err != nil || !strings.Contains(r.notes(), note) {
			t.Errorf("without a rule: %v; want a note %q", err, note)
		}
	}
	policy := policyFor(t, s, url, target)
	for name, c := range map[string]struct{ text, sidecar, want string }{
		"list":           {explicit, ".sigs", ""},
		"list of 2025":   {explicit + "#sha256:" + condatest.SHA256(b), ".v0.sigs", ""},
		"list without":   {explicit, ".other", "the channel has no attestations of it"},
		"index":          {"a=1.0=0", ".sigs." + condatest.SHA256(good), ""},
		"index, mutable": {"a=1.0=0", ".sigs", "no such file"},
	} {
		sidecar := file + c.sidecar
		testenv.Write(t, sidecar, good)
		_, err := install(t, condatest.NewStore(t), c.text, Options{Channels: []string{url}, Trust: policy})
		if (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
		testenv.Check(t, os.Remove(sidecar))
	}
	testenv.Write(t, file+".sigs."+condatest.SHA256(good), good)
	missing := condatest.FileURL(t.TempDir())
	_, err = install(t, condatest.NewStore(t), "a=1.0=0", Options{Channels: []string{missing}, Mirrors: [][]string{{missing, url}}, Trust: policyFor(t, s, missing, target)})
	if err != nil {
		t.Errorf("at a mirror: %v", err)
	}
	// An index that names another server does not evade the policy.
	index, err := os.ReadFile(filepath.Join(dir, "linux-64", "repodata.json"))
	testenv.Check(t, err)
	elsewhere := t.TempDir()
	testenv.Write(t, filepath.Join(elsewhere, "linux-64", "repodata.json"), strings.Replace(string(index), `"subdir": "linux-64"`, `"base_url": "`+url+`/linux-64", "subdir": "linux-64"`, 1))
	_, err = install(t, condatest.NewStore(t), "a=1.0=0", Options{Channels: []string{condatest.FileURL(elsewhere)}, Trust: policyFor(t, condatest.NewSigstore(t), condatest.FileURL(elsewhere), target)})
	refused(t, nil, "base_url", err, "requires an attestation of the publisher: attestation 1: ")
	a.record["attestations_sha256"] = "../x"
	_, err = install(t, condatest.NewStore(t), "a=1.0=0", Options{Channels: []string{newChannel(t, a)}})
	refused(t, nil, "invalid digest", err, `record of a-1.0-0.conda: invalid attestations_sha256 "../x"`)
}
