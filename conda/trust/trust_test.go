package trust

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/condatest"
	"hpcc/testdata/testenv"
)

const (
	channel = "https://c.example/lab"
	file    = "a-1.0-0.conda"
	digest  = "e3e0f35dec5b09b18baac8729d14115903b5adfd25065f8bbb90a2b3be5401e4"
	signer  = "https://git.example/lab/build/release.yaml@refs/tags/v1"
	issuer  = "https://login.example"
)

// valid returns a publication that the policy of newPolicy accepts.
func valid() condatest.Publication {
	return condatest.Publication{Identity: signer, Issuer: issuer, File: file, SHA256: digest, Target: channel}
}

// newPolicy writes a policy for an instance, and reads it.
func newPolicy(t testing.TB, s *condatest.Sigstore, rules string) (*Policy, error) {
	t.Helper()
	dir := t.TempDir()
	testenv.Write(t, filepath.Join(dir, "root.json"), s.TrustedRoot(t))
	if rules == "" {
		rules = "- {channel: " + channel + ", identity: 'https://git.example/lab/*@refs/tags/*', issuer: " + issuer + "}\n"
	}
	text := "trusted_root: root.json\nchannels:\n" + rules
	f := filepath.Join(dir, "trust.yaml")
	testenv.Write(t, f, text)
	all, err := ReadPolicies(func(string) string { return f })
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

func sidecar(bundles ...[]byte) []byte {
	var raw []json.RawMessage
	for _, b := range bundles {
		raw = append(raw, b)
	}
	out, _ := json.Marshal(raw)
	return out
}

// in returns the object at a path of keys.
func in(m map[string]any, path ...string) map[string]any {
	for _, key := range path {
		if list, ok := m[key].([]any); ok {
			m = list[0].(map[string]any)
		} else {
			m = m[key].(map[string]any)
		}
	}
	return m
}

// entryOf returns the log entry of a bundle.
func entryOf(b map[string]any) map[string]any { return in(b, "verificationMaterial", "tlogEntries") }

// chain replaces the certificate of a bundle by a chain.
func chain(b map[string]any) {
	m := in(b, "verificationMaterial")
	m["x509CertificateChain"] = map[string]any{"certificates": []any{m["certificate"]}}
	delete(m, "certificate")
}

// verifyCases are publications with their errors. TestSigstoreGo has the same.
var verifyCases = []struct {
	name   string
	change func(p *condatest.Publication)
	want   string
}{
	{"valid", func(p *condatest.Publication) {}, ""},
	{"without a channel", func(p *condatest.Publication) { p.Target = "" }, ""},
	{"channel with a slash", func(p *condatest.Publication) { p.Target += "/" }, ""},
	{"chain of certificates", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) {
			b["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.2"
			chain(b)
		}
	}, ""},
	{"chain in version 0.3", func(p *condatest.Publication) { p.Bundle = chain }, "it has a chain of certificates"},
	{"chain and certificate", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) {
			b["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.2"
			c := in(b, "verificationMaterial")["certificate"]
			chain(b)
			in(b, "verificationMaterial")["certificate"] = c
		}
	}, "it has a chain of certificates"},
	{"promise only", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { delete(entryOf(b), "inclusionProof") }
	}, "no proof of inclusion"},
	{"promise only in version 0.1", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) {
			b["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.1"
			delete(entryOf(b), "inclusionProof")
		}
	}, ""},
	{"proof only in version 0.1", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) {
			b["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.1"
			delete(entryOf(b), "inclusionPromise")
		}
	}, "no promise of inclusion"},
	{"unsigned time", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) {
			delete(entryOf(b), "inclusionPromise")
			entryOf(b)["integratedTime"] = "1"
		}
	}, "the certificate is not valid at 1970-01-01T00:00:01Z"},
	{"same entry twice", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) {
			in(b, "verificationMaterial")["tlogEntries"] = []any{entryOf(b), entryOf(b)}
		}
	}, "an entry of a transparency log twice"},
	{"checkpoint without a tree ID", func(p *condatest.Publication) { p.Origin = "log.example" }, "has no tree ID"},
	{"checkpoint with two signatures", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) {
			c := in(entryOf(b), "inclusionProof", "checkpoint")
			c["envelope"] = c["envelope"].(string) + "\u2014 witness.example AAAAAAAA\n"
		}
	}, "has 1 signatures of others"},
	{"another root of the tree", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { in(entryOf(b), "inclusionProof")["rootHash"] = make([]byte, 32) }
	}, "the checkpoint is of another tree"},
	{"statement with another field", func(p *condatest.Publication) {
		p.Statement = func(s map[string]any) { s["other"] = 1 }
	}, "the field \"other\" is unknown"},
	{"predicate with another field", func(p *condatest.Publication) {
		p.Statement = func(s map[string]any) { in(s, "predicate")["other"] = []any{nil, map[string]any{"a": 1e9}} }
	}, ""},
	{"subject with a URI", func(p *condatest.Publication) {
		p.Statement = func(s map[string]any) { in(s, "subject")["uri"] = "https://c.example" }
	}, ""},
	{"negative index", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { entryOf(b)["logIndex"] = "-1" }
	}, "the log entry has the index -1"},
	{"bundle with another field", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { b["other"] = 1 }
	}, "the field \"other\" is unknown"},
	{"field in capitals", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) {
			b["MediaType"] = b["mediaType"]
			delete(b, "mediaType")
		}
	}, "the field \"MediaType\" is unknown"},
	{"another identity", func(p *condatest.Publication) { p.Identity = "https://git.example/other/x@refs/tags/v1" }, "does not accept the signer \"https://git.example/other/x@refs/tags/v1\""},
	{"identity with a prefix", func(p *condatest.Publication) { p.Identity = "https://evil.example/" + signer }, "does not accept the signer"},
	{"an address", func(p *condatest.Publication) { p.Identity = "me@lab.example" }, "does not accept the signer \"me@lab.example\""},
	{"another issuer", func(p *condatest.Publication) { p.Issuer = "https://other.example" }, "issuer \"https://other.example\""},
	{"another digest", func(p *condatest.Publication) { p.SHA256 = strings.Repeat("0", 64) }, "a file with the SHA-256 \"0000"},
	{"another file", func(p *condatest.Publication) { p.File = "a-2.0-0.conda" }, `about "a-2.0-0.conda", not a-1.0-0.conda`},
	{"another channel", func(p *condatest.Publication) { p.Target = "https://c.example/other" }, `for the channel "https://c.example/other", not "https://c.example/lab"`},
	{"expired", func(p *condatest.Publication) {
		p.Time = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		p.Logged = p.Time.Add(11 * time.Minute)
	}, "the certificate is not valid at 2026-03-01T00:11:00Z"},
	{"before the keys", func(p *condatest.Publication) { p.Time = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC) }, "the key of log log.example was not valid"},
	{"no certificate log", func(p *condatest.Publication) { p.NoSCT = true }, "no certificate log of the trusted root has the certificate"},
	{"two subjects", func(p *condatest.Publication) {
		p.Statement = func(s map[string]any) { s["subject"] = []any{in(s, "subject"), in(s, "subject")} }
	}, "the statement has 2 subjects"},
	{"two digests", func(p *condatest.Publication) {
		p.Statement = func(s map[string]any) { in(s, "subject", "digest")["md5"] = "x" }
	}, "about a file with the SHA-256"},
	{"another predicate", func(p *condatest.Publication) {
		p.Statement = func(s map[string]any) { s["predicateType"] = "https://slsa.dev/provenance/v1" }
	}, "want a publication (CEP 27)"},
	{"empty predicate", func(p *condatest.Publication) {
		p.Statement = func(s map[string]any) { s["predicate"] = map[string]any{} }
	}, "the statement has no targetChannel"},
	{"no log", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { in(b, "verificationMaterial")["tlogEntries"] = []any{} }
	}, "it has 0 entries of a transparency log"},
	{"no time", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { delete(entryOf(b), "inclusionPromise") }
	}, "nothing proves the time of the signature"},
	{"neither promise nor proof", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) {
			delete(entryOf(b), "inclusionPromise")
			delete(entryOf(b), "inclusionProof")
		}
	}, "neither a promise nor a proof"},
	{"another log", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { in(entryOf(b), "logId")["keyId"] = []byte("0123456789") }
	}, "does not have the log with key ID 30313233"},
	{"another time", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { entryOf(b)["integratedTime"] = "1" }
	}, "the log's signature of the entry is invalid"},
	{"other payload", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { in(b, "dsseEnvelope")["payload"] = []byte("{}") }
	}, "the signature is invalid"},
	{"no signature", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { in(b, "dsseEnvelope")["signatures"] = []any{} }
	}, "with 0 signatures"},
	{"another checkpoint", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { in(entryOf(b), "inclusionProof")["treeSize"] = "2" }
	}, "the checkpoint is of another tree"},
	{"garbled checkpoint", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { in(entryOf(b), "inclusionProof", "checkpoint")["envelope"] = "x" }
	}, "the checkpoint of log log.example is invalid"},
	{"another kind", func(p *condatest.Publication) {
		p.Bundle = func(b map[string]any) { b["mediaType"] = "text/plain" }
	}, "it is not a Sigstore bundle"},
}

func TestVerify(t *testing.T) {
	s := condatest.NewSigstore(t)
	p, err := newPolicy(t, s, "")
	testenv.Check(t, err)
	for _, c := range verifyCases {
		pub := valid()
		c.change(&pub)
		got, err := p.Verify(sidecar(s.Attest(t, pub)), channel, file, digest)
		if (c.want == "" && (err != nil || got != signer)) || (c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want))) {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

// TestVerifyReplay combines parts of valid bundles.
func TestVerifyReplay(t *testing.T) {
	s, other := condatest.NewSigstore(t), condatest.NewSigstore(t)
	p, err := newPolicy(t, s, "")
	testenv.Check(t, err)
	u := channel
	good := s.Attest(t, valid())
	var a, b map[string]any
	testenv.Check(t, json.Unmarshal(good, &a))
	testenv.Check(t, json.Unmarshal(s.Attest(t, valid()), &b))
	in(b, "verificationMaterial")["tlogEntries"] = in(a, "verificationMaterial")["tlogEntries"]
	mixed, err := json.Marshal(b)
	testenv.Check(t, err)
	for name, c := range map[string]struct {
		sidecar []byte
		want    string
	}{
		"entry of another bundle": {sidecar(mixed), "the log entry is about another signature"},
		"another instance":        {sidecar(other.Attest(t, valid())), "does not have the log"},
		"one of several":          {sidecar(mixed, []byte("{}"), good), ""},
		"none of several":         {sidecar(mixed, []byte("7")), "attestation 1: the log entry is about another signature; attestation 2: it is not a Sigstore bundle"},
		"an object":               {good, "the attestations are not a JSON array"},
		"an empty array":          {[]byte("[]"), "the sidecar has 0 attestations"},
		"garbled":                 {good[:len(good)/2], "the attestations are not a JSON array"},
		"large":                   {make([]byte, maxSidecar+1), "larger than"},
		"many":                    {[]byte("[" + strings.Repeat("1,", 200) + "1]"), "the sidecar has 201 attestations"},
	} {
		if _, err := p.Verify(c.sidecar, u, file, digest); (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

func TestDecode(t *testing.T) {
	type value struct {
		N integer        `json:"n"`
		L []*value       `json:"l"`
		B octets         `json:"b"`
		M map[string]any `json:"m"`
	}
	for text, want := range map[string]string{
		`{"n": "-7", "b": "AA==", "m": {"x": [null, {"y": 1e40}]}, "l": [{"n": 8}]}`: "",
		`{"n": 1, "N": 2}`:           `the field "N" is unknown`,
		`{"N": 1}`:                   `the field "N" is unknown`,
		`{"l": [{"k": 1}]}`:          `the field "k" is unknown`,
		`{"n": 1, "n": 1}`:           `the field "n" is unknown or occurs twice`,
		`{"m": {"a": 1, "a": 1}}`:    `the field "a" is unknown or occurs twice`,
		`{"m": {"a": "\ud800"}}`:     "not UTF-8",
		"{\"m\": {\"a\": \"\xff\"}}": "not UTF-8",
		`{"l": [null]}`:              "a list has a null",
		`{"n": "+7"}`:                `"+7" is not a number`,
		`{"n": "07"}`:                `"07" is not a number`,
		`{"b": "AA\n=="}`:            "has a line break",
		`{} {}`:                      "after top-level value",
	} {
		if err := decode([]byte(text), &value{}); (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

func TestPolicy(t *testing.T) {
	s := condatest.NewSigstore(t)
	bundle := sidecar(s.Attest(t, valid()))
	for _, c := range []struct{ name, rules, u, err string }{
		{"another rule", "- {channel: " + channel + ", identity: x, issuer: y}\n- {channel: " + channel + ", identity: " + signer + ", issuer: " + issuer + "}\n", channel, ""},
		{"a copy", "- {channel: 'file:///srv/lab/', identity: '*', issuer: " + issuer + ", target: " + channel + "}\n", "file:///srv/lab", ""},
		{"a copy without target", "- {channel: 'file:///srv/lab/', identity: '*', issuer: " + issuer + "}\n", "file:///srv/lab", "not \"file:///srv/lab\""},
		{"all channels", "- {channel: '*', identity: '*', issuer: " + issuer + "}\n", "https://any.example", ""},
		{"all other channels", "- {channel: '*', identity: '*', issuer: " + issuer + "}\n- {channel: " + channel + ", identity: x, issuer: y}\n", channel, "does not accept"},
		{"a pattern of issuers", "- {channel: " + channel + ", identity: '*', issuer: '*'}\n", channel, "does not accept"},
	} {
		p, err := newPolicy(t, s, c.rules)
		if err == nil && !p.Covers(c.u) {
			err = fmt.Errorf("%s is not covered", c.u)
		}
		if err == nil {
			_, err = p.Verify(bundle, c.u, file, digest)
		}
		if (c.err == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v; want %q", c.name, err, c.err)
		}
	}
	p, err := newPolicy(t, s, "")
	testenv.Check(t, err)
	for u, want := range map[string]bool{channel: true, channel + "/label/dev": true, "HTTPS://C.example:443/x/../lab/": true, "https://c.example/l%61b": true,
		"http://c.example/lab": false, channel + "oratory": false, "https://d.example/lab": false} {
		if p.Covers(u) != want {
			t.Errorf("Covers(%s) = %v", u, !want)
		}
	}
}

func TestPolicyRefused(t *testing.T) {
	dir := t.TempDir()
	testenv.Write(t, filepath.Join(dir, "root.json"), `{"mediaType": "`+rootMediaType+`"}`)
	testenv.Write(t, filepath.Join(dir, "bad.json"), "{")
	const rule = "channels: [{channel: https://c, identity: i, issuer: s}]\n"
	for text, want := range map[string]string{
		"":                                 "it has no channels",
		"x":                                "line 1: cannot unmarshal",
		"trusted_root: r\nrules: 1":        "line 2: field rules not found",
		rule:                               "it has no trusted_root",
		"trusted_root: none\n" + rule:      "no such file",
		"trusted_root: root.json\n" + rule: "root.json: it lacks a certificate authority",
		"trusted_root: bad.json\n" + rule:  "bad.json: unexpected EOF",
		"trusted_root: root.json\nchannels: [{channel: https://c}]":                 "line 2: the entry needs channel, identity and issuer",
		"trusted_root: root.json\nchannels: [{channel: c, identity: i, issuer: s}]": `channel "c" is not a URL or *`,
	} {
		f := filepath.Join(dir, "trust.yaml")
		testenv.Write(t, f, text)
		_, err := ReadPolicies(func(string) string { return f })
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), f) || strings.Contains(err.Error(), "in type") {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	if _, err := ReadPolicies(func(string) string { return filepath.Join(dir, "none") }); err == nil {
		t.Error("HPCC_TRUST names a missing file: no error")
	}
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	none := func(string) string { return "" }
	if all, err := ReadPolicies(none); err != nil || len(all) != 0 {
		t.Errorf("without files: %v, %v", all, err)
	}
	s := condatest.NewSigstore(t)
	testenv.Check(t, os.MkdirAll(filepath.Join(home, "hpcc"), 0o700))
	testenv.Write(t, filepath.Join(home, "hpcc", "root.json"), s.TrustedRoot(t))
	testenv.Write(t, filepath.Join(home, "hpcc", "trust.yaml"), "trusted_root: root.json\n"+rule)
	if all, err := ReadPolicies(none); err != nil || len(all) != 1 {
		t.Errorf("the user's file: %v, %v", all, err)
	}
}

// FuzzVerify verifies changed attestations. No change of a valid one makes it valid for another
// file.
func FuzzVerify(f *testing.F) {
	s := condatest.NewSigstore(f)
	p, err := newPolicy(f, s, "")
	testenv.Check(f, err)
	f.Add(sidecar(s.Attest(f, valid())))
	real, err := os.ReadFile("testdata/actionlint-1.7.12-h60d57d3_0.conda.sigs")
	testenv.Check(f, err)
	f.Add(real)
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := p.Verify(text, channel, "other-1-0.conda", digest); err == nil {
			t.Fatalf("valid for another file: %s", text)
		}
	})
}

// FuzzRoot parses trusted roots.
func FuzzRoot(f *testing.F) {
	real, err := os.ReadFile("testdata/trusted_root.json")
	testenv.Check(f, err)
	f.Add(real)
	f.Add([]byte(`{"tlogs":[{"publicKey":{"rawBytes":"AA=="}}]}{}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := parseRoot(text); err == nil && (len(r.logs) == 0 || len(r.authorities) == 0) {
			t.Fatalf("an incomplete root is accepted: %s", text)
		}
	})
}

// FuzzPolicy parses policies.
func FuzzPolicy(f *testing.F) {
	root, err := filepath.Abs("testdata/trusted_root.json")
	testenv.Check(f, err)
	f.Add("- {channel: https://c, identity: a*b, issuer: s}")
	f.Add("- &a {channel: '*', identity: '*', issuer: '*', target: x}\n- *a")
	f.Fuzz(func(t *testing.T, rules string) {
		p, err := parsePolicy("trust.yaml", []byte("trusted_root: "+root+"\nchannels:\n"+rules))
		if err != nil {
			return
		}
		for _, r := range p.rules {
			if r.accepts(identity{name: "x", issuer: "y"}) && r.Issuer != "y" {
				t.Fatalf("%+v accepts another issuer", r)
			}
		}
	})
}
