package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

type record struct {
	Name string `json:"name"`
	N    int    `json:"n"`
}

func TestJSON(t *testing.T) {
	b, err := SealJSON(record{"sci", 7})
	testenv.Check(t, err)
	testenv.Check(t, CheckJSON(b))
	var r record
	if err := json.Unmarshal(b, &r); err != nil || r != (record{"sci", 7}) {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := SealJSON(struct{}{}); err == nil {
		t.Error("an object without fields was sealed")
	}
	if err := CheckJSON([]byte(`{"name":"sci"}` + "\n")); !errors.Is(err, ErrNoSum) {
		t.Errorf("without a checksum: %v", err)
	}
}

// TestEveryBit flips each bit of a record. The check or the JSON decoder must fail, or the
// fields must be those that were written.
func TestEveryBit(t *testing.T) {
	b, err := SealJSON(record{"sci", 7})
	testenv.Check(t, err)
	for i := range len(b) * 8 {
		bad := bytes.Clone(b)
		bad[i/8] ^= 1 << (i % 8)
		var r record
		if err := CheckJSON(bad); errors.Is(err, ErrDamaged) || json.Unmarshal(bad, &r) != nil {
			continue
		}
		if r != (record{"sci", 7}) {
			t.Errorf("bit %d: %q is accepted as %+v", i, bad, r)
		}
	}
}

func TestText(t *testing.T) {
	for _, data := range []string{"", "1000:0", "a\x00b\n"} {
		b := SealText([]byte(data))
		if got, err := CheckText(b); err != nil || string(got) != data {
			t.Errorf("%q: %q, %v", data, got, err)
		}
		for i := range len(b) * 8 {
			bad := bytes.Clone(b)
			bad[i/8] ^= 1 << (i % 8)
			if _, err := CheckText(bad); err == nil {
				t.Errorf("%q: a change of bit %d is not detected", data, i)
			}
		}
		for n := range len(b) {
			if _, err := CheckText(b[:n]); err == nil {
				t.Errorf("%q: truncation to %d bytes is not detected", data, n)
			}
		}
		if _, err := CheckText(make([]byte, len(b))); err == nil {
			t.Errorf("%q: a file of zeros is accepted", data)
		}
	}
}
