package attest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The layout of a hash of Berkeley DB (its dbinc/db_page.h): a metadata page,
// pages of alternating keys and values, and overflow pages of long values.
const (
	bdbHashMagic                            = 0x061561
	bdbUnsorted, bdbOverflow, bdbSorted     = 2, 7, 13 // types of pages
	bdbInline, bdbOffPage                   = 1, 3     // types of items
	bdbPageNext, bdbPageCount, bdbPageBytes = 16, 20, 22
	bdbPageType, bdbPageData                = 25, 26
)

// A bdbHash reads the values of a hash of Berkeley DB.
type bdbHash struct {
	r      io.ReaderAt
	order  binary.ByteOrder
	size   int   // of a page
	budget int64 // bytes of values that may still be read
	pages  int64 // overflow pages that may still be read: no two values share one
}

// bdbBlobs calls each with the header of every package in a database of rpm
// before 4.16. It reads at most as many bytes of values as the file has, even of a
// hostile file.
func bdbBlobs(r io.ReaderAt, size int64, each func([]byte) error) error {
	head := make([]byte, 72)
	if _, err := r.ReadAt(head, 0); err != nil {
		return errors.New("not a Berkeley DB file")
	}
	db := &bdbHash{r: r, order: binary.LittleEndian, budget: size}
	if binary.BigEndian.Uint32(head[12:]) == bdbHashMagic {
		db.order = binary.BigEndian
	} else if db.order.Uint32(head[12:]) != bdbHashMagic {
		return errors.New("not a hash of Berkeley DB")
	}
	if db.size = int(db.order.Uint32(head[20:])); db.size < 512 || db.size > 65536 {
		return fmt.Errorf("the Berkeley DB is damaged: pages of %d bytes", db.size)
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

// values reads the values of a page of keys and values. Items are stored from the page's
// end: each ends where the previous one begins. The key 0 holds the number of the last
// package instead of a package.
func (db *bdbHash) values(page []byte, each func([]byte) error) error {
	count := int(db.order.Uint16(page[bdbPageCount:]))
	if bdbPageData+2*count > len(page) {
		return fmt.Errorf("the Berkeley DB is damaged: %d items in a page", count)
	}
	start := func(i int) int { return int(db.order.Uint16(page[bdbPageData+2*i:])) }
	end := len(page)
	var last []byte
	for i := range count {
		at := start(i)
		if at >= end || at < bdbPageData+2*count {
			return errors.New("the Berkeley DB is damaged: an item lies outside its page")
		}
		item := page[at:end]
		end = at
		if i%2 == 0 {
			last = item[1:]
			continue
		}
		if len(last) == 4 && db.order.Uint32(last) == 0 {
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
		return nil, fmt.Errorf("the Berkeley DB is damaged: a value of %d bytes", size)
	}
	b := make([]byte, 0, size)
	for next := db.order.Uint32(item[4:]); int64(len(b)) < size; {
		if db.pages--; db.pages < 0 {
			return nil, errors.New("the Berkeley DB is damaged: values share pages")
		}
		page, err := db.page(next)
		if err != nil {
			return nil, err
		}
		n := int(db.order.Uint16(page[bdbPageBytes:]))
		if page[bdbPageType] != bdbOverflow || n == 0 || bdbPageData+n > len(page) || int64(len(b)+n) > size {
			return nil, fmt.Errorf("the Berkeley DB is damaged: page %d", next)
		}
		b = append(b, page[bdbPageData:bdbPageData+n]...)
		next = db.order.Uint32(page[bdbPageNext:])
	}
	return b, nil
}
