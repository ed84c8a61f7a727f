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
	"slices"
	"time"
)

// Object identifiers of timestamps (RFC 3161), their envelopes (RFC 5652) and algorithms.
var (
	signedDataType = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	timestampType  = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 16, 1, 4}
	contentTypeID  = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 3}
	keyUsageID     = asn1.ObjectIdentifier{2, 5, 29, 37} // extended
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
	Version int
	ID      struct {
		Issuer asn1.RawValue
		Serial *big.Int
	}
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
	if err = unmarshalAll(response, &r); err == nil && (r.Status.Code != 0 || !r.Token.Type.Equal(signedDataType)) {
		err = errors.New("it has no token")
	}
	if err == nil {
		err = unmarshalAll(r.Token.Content.Bytes, &d)
	}
	if err == nil && (!d.Content.Type.Equal(timestampType) || len(d.Signers) != 1) {
		err = errors.New("the token is not a timestamp with one signature")
	}
	if err == nil {
		_, err = asn1.Unmarshal(d.Content.Text, &info) // the rest is optional
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
		c := s.signer(a.list[0], embedded)
		if c == nil || !a.valid.contains(info.Time) {
			continue
		}
		_, err := c.Verify(x509.VerifyOptions{Roots: a.roots, Intermediates: a.intermediates, CurrentTime: info.Time, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageTimeStamping}})
		if err == nil && c.CheckSignature(signatures[s.Algorithm.Algorithm.String()], text, s.Signature) == nil {
			return info.Time, nil
		}
	}
	return at, errors.New("no timestamp authority of the trusted root signed the timestamp")
}

// signer returns the certificate of the signer, or nil. It is the first one of the authority, or an
// embedded one if the authority has only those of its issuers. It is only for timestamps (RFC 3161,
// section 2.3).
func (s signerInfo) signer(first *x509.Certificate, embedded []*x509.Certificate) *x509.Certificate {
	candidates := embedded
	if !first.IsCA && len(embedded) == 0 {
		candidates = []*x509.Certificate{first}
	}
	for _, c := range candidates {
		if !bytes.Equal(c.RawIssuer, s.ID.Issuer.FullBytes) || c.SerialNumber.Cmp(s.ID.Serial) != 0 || (!first.IsCA && !c.Equal(first)) {
			continue
		}
		critical := slices.ContainsFunc(c.Extensions, func(x pkix.Extension) bool { return x.Id.Equal(keyUsageID) && x.Critical })
		if !c.IsCA && critical && slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageTimeStamping}) && len(c.UnknownExtKeyUsage) == 0 {
			return c
		}
	}
	return nil
}

// unmarshalAll decodes a value that fills a text.
func unmarshalAll(text []byte, v any) error {
	rest, err := asn1.Unmarshal(text, v)
	if err == nil && len(rest) > 0 {
		err = errors.New("data follows its end")
	}
	return err
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
