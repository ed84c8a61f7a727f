package layer

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"hpcc/store"
)

// Archives is the directory where the store keeps archives that were fetched.
func Archives(s *store.Store) string { return filepath.Join(s.Dir(), "cache", "conda") }

// maxPrefix is the longest prefix: packages before 2017 have placeholders of 80 bytes.
const maxPrefix = 80

// CheckPrefix says why an environment cannot stand at a path.
func CheckPrefix(prefix string) error {
	if !path.IsAbs(prefix) || path.Clean(prefix) != prefix || prefix == "/" || strings.ContainsAny(prefix, " \t\n\x00:") {
		return fmt.Errorf("prefix %q: not a clean absolute path without blanks and colons", prefix)
	}
	if len(prefix) > maxPrefix {
		return fmt.Errorf("prefix %q: longer than %d bytes, which is all that some packages have room for", prefix, maxPrefix)
	}
	return nil
}
