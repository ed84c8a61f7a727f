package attest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The layout of rpm's ndb database (rpm, lib/backend/ndb/rpmpkg.c), little-endian. The
// file begins with pages of slots of 16 bytes each. The first two slots are the file
// header. A used slot has the offset of a blob, in units of 16 bytes. A blob is a header of
// 16 bytes, followed by the header of a package.
const (
	ndbPage, ndbSlot       = 4096, 16
	ndbMagic               = 'R' | 'p'<<8 | 'm'<<16 | 'P'<<24
	ndbSlotMagic           = 'S' | 'l'<<8 | 'o'<<16 | 't'<<24
	ndbBlobMagic           = 'B' | 'l'<<8 | 'b'<<16 | 'S'<<24
	ndbHeadSize, ndbBlobAt = 32, 16
)

// ndbBlobs calls each with the header of every package in an ndb database. It reads at
// most as many bytes as the file has, even if the file is hostile.
func ndbBlobs(r io.ReaderAt, size int64, each func([]byte) error) error {
	head := make([]byte, ndbHeadSize)
	if _, err := r.ReadAt(head, 0); err != nil || binary.LittleEndian.Uint32(head) != ndbMagic {
		return errors.New("not an ndb database")
	}
	budget := size
	slots := int64(binary.LittleEndian.Uint32(head[12:])) * ndbPage
	if slots > size {
		return errors.New("the ndb database is truncated")
	}
	slot := make([]byte, ndbSlot)
	for at := int64(ndbHeadSize); at+ndbSlot <= slots; at += ndbSlot {
		if _, err := r.ReadAt(slot, at); err != nil {
			return err
		}
		offset := int64(binary.LittleEndian.Uint32(slot[8:])) * 16
		if binary.LittleEndian.Uint32(slot) != ndbSlotMagic || offset == 0 {
			continue // free
		}
		blob := make([]byte, ndbBlobAt)
		if _, err := r.ReadAt(blob, offset); err != nil || binary.LittleEndian.Uint32(blob) != ndbBlobMagic || string(blob[4:8]) != string(slot[4:8]) {
			return fmt.Errorf("the ndb database is damaged: no package at offset %d", offset)
		}
		n := int64(binary.LittleEndian.Uint32(blob[12:]))
		if budget -= n; budget < 0 || n > maxHeader {
			return fmt.Errorf("the ndb database is damaged: a package header of %d bytes is too large", n)
		}
		b := make([]byte, n)
		if _, err := r.ReadAt(b, offset+ndbBlobAt); err != nil {
			return err
		}
		if err := each(b); err != nil {
			return err
		}
	}
	return nil
}
