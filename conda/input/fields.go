package input

import (
	"bufio"
	"bytes"
	"strings"
)

// maxField limits a line of metadata, in bytes.
const maxField = 64 << 20

// Fields parses "Key: value" lines. As in mail, a line that begins with a blank continues
// the line before, and the first line without a key ends the fields. Keys are passed in
// lower case.
func Fields(b []byte, take func(key, value string) error) error {
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(make([]byte, 0, 4096), maxField)
	key, value := "", strings.Builder{}
	flush := func() error {
		if key == "" {
			return nil
		}
		return take(strings.ToLower(strings.TrimSpace(key)), strings.TrimSpace(value.String()))
	}
	for sc.Scan() {
		line := strings.TrimSuffix(sc.Text(), "\r")
		if line == "" {
			break
		}
		if line[0] == ' ' || line[0] == '\t' {
			value.WriteString(" " + strings.TrimSpace(line))
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			return nil
		}
		key = name
		value.Reset()
		value.WriteString(rest)
	}
	if sc.Err() != nil {
		return sc.Err()
	}
	return flush()
}
