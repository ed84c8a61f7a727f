// Package ready knows as much of the layout of a store as the start of a run takes:
// which files name the tree of an image. Package store knows the rest. What package
// ready is not sure of it does not answer. All but [Default] serve cmd/start/bare,
// and so allocate nothing.
package ready

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Version is the content of a store's file "version".
const Version = "1\n"

// Shared are the permission bits that no store's directory has: whoever can
// write to it can change what its users run. Package store refuses such a store.
const Shared = 0o022

// Default is where the store is unless the user says otherwise: $HPCC_STORE,
// else hpcc below $XDG_DATA_HOME, else ~/.local/share/hpcc.
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

// DigestLike says whether a name may be the head of a digest, which names
// images too.
func DigestLike(name string) bool {
	return len(name) >= 12 && of(name, "0123456789abcdef")
}

// Manifest returns the digest, in hexadecimal, of the manifest that a file of
// refs names, when the file is as package store writes it.
func Manifest(ref string) (string, bool) {
	rest, ok := strings.CutPrefix(ref, `{"mediaType":"`)
	kind, rest, _ := strings.Cut(rest, `","size":`)
	size, rest, _ := strings.Cut(rest, `,"digest":"sha256:`)
	hex, rest, found := strings.Cut(rest, `"`)
	ok = ok && found && strings.HasSuffix(rest, "}\n") && (kind == "application/vnd.oci.image.manifest.v1+json" || kind == "application/vnd.docker.distribution.manifest.v2+json") &&
		size != "" && of(size, "0123456789") && len(hex) == 64 && of(hex, "0123456789abcdef")
	return hex, ok
}

// Canonical returns the spelling under which the store keeps an image, as
// store.Canonical does; ok is false where it is not sure of that, or the name is
// wrong or holds a digest.
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

// of says whether s has these characters alone.
func of(s, characters string) bool {
	for i := range len(s) {
		if strings.IndexByte(characters, s[i]) < 0 {
			return false
		}
	}
	return true
}

// plain says whether s is of lower-case letters, digits, and dots, dashes and
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
