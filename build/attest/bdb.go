package attest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The layout of a hash database of Berkeley DB (its dbinc/db_page.h): a metadata page,
// pages of alternating keys and values, and overflow pages for long values.
const (
	bdbHashMagic                            = 0x061561
	bdbUnsorted, bdbOverflow, bdbSorted     = 2, 7, 13 // types of pages
	bdbInline, bdbOffPage                   = 1, 3     // types of items
	bdbPageNext, bdbPageCount, bdbPageBytes = 16, 20, 22
	bdbPageType, bdbPageData                = 25, 26
)

// A bdbHash reads the values of a hash database of Berkeley DB.
type bdbHash struct {
	r      io.ReaderAt
	order  binary.ByteOrder
	size   int   // of a page
	budget int64 // bytes of values that may still be read
	pages  int64 // overflow pages that may still be read; values do not share pages
}

// bdbBlobs calls each with the header of every package in the Berkeley DB database that rpm
// used before version 4.16. It reads at most as many bytes of values as the file has, even
// if the file is hostile.
func bdbBlobs(r io.ReaderAt, size int64, each func([]byte) error) error {
	head := make([]byte, 72)
	if _, err := r.ReadAt(head, 0); err != nil {
		return errors.New("not a Berkeley DB database")
	}
	db := &bdbHash{r: r, order: binary.LittleEndian, budget: size}
	if binary.BigEndian.Uint32(head[12:]) == bdbHashMagic {
		db.order = binary.BigEndian
	} else if db.order.Uint32(head[12:]) != bdbHashMagic {
		return errors.New("not a hash database of Berkeley DB")
	}
	if db.size = int(db.order.Uint32(head[20:])); db.size < 512 || db.size > 65536 {
		return fmt.Errorf("the Berkeley DB database is damaged: its page size is %d bytes", db.size)
	}
	db.pages = size / int64(db.size)
	for n := int64(1); n < size/int64(db.size); n++ {
		page, err := db.page(uint32(n))
		if err != nil {
			return err
		}
		if t := page[bdbPageType]; t != bdbUnsorted && t != bdbSorted {
			continue
		}
		if err := db.values(page, each); err != nil {
			return err
		}
	}
	return nil
}

func (db *bdbHash) page(n uint32) ([]byte, error) {
	b := make([]byte, db.size)
	if _, err := db.r.ReadAt(b, int64(n)*int64(db.size)); err != nil {
		return nil, fmt.Errorf("reading page %d: %w", n, err)
	}
	return b, nil
}

// values calls each with the values of a page of keys and values. Items are stored from the
// end of the page: each item ends where the previous one begins. The value of key 0 is the
// number of the last package, not a package.
func (db *bdbHash) values(page []byte, each func([]byte) error) error {
	count := int(db.order.Uint16(page[bdbPageCount:]))
	if bdbPageData+2*count > len(page) {
		return fmt.Errorf("the Berkeley DB database is damaged: a page has %d items", count)
	}
	start := func(i int) int { return int(db.order.Uint16(page[bdbPageData+2*i:])) }
	end := len(page)
	var key []byte
	for i := range count {
		at := start(i)
		if at >= end || at < bdbPageData+2*count {
			return errors.New("the Berkeley DB database is damaged: an item lies outside its page")
		}
		item := page[at:end]
		end = at
		if i%2 == 0 {
			key = item[1:]
			continue
		}
		if len(key) == 4 && db.order.Uint32(key) == 0 {
			continue
		}
		b, err := db.value(item)
		if err != nil {
			return err
		}
		if b != nil {
			if err := each(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// value returns the value of an item, from the item itself or from overflow pages. It
// returns nil for types of items that rpm does not use.
func (db *bdbHash) value(item []byte) ([]byte, error) {
	switch {
	case item[0] == bdbInline:
		return item[1:], nil
	case item[0] != bdbOffPage || len(item) < 12:
		return nil, nil
	}
	size := int64(db.order.Uint32(item[8:]))
	if db.budget -= size; db.budget < 0 || size > maxHeader {
		return nil, fmt.Errorf("the Berkeley DB database is damaged: a value of %d bytes is too large", size)
	}
	b := make([]byte, 0, size)
	for next := db.order.Uint32(item[4:]); int64(len(b)) < size; {
		if db.pages--; db.pages < 0 {
			return nil, errors.New("the Berkeley DB database is damaged: values share pages")
		}
		page, err := db.page(next)
		if err != nil {
			return nil, err
		}
		n := int(db.order.Uint16(page[bdbPageBytes:]))
		if page[bdbPageType] != bdbOverflow || n == 0 || bdbPageData+n > len(page) || int64(len(b)+n) > size {
			return nil, fmt.Errorf("the Berkeley DB database is damaged: page %d is not a valid overflow page", next)
		}
		b = append(b, page[bdbPageData:bdbPageData+n]...)
		next = db.order.Uint32(page[bdbPageNext:])
	}
	return b, nil
}
