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

// replacePrefix puts the prefix in the place of a placeholder.
func replacePrefix(data []byte, mode, placeholder, prefix string) ([]byte, error) {
	if mode == "binary" {
		return replaceBinary(data, []byte(placeholder), []byte(prefix))
	}
	out := bytes.ReplaceAll(data, []byte(placeholder), []byte(prefix))
	return fixShebang(out), nil
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
// that nothing behind it moves. The end of the file ends a string too.
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
		start, end := at+i, len(out)
		if n := bytes.IndexByte(out[start:], 0); n >= 0 {
			end = start + n
		}
		text := out[start:end]
		fresh := bytes.ReplaceAll(text, placeholder, prefix)
		clear(text[copy(text, fresh):])
		at = end
	}
}
