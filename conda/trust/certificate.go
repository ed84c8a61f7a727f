package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// An identity is the subject of a certificate.
type identity struct {
	name   string // a URI or an address
	issuer string // URL of the service that verified it
}

// Extensions of certificates: those of Fulcio (its docs/oid-info.md), and the timestamps of
// certificate logs (RFC 6962, section 3.3).
var (
	issuerText = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}
	issuerDER  = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}
	scts       = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}
)

// verify verifies the signature of a bundle, its certificate and its log entries. It returns the
// signer.
func (t *trustedRoot) verify(b *bundle) (who identity, err error) {
	leaf, err := x509.ParseCertificate(b.certificate)
	if err != nil {
		return who, fmt.Errorf("reading the certificate: %w", err)
	}
	if !signed(leaf.PublicKey, b.message(), b.signature()) {
		return who, errors.New("the signature is invalid")
	}
	times, err := t.times(b, leaf)
	if err != nil {
		return who, err
	}
	for _, at := range times {
		issuer, err := t.issuerOf(leaf, at)
		if err != nil {
			return who, err
		}
		if err := t.verifySCT(leaf, issuer); err != nil {
			return who, err
		}
	}
	return subject(leaf)
}

// times verifies the log entries of a bundle. It returns the times of its signature, at least one,
// that logs and authorities prove.
func (t *trustedRoot) times(b *bundle, leaf *x509.Certificate) (times []time.Time, err error) {
	entries, stamps := b.Material.Entries, b.Material.Timestamps.RFC3161
	if len(entries) == 0 || len(entries) > maxProofs || len(stamps) > maxProofs {
		return nil, fmt.Errorf("it has %d entries of a transparency log and %d timestamps; want 1 to %d and at most %d", len(entries), len(stamps), maxProofs, maxProofs)
	}
	seen := map[string]bool{}
	for i := range entries {
		e := &entries[i]
		if id := fmt.Sprintf("%x %d", e.LogID.Key, e.Index); !seen[id] {
			seen[id] = true
		} else {
			return nil, errors.New("it has an entry of a transparency log twice")
		}
		at, err := t.verifyEntry(e, b)
		if err != nil {
			return nil, err
		}
		if noted := time.Unix(int64(e.Time), 0); e.Time != 0 && (noted.Before(leaf.NotBefore) || noted.After(leaf.NotAfter)) {
			return nil, notValid(noted, errors.New("the certificate has expired or is not yet valid"))
		}
		if !at.IsZero() {
			times = append(times, at)
		}
	}
	var invalid error
	for _, s := range stamps {
		if at, err := t.verifyTimestamp(s.Signed, b.signature()); err == nil {
			times = append(times, at)
		} else {
			invalid = err
		}
	}
	switch {
	case len(times) > 0:
		return times, nil
	case invalid != nil:
		return nil, invalid
	}
	return nil, errors.New("nothing proves the time of the signature") // Rekor 2 does not record it
}

func notValid(at time.Time, err error) error {
	return fmt.Errorf("the certificate is not valid at %s, when the signature was recorded: %w", at.UTC().Format(time.RFC3339), err)
}

// issuerOf verifies that an authority issued a certificate for signatures, and that it was
// valid at a time. It returns the certificate of the issuer.
func (t *trustedRoot) issuerOf(leaf *x509.Certificate, at time.Time) (*x509.Certificate, error) {
	err := errors.New("no authority was valid")
	for _, a := range t.authorities {
		if !a.valid.contains(at) {
			continue
		}
		var chains [][]*x509.Certificate
		chains, err = leaf.Verify(x509.VerifyOptions{Roots: a.roots, Intermediates: a.intermediates, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}})
		if err == nil && len(chains[0]) > 1 {
			return chains[0][1], nil
		}
	}
	return nil, notValid(at, err)
}

// subject returns the identity in a certificate.
func subject(c *x509.Certificate) (who identity, err error) {
	switch names := len(c.URIs) + len(c.EmailAddresses); {
	case names != 1 || len(c.DNSNames)+len(c.IPAddresses) > 0:
		return who, errors.New("the certificate does not have exactly one URI or address")
	case len(c.URIs) == 1:
		who.name = c.URIs[0].String()
	default:
		who.name = c.EmailAddresses[0]
	}
	for _, x := range c.Extensions {
		switch {
		case x.Id.Equal(issuerDER):
			if rest, err := asn1.Unmarshal(x.Value, &who.issuer); err != nil || len(rest) > 0 {
				return who, errors.New("the issuer in the certificate is invalid")
			}
			return who, nil
		case x.Id.Equal(issuerText):
			who.issuer = string(x.Value)
		}
	}
	return who, nil
}

// A reader reads numbers and byte strings of TLS. After a failure, it returns zero values.
type reader struct {
	b      []byte
	failed bool
}

func (r *reader) bytes(n int) []byte {
	if r.failed = r.failed || n > len(r.b); r.failed {
		return make([]byte, min(n, 64))
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) uint16() int { return int(binary.BigEndian.Uint16(r.bytes(2))) }

// verifySCT verifies that a certificate log has the certificate (RFC 6962, section 3.2).
func (t *trustedRoot) verifySCT(leaf, issuer *x509.Certificate) error {
	tbs, list, err := withoutSCTs(leaf)
	if err != nil {
		return err
	}
	key := sha256.Sum256(issuer.RawSubjectPublicKeyInfo)
	all := reader{b: list}
	for all.b = all.bytes(all.uint16()); len(all.b) > 0 && !all.failed; {
		sct := reader{b: all.bytes(all.uint16())}
		version := sct.bytes(1)[0]
		id, timestamp := sct.bytes(32), sct.bytes(8)
		extensions := sct.bytes(sct.uint16())
		sct.bytes(2) // algorithms, which follow from the key
		sig := sct.bytes(sct.uint16())
		log, known := t.certificateLogs[string(id)]
		at := time.UnixMilli(int64(binary.BigEndian.Uint64(timestamp)))
		if sct.failed || version != 0 || !known || !log.valid.contains(at) {
			continue
		}
		text := append([]byte{0, 0}, timestamp...)
		text = append(append(text, 0, 1), key[:]...)
		text = append(append(text, byte(len(tbs)>>16), byte(len(tbs)>>8), byte(len(tbs))), tbs...)
		text = append(binary.BigEndian.AppendUint16(text, uint16(len(extensions))), extensions...)
		if signed(log.key, text, sig) {
			return nil
		}
	}
	return errors.New("no certificate log of the trusted root has the certificate")
}

// withoutSCTs returns the signed part of a certificate as the log saw it, without the timestamps,
// and the list of timestamps.
func withoutSCTs(c *x509.Certificate) (tbs, list []byte, err error) {
	for _, x := range c.Extensions {
		if x.Id.Equal(scts) {
			if rest, err := asn1.Unmarshal(x.Value, &list); err != nil || len(rest) > 0 {
				return nil, nil, errors.New("the timestamps in the certificate are invalid")
			}
		}
	}
	var sequence asn1.RawValue
	if _, err := asn1.Unmarshal(c.RawTBSCertificate, &sequence); err != nil {
		return nil, nil, err
	}
	var fields []byte
	for rest := sequence.Bytes; len(rest) > 0; {
		var v asn1.RawValue
		if rest, err = asn1.Unmarshal(rest, &v); err != nil {
			return nil, nil, err
		}
		if v.Class == asn1.ClassContextSpecific && v.Tag == 3 {
			if v.FullBytes, err = keptExtensions(v); err != nil {
				return nil, nil, err
			}
		}
		fields = append(fields, v.FullBytes...)
	}
	tbs, err = asn1.Marshal(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: fields})
	return tbs, list, err
}

// keptExtensions returns the extensions of a certificate without the timestamps of logs.
func keptExtensions(field asn1.RawValue) ([]byte, error) {
	var sequence asn1.RawValue
	if _, err := asn1.Unmarshal(field.Bytes, &sequence); err != nil {
		return nil, err
	}
	var kept []byte
	for rest := sequence.Bytes; len(rest) > 0; {
		var v asn1.RawValue
		var id asn1.ObjectIdentifier
		var err error
		if rest, err = asn1.Unmarshal(rest, &v); err != nil {
			return nil, err
		}
		if _, err := asn1.Unmarshal(v.Bytes, &id); err != nil {
			return nil, err
		}
		if !id.Equal(scts) {
			kept = append(kept, v.FullBytes...)
		}
	}
	inner, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: kept})
	if err != nil {
		return nil, err
	}
	return asn1.Marshal(asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 3, IsCompound: true, Bytes: inner})
}
