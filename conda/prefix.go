package conda

import (
	"bytes"
	"fmt"
	"path"
)

// maxShebang is the longest first line that Linux reads of a script
// (BINPRM_BUF_SIZE before 5.1).
const maxShebang = 127

// replacePrefix puts the prefix in the place of a placeholder.
func replacePrefix(data []byte, mode, placeholder, prefix string) ([]byte, error) {
	if mode == "binary" {
		return replaceBinary(data, []byte(placeholder), []byte(prefix))
	}
	out := bytes.ReplaceAll(data, []byte(placeholder), []byte(prefix))
	return fixShebang(out), nil
}

// fixShebang rewrites a first line that is too long for the kernel so that env
// finds the interpreter.
func fixShebang(data []byte) []byte {
	if !bytes.HasPrefix(data, []byte("#!")) {
		return data
	}
	line, rest := data, []byte(nil)
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		line, rest = data[:i], data[i:]
	}
	if len(line) <= maxShebang {
		return data
	}
	f := bytes.Fields(line[2:])
	if len(f) == 0 {
		return data
	}
	out := []byte("#!/usr/bin/env " + path.Base(string(f[0])))
	for _, x := range f[1:] {
		out = append(append(out, ' '), x...)
	}
	return append(out, rest...)
}

// replaceBinary replaces within each NUL-terminated string that holds the
// placeholder, all its occurrences, and fills the string's end with NUL, so
// that nothing behind it moves. A string without an end is left as it is.
func replaceBinary(data, placeholder, prefix []byte) ([]byte, error) {
	if len(prefix) > len(placeholder) {
		return nil, fmt.Errorf("the prefix %q is longer than the %d bytes that the package has room for; choose a shorter --prefix", prefix, len(placeholder))
	}
	out := bytes.Clone(data)
	for at := 0; ; {
		i := bytes.Index(out[at:], placeholder)
		if i < 0 {
			return out, nil
		}
		start := at + i
		n := bytes.IndexByte(out[start:], 0)
		if n < 0 {
			return out, nil
		}
		text := out[start : start+n]
		fresh := bytes.ReplaceAll(text, placeholder, prefix)
		clear(text[copy(text, fresh):])
		at = start + n
	}
}
