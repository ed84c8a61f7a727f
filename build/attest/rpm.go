package attest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
)

// maxHeader limits the header of a package in an rpm database, in bytes. rpm has the same
// limit.
const maxHeader = 256 << 20

// rpm reads an rpm database in one of its three formats: sqlite (since Fedora 33 and
// RHEL 9), ndb (SUSE) or Berkeley DB (older systems). Each contains a header for every
// package.
func (in *inventory) rpm(p string, f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	each := func(blob []byte) error {
		h, err := parseHeader(blob)
		if err != nil {
			in.note(p, err)
			return nil // the other headers may be intact
		}
		in.rpmPackage(p, h)
		return nil
	}
	switch path.Base(p) {
	case "Packages.db":
		return ndbBlobs(f, fi.Size(), each)
	case "Packages":
		return bdbBlobs(f, fi.Size(), each)
	}
	wal, err := openRegular(in.root, p+"-wal")
	if errors.Is(err, os.ErrNotExist) {
		return rpmSQLite(f, fi.Size(), nil, 0, each)
	}
	if err != nil {
		return err
	}
	defer wal.Close()
	wi, err := wal.Stat()
	if err != nil {
		return err
	}
	return rpmSQLite(f, fi.Size(), wal, wi.Size(), each)
}

// rpmSQLite calls each with the header of every package in a sqlite database. The headers
// are in the second column of the table Packages. wal is the write-ahead log, or nil.
func rpmSQLite(r io.ReaderAt, size int64, wal io.ReaderAt, walSize int64, each func([]byte) error) error {
	db, err := openSQLite(r, size, wal, walSize)
	if err != nil {
		return err
	}
	return db.table("Packages", func(row []sqliteValue) error {
		if len(row) < 2 {
			return errors.New("a row of the table Packages has no header")
		}
		return each(row[1].bytes)
	})
}

// Tags of a header (rpm, rpmtag.h).
const (
	rpmName, rpmVersion, rpmRelease, rpmEpoch = 1000, 1001, 1002, 1003
	rpmVendor, rpmLicense, rpmPackager        = 1011, 1014, 1015
	rpmURL, rpmArch, rpmSource                = 1020, 1022, 1044
	rpmModularity                             = 5096
)

// An rpmHeader holds the values of a package header, by tag.
type rpmHeader struct {
	text   map[uint32]string
	number map[uint32]uint32 // the first number of an array
}

// parseHeader parses a package header as stored in the databases (rpm, "Header format"):
// the number of entries, the size of the data, the entries (tag, type, offset, count) and
// the data. All numbers are big-endian.
func parseHeader(b []byte) (h rpmHeader, err error) {
	if len(b) < 8 {
		return h, errors.New("a package header is truncated")
	}
	entries, size := uint64(binary.BigEndian.Uint32(b)), uint64(binary.BigEndian.Uint32(b[4:]))
	if 8+16*entries+size > uint64(len(b)) {
		return h, fmt.Errorf("a package header of %d bytes is too small for %d entries and %d bytes of data", len(b), entries, size)
	}
	h.text, h.number = map[uint32]string{}, map[uint32]uint32{}
	data := b[8+16*entries:][:size]
	for i := range entries {
		e := b[8+16*i:]
		tag, kind, at := binary.BigEndian.Uint32(e), binary.BigEndian.Uint32(e[4:]), binary.BigEndian.Uint32(e[8:])
		if uint64(at) > size {
			continue // the trailer of a region may have a negative offset
		}
		switch field := data[at:]; kind {
		case 4: // INT32
			if len(field) >= 4 {
				h.number[tag] = binary.BigEndian.Uint32(field)
			}
		case 6, 9: // STRING, I18NSTRING
			if tag < rpmName || (tag > rpmSource && tag != rpmModularity) {
				continue
			}
			if end := bytes.IndexByte(field, 0); end >= 0 && end < maxField {
				h.text[tag] = string(field[:end])
			}
		}
	}
	return h, nil
}

func (in *inventory) rpmPackage(p string, h rpmHeader) {
	name := h.text[rpmName]
	if name == "gpg-pubkey" {
		return // a key for verifying packages, not software
	}
	version, epoch := h.text[rpmVersion]+"-"+h.text[rpmRelease], ""
	full := version
	if n, ok := h.number[rpmEpoch]; ok {
		epoch = strconv.FormatUint(uint64(n), 10)
		full = epoch + ":" + version
	}
	in.add(software{
		kind: "rpm", name: name, version: full, license: h.text[rpmLicense], originator: h.text[rpmPackager], vendor: strings.TrimSpace(h.text[rpmVendor]), home: h.text[rpmURL], record: p,
		purl: PURL("rpm", in.os.vendor(""), name, version, "arch", h.text[rpmArch], "epoch", epoch, "distro", in.os.distro(),
			"upstream", h.text[rpmSource], "rpmmod", h.text[rpmModularity]),
	})
}
