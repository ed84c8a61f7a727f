package trust

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Object identifiers of timestamps (RFC 3161), their envelopes (RFC 5652) and algorithms.
var (
	signedDataType = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	timestampType  = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 16, 1, 4}
	contentTypeID  = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 3}
	digestID       = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 4}

	hashes = map[string]crypto.Hash{"2.16.840.1.101.3.4.2.1": crypto.SHA256, "2.16.840.1.101.3.4.2.2": crypto.SHA384, "2.16.840.1.101.3.4.2.3": crypto.SHA512}

	signatures = map[string]x509.SignatureAlgorithm{
		"1.2.840.10045.4.3.2": x509.ECDSAWithSHA256, "1.2.840.10045.4.3.3": x509.ECDSAWithSHA384, "1.2.840.10045.4.3.4": x509.ECDSAWithSHA512,
		"1.2.840.113549.1.1.11": x509.SHA256WithRSA, "1.2.840.113549.1.1.12": x509.SHA384WithRSA, "1.2.840.113549.1.1.13": x509.SHA512WithRSA,
	}
)

// A timeResponse is the answer of a timestamp authority.
type timeResponse struct {
	Status struct{ Code int }
	Token  struct {
		Type    asn1.ObjectIdentifier
		Content asn1.RawValue `asn1:"explicit,tag:0"`
	}
}

// signedData is the content of a token.
type signedData struct {
	Version int
	Digests asn1.RawValue
	Content struct {
		Type asn1.ObjectIdentifier
		Text []byte `asn1:"explicit,tag:0"`
	}
	Certificates asn1.RawValue `asn1:"optional,tag:0"`
	Revoked      asn1.RawValue `asn1:"optional,tag:1"`
	Signers      []signerInfo  `asn1:"set"`
}

type signerInfo struct {
	Version    int
	ID         asn1.RawValue
	Digest     pkix.AlgorithmIdentifier
	Attributes asn1.RawValue `asn1:"tag:0"`
	Algorithm  pkix.AlgorithmIdentifier
	Signature  []byte
}

// timeInfo is the signed text of a token.
type timeInfo struct {
	Version int
	Policy  asn1.ObjectIdentifier
	Imprint struct {
		Algorithm pkix.AlgorithmIdentifier
		Hash      []byte
	}
	Serial *big.Int
	Time   time.Time `asn1:"generalized"`
}

// verifyTimestamp verifies that an authority of the trusted root signed the time of a message. It
// returns the time.
func (t *trustedRoot) verifyTimestamp(response, message []byte) (at time.Time, err error) {
	var r timeResponse
	var d signedData
	var info timeInfo
	if _, err = asn1.Unmarshal(response, &r); err == nil && (r.Status.Code > 1 || !r.Token.Type.Equal(signedDataType)) {
		err = errors.New("it has no token")
	}
	if err == nil {
		_, err = asn1.Unmarshal(r.Token.Content.Bytes, &d)
	}
	if err == nil && (!d.Content.Type.Equal(timestampType) || len(d.Signers) != 1) {
		err = errors.New("the token is not a timestamp with one signature")
	}
	if err == nil {
		_, err = asn1.Unmarshal(d.Content.Text, &info)
	}
	if err != nil {
		return at, fmt.Errorf("reading the timestamp: %w", err)
	}
	s := d.Signers[0]
	sum, err := digestOf(info.Imprint.Algorithm, message)
	if err != nil || !bytes.Equal(sum, info.Imprint.Hash) {
		return at, errors.New("the timestamp is about another signature")
	}
	if err := s.attests(d.Content.Text); err != nil {
		return at, err
	}
	embedded, err := x509.ParseCertificates(d.Certificates.Bytes)
	if err != nil {
		return at, fmt.Errorf("reading the certificates of the timestamp: %w", err)
	}
	// The attributes are signed as a SET, but stored with another tag.
	text := append([]byte{asn1.TagSet | 0x20}, s.Attributes.FullBytes[1:]...)
	for _, a := range t.timestamps {
		for _, c := range append(embedded, a.list...) {
			_, err := c.Verify(x509.VerifyOptions{Roots: a.roots, Intermediates: a.intermediates, CurrentTime: info.Time, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageTimeStamping}})
			if err == nil && a.valid.contains(info.Time) && c.CheckSignature(signatures[s.Algorithm.Algorithm.String()], text, s.Signature) == nil {
				return info.Time, nil
			}
		}
	}
	return at, errors.New("no timestamp authority of the trusted root signed the timestamp")
}

// digestOf returns the digest of a text.
func digestOf(a pkix.AlgorithmIdentifier, text []byte) ([]byte, error) {
	h, known := hashes[a.Algorithm.String()]
	if !known {
		return nil, fmt.Errorf("unknown digest algorithm %s", a.Algorithm)
	}
	w := h.New()
	_, _ = w.Write(text)
	return w.Sum(nil), nil
}

// attests checks that the signed attributes name the type and the digest of a content.
func (s signerInfo) attests(content []byte) error {
	sum, err := digestOf(s.Digest, content)
	if err != nil {
		return err
	}
	var kind, same bool
	for rest := s.Attributes.Bytes; len(rest) > 0; {
		var a struct {
			Type  asn1.ObjectIdentifier
			Value asn1.RawValue `asn1:"set"`
		}
		if rest, err = asn1.Unmarshal(rest, &a); err != nil {
			return fmt.Errorf("reading the attributes of the timestamp: %w", err)
		}
		var id asn1.ObjectIdentifier
		var hash []byte
		switch {
		case a.Type.Equal(contentTypeID):
			_, err := asn1.Unmarshal(a.Value.Bytes, &id)
			kind = err == nil && id.Equal(timestampType)
		case a.Type.Equal(digestID):
			_, err := asn1.Unmarshal(a.Value.Bytes, &hash)
			same = err == nil && bytes.Equal(hash, sum)
		}
	}
	if !kind || !same {
		return errors.New("the signature of the timestamp is about another content")
	}
	return nil
}
