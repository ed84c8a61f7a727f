package conda

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"sync"
)

// maxShebang is the longest first line of a script that Linux reads (BINPRM_BUF_SIZE
// before 5.1), in bytes.
const maxShebang = 127

// replacePrefix replaces a placeholder by the prefix. Like conda, it also handles UTF-16
// and UTF-32.
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

// widen converts ASCII to characters of width bytes, without the zeros at the outer ends:
// the rest is the same in both byte orders.
func widen(s string, width int) []byte {
	return bytes.Join(bytes.Split([]byte(s), nil), make([]byte, width-1))
}

// shebangText matches a first line with an interpreter and options.
var shebangText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^#! *(/(?:\\ |[^ \n\r\t])*)(.*)`) })

// fixShebang rewrites a first line that is too long for the kernel to use env.
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

// replaceBinary replaces all occurrences of the placeholder in each NUL-terminated string,
// and pads the string with NUL so that no later byte moves. The end of the file also ends
// a string. A NUL has width bytes.
func replaceBinary(data, placeholder, prefix []byte, width int) ([]byte, error) {
	if len(prefix) > len(placeholder) {
		return nil, fmt.Errorf("the prefix %q is longer than the package's placeholder (%d bytes); choose a shorter --prefix", prefix, len(placeholder))
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
