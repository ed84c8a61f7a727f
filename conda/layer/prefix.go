package layer

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"hpcc/store"
)

// Archives returns the directory of cached archives in the store.
func Archives(s *store.Store) string { return filepath.Join(s.Dir(), "cache", "conda") }

// maxPrefix is the longest prefix, in bytes. Packages built before 2017 have placeholders of
// this length.
const maxPrefix = 80

// CheckPrefix returns an error if an environment cannot be installed at a path.
func CheckPrefix(prefix string) error {
	if !path.IsAbs(prefix) || path.Clean(prefix) != prefix || prefix == "/" || strings.ContainsAny(prefix, " \t\n\x00:") {
		return fmt.Errorf("prefix %q: not a clean absolute path without blanks or colons", prefix)
	}
	if len(prefix) > maxPrefix {
		return fmt.Errorf("prefix %q: longer than %d bytes, the length of the placeholder in old packages", prefix, maxPrefix)
	}
	return nil
}
