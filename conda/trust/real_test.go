package trust

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/testenv"
)

// The publication of prefix.dev's channel github-releases in testdata.
const (
	realChannel = "https://prefix.dev/github-releases"
	realFile    = "actionlint-1.7.12-h60d57d3_0.conda"
	realDigest  = "e3e0f35dec5b09b18baac8729d14115903b5adfd25065f8bbb90a2b3be5401e4"
	realSigner  = "https://github.com/hunger/octoconda/.github/workflows/octoconda.yaml@refs/heads/main"
	realIssuer  = "https://token.actions.githubusercontent.com"
)

// TestReal verifies an attestation of prefix.dev's channel github-releases, and changes of it.
func TestReal(t *testing.T) {
	text, err := os.ReadFile("testdata/" + realFile + ".sigs")
	testenv.Check(t, err)
	root, err := filepath.Abs("testdata/trusted_root.json")
	testenv.Check(t, err)
	p, err := parsePolicy("trust.yaml", fmt.Appendf(nil, "trusted_root: %s\nchannels:\n- {channel: %s/, identity: 'https://github.com/hunger/octoconda/*@refs/heads/main', issuer: %s}\n", root, realChannel, realIssuer))
	testenv.Check(t, err)
	if got, err := p.Verify(text, realChannel, realFile, realDigest); got != realSigner || err != nil {
		t.Errorf("Verify = %q, %v; want %q", got, err, realSigner)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"integratedTime": "1774925911"`, `"integratedTime": "1774925912"`, "the log's signature of the entry is invalid"},
		{`"logIndex": "1202156555"`, `"logIndex": "1"`, "the log's signature of the entry is invalid"},
		{`"logIndex": "1080252293"`, `"logIndex": "1080252292"`, "the log does not have this entry"},
		{"VUMEFmK1", "VUMEFmK2", "the log does not have this entry"},
		{"1080252294\\n", "1080252295\\n", "the checkpoint of log rekor.sigstore.dev is invalid"},
		{"ClAKBoxY", "ClAKBoxZ", "the signature is invalid"},
		{"cmVmaXguZGV2", "cmVmaXguZGV3", "the signature is invalid"}, // prefix.dev in the payload
	} {
		changed := strings.Replace(string(text), c.old, c.new, 1)
		if changed == string(text) {
			t.Fatalf("the attestation does not contain %q", c.old)
		}
		if got, err := p.Verify([]byte(changed), realChannel, realFile, realDigest); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %q: %q, %v; want %q", c.new, got, err, c.want)
		}
	}
}

// TestRealTimestamp verifies the timestamp of the attestation, which proves its time where a log
// does not.
func TestRealTimestamp(t *testing.T) {
	text, err := os.ReadFile("testdata/actionlint-1.7.12-h60d57d3_0.conda.sigs")
	testenv.Check(t, err)
	rootText, err := os.ReadFile("testdata/trusted_root.json")
	testenv.Check(t, err)
	root, err := parseRoot(rootText)
	testenv.Check(t, err)
	var raw []json.RawMessage
	testenv.Check(t, json.Unmarshal(text, &raw))
	b, err := parseBundle(raw[0])
	testenv.Check(t, err)
	stamp := b.Material.Timestamps.RFC3161[0].Signed
	at, err := root.verifyTimestamp(stamp, b.signature())
	if err != nil || at.UTC().Format(time.RFC3339) != "2026-03-31T02:58:32Z" {
		t.Errorf("verifyTimestamp = %v, %v", at, err)
	}
	if _, err := root.verifyTimestamp(stamp, b.message()); err == nil || !strings.Contains(err.Error(), "about another signature") {
		t.Errorf("another message: %v", err)
	}
	b.Material.Entries[0].Promise.Signature = nil
	if _, err := root.verify(b); err != nil {
		t.Errorf("without the log's time: %v", err)
	}
	if _, err := root.verifyTimestamp(append(stamp[:len(stamp):len(stamp)], 0), b.signature()); err == nil || !strings.Contains(err.Error(), "data follows") {
		t.Errorf("with another byte: %v", err)
	}
	// No change of a byte, nor a shorter text, is valid with another time.
	for i := 0; i < len(stamp); i += 7 {
		for _, changed := range [][]byte{append(append(append([]byte{}, stamp[:i]...), stamp[i]^1), stamp[i+1:]...), stamp[:i]} {
			if got, err := root.verifyTimestamp(changed, b.signature()); err == nil && !got.Equal(at) {
				t.Errorf("byte %d changed: the time %v is valid", i, got)
			}
		}
	}
	root.timestamps[0].valid.Start = at.Add(1)
	if _, err := root.verifyTimestamp(stamp, b.signature()); err == nil || !strings.Contains(err.Error(), "no timestamp authority") {
		t.Errorf("before the authority was valid: %v", err)
	}
}

// FuzzTimestamp verifies changed timestamps.
func FuzzTimestamp(f *testing.F) {
	text, err := os.ReadFile("testdata/actionlint-1.7.12-h60d57d3_0.conda.sigs")
	testenv.Check(f, err)
	rootText, err := os.ReadFile("testdata/trusted_root.json")
	testenv.Check(f, err)
	root, err := parseRoot(rootText)
	testenv.Check(f, err)
	var raw []json.RawMessage
	testenv.Check(f, json.Unmarshal(text, &raw))
	b, err := parseBundle(raw[0])
	testenv.Check(f, err)
	f.Add([]byte(b.Material.Timestamps.RFC3161[0].Signed))
	f.Fuzz(func(t *testing.T, stamp []byte) {
		if at, err := root.verifyTimestamp(stamp, b.signature()); err == nil && at.UTC().Format(time.RFC3339) != "2026-03-31T02:58:32Z" {
			t.Fatalf("the time %v is valid", at)
		}
	})
}

// TestRealRekor2 verifies an entry of a log of Rekor 2 of Sigstore's staging instance, for an
// attestation of a conda package.
func TestRealRekor2(t *testing.T) {
	text, err := os.ReadFile("testdata/rekor2.sigstore.json")
	testenv.Check(t, err)
	b, err := parseBundle(text)
	testenv.Check(t, err)
	e := &b.Material.Entries[0]
	key, err := base64.StdEncoding.DecodeString("lD3dVc8yaP25mPtT/sJ59D3LLxGBgW/qYrM6x6KmOqk=")
	testenv.Check(t, err)
	root := &trustedRoot{logs: map[string]logKey{string(e.LogID.Key): {id: e.LogID.Key, host: "log2025-alpha3.rekor.sigstage.dev", key: ed25519.PublicKey(key)}}}
	if at, err := root.verifyEntry(e, b); err != nil || !at.IsZero() {
		t.Errorf("verifyEntry = %v, %v; want no time", at, err)
	}
	if target, err := b.published("signed-package-2.1.0-hb0f4dca_0.conda", "54303491a8418fbed24344b513546182c29b43bf282ceb433af65e2299f9271f"); err != nil || target != "https://example.com/my-channel" {
		t.Errorf("published = %q, %v", target, err)
	}
	e.Index--
	e.Proof.Index--
	if _, err := root.verifyEntry(e, b); err == nil || !strings.Contains(err.Error(), "does not have this entry") {
		t.Errorf("another position: %v", err)
	}
	b.Envelope.Payload = append(b.Envelope.Payload, ' ')
	if _, err := root.verifyEntry(e, b); err == nil || !strings.Contains(err.Error(), "about another signature") {
		t.Errorf("another payload: %v", err)
	}
}

// TestRealStaging verifies the signer of a bundle of Sigstore's staging instance, with a log of
// Rekor 2 and a timestamp. A key of its trusted root is an RSA key.
func TestRealStaging(t *testing.T) {
	text, err := os.ReadFile("testdata/staging_root.json")
	testenv.Check(t, err)
	root, err := parseRoot(text)
	testenv.Check(t, err)
	text, err = os.ReadFile("testdata/slsa-rekor2.sigstore.json")
	testenv.Check(t, err)
	b, err := parseBundle(text)
	testenv.Check(t, err)
	if who, err := root.verify(b); err != nil || !strings.HasPrefix(who.name, "https://github.com/sigstore-conformance/") || who.issuer != realIssuer {
		t.Errorf("verify = %+v, %v", who, err)
	}
	b.Material.Timestamps.RFC3161 = nil
	if _, err := root.verify(b); err == nil || !strings.Contains(err.Error(), "nothing proves the time") {
		t.Errorf("without a timestamp: %v", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	testenv.Check(t, err)
	sum := sha256.Sum256(text)
	sig, err := key.Sign(nil, sum[:], crypto.SHA256)
	testenv.Check(t, err)
	if !signed(key.Public(), text, sig) || signed(key.Public(), text[1:], sig) {
		t.Error("signed with an RSA key")
	}
}
