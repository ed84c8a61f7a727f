package store

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
)

// maxName is the maximum length of an image name, in bytes: its escaped form must fit into a
// file name.
const maxName = 200

// Canonical returns the spelling of an image name that the store uses: "debian",
// "debian:latest" and "docker.io/library/debian:latest" are the same image, "debian".
func Canonical(n string) (string, error) {
	if len(n) > maxName {
		return "", fmt.Errorf("image name %.40q… is longer than %d bytes", n, maxName)
	}
	ref, err := parseRef(n)
	if err != nil {
		return "", fmt.Errorf("image name %q: %w", n, err)
	}
	c := ref.Context().RepositoryStr()
	if r := ref.Context().RegistryStr(); r != name.DefaultRegistry {
		c = r + "/" + c
	} else {
		c = strings.TrimPrefix(c, "library/")
	}
	switch t := ref.(type) {
	case name.Digest:
		c += "@" + t.DigestStr()
	case name.Tag:
		if t.TagStr() != name.DefaultTag {
			c += ":" + t.TagStr()
		}
	}
	return c, nil
}

// parseRef parses a reference and explains errors.
func parseRef(n string, opts ...name.Option) (name.Reference, error) {
	if n == "" {
		return nil, errors.New("it is empty")
	}
	ref, err := name.ParseReference(n, opts...)
	if err == nil {
		if strings.HasPrefix(ref.Context().RegistryStr(), ".") {
			return nil, errors.New("its host begins with a dot")
		}
		for _, c := range strings.Split(ref.Context().RepositoryStr(), "/") {
			if !validComponent(c) {
				return nil, fmt.Errorf("its part %q does not begin and end with a lower-case letter or digit", c)
			}
		}
		return ref, nil
	}
	if strings.ToLower(n) != n {
		if _, lower := name.ParseReference(strings.ToLower(n), opts...); lower == nil {
			return nil, fmt.Errorf("capital letters are not allowed; write %q", strings.ToLower(n))
		}
	}
	return nil, errors.New(`not valid; write [HOST[:PORT]/]NAME[:TAG] in lower-case letters, digits and ". _ - /"`)
}

// validComponent reports whether c is a valid path component of a repository name
// (distribution-spec, "Pulling manifests": letters or digits at both ends).
func validComponent(c string) bool {
	alnum := func(b byte) bool { return (b >= 'a' && b <= 'z') || (b >= '0' && b <= '9') }
	return c != "" && alnum(c[0]) && alnum(c[len(c)-1])
}

// escape turns a canonical name into a file name; unescape reverses it.
func escape(n string) string { return url.QueryEscape(n) }

func unescape(f string) (string, bool) {
	n, err := url.QueryUnescape(f)
	return n, err == nil
}

// hexDigest matches a digest without its algorithm, or a prefix of one.
var hexDigest = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(sha256:)?[0-9a-f]{12,64}$`) })
