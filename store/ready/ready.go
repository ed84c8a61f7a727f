// Package ready implements the part of a store's layout that starting a container needs: the
// files that lead from an image's name to its tree. Package store implements the rest.
// Package ready rejects all input that it does not fully understand; package store then
// handles it. Functions other than [Default], [InTree], [IsPath] and [NamesImageFile] are used by
// cmd/start/bare and do not allocate.
package ready

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Version is the content of a store's file "version". Starts do not read it if the name's file in
// refs has the format that [Manifest] accepts, which another version must therefore change.
const Version = "1\n"

// Shared are the permission bits that a store's directory must not have: other users who can
// write to it could change the programs in its images. Package store refuses such a store.
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

// InTree reports whether a path leads into a tree of a store. All runs of the image share it, so
// that no run may change it.
func InTree(path string) bool {
	dir, err := filepath.Abs(path)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if filepath.Base(dir) != "trees" {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "../blobs/sha256")); err == nil {
			return true
		}
	}
	return false
}

// IsImageFile reports whether the name of a file is that of an image: of a SquashFS or SIF file.
func IsImageFile(name string) bool {
	for _, end := range [...]string{".sqfs", ".squashfs", ".sfs", ".sqsh", ".sif"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

// DigestLike reports whether a name may be a prefix of a digest. Such prefixes select images,
// too.
func DigestLike(name string) bool {
	return len(name) >= 12 && consistsOf(name, "0123456789abcdef")
}

// Digest returns the hexadecimal digest in a name of the form NAME@sha256:HEX or sha256:HEX, if it
// is complete.
func Digest(name string) (hex string, ok bool) {
	_, hex, found := strings.Cut(name, "@sha256:")
	if !found {
		hex, found = strings.CutPrefix(name, "sha256:")
	}
	return hex, found && isDigest(hex)
}

func isDigest(hex string) bool { return len(hex) == 64 && consistsOf(hex, "0123456789abcdef") }

// Manifest returns the hexadecimal digest of the manifest in a file of refs, if the file has
// the format that package store writes.
func Manifest(ref string) (string, bool) {
	rest, ok := strings.CutPrefix(ref, `{"mediaType":"`)
	kind, rest, _ := strings.Cut(rest, `","size":`)
	size, rest, _ := strings.Cut(rest, `,"digest":"sha256:`)
	hex, rest, found := strings.Cut(rest, `"`)
	isImage := kind == "application/vnd.oci.image.manifest.v1+json" || kind == "application/vnd.docker.distribution.manifest.v2+json"
	validSize := size != "" && consistsOf(size, "0123456789")
	return hex, ok && found && strings.HasSuffix(rest, "}\n") && isImage && validSize && isDigest(hex)
}

// Canonical returns the spelling under which the store keeps an image, like store.Canonical.
// ok is false if the name is invalid or contains a digest, or only package store can parse it.
func Canonical(name string) (canonical string, ok bool) {
	host, rest, hasSlash := strings.Cut(name, "/")
	if hasSlash {
		h, port, hasPort := strings.Cut(host, ":")
		if !plain(h) || h == "library" || strings.HasSuffix(h, "docker.io") ||
			(hasPort && (port == "" || !consistsOf(port, "0123456789"))) {
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
	if !plain(last) || (tagged && (tag == "" || !consistsOf(tag,
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"))) || len(name) > 100 {
		return "", false
	}
	if tagged && tag == "latest" {
		name = name[:len(name)-len(":latest")]
	}
	return name, true
}

// consistsOf reports whether s contains only these characters.
func consistsOf(s, characters string) bool {
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

// IsPath reports whether IMAGE is written as a path: "/x", "./x", "../x", "." or "..".
func IsPath(image string) bool {
	return filepath.IsAbs(image) || image == "." || image == ".." ||
		strings.HasPrefix(image, "./") || strings.HasPrefix(image, "../")
}

// NamesImageFile reports whether IMAGE is the name of a SquashFS or SIF file that exists. Every start
// calls it, so it reads the disk only if the extension matches.
func NamesImageFile(image string) bool {
	if !IsImageFile(image) {
		return false
	}
	fi, err := os.Stat(image)
	return err == nil && fi.Mode().IsRegular()
}
