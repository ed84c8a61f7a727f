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

// maxHeader limits a package's header in a database of rpm, in bytes. It is rpm's own
// limit.
const maxHeader = 256 << 20

// rpm reads a database of rpm: sqlite (Fedora 33 and RHEL 9 on), ndb (SUSE) or
// Berkeley DB (before). All three keep a header for each package.
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

// rpmSQLite reads the headers of a database in sqlite. They are in the second column of
// the table Packages.
func rpmSQLite(r io.ReaderAt, size int64, wal io.ReaderAt, walSize int64, each func([]byte) error) error {
	db, err := openSQLite(r, size, wal, walSize)
	if err != nil {
		return err
	}
	return db.table("Packages", func(row []sqliteValue) error {
		if len(row) < 2 {
			return errors.New("a package without a header")
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

// An rpmHeader is a header's strings and first numbers, by tag.
type rpmHeader struct {
	text   map[uint32]string
	number map[uint32]uint32
}

// parseHeader parses a header as stored in the databases: the number of entries, the size
// of the data, the entries (tag, type, offset, count), the data (rpm, "Header format").
// All numbers are big-endian.
func parseHeader(b []byte) (h rpmHeader, err error) {
	if len(b) < 8 {
		return h, errors.New("a header is cut short")
	}
	entries, size := uint64(binary.BigEndian.Uint32(b)), uint64(binary.BigEndian.Uint32(b[4:]))
	if 8+16*entries+size > uint64(len(b)) {
		return h, fmt.Errorf("a header of %d bytes has no room for %d entries and %d bytes", len(b), entries, size)
	}
	h.text, h.number = map[uint32]string{}, map[uint32]uint32{}
	data := b[8+16*entries:][:size]
	for i := range entries {
		e := b[8+16*i:]
		tag, kind, at := binary.BigEndian.Uint32(e), binary.BigEndian.Uint32(e[4:]), binary.BigEndian.Uint32(e[8:])
		if uint64(at) > size {
			continue // a region's trailer may count backwards
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
		return // a key that verifies packages is not software
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
