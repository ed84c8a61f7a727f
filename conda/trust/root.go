package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"
)

// A trustedRoot has the keys of a Sigstore instance.
type trustedRoot struct {
	logs, certificateLogs map[string]logKey // by key ID
	authorities           []authority
	timestamps            []authority
}

// A logKey verifies the signatures of a log.
type logKey struct {
	id    []byte
	host  string
	key   crypto.PublicKey
	valid span
}

// An authority issues certificates.
type authority struct {
	list                 []*x509.Certificate
	roots, intermediates *x509.CertPool
	valid                span
}

// A span is a period of time. A zero time is unlimited.
type span struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
}

func (s span) contains(t time.Time) bool {
	return !t.Before(s.Start) && (s.End.IsZero() || !t.After(s.End))
}

// rawBytes is a certificate in DER.
type rawBytes struct {
	Raw octets `json:"rawBytes"`
}

// rootFile is the JSON form of a trusted root (sigstore's protobuf-specs, TrustedRoot).
type rootFile struct {
	MediaType       string          `json:"mediaType"`
	Logs            []rootLog       `json:"tlogs"`
	CertificateLogs []rootLog       `json:"ctlogs"`
	Authorities     []rootAuthority `json:"certificateAuthorities"`
	TimeAuthorities []rootAuthority `json:"timestampAuthorities"`
}

type rootLog struct {
	BaseURL string `json:"baseUrl"`
	Hash    string `json:"hashAlgorithm"`
	Key     struct {
		Raw   octets `json:"rawBytes"`
		Kind  string `json:"keyDetails"`
		Valid span   `json:"validFor"`
	} `json:"publicKey"`
	ID         keyID  `json:"logId"`
	Checkpoint keyID  `json:"checkpointKeyId"`
	Operator   string `json:"operator"`
}

type keyID struct {
	Key octets `json:"keyId"`
}

type rootAuthority struct {
	Subject struct {
		Organization string `json:"organization"`
		CommonName   string `json:"commonName"`
	} `json:"subject"`
	URI   string `json:"uri"`
	Chain struct {
		Certificates []rawBytes `json:"certificates"`
	} `json:"certChain"`
	Valid    span   `json:"validFor"`
	Operator string `json:"operator"`
}

// rootMediaType is the media type of a trusted root.
const rootMediaType = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"

// parseRoot parses one or more trusted roots, one after another.
func parseRoot(text []byte) (*trustedRoot, error) {
	t := &trustedRoot{logs: map[string]logKey{}, certificateLogs: map[string]logKey{}}
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if err == io.EOF {
			break
		}
		var f rootFile
		if err == nil {
			err = decode(raw, &f)
		}
		if err == nil {
			err = t.add(&f)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(t.logs) == 0 || len(t.authorities) == 0 || len(t.certificateLogs) == 0 {
		return nil, errors.New("it lacks a certificate authority, a certificate log or a transparency log")
	}
	return t, nil
}

func (t *trustedRoot) add(f *rootFile) error {
	if f.MediaType != rootMediaType {
		return fmt.Errorf("its media type is %.100q; want %s", f.MediaType, rootMediaType)
	}
	for _, l := range f.Logs {
		if err := l.addTo(t.logs); err != nil {
			return err
		}
	}
	for _, l := range f.CertificateLogs {
		if err := l.addTo(t.certificateLogs); err != nil {
			return err
		}
	}
	for _, a := range f.Authorities {
		got, err := a.parse()
		if err != nil {
			return err
		}
		t.authorities = append(t.authorities, got)
	}
	for _, a := range f.TimeAuthorities {
		got, err := a.parse()
		if err != nil {
			return err
		}
		t.timestamps = append(t.timestamps, got)
	}
	return nil
}

func (l rootLog) addTo(logs map[string]logKey) error {
	u, err := url.Parse(l.BaseURL)
	if err != nil {
		return fmt.Errorf("log %.100q: invalid URL", l.BaseURL)
	}
	parse := x509.ParsePKIXPublicKey
	if l.Key.Kind == oldRSA {
		parse = func(der []byte) (any, error) { return x509.ParsePKCS1PublicKey(der) }
	}
	key, err := parse(l.Key.Raw)
	if err != nil {
		return fmt.Errorf("key of log %.100q: %w", l.BaseURL, err)
	}
	switch {
	case len(l.ID.Key) < 4:
		return fmt.Errorf("log %.100q has no key ID", l.BaseURL)
	case l.Hash != "SHA2_256" || (l.Key.Kind != oldRSA && l.Key.Kind != kindOf(key)):
		return fmt.Errorf("log %.100q has a key of the kind %.50q with the hash %.50q, which is not supported", l.BaseURL, l.Key.Kind, l.Hash)
	case l.Key.Valid.Start.IsZero():
		return fmt.Errorf("the key of log %.100q does not have the time from which it is valid", l.BaseURL)
	}
	logs[string(l.ID.Key)] = logKey{id: l.ID.Key, host: u.Host, key: key, valid: l.Key.Valid}
	return nil
}

// oldRSA is the kind of an RSA key in PKCS #1, which Sigstore's staging instance has.
const oldRSA = "PKCS1_RSA_PKCS1V5"

// kindOf returns the kind of a key in trusted roots, or "-" for one that hpcc does not support.
func kindOf(key crypto.PublicKey) string {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return "PKIX_ECDSA_P256_SHA_256"
		case elliptic.P384():
			return "PKIX_ECDSA_P384_SHA_384"
		}
	case *rsa.PublicKey:
		return fmt.Sprintf("PKIX_RSA_PKCS1V15_%d_SHA256", k.N.BitLen())
	case ed25519.PublicKey:
		return "PKIX_ED25519"
	}
	return "-"
}

// parse parses the certificates of an authority; the last one is the root.
func (a rootAuthority) parse() (authority, error) {
	out := authority{roots: x509.NewCertPool(), intermediates: x509.NewCertPool(), valid: a.Valid}
	list := a.Chain.Certificates
	if len(list) == 0 {
		return out, errors.New("a certificate authority has no certificates")
	}
	for i, raw := range list {
		c, err := x509.ParseCertificate(raw.Raw)
		if err != nil {
			return out, fmt.Errorf("certificate of an authority: %w", err)
		}
		out.list = append(out.list, c)
		if i == len(list)-1 {
			out.roots.AddCert(c)
		} else {
			out.intermediates.AddCert(c)
		}
	}
	return out, nil
}

// signed reports whether sig is a signature of a message. The hash follows from the key.
func signed(key crypto.PublicKey, message, sig []byte) bool {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		switch k.Curve.Params().BitSize {
		case 256:
			sum := sha256.Sum256(message)
			return ecdsa.VerifyASN1(k, sum[:], sig)
		case 384:
			sum := sha512.Sum384(message)
			return ecdsa.VerifyASN1(k, sum[:], sig)
		}
	case *rsa.PublicKey:
		sum := sha256.Sum256(message)
		return k.N.BitLen() >= 2048 && rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], sig) == nil
	case ed25519.PublicKey:
		return len(k) == ed25519.PublicKeySize && ed25519.Verify(k, message, sig)
	}
	return false
}
