// Package ready knows the part of a store's layout that starting a run needs: the files that
// lead to an image's tree. Package store knows the rest. Package ready rejects all input of
// which it is unsure. Everything except [Default] is used by cmd/start/bare and does not
// allocate.
package ready

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Version is the content of a store's file "version".
const Version = "1\n"

// Shared are the permission bits that a store's directory must not have: a user who can
// write to it can change what its users run. Package store refuses such a store.
const Shared = 0o022

// Default returns the default directory of the store: $HPCC_STORE, else hpcc below
// $XDG_DATA_HOME, else ~/.local/share/hpcc.
func Default() (string, error) {
	if d := os.Getenv("HPCC_STORE"); d != "" {
		return filepath.Abs(d)
	}
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "hpcc"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding the store: %w; set HPCC_STORE", err)
	}
	return filepath.Join(home, ".local/share/hpcc"), nil
}

// DigestLike reports whether a name may be a digest prefix, which also refers to images.
func DigestLike(name string) bool {
	return len(name) >= 12 && of(name, "0123456789abcdef")
}

// Manifest returns the hexadecimal digest of the manifest in a file of refs, if the file has
// the format that package store writes.
func Manifest(ref string) (string, bool) {
	rest, ok := strings.CutPrefix(ref, `{"mediaType":"`)
	kind, rest, _ := strings.Cut(rest, `","size":`)
	size, rest, _ := strings.Cut(rest, `,"digest":"sha256:`)
	hex, rest, found := strings.Cut(rest, `"`)
	ok = ok && found && strings.HasSuffix(rest, "}\n") && (kind == "application/vnd.oci.image.manifest.v1+json" || kind == "application/vnd.docker.distribution.manifest.v2+json") &&
		size != "" && of(size, "0123456789") && len(hex) == 64 && of(hex, "0123456789abcdef")
	return hex, ok
}

// Canonical returns the spelling under which the store keeps an image, like store.Canonical.
// ok is false if it is unsure, or the name is invalid or contains a digest.
func Canonical(name string) (canonical string, ok bool) {
	host, rest, below := strings.Cut(name, "/")
	if below {
		h, port, hasPort := strings.Cut(host, ":")
		if !plain(h) || h == "library" || strings.HasSuffix(h, "docker.io") || (hasPort && (port == "" || !of(port, "0123456789"))) {
			return "", false
		}
	} else {
		rest = name
	}
	for {
		part, more, found := strings.Cut(rest, "/")
		if !found {
			break
		}
		if !plain(part) {
			return "", false
		}
		rest = more
	}
	last, tag, tagged := strings.Cut(rest, ":")
	if !plain(last) || (tagged && (tag == "" || !of(tag, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"))) || len(name) > 100 {
		return "", false
	}
	if tagged && tag == "latest" {
		name = name[:len(name)-len(":latest")]
	}
	return name, true
}

// of reports whether s consists of these characters.
func of(s, characters string) bool {
	for i := range len(s) {
		if strings.IndexByte(characters, s[i]) < 0 {
			return false
		}
	}
	return true
}

// plain reports whether s consists of lower-case letters and digits, with dots, dashes and
// underscores between them.
func plain(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || ((c == '-' || c == '_' || c == '.') && i > 0 && i < len(s)-1)) {
			return false
		}
	}
	return s != ""
}
