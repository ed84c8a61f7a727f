package conda

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits of an index, in bytes and levels.
const (
	maxIndex  = 4 << 30 // unpacked
	maxRecord = 16 << 20
	maxDepth  = 10_000
)

// A scanner reads a JSON object that is too large to hold in memory: an index has hundreds
// of megabytes, of which an export needs few records. It skips other values by brackets
// and quotes only, without validating them.
type scanner struct {
	r        io.Reader
	buf      []byte
	pos, end int
	keep     int    // start of the bytes that must stay in buf; -1: none
	key      []byte // the last key
}

func newScanner(r io.Reader) *scanner {
	return &scanner{r: io.LimitReader(r, maxIndex), buf: make([]byte, 256<<10), keep: -1}
}

// textScanner returns a scanner of text in memory.
func textScanner(text []byte) *scanner {
	return &scanner{r: strings.NewReader(""), buf: text, end: len(text), keep: -1}
}

// fill reads more bytes after end, and moves the kept ones to the start of buf.
func (s *scanner) fill() error {
	from := s.pos
	if s.keep >= 0 {
		from = s.keep
	}
	if from > 0 {
		copy(s.buf, s.buf[from:s.end])
		s.pos, s.end = s.pos-from, s.end-from
		if s.keep >= 0 {
			s.keep = 0
		}
	}
	if s.end == len(s.buf) {
		if len(s.buf) >= maxRecord {
			return fmt.Errorf("record larger than %d bytes", maxRecord)
		}
		s.buf = append(s.buf, make([]byte, len(s.buf))...)
	}
	for range 100 {
		n, err := s.r.Read(s.buf[s.end:])
		s.end += n
		if n > 0 {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// next skips blanks and returns the next byte without consuming it.
func (s *scanner) next() (byte, error) {
	for {
		for ; s.pos < s.end; s.pos++ {
			switch c := s.buf[s.pos]; c {
			case ' ', '\t', '\n', '\r':
			default:
				return c, nil
			}
		}
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
}

// expect consumes one given byte.
func (s *scanner) expect(want byte) error {
	c, err := s.next()
	if err == nil && c != want {
		err = fmt.Errorf("expected %q, found %q", want, c)
	}
	s.pos++
	return err
}

// object reads an object. each receives the quoted keys and reads their values. A key is
// valid until the next object is read.
func (s *scanner) object(each func(key []byte) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	c, err := s.next()
	if err == nil && c == '}' {
		s.pos++
		return nil
	}
	for ; err == nil; c, err = s.next() {
		if c != '"' {
			return fmt.Errorf("expected a key, found %q", c)
		}
		key, err := s.value()
		if err != nil {
			return err
		}
		s.key = append(s.key[:0], key...)
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := each(s.key); err != nil {
			return err
		}
		c, err := s.next()
		if err != nil {
			return err
		}
		s.pos++
		if c == '}' {
			return nil
		}
		if c != ',' {
			return fmt.Errorf("expected ',' or '}', found %q", c)
		}
	}
	return err
}

// value reads one value and returns its text, which is valid until the next read.
func (s *scanner) value() ([]byte, error) {
	if _, err := s.next(); err != nil {
		return nil, err
	}
	s.keep = s.pos
	err := s.skip()
	v := s.buf[s.keep:s.pos]
	s.keep = -1
	return v, err
}

// skip skips one value.
func (s *scanner) skip() error {
	c, err := s.next()
	if err != nil {
		return err
	}
	switch c {
	case '"', '{', '[':
		return s.skipNested()
	case ',', ':', '}', ']':
		return fmt.Errorf("expected a value, found %q", c)
	}
	for { // a number or a keyword
		for ; s.pos < s.end; s.pos++ {
			switch s.buf[s.pos] {
			case ' ', '\t', '\n', '\r', ',', ':', '}', ']', '{', '[', '"':
				return nil
			}
		}
		if err := s.fill(); err != nil {
			return err
		}
	}
}

// brackets marks the bytes that matter outside of strings.
var brackets = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// skipNested skips a string, or everything between two brackets.
func (s *scanner) skipNested() error {
	depth, quoted, escaped := 0, false, false
	for {
		w := s.buf[s.pos:s.end]
		i := 0
		if escaped && len(w) > 0 {
			i, escaped = 1, false
		}
		for i < len(w) {
			if quoted {
				for i < len(w) && w[i] != '"' && w[i] != '\\' {
					i++
				}
			} else {
				for i < len(w) && !brackets[w[i]] {
					i++
				}
			}
			if i == len(w) {
				break
			}
			switch c := w[i]; {
			case c == '\\':
				i++
				escaped = i == len(w)
			case c == '"':
				quoted = !quoted
			case c == '{' || c == '[':
				if depth++; depth > maxDepth {
					return fmt.Errorf("nested more than %d levels deep", maxDepth)
				}
			default:
				depth--
			}
			i++
			if depth == 0 && !quoted {
				s.pos += i
				return nil
			}
		}
		s.pos = s.end
		if err := s.fill(); err != nil {
			return err
		}
	}
}

// null consumes null, which some indexes have for an empty list.
func (s *scanner) null() error {
	v, err := s.value()
	if err == nil && string(v) != "null" {
		err = fmt.Errorf("expected an object, found %.20q", v)
	}
	return err
}

// unquote returns the text of a key.
func unquote(key []byte) (string, error) {
	if bytes.IndexByte(key, '\\') < 0 {
		return string(key[1 : len(key)-1]), nil
	}
	var s string
	err := json.Unmarshal(key, &s)
	return s, err
}
