package conda

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"hpcc/conda/fetch"
	"hpcc/conda/solve"
	"hpcc/store"
)

// A table finds the records of a name in a large index without reading all of it. Its file
// has three parts: the records of the index in compressed blocks, each a JSON object; the
// directory, which is the table in JSON; and a trailer with tableFormat, the length of the
// directory and its SHA-256. A table that is damaged, in another format, or of another index
// is built again.
type table struct {
	Source string              `json:"source"`   // see indexFile
	Base   string              `json:"base_url"` // of the packages; "": the directory of the index
	Blocks []tableBlock        `json:"blocks"`   // in the order of the file
	Names  map[string][]uint32 `json:"names"`    // indexes of the blocks with records of a name, ascending
	file   string
	used   time.Time // modification time of the file
}

type tableBlock struct {
	Size   int64  `json:"size"` // bytes, compressed
	SHA256 []byte `json:"sha256"`
}

const (
	tableKind    = "hpcc-table-"
	tableFormat  = tableKind + "00001" // increase the number with each change of the format
	trailerSize  = len(tableFormat) + 8 + sha256.Size
	minTable     = 256 << 10     // bytes of an index; smaller ones are read in milliseconds
	maxDirectory = 64 << 20      // bytes
	blockText    = 64 << 10      // bytes of records after which a block ends
	maxBlock     = 3 * maxRecord // bytes: a key and a record follow at most blockText bytes
)

// errNoTable means that a table was unusable. The next attempt builds it again, or reads
// the index without a table.
var errNoTable = errors.New("unusable table of an index")

// errFormat means that a table was written by another version of hpcc.
var errFormat = errors.New("table in another format")

// tableFile returns the path of the table of an index in the cache.
func (c channel) tableFile(u string) string {
	return filepath.Join(c.cache, "table-"+strings.TrimPrefix(filepath.Base(c.file(u)), "index-"))
}

// cachedTable returns the table of an index in the cache, or nil.
func (c channel) cachedTable(u string) *table {
	if c.tables == nil {
		return nil
	}
	if t, ok := c.tables.Load(u); ok {
		return t.(*table)
	}
	t, err := openTable(c.tableFile(u))
	if err != nil {
		return nil
	}
	c.tables.Store(u, t)
	return t
}

// table returns the table of an open index, and builds it if the cache has none. It returns
// nil if the index does not need one.
func (c channel) table(ctx context.Context, u string, r *indexFile) (*table, error) {
	if c.tables == nil || r.source == "" || r.size < minTable {
		return nil, nil
	}
	t := c.cachedTable(u)
	if t != nil && (t.Source == r.source || t.Source == "") {
		t.touch()
		return t, nil
	}
	file := c.tableFile(u)
	err := c.buildTable(ctx, u, r)
	if err == nil {
		t, err = openTable(file)
	}
	if err != nil {
		slog.Debug("an index is read without a table", "file", file, "reason", err)
		c.tables.Store(u, &table{}) // do not try again
		return nil, errNoTable
	}
	c.tables.Store(u, t)
	return t, nil
}

// touch marks a table as used: the store's garbage collection goes by age.
func (t *table) touch() {
	if now := time.Now(); t.file != "" && now.Sub(t.used) > time.Hour {
		_ = os.Chtimes(t.file, now, now)
		t.used = now
	}
}

// buildTable writes the table of an index to the cache.
func (c channel) buildTable(ctx context.Context, u string, r *indexFile) error {
	if err := os.MkdirAll(c.cache, 0o755); err != nil {
		return err
	}
	return store.NewFile(c.tableFile(u), func(f *os.File) error {
		in, err := unpackIndex(fetch.Reader(ctx, r), u)
		if err != nil {
			return err
		}
		defer in.Close()
		if err := writeTable(f, in, r.source); err != nil {
			return err
		}
		if !r.unchanged() {
			return errors.New("the index changed while it was read")
		}
		return f.Chmod(0o644)
	})
}

// dropTable removes a damaged table, so that it is built again.
func (c channel) dropTable(u string) {
	if c.tables != nil {
		c.tables.Delete(u)
		_ = os.Remove(c.tableFile(u))
	}
}

// A tableWriter writes the blocks of a table.
type tableWriter struct {
	table
	w         io.Writer
	zstd      *zstd.Encoder
	text      []byte // of the current block
	packed    []byte
	last      []byte // name of the last record
	directory int    // estimate of the directory's size in bytes
}

// writeTable reads an index as a stream and writes its table.
func writeTable(f io.Writer, index io.Reader, source string) error {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer enc.Close()
	w := bufio.NewWriterSize(f, 128<<10)
	t := &tableWriter{table: table{Source: source, Names: map[string][]uint32{}}, w: w, zstd: enc}
	s := newScanner(index)
	if t.Base, err = walkIndex(s, func(fn []byte) error { return t.add(s, fn) }); err != nil {
		return err
	}
	if err := t.flush(); err != nil {
		return err
	}
	directory, err := json.Marshal(t.table)
	if err != nil {
		return err
	}
	if len(directory) > maxDirectory {
		return fmt.Errorf("directory larger than %d bytes", maxDirectory)
	}
	sum := sha256.Sum256(directory)
	trailer := append(binary.BigEndian.AppendUint64([]byte(tableFormat), uint64(len(directory))), sum[:]...)
	if _, err := w.Write(append(directory, trailer...)); err != nil {
		return err
	}
	return w.Flush()
}

// add appends a record to the current block. It skips records whose file name has no valid
// package name, because nothing can ask for them.
func (t *tableWriter) add(s *scanner, fn []byte) error {
	name := nameOf(fn)
	if bytes.IndexByte(fn, '\\') >= 0 {
		text, err := unquote(fn)
		if err != nil {
			return err
		}
		plain, _, _, _ := solve.SplitFile(text)
		name = []byte(plain)
	}
	block := uint32(len(t.Blocks))
	if len(t.text) == 0 || !bytes.Equal(name, t.last) {
		in, known := t.Names[string(name)]
		if !known && !solve.IsName(string(name)) {
			return s.skip()
		}
		if !known || in[len(in)-1] != block {
			t.Names[string(name)] = append(in, block)
			t.directory += len(name) + 16
		}
		if t.directory > maxDirectory {
			return fmt.Errorf("directory larger than %d bytes", maxDirectory)
		}
		t.last = append(t.last[:0], name...)
	}
	start := byte(',')
	if len(t.text) == 0 {
		start = '{'
	}
	t.text = append(append(append(t.text, start), fn...), ':')
	raw, err := s.value()
	if err != nil {
		return err
	}
	if t.text = append(t.text, raw...); len(t.text) < blockText {
		return nil
	}
	return t.flush()
}

// flush ends the current block.
func (t *tableWriter) flush() error {
	if len(t.text) == 0 {
		return nil
	}
	t.packed = t.zstd.EncodeAll(append(t.text, '}'), t.packed[:0])
	sum := sha256.Sum256(t.packed)
	t.Blocks = append(t.Blocks, tableBlock{int64(len(t.packed)), sum[:]})
	t.text = t.text[:0]
	t.directory += 100
	_, err := t.w.Write(t.packed)
	return err
}

// openTable reads and checks the directory of a table.
func openTable(file string) (*table, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	t, err := readDirectory(f, fi.Size())
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	t.file, t.used = file, fi.ModTime()
	return t, nil
}

// readDirectory reads the directory of a table with the given size in bytes.
func readDirectory(r io.ReaderAt, size int64) (*table, error) {
	trailer := make([]byte, trailerSize)
	if size < int64(trailerSize) {
		return nil, io.ErrUnexpectedEOF
	}
	size -= int64(trailerSize)
	if _, err := r.ReadAt(trailer, size); err != nil {
		return nil, err
	}
	rest, ok := bytes.CutPrefix(trailer, []byte(tableFormat))
	if !ok && bytes.HasPrefix(trailer, []byte(tableKind)) {
		return nil, errFormat
	}
	if !ok {
		return nil, errors.New("the trailer is damaged")
	}
	n := binary.BigEndian.Uint64(rest)
	if n > maxDirectory || int64(n) > size {
		return nil, fmt.Errorf("invalid size of the directory: %d bytes", n)
	}
	directory := make([]byte, n)
	size -= int64(n)
	if _, err := r.ReadAt(directory, size); err != nil {
		return nil, err
	}
	if !hasDigest(directory, rest[8:]) {
		return nil, errors.New("the directory is damaged: SHA-256 mismatch")
	}
	t := &table{}
	if err := json.Unmarshal(directory, t); err != nil {
		return nil, err
	}
	return t, t.check(size)
}

// check checks the bounds in a directory. size is that of all blocks.
func (t *table) check(size int64) error {
	if t.Source == "" {
		return errors.New("the directory does not name its index")
	}
	for i, b := range t.Blocks {
		if b.Size <= 0 || b.Size > min(maxBlock, size) || len(b.SHA256) != sha256.Size {
			return fmt.Errorf("block %d: invalid size or digest", i)
		}
		size -= b.Size
	}
	if size != 0 {
		return fmt.Errorf("%d bytes belong to no block", size)
	}
	for name, blocks := range t.Names {
		if len(blocks) == 0 || !slices.IsSorted(blocks) || int(blocks[len(blocks)-1]) >= len(t.Blocks) {
			return fmt.Errorf("the blocks of %.64q are invalid", name)
		}
	}
	return nil
}

// each calls visit for the file names of all records in the blocks of the wanted names, in the
// order of the index. visit reads the record. An error that wraps errNoTable means damage.
func (t *table) each(wanted map[string]bool, visit func(s *scanner, fn []byte) error) error {
	need := make([]bool, len(t.Blocks))
	for name := range wanted {
		for _, i := range t.Names[name] {
			need[i] = true
		}
	}
	if !slices.Contains(need, true) {
		return nil
	}
	f, err := os.Open(t.file)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoTable, err)
	}
	defer f.Close()
	return t.read(f, need, func(text []byte) error {
		s := textScanner(text)
		return s.object(func(fn []byte) error { return visit(s, fn) })
	})
}

// read passes the text of the needed blocks of a table's file to use, after comparing their
// digests.
func (t *table) read(f io.ReaderAt, need []bool, use func(text []byte) error) error {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlock))
	if err != nil {
		return err
	}
	defer z.Close()
	var packed, text []byte
	var at int64
	for i, b := range t.Blocks {
		if need[i] {
			packed = slices.Grow(packed[:0], int(b.Size))[:b.Size]
			if _, err = f.ReadAt(packed, at); err == nil && !hasDigest(packed, b.SHA256) {
				err = errors.New("SHA-256 mismatch")
			}
			if err == nil {
				text, err = z.DecodeAll(packed, text[:0])
			}
			if err != nil {
				return fmt.Errorf("%w: block %d: %w", errNoTable, i, err)
			}
			if err := use(text); err != nil {
				return err
			}
		}
		at += b.Size
	}
	return nil
}
