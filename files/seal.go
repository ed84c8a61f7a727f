package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// Sealed records have a checksum, so that readers detect damage on disk. It is CRC-32C, which
// detects every error of up to 32 consecutive bits, but does not protect against manipulation.
//
// In a JSON object, the checksum is the last field, which other decoders ignore:
//
//	{"name":"sci","crc32c":"0a1b2c3d"}
//
// In other records, it is the last line: crc32c 0a1b2c3d.

const (
	fieldHead = `,"crc32c":"`
	fieldTail = "\"}\n"
	lineHead  = "\ncrc32c "
	lineTail  = "\n"
	digits    = 8 // hexadecimal digits of the checksum
)

// ErrDamaged reports that a record differs from what was written.
var ErrDamaged = errors.New("the file is damaged (its checksum is wrong)")

// ErrNoSum reports that a record has no checksum: it was truncated, or written by an older
// version of hpcc.
var ErrNoSum = errors.New("the file has no checksum")

func sum(b []byte) string {
	return fmt.Sprintf("%0*x", digits, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// SealJSON encodes a struct or map with at least one field, with its checksum and a newline.
func SealJSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	out, err := SealObject(b)
	if err != nil {
		return nil, fmt.Errorf("sealing %T: %w", v, err)
	}
	return out, nil
}

// SealObject adds the checksum to a JSON object with at least one field.
func SealObject(b []byte) ([]byte, error) {
	head, ok := bytes.CutSuffix(bytes.TrimSpace(b), []byte("}"))
	if head = bytes.TrimSpace(head); !ok || len(head) < 2 {
		return nil, errors.New("not an object with fields")
	}
	out := make([]byte, 0, len(head)+len(fieldHead)+digits+len(fieldTail))
	return append(append(append(append(out, head...), fieldHead...), sum(head)...), fieldTail...), nil
}

// CheckJSON verifies the checksum of a record. It returns [ErrDamaged], or [ErrNoSum], which
// callers that accept records of older versions may ignore.
func CheckJSON(b []byte) error {
	_, err := check(b, fieldHead, fieldTail)
	return err
}

// SealText appends the checksum to any data.
func SealText(data []byte) []byte {
	out := make([]byte, 0, len(data)+len(lineHead)+digits+len(lineTail))
	return append(append(append(append(out, data...), lineHead...), sum(data)...), lineTail...)
}

// CheckText returns the data that was passed to [SealText]. It returns [ErrDamaged] or
// [ErrNoSum].
func CheckText(b []byte) ([]byte, error) { return check(b, lineHead, lineTail) }

func check(b []byte, head, tail string) ([]byte, error) {
	n := len(b) - len(head) - digits - len(tail)
	if n < 0 || string(b[n:n+len(head)]) != head || string(b[len(b)-len(tail):]) != tail {
		return nil, ErrNoSum
	}
	if sum(b[:n]) != string(b[n+len(head):len(b)-len(tail)]) {
		return nil, ErrDamaged
	}
	return b[:n], nil
}
