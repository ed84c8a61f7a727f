package attest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A sqliteDB reads tables of a database file of SQLite 3 (SQLite, "Database File Format").
// It supports nothing else, because rpm databases need no more, and an SQL engine would add
// megabytes and start-up time. The file may be hostile: sqliteDB reads each page of a tree
// once, and at most as many bytes of rows as the file has.
type sqliteDB struct {
	file   io.ReaderAt
	wal    io.ReaderAt
	frames map[uint32]int64 // offsets in wal of the pages that it replaces, by page number
	size   int              // bytes of a page
	usable int              // bytes of a page without its reserved space
	pages  uint32           // number of pages
	budget int64            // bytes of rows that may still be read
}

// A sqliteValue is a column of a row: a number, a text or a blob.
type sqliteValue struct {
	number int64
	bytes  []byte
}

var errSQLite = errors.New("the sqlite database is damaged")

// openSQLite opens a database of size bytes. wal is its write-ahead log, or nil.
func openSQLite(file io.ReaderAt, size int64, wal io.ReaderAt, walSize int64) (*sqliteDB, error) {
	head := make([]byte, 100)
	if _, err := file.ReadAt(head, 0); err != nil || !bytes.HasPrefix(head, []byte("SQLite format 3\x00")) {
		return nil, errors.New("not a sqlite database")
	}
	db := &sqliteDB{file: file, wal: wal, frames: map[uint32]int64{}, size: int(binary.BigEndian.Uint16(head[16:])), budget: size + walSize}
	if db.size == 1 {
		db.size = 65536
	}
	if db.usable = db.size - int(head[20]); db.size < 512 || db.size&(db.size-1) != 0 || db.usable < 480 {
		return nil, fmt.Errorf("%w: its page size is %d bytes", errSQLite, db.size)
	}
	if encoding := binary.BigEndian.Uint32(head[56:]); encoding > 1 {
		return nil, errors.New("the sqlite database is not in UTF-8")
	}
	db.pages = uint32(min(size/int64(db.size), 1<<32-2))
	if wal != nil && walSize > 0 {
		if err := db.readLog(walSize); err != nil {
			return nil, err
		}
	}
	return db, nil
}

// readLog finds the pages in the write-ahead log, up to its last complete transaction. A
// frame is valid if it has the salts of the log, and if the checksum over all frames up to
// this one is correct. size is the size of the log in bytes.
func (db *sqliteDB) readLog(size int64) error {
	head := make([]byte, 32)
	if _, err := db.wal.ReadAt(head, 0); err != nil {
		return nil // empty
	}
	order := binary.ByteOrder(binary.LittleEndian)
	switch magic := binary.BigEndian.Uint32(head); {
	case magic == 0x377f0683:
		order = binary.BigEndian
	case magic != 0x377f0682:
		return nil // not yet written, or wiped
	}
	if binary.BigEndian.Uint32(head[8:]) != uint32(db.size) {
		return fmt.Errorf("%w: its write-ahead log has another page size", errSQLite)
	}
	var sum walSum
	sum.add(order, head[:24])
	if sum != (walSum{binary.BigEndian.Uint32(head[24:]), binary.BigEndian.Uint32(head[28:])}) {
		return nil
	}
	frame := make([]byte, 24+db.size)
	uncommitted := map[uint32]int64{}
	for at := int64(32); at+int64(len(frame)) <= size; at += int64(len(frame)) {
		if _, err := db.wal.ReadAt(frame, at); err != nil {
			return err
		}
		sum.add(order, frame[:8])
		sum.add(order, frame[24:])
		if !bytes.Equal(frame[8:16], head[16:24]) || sum != (walSum{binary.BigEndian.Uint32(frame[16:]), binary.BigEndian.Uint32(frame[20:])}) {
			break
		}
		uncommitted[binary.BigEndian.Uint32(frame)] = at + 24
		if pages := binary.BigEndian.Uint32(frame[4:]); pages != 0 {
			db.pages = pages
			for n, off := range uncommitted {
				db.frames[n] = off
			}
			clear(uncommitted)
		}
	}
	return nil
}

// A walSum is the running checksum of a write-ahead log.
type walSum [2]uint32

func (s *walSum) add(order binary.ByteOrder, b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		s[0] += order.Uint32(b) + s[1]
		s[1] += order.Uint32(b[4:]) + s[0]
	}
}

// page returns the usable bytes of a page. The first page has the number 1.
func (db *sqliteDB) page(n uint32) ([]byte, error) {
	if n == 0 || n > db.pages {
		return nil, fmt.Errorf("%w: page %d does not exist; it has %d pages", errSQLite, n, db.pages)
	}
	b := make([]byte, db.size)
	r, at := db.file, int64(n-1)*int64(db.size)
	if off, ok := db.frames[n]; ok {
		r, at = db.wal, off
	}
	if _, err := r.ReadAt(b, at); err != nil {
		return nil, fmt.Errorf("reading page %d: %w", n, err)
	}
	return b[:db.usable], nil
}

// table calls each with every row of a table. It does nothing if the database does not
// have the table.
func (db *sqliteDB) table(name string, each func([]sqliteValue) error) error {
	var root uint32
	err := db.walk(1, 0, map[uint32]bool{}, func(row []sqliteValue) error { // sqlite_schema: type, name, tbl_name, rootpage, sql
		if len(row) >= 4 && string(row[0].bytes) == "table" && string(row[1].bytes) == name {
			root = uint32(row[3].number)
		}
		return nil
	})
	if err != nil || root == 0 {
		return err
	}
	return db.walk(root, 0, map[uint32]bool{}, each)
}

// maxSQLiteDepth limits the depth of a tree. SQLite's own limit is 20.
const maxSQLiteDepth = 32

// walk calls each with the rows below a page of a table's tree. It visits each page once, so
// that it also ends with a hostile file.
func (db *sqliteDB) walk(n uint32, depth int, seen map[uint32]bool, each func([]sqliteValue) error) error {
	if seen[n] || depth > maxSQLiteDepth {
		return fmt.Errorf("%w: page %d is linked twice or nested too deeply", errSQLite, n)
	}
	seen[n] = true
	page, err := db.page(n)
	if err != nil {
		return err
	}
	head := page
	if n == 1 {
		head = page[100:]
	}
	cells := int(binary.BigEndian.Uint16(head[3:]))
	var pointers []byte
	switch head[0] {
	case 5: // interior page: a cell is a child and a key; the page header has the last child
		pointers = head[12:]
	case 13: // leaf page
		pointers = head[8:]
	default:
		return fmt.Errorf("%w: page %d does not belong to a table", errSQLite, n)
	}
	if 2*cells > len(pointers) {
		return fmt.Errorf("%w: page %d is too small for its %d cells", errSQLite, n, cells)
	}
	for i := range cells {
		at := int(binary.BigEndian.Uint16(pointers[2*i:]))
		if at+4 > len(page) {
			return fmt.Errorf("%w: a cell of page %d lies outside the page", errSQLite, n)
		}
		if head[0] == 5 {
			err = db.walk(binary.BigEndian.Uint32(page[at:]), depth+1, seen, each)
		} else {
			err = db.row(page[at:], each)
		}
		if err != nil {
			return err
		}
	}
	if head[0] == 5 {
		return db.walk(binary.BigEndian.Uint32(head[8:]), depth+1, seen, each)
	}
	return nil
}

// row calls each with the row in a cell of a leaf page: the size, the number and the bytes
// of the row. Bytes that do not fit into the cell are in a chain of overflow pages.
func (db *sqliteDB) row(cell []byte, each func([]sqliteValue) error) error {
	size, n := sqliteVarint(cell)
	_, m := sqliteVarint(cell[n:])
	cell = cell[n+m:]
	if n == 0 || m == 0 || size > maxHeader || int64(size) > db.budget {
		return fmt.Errorf("%w: a row has the invalid size %d", errSQLite, size)
	}
	db.budget -= int64(size)
	local := int(size)
	if maxLocal := db.usable - 35; local > maxLocal {
		minLocal := (db.usable-12)*32/255 - 23
		if local = minLocal + (int(size)-minLocal)%(db.usable-4); local > maxLocal {
			local = minLocal
		}
	}
	if local > len(cell) {
		return fmt.Errorf("%w: a row extends beyond its page", errSQLite)
	}
	b := cell[:local:local]
	if rest := cell[local:]; local < int(size) {
		if len(rest) < 4 {
			return fmt.Errorf("%w: a row extends beyond its page", errSQLite)
		}
		for next := binary.BigEndian.Uint32(rest); len(b) < int(size); {
			page, err := db.page(next)
			if err != nil {
				return err
			}
			next = binary.BigEndian.Uint32(page)
			b = append(b, page[4:min(len(page), 4+int(size)-len(b))]...)
		}
	}
	values, err := sqliteRecord(b)
	if err != nil {
		return err
	}
	return each(values)
}

// sqliteRecord parses the columns of a row ("Record Format").
func sqliteRecord(b []byte) ([]sqliteValue, error) {
	size, n := sqliteVarint(b)
	if n == 0 || size > uint64(len(b)) || size < uint64(n) {
		return nil, fmt.Errorf("%w: a row has an invalid header", errSQLite)
	}
	var out []sqliteValue
	body := b[size:]
	for types := b[n:size]; len(types) > 0; {
		kind, n := sqliteVarint(types)
		if n == 0 {
			return nil, fmt.Errorf("%w: a row has an invalid header", errSQLite)
		}
		types = types[n:]
		length := []uint64{0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0}[min(kind, 11)]
		if kind >= 12 {
			length = (kind - 12) / 2
		}
		if length > uint64(len(body)) {
			return nil, fmt.Errorf("%w: a column of %d bytes extends beyond its row", errSQLite, length)
		}
		v := sqliteValue{}
		switch field := body[:length]; {
		case kind >= 12:
			v.bytes = field
		case kind == 9:
			v.number = 1
		case kind >= 1 && kind <= 6:
			v.number = int64(int8(field[0]))
			for _, c := range field[1:] {
				v.number = v.number<<8 | int64(c)
			}
		}
		body = body[length:]
		out = append(out, v)
	}
	return out, nil
}

// sqliteVarint parses a number of one to nine bytes, and returns it with its length in
// bytes. The length is 0 if b is too short.
func sqliteVarint(b []byte) (v uint64, n int) {
	for i, c := range b {
		if i == 8 {
			return v<<8 | uint64(c), 9
		}
		v = v<<7 | uint64(c&0x7f)
		if c < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}
