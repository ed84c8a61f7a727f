package trust

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// An entry is an entry of a transparency log (Rekor), with the log's signatures.
type entry struct {
	Index integer `json:"logIndex"`
	LogID keyID   `json:"logId"`
	Kind  *struct {
		Name    string `json:"kind"`
		Version string `json:"version"`
	} `json:"kindVersion"`
	Time    integer `json:"integratedTime"` // seconds since 1970
	Promise struct {
		Signature octets `json:"signedEntryTimestamp"`
	} `json:"inclusionPromise"`
	Proof *proof `json:"inclusionProof"`
	Body  octets `json:"canonicalizedBody"`
}

// A proof proves that a log has an entry (RFC 9162, section 2.1.3).
type proof struct {
	Index      integer  `json:"logIndex"`
	Root       octets   `json:"rootHash"`
	Size       integer  `json:"treeSize"`
	Hashes     []octets `json:"hashes"`
	Checkpoint struct {
		Note string `json:"envelope"`
	} `json:"checkpoint"`
}

// maxProof limits the hashes of a proof: a tree has at most 2^63 entries.
const maxProof = 64

// verifyEntry verifies that a log has an entry for the bundle's signature. It returns the time of
// the entry, or a zero time if the log does not record it.
func (t *trustedRoot) verifyEntry(e *entry, b *bundle) (at time.Time, err error) {
	log, known := t.logs[string(e.LogID.Key)]
	if !known {
		return at, fmt.Errorf("the trusted root does not have the log with key ID %x", e.LogID.Key[:min(len(e.LogID.Key), 32)])
	}
	if e.Index < 0 {
		return at, fmt.Errorf("the log entry has the index %d", e.Index)
	}
	second, err := matches(e.Body, b)
	if err != nil {
		return at, err
	}
	if second && (len(e.Promise.Signature) > 0 || e.Proof == nil || e.Proof.Index != e.Index) {
		return at, errors.New("the log entry of Rekor 2 has a promise, or no proof of inclusion at its index")
	}
	if len(e.Promise.Signature) > 0 {
		if !signed(log.key, e.promised(), e.Promise.Signature) {
			return at, errors.New("the log's signature of the entry is invalid")
		}
		if at = time.Unix(int64(e.Time), 0); !log.valid.contains(at) {
			return at, fmt.Errorf("the key of log %s was not valid at %s", log.host, at.UTC().Format(time.RFC3339))
		}
	}
	if e.Proof != nil {
		return at, log.verifyProof(e.Proof, e.Body, !second)
	}
	return at, nil
}

// promised returns the text that a log signs when it accepts an entry, in canonical JSON (RFC 8785).
func (e *entry) promised() []byte {
	return fmt.Appendf(nil, `{"body":"%s","integratedTime":%d,"logID":"%x","logIndex":%d}`, base64.StdEncoding.EncodeToString(e.Body), e.Time, e.LogID.Key, e.Index)
}

// verifyProof verifies that the log's tree has an entry. A checkpoint of Rekor 1 has the ID of the
// tree, and no signatures of others.
func (l logKey) verifyProof(p *proof, body []byte, first bool) error {
	signedNote, err := note.Open([]byte(p.Checkpoint.Note), note.VerifierList(l))
	if err != nil {
		return fmt.Errorf("the checkpoint of log %s is invalid: %w", l.host, err)
	}
	lines := strings.SplitN(signedNote.Text, "\n", 4)
	if len(lines) < 4 {
		return errors.New("the checkpoint lacks the size or the hash of the tree")
	}
	if others := strings.Count(p.Checkpoint.Note[len(signedNote.Text)+1:], "\n") - 1; first && (others > 0 || !treeID().MatchString(lines[0])) {
		return fmt.Errorf("the checkpoint of log %s has no tree ID or has %d signatures of others", l.host, others)
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	root, rerr := tlog.ParseHash(lines[2])
	if err != nil || rerr != nil || size != int64(p.Size) || !bytes.Equal(root[:], p.Root) {
		return errors.New("the checkpoint is of another tree than the proof")
	}
	if len(p.Hashes) > maxProof {
		return fmt.Errorf("the proof of inclusion has %d hashes; the maximum is %d", len(p.Hashes), maxProof)
	}
	path := make(tlog.RecordProof, len(p.Hashes))
	for i, h := range p.Hashes {
		if len(h) != tlog.HashSize {
			return fmt.Errorf("a hash of the proof has %d bytes", len(h))
		}
		copy(path[i][:], h)
	}
	if err := tlog.CheckRecord(path, size, root, int64(p.Index), tlog.RecordHash(body)); err != nil {
		return errors.New("the proof of inclusion is invalid: the log does not have this entry")
	}
	return nil
}

// treeID matches the first line of a checkpoint of Rekor 1.
var treeID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(` - [0-9]+\z`) })

// Name implements [note.Verifier].
func (l logKey) Name() string { return l.host }

// KeyHash implements [note.Verifier].
func (l logKey) KeyHash() uint32 { return binary.BigEndian.Uint32(l.id) }

// Verify implements [note.Verifier].
func (l logKey) Verify(text, sig []byte) bool { return signed(l.key, text, sig) }

// An entryBody is the content of a log entry: dsse 0.0.1 of Rekor 1, or hashedrekord 0.0.2 of
// Rekor 2.
type entryBody struct {
	Kind    string `json:"kind"`
	Version string `json:"apiVersion"`
	Spec    struct {
		Envelope   hexHash `json:"envelopeHash"` // of its JSON, which a bundle does not keep
		Payload    hexHash `json:"payloadHash"`
		Signatures []struct {
			Signature octets `json:"signature"`
			Verifier  octets `json:"verifier"` // certificate in PEM
		} `json:"signatures"`
		Record struct {
			Data struct {
				Algorithm string `json:"algorithm"`
				Digest    octets `json:"digest"`
			} `json:"data"`
			Signature struct {
				Content  octets `json:"content"`
				Verifier struct {
					Certificate rawBytes `json:"x509Certificate"`
					Kind        string   `json:"keyDetails"`
				} `json:"verifier"`
			} `json:"signature"`
		} `json:"hashedRekordV002"`
	} `json:"spec"`
}

type hexHash struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"value"`
}

// sha256 returns the bytes of a SHA-256, or nil for another hash.
func (h hexHash) sha256() []byte {
	if b, err := hex.DecodeString(h.Value); err == nil && h.Algorithm == "sha256" && len(b) == sha256.Size {
		return b
	}
	return nil
}

// matches checks that a log entry is about the bundle's signature and certificate. It reports
// whether the entry is of Rekor 2.
func matches(text []byte, b *bundle) (second bool, err error) {
	var body entryBody
	if err := decode(text, &body); err != nil {
		return false, fmt.Errorf("reading the log entry: %w", err)
	}
	other := errors.New("the log entry is about another signature")
	s := body.Spec
	switch body.Kind + " " + body.Version {
	case "dsse 0.0.1":
		sum := sha256.Sum256(b.Envelope.Payload)
		if len(s.Signatures) != 1 || s.Envelope.sha256() == nil || !bytes.Equal(s.Payload.sha256(), sum[:]) {
			return false, other
		}
		block, _ := pem.Decode(s.Signatures[0].Verifier)
		if block == nil || !bytes.Equal(block.Bytes, b.certificate) || !bytes.Equal(s.Signatures[0].Signature, b.signature()) {
			return false, other
		}
	case "hashedrekord 0.0.2":
		second = true
		sum := sha256.Sum256(b.message())
		if s.Record.Data.Algorithm != "SHA2_256" || !bytes.Equal(s.Record.Data.Digest, sum[:]) || !bytes.Equal(s.Record.Signature.Content, b.signature()) || !bytes.Equal(s.Record.Signature.Verifier.Certificate.Raw, b.certificate) {
			return false, other
		}
	default:
		return false, fmt.Errorf("the log entry is of the kind %.50q %.20q; want dsse 0.0.1 or hashedrekord 0.0.2", body.Kind, body.Version)
	}
	return second, nil
}
