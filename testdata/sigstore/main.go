// Command sigstore verifies Sigstore bundles with sigstore-go, as a second opinion on
// conda/trust. It reads cases as JSON values from standard input, and writes a verdict for each.
// It is a module of its own, because sigstore-go is not a dependency of hpcc.
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
)

// A testCase is a bundle, and the file and signer that it should be about.
type testCase struct {
	Root     []byte // trusted_root.json
	Bundle   []byte
	SHA256   string // of the file, hexadecimal
	Identity string // regular expression
	Issuer   string
}

// A verdict is empty for an accepted bundle.
type verdict struct {
	Refused string // the reason
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c testCase
		err := in.Decode(&c)
		if err == io.EOF {
			return
		}
		if err == nil {
			var v verdict
			if reason := c.check(); reason != nil {
				v.Refused = reason.Error()
			}
			err = out.Encode(v)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "sigstore:", err)
			os.Exit(1)
		}
	}
}

// check verifies a case with the requirements of conda/trust: the certificate is in a log of
// certificates, the signature is in a transparency log, and a log or an authority proves its time.
func (c testCase) check() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("sigstore-go panics: %v", r)
		}
	}()
	trusted, err := root.NewTrustedRootFromJSON(c.Root)
	if err != nil {
		return fmt.Errorf("trusted root: %w", err)
	}
	var b bundle.Bundle
	if err := b.UnmarshalJSON(c.Bundle); err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	verifier, err := verify.NewVerifier(trusted, verify.WithSignedCertificateTimestamps(1), verify.WithTransparencyLog(1), verify.WithObserverTimestamps(1))
	if err != nil {
		return err
	}
	digest, err := hex.DecodeString(c.SHA256)
	if err != nil {
		return err
	}
	signer, err := verify.NewShortCertificateIdentity(c.Issuer, "", "", c.Identity)
	if err != nil {
		return err
	}
	_, err = verifier.Verify(&b, verify.NewPolicy(verify.WithArtifactDigest("sha256", digest), verify.WithCertificateIdentity(signer)))
	return err
}
