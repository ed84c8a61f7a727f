package trust

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A bundle is an attestation with what its verification needs (sigstore's protobuf-specs,
// Bundle, versions 0.1 to 0.3).
type bundle struct {
	MediaType string `json:"mediaType"`
	Material  struct {
		Certificate rawBytes `json:"certificate"`
		Chain       struct {
			Certificates []rawBytes `json:"certificates"`
		} `json:"x509CertificateChain"` // before version 0.3
		Entries    []entry `json:"tlogEntries"`
		Timestamps struct {
			RFC3161 []struct {
				Signed []byte `json:"signedTimestamp"`
			} `json:"rfc3161Timestamps"`
		} `json:"timestampVerificationData"`
	} `json:"verificationMaterial"`
	Envelope struct {
		Type       string `json:"payloadType"`
		Payload    []byte `json:"payload"`
		Signatures []struct {
			Sig []byte `json:"sig"`
		} `json:"signatures"`
	} `json:"dsseEnvelope"`
}

// An integer is a 64-bit number, which protobuf's JSON writes as text.
type integer int64

func (n *integer) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseInt(strings.Trim(string(b), `"`), 10, 64)
	*n = integer(v)
	return err
}

// The kinds of an envelope and its payload.
const (
	mediaType     = "application/vnd.dev.sigstore.bundle"
	payloadType   = "application/vnd.in-toto+json"
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://schemas.conda.org/attestations-publish-1.schema.json"
)

// parseBundle parses a bundle and checks that it has the parts of a signed statement.
func parseBundle(text []byte) (*bundle, error) {
	b := &bundle{}
	if err := json.Unmarshal(text, b); err != nil {
		return nil, fmt.Errorf("it is not a Sigstore bundle: %w", err)
	}
	if len(b.Material.Certificate.Raw) == 0 && len(b.Material.Chain.Certificates) > 0 {
		b.Material.Certificate = b.Material.Chain.Certificates[0]
	}
	switch {
	case !strings.HasPrefix(b.MediaType, mediaType):
		return nil, fmt.Errorf("it is not a Sigstore bundle: its media type is %.100q", b.MediaType)
	case len(b.Material.Certificate.Raw) == 0:
		return nil, errors.New("it has no certificate")
	case b.Envelope.Type != payloadType || len(b.Envelope.Signatures) != 1:
		return nil, fmt.Errorf("it has the payload %.100q with %d signatures; want %s with one", b.Envelope.Type, len(b.Envelope.Signatures), payloadType)
	}
	return b, nil
}

// signature returns the signature of the envelope.
func (b *bundle) signature() []byte { return b.Envelope.Signatures[0].Sig }

// message returns the bytes that are signed (DSSE's pre-authentication encoding).
func (b *bundle) message() []byte {
	head := fmt.Sprintf("DSSEv1 %d %s %d ", len(b.Envelope.Type), b.Envelope.Type, len(b.Envelope.Payload))
	return append([]byte(head), b.Envelope.Payload...)
}

// published checks that the statement is about the publication of a file with a hexadecimal
// SHA-256 (CEP 27). It returns the channel in the statement, or "".
func (b *bundle) published(file, sha256 string) (target string, err error) {
	var s struct {
		Type      string `json:"_type"`
		Predicate *struct {
			Target string `json:"targetChannel"`
		} `json:"predicate"`
		PredicateType string `json:"predicateType"`
		Subject       []struct {
			Name   string            `json:"name"`
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	if err := json.Unmarshal(b.Envelope.Payload, &s); err != nil {
		return "", fmt.Errorf("reading the statement: %w", err)
	}
	switch {
	case s.Type != statementType || s.PredicateType != predicateType:
		return "", fmt.Errorf("the statement has the type %.100q and predicate %.100q; want a publication (CEP 27)", s.Type, s.PredicateType)
	case len(s.Subject) != 1:
		return "", fmt.Errorf("the statement has %d subjects; want one", len(s.Subject))
	case s.Subject[0].Name != file:
		return "", fmt.Errorf("the statement is about %.200q, not %s", s.Subject[0].Name, file)
	case len(s.Subject[0].Digest) != 1 || s.Subject[0].Digest["sha256"] != sha256:
		return "", fmt.Errorf("the statement is about a file with the SHA-256 %.64q; the package has %s", s.Subject[0].Digest["sha256"], sha256)
	case s.Predicate == nil:
		return "", nil
	case s.Predicate.Target == "":
		return "", errors.New("the statement has no targetChannel")
	}
	return strings.TrimRight(s.Predicate.Target, "/"), nil
}
