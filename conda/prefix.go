package conda

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"sync"
)

// maxShebang is the longest first line that Linux reads of a script
// (BINPRM_BUF_SIZE before 5.1).
const maxShebang = 127

// replacePrefix puts the prefix in the place of a placeholder, as conda does also
// where characters have two or four bytes.
func replacePrefix(data []byte, mode, placeholder, prefix string) (_ []byte, err error) {
	for _, width := range []int{1, 2, 4} {
		from, to := widen(placeholder, width), widen(prefix, width)
		switch {
		case width > 1 && !bytes.Contains(data, from):
		case mode == "binary":
			if data, err = replaceBinary(data, from, to, width); err != nil {
				return nil, err
			}
		default:
			data = bytes.ReplaceAll(data, from, to)
		}
	}
	if mode == "binary" {
		return data, nil
	}
	return fixShebang(data), nil
}

// widen is ASCII text with characters of width bytes, from the first one's own byte
// to the last one's: what lies between is the same in both byte orders.
func widen(s string, width int) []byte {
	return bytes.Join(bytes.Split([]byte(s), nil), make([]byte, width-1))
}

// shebangText is a first line that names an interpreter, and its options.
var shebangText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^#! *(/(?:\\ |[^ \n\r\t])*)(.*)`) })

// fixShebang rewrites a first line that is too long for the kernel so that env
// finds the interpreter.
func fixShebang(data []byte) []byte {
	line, rest := data, []byte(nil)
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		line, rest = data[:i], data[i:]
	}
	if len(line) <= maxShebang {
		return data
	}
	m := shebangText().FindSubmatch(line)
	if m == nil {
		return data
	}
	return slices.Concat([]byte("#!/usr/bin/env "+path.Base(string(m[1]))), m[2], rest)
}

// replaceBinary replaces within each NUL-terminated string that holds the
// placeholder, all its occurrences, and fills the string's end with NUL, so
// that nothing behind it moves. The end of the file ends a string too. NUL has
// width bytes; the last character's zeros count as its first, which is as good.
func replaceBinary(data, placeholder, prefix []byte, width int) ([]byte, error) {
	if len(prefix) > len(placeholder) {
		return nil, fmt.Errorf("the prefix %q is longer than the %d bytes that the package has room for; choose a shorter --prefix", prefix, len(placeholder))
	}
	out, zero := bytes.Clone(data), make([]byte, width)
	for at := 0; ; {
		i := bytes.Index(out[at:], placeholder)
		if i < 0 {
			return out, nil
		}
		start, end := at+i, len(out)
		after := start + len(placeholder)
		if n := bytes.Index(out[after:], zero); n >= 0 {
			end = after + n
		}
		text := out[start:end]
		fresh := bytes.ReplaceAll(text, placeholder, prefix)
		clear(text[copy(text, fresh):])
		at = end
	}
}
