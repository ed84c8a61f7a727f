package trust

import (
	"errors"
	"fmt"
	"strings"
)

// A bundle is an attestation with what its verification needs (sigstore's protobuf-specs,
// Bundle, versions 0.1 to 0.3).
type bundle struct {
	MediaType string `json:"mediaType"`
	Material  struct {
		Certificate *rawBytes `json:"certificate"`
		Chain       *struct {
			Certificates []rawBytes `json:"certificates"`
		} `json:"x509CertificateChain"` // before version 0.3
		Entries    []entry `json:"tlogEntries"`
		Timestamps struct {
			RFC3161 []struct {
				Signed octets `json:"signedTimestamp"`
			} `json:"rfc3161Timestamps"`
		} `json:"timestampVerificationData"`
	} `json:"verificationMaterial"`
	Envelope struct {
		Type       string `json:"payloadType"`
		Payload    octets `json:"payload"`
		Signatures []struct {
			Sig   octets `json:"sig"`
			KeyID string `json:"keyid"`
		} `json:"signatures"`
	} `json:"dsseEnvelope"`
	certificate []byte // of the signer
}

// The kinds of an envelope and its payload.
const (
	payloadType   = "application/vnd.in-toto+json"
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://schemas.conda.org/attestations-publish-1.schema.json"
)

// versions are the media types of a bundle. The value is the version, as 1, 2 or 3.
var versions = map[string]int{
	"application/vnd.dev.sigstore.bundle+json;version=0.1": 1,
	"application/vnd.dev.sigstore.bundle+json;version=0.2": 2,
	"application/vnd.dev.sigstore.bundle+json;version=0.3": 3,
	"application/vnd.dev.sigstore.bundle.v0.3+json":        3,
}

// parseBundle parses a bundle and checks that it has the parts of a signed statement.
func parseBundle(text []byte) (*bundle, error) {
	b := &bundle{}
	if err := decode(text, b); err != nil {
		return nil, fmt.Errorf("it is not a Sigstore bundle: %w", err)
	}
	version, known := versions[b.MediaType]
	m := b.Material
	switch {
	case !known:
		return nil, fmt.Errorf("it is not a Sigstore bundle of version 0.1 to 0.3: its media type is %.100q", b.MediaType)
	case m.Certificate != nil && m.Chain != nil, m.Chain != nil && version == 3:
		return nil, errors.New("it has a chain of certificates besides or in place of a certificate")
	case m.Certificate != nil:
		b.certificate = m.Certificate.Raw
	case m.Chain != nil && len(m.Chain.Certificates) > 0:
		b.certificate = m.Chain.Certificates[0].Raw
	}
	switch {
	case len(b.certificate) == 0:
		return nil, errors.New("it has no certificate")
	case b.Envelope.Type != payloadType || len(b.Envelope.Signatures) != 1:
		return nil, fmt.Errorf("it has the payload %.100q with %d signatures; want %s with one", b.Envelope.Type, len(b.Envelope.Signatures), payloadType)
	}
	for _, e := range m.Entries {
		switch {
		case len(e.Promise.Signature) == 0 && e.Proof == nil:
			return nil, errors.New("the log entry has neither a promise nor a proof of inclusion")
		case version == 1 && len(e.Promise.Signature) == 0:
			return nil, errors.New("the log entry has no promise of inclusion, which version 0.1 needs")
		case version > 1 && e.Proof == nil:
			return nil, errors.New("the log entry has no proof of inclusion, which versions 0.2 and 0.3 need")
		case e.Kind == nil:
			return nil, errors.New("the log entry has no kind")
		}
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
		Type          string         `json:"_type"`
		Predicate     map[string]any `json:"predicate"`
		PredicateType string         `json:"predicateType"`
		Subject       []struct {
			Name   string            `json:"name"`
			Digest map[string]string `json:"digest"`

			URI         string         `json:"uri"` // the rest is not used
			Content     octets         `json:"content"`
			Location    string         `json:"downloadLocation"`
			MediaType   string         `json:"mediaType"`
			Annotations map[string]any `json:"annotations"`
		} `json:"subject"`
	}
	if err := decode(b.Envelope.Payload, &s); err != nil {
		return "", fmt.Errorf("reading the statement: %w", err)
	}
	target, _ = s.Predicate["targetChannel"].(string)
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
	case target == "":
		return "", errors.New("the statement has no targetChannel")
	}
	return strings.TrimRight(target, "/"), nil
}
