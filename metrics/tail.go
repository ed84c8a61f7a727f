package metrics

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// A Tail is the current end of a record that may still grow. It reads the file's header
// once, and then the end of the added lines, within tailBytes.
type Tail struct {
	Header  Header   // without a kind: the record has not started
	Samples []Sample // the last ones, at least a second before the last if available
	Footer  *Footer  // nil while the run is in progress

	file uint64 // inode, which differs for another attempt's record
	read int64  // bytes read so far, up to the end of a line
}

// Limits of a read in bytes: of the end, and of the end with the header.
const (
	tailBytes = 16 << 10
	MaxTail   = maxLine + tailBytes
)

// Look updates the tail from the file. A restarted record is read again. A missing file is
// an error, an empty one is not.
func (t *Tail) Look(file string) error {
	f, st, err := openRecord(file)
	if err != nil {
		return err
	}
	defer f.Close()
	inode := st.Sys().(*syscall.Stat_t).Ino
	if inode != t.file || st.Size() < t.read {
		*t = Tail{file: inode}
	}
	if err := t.readFrom(f, st.Size()); err != nil {
		return fmt.Errorf("reading a measured run: %s: %w", file, err)
	}
	return nil
}

func (t *Tail) readFrom(f io.ReaderAt, size int64) error {
	if t.Header.Kind == "" {
		n, err := t.begin(io.NewSectionReader(f, 0, size))
		if n == 0 || err != nil {
			return err
		}
		t.read = n
	}
	text, end, err := lastLines(f, t.read, size)
	if err != nil || len(text) == 0 {
		return err
	}
	t.read = end
	return t.take(text)
}

// lastLines returns the last complete lines of a file of this size after offset from, within
// tailBytes, and the offset of their end.
func lastLines(f io.ReaderAt, from, size int64) (text []byte, end int64, err error) {
	begin := max(from, size-tailBytes)
	text = make([]byte, max(0, size-begin))
	n, err := f.ReadAt(text, begin)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, err
	}
	text = text[:bytes.LastIndexByte(text[:n], '\n')+1]
	end = begin + int64(len(text))
	if begin > from { // probably in the middle of a line
		_, text, _ = bytes.Cut(text, []byte{'\n'})
	}
	return text, end, nil
}

// begin reads the header and returns its length, or 0 if it is incomplete.
func (t *Tail) begin(in io.Reader) (int64, error) {
	line, complete, err := readLine(bufio.NewReader(in))
	if err != nil || !complete {
		return 0, err
	}
	v, err := parseLine(line, false)
	if err != nil {
		return 0, fmt.Errorf("its first line: %w", err)
	}
	h, ok := v.(*Header)
	if !ok {
		return 0, errNoHeader
	}
	t.Header = *h
	return int64(len(line)), nil
}

// take records complete lines and keeps only the last samples.
func (t *Tail) take(text []byte) error {
	var list []Sample
	for len(text) > 0 && !apart(list) {
		text = bytes.TrimRight(text, "\r\n ")
		line := text[bytes.LastIndexByte(text, '\n')+1:]
		text = text[:len(text)-len(line)]
		if len(line) == 0 {
			continue
		}
		v, err := parseLine(line, true)
		if err != nil {
			return err
		}
		switch v := v.(type) {
		case *Sample:
			list = append([]Sample{*v}, list...)
		case *Footer:
			t.Footer = v
		}
	}
	list = append(t.Samples, list...)
	for len(list) > 2 && apart(list[1:]) {
		list = list[1:]
	}
	t.Samples = list[max(0, len(list)-maxTail):]
	return nil
}

// Rates are computed between samples at least a second apart: early samples are closer, and
// the kernel counts in hundredths.
const (
	apartFor = 1.0
	maxTail  = 64 // samples
)

func apart(list []Sample) bool {
	return len(list) > 1 && list[len(list)-1].At-list[0].At >= apartFor
}

// ReadTail reads the output of [WriteTail].
func ReadTail(in io.Reader) (*Tail, error) {
	t := &Tail{}
	text, err := io.ReadAll(io.LimitReader(in, MaxTail))
	if err == nil {
		err = t.readFrom(bytes.NewReader(text), int64(len(text)))
	}
	if err != nil {
		return nil, fmt.Errorf("reading the end of a measured run: %w", err)
	}
	return t, nil
}

// WriteTail writes the header and the last complete lines of a record, within tailBytes: a
// short record for remote readers.
func WriteTail(out io.Writer, file string) error {
	f, st, err := openRecord(file)
	if err != nil {
		return err
	}
	defer f.Close()
	head, complete, err := readLine(bufio.NewReader(f))
	if err != nil || !complete {
		return err
	}
	text, _, err := lastLines(f, int64(len(head)), st.Size())
	if err != nil {
		return err
	}
	_, err = out.Write(append(head, text...))
	return err
}
