package store

import (
	"bytes"
	"errors"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"hpcc/testdata/helpers/testenv"
)

// A file that is read directly is checked by zstd's checksums, because nothing else would
// detect a changed byte.
func TestUncompressedChecksum(t *testing.T) {
	data := make([]byte, 100_000) // stored as it is: it decodes whatever changes
	rand.New(rand.NewSource(1)).Read(data)
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed)
	testenv.Check(t, err)
	_, err = w.Write(data)
	testenv.Check(t, err)
	testenv.Check(t, w.Close())
	file := filepath.Join(t.TempDir(), "x.tar.zst")
	read := func() ([]byte, error) {
		testenv.Check(t, os.WriteFile(file, packed.Bytes(), 0o600))
		r, err := Uncompressed(file)
		testenv.Check(t, err)
		defer r.Close()
		return io.ReadAll(r)
	}
	if got, err := read(); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	packed.Bytes()[packed.Len()/2] ^= 1
	if _, err := read(); !errors.Is(err, zstd.ErrCRCMismatch) {
		t.Errorf("a changed byte gives %v; want a refusal for its checksum", err)
	}
}

// A foreign layout may contain a pipe instead of a blob. A pipe matches a size of 0 in the
// manifest.
func TestLayerIsNoPipe(t *testing.T) {
	s := &Store{dir: t.TempDir(), foreign: true}
	h := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}
	pipe := s.blob(h)
	testenv.Check(t, errors.Join(os.MkdirAll(filepath.Dir(pipe), 0o700), syscall.Mkfifo(pipe, 0o600)))
	l := &layer{s, LayerInfo{Digest: h}}
	for what, open := range map[string]func() (io.ReadCloser, error){"Compressed": l.Compressed, "Uncompressed": l.Uncompressed} {
		if _, err := open(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s of a pipe: %v; want a refusal", what, err)
		}
	}
}
