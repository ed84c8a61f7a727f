package condatest

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"testing"
	"time"

	"hpcc/testdata/testenv"
)

// A Sigstore is an instance of Sigstore: a certificate authority, a log of certificates and a
// transparency log.
type Sigstore struct {
	root, authority *x509.Certificate
	authorityKey    *ecdsa.PrivateKey
	certificates    *ecdsa.PrivateKey // of the log of certificates
	log             *ecdsa.PrivateKey
}

// A Publication is the content of an attestation (CEP 27), with changes that make it invalid.
type Publication struct {
	Identity, Issuer string
	File, SHA256     string
	Target           string    // "": no predicate
	Time             time.Time // of the signature
	Logged           time.Time // zero: Time
	NoSCT            bool
	Origin           string // first line of the log's checkpoint; "": the name and ID of its tree
	Statement        func(map[string]any)
	Payload, Body    func([]byte) []byte // change the text that the signer, and the log, signs
	Bundle           func(map[string]any)
}

// sigstoreBorn is when the keys of an instance become valid.
var sigstoreBorn = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testenv.Check(t, err)
	return k
}

func publicKey(t testing.TB, k *ecdsa.PrivateKey) (der []byte, id [32]byte) {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(k.Public())
	testenv.Check(t, err)
	return der, sha256.Sum256(der)
}

func sign(t testing.TB, k *ecdsa.PrivateKey, text []byte) []byte {
	t.Helper()
	sum := sha256.Sum256(text)
	sig, err := k.Sign(rand.Reader, sum[:], crypto.SHA256)
	testenv.Check(t, err)
	return sig
}

// certificate signs a certificate.
func certificate(t testing.TB, c, parent *x509.Certificate, key crypto.PublicKey, signer *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key, signer)
	testenv.Check(t, err)
	out, err := x509.ParseCertificate(der)
	testenv.Check(t, err)
	return out
}

// NewSigstore makes an instance with new keys.
func NewSigstore(t testing.TB) *Sigstore {
	t.Helper()
	s := &Sigstore{authorityKey: newKey(t), certificates: newKey(t), log: newKey(t)}
	rootKey := newKey(t)
	ca := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotBefore: sigstoreBorn, NotAfter: sigstoreBorn.AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	s.root = certificate(t, &ca, &ca, rootKey.Public(), rootKey)
	ca.SerialNumber, ca.Subject.CommonName, ca.ExtKeyUsage = big.NewInt(2), "authority", []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}
	s.authority = certificate(t, &ca, s.root, s.authorityKey.Public(), rootKey)
	return s
}

// TrustedRoot returns the trusted_root.json of the instance.
func (s *Sigstore) TrustedRoot(t testing.TB) []byte {
	t.Helper()
	valid := map[string]any{"start": sigstoreBorn.Format(time.RFC3339)}
	log := func(host string, k *ecdsa.PrivateKey) []any {
		der, id := publicKey(t, k)
		return []any{map[string]any{"baseUrl": "https://" + host, "hashAlgorithm": "SHA2_256", "publicKey": map[string]any{"rawBytes": der, "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": valid}, "logId": map[string]any{"keyId": id[:]}}}
	}
	b, err := json.Marshal(map[string]any{
		"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
		"tlogs":     log("log.example", s.log),
		"ctlogs":    log("ct.example", s.certificates),
		"certificateAuthorities": []any{map[string]any{"uri": "https://ca.example", "subject": map[string]any{"commonName": "root"}, "validFor": valid,
			"certChain": map[string]any{"certificates": []any{map[string]any{"rawBytes": s.authority.Raw}, map[string]any{"rawBytes": s.root.Raw}}}}},
	})
	testenv.Check(t, err)
	return b
}

// leaf issues a certificate for a key that is valid for ten minutes, with a timestamp of the log
// of certificates.
func (s *Sigstore) leaf(t testing.TB, p Publication, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	issuer, err := asn1.MarshalWithParams(p.Issuer, "utf8")
	testenv.Check(t, err)
	c := x509.Certificate{SerialNumber: big.NewInt(3), NotBefore: p.Time, NotAfter: p.Time.Add(10 * time.Minute), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}, Value: issuer}}}
	if u, err := url.Parse(p.Identity); err == nil && u.Scheme != "" {
		c.URIs = []*url.URL{u}
	} else {
		c.EmailAddresses = []string{p.Identity}
	}
	precertificate := certificate(t, &c, s.authority, key.Public(), s.authorityKey)
	if p.NoSCT {
		return precertificate
	}
	tbs := precertificate.RawTBSCertificate
	_, id := publicKey(t, s.certificates)
	authority := sha256.Sum256(s.authority.RawSubjectPublicKeyInfo)
	timestamp := binary.BigEndian.AppendUint64(nil, uint64(p.Time.UnixMilli()))
	text := append([]byte{0, 0}, timestamp...)
	text = append(append(text, 0, 1), authority[:]...)
	text = append(append(text, byte(len(tbs)>>16), byte(len(tbs)>>8), byte(len(tbs))), tbs...)
	sig := sign(t, s.certificates, append(text, 0, 0))
	sct := append(append(append([]byte{0}, id[:]...), timestamp...), 0, 0, 4, 3)
	sct = append(binary.BigEndian.AppendUint16(sct, uint16(len(sig))), sig...)
	list := binary.BigEndian.AppendUint16(nil, uint16(len(sct)+2))
	list = append(binary.BigEndian.AppendUint16(list, uint16(len(sct))), sct...)
	value, err := asn1.Marshal(list)
	testenv.Check(t, err)
	c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}, Value: value})
	return certificate(t, &c, s.authority, key.Public(), s.authorityKey)
}

// Attest returns the bundle of an attestation.
func (s *Sigstore) Attest(t testing.TB, p Publication) []byte {
	t.Helper()
	if p.Time.IsZero() {
		p.Time = sigstoreBorn.AddDate(0, 1, 0)
	}
	if p.Logged.IsZero() {
		p.Logged = p.Time.Add(time.Second)
	}
	statement := map[string]any{"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://schemas.conda.org/attestations-publish-1.schema.json",
		"subject": []any{map[string]any{"name": p.File, "digest": map[string]any{"sha256": p.SHA256}}}}
	if p.Target != "" {
		statement["predicate"] = map[string]any{"targetChannel": p.Target}
	}
	if p.Statement != nil {
		p.Statement(statement)
	}
	payload, err := json.Marshal(statement)
	testenv.Check(t, err)
	if p.Payload != nil {
		payload = p.Payload(payload)
	}
	const kind = "application/vnd.in-toto+json"
	key := newKey(t)
	sig := sign(t, key, fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(payload), payload))
	leaf := s.leaf(t, p, key)
	bundle := map[string]any{"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"certificate": map[string]any{"rawBytes": leaf.Raw}, "tlogEntries": []any{s.entry(t, leaf, payload, sig, p)}},
		"dsseEnvelope":         map[string]any{"payloadType": kind, "payload": payload, "signatures": []any{map[string]any{"sig": sig}}}}
	if p.Bundle != nil {
		p.Bundle(bundle)
	}
	b, err := json.Marshal(bundle)
	testenv.Check(t, err)
	return b
}

// entry returns the entry of the transparency log for a signature, the only one of its tree.
func (s *Sigstore) entry(t testing.TB, leaf *x509.Certificate, payload, sig []byte, p Publication) map[string]any {
	t.Helper()
	sum := sha256.Sum256(payload)
	body, err := json.Marshal(map[string]any{"apiVersion": "0.0.1", "kind": "dsse", "spec": map[string]any{
		"envelopeHash": map[string]any{"algorithm": "sha256", "value": hex.EncodeToString(sum[:])},
		"payloadHash":  map[string]any{"algorithm": "sha256", "value": hex.EncodeToString(sum[:])},
		"signatures":   []any{map[string]any{"signature": sig, "verifier": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})}},
	}})
	testenv.Check(t, err)
	if p.Body != nil {
		body = p.Body(body)
	}
	_, id := publicKey(t, s.log)
	promise := sign(t, s.log, fmt.Appendf(nil, `{"body":%q,"integratedTime":%d,"logID":"%x","logIndex":%d}`, base64.StdEncoding.EncodeToString(body), p.Logged.Unix(), id, 7))
	root := sha256.Sum256(append([]byte{0}, body...))
	note := cmp.Or(p.Origin, "log.example - 1") + "\n1\n" + base64.StdEncoding.EncodeToString(root[:]) + "\n"
	signature := base64.StdEncoding.EncodeToString(append(id[:4:4], sign(t, s.log, []byte(note))...))
	return map[string]any{"logIndex": "7", "logId": map[string]any{"keyId": id[:]}, "kindVersion": map[string]any{"kind": "dsse", "version": "0.0.1"},
		"integratedTime": fmt.Sprint(p.Logged.Unix()), "inclusionPromise": map[string]any{"signedEntryTimestamp": promise}, "canonicalizedBody": body,
		"inclusionProof": map[string]any{"logIndex": "0", "treeSize": "1", "rootHash": root[:], "hashes": []any{}, "checkpoint": map[string]any{"envelope": note + "\n\u2014 log.example " + signature + "\n"}}}
}
