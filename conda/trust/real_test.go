package trust

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/testenv"
)

// TestReal verifies an attestation of prefix.dev's channel github-releases, and changes of it.
func TestReal(t *testing.T) {
	const (
		channel = "https://prefix.dev/github-releases"
		file    = "actionlint-1.7.12-h60d57d3_0.conda"
		digest  = "e3e0f35dec5b09b18baac8729d14115903b5adfd25065f8bbb90a2b3be5401e4"
		signer  = "https://github.com/hunger/octoconda/.github/workflows/octoconda.yaml@refs/heads/main"
		issuer  = "https://token.actions.githubusercontent.com"
	)
	text, err := os.ReadFile("testdata/" + file + ".sigs")
	testenv.Check(t, err)
	root, err := filepath.Abs("testdata/trusted_root.json")
	testenv.Check(t, err)
	p, err := parsePolicy("trust.yaml", fmt.Appendf(nil, "trusted_root: %s\nchannels:\n- {channel: %s/, identity: 'https://github.com/hunger/octoconda/*@refs/heads/main', issuer: %s}\n", root, channel, issuer))
	testenv.Check(t, err)
	u := channel + "/linux-64/" + file
	if got, err := p.Verify(text, u, file, digest); got != signer || err != nil {
		t.Errorf("Verify = %q, %v; want %q", got, err, signer)
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
		if got, err := p.Verify([]byte(changed), u, file, digest); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %q: %q, %v; want %q", c.new, got, err, c.want)
		}
	}
}
