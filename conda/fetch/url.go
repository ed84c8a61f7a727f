// Package fetch downloads files for conda and pip, keeps archives in the store's cache,
// and removes credentials from URLs.
//
// URL with credentials or $VARIABLE → Get, Open, Web → File.Keep: digest verified → cache
//
// Errors, layers and lock files use [Hide], [Bare] or [Public] and contain no credentials.
// Cached files were verified if a digest was known.
package fetch

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"

	"hpcc/conda/artifact"
)

// openFile opens a file URL.
func openFile(u string) (*os.File, error) {
	p, err := url.Parse(u)
	if err != nil {
		return nil, fmt.Errorf("parsing a file URL: %w", Plain(err))
	}
	if (p.Host != "" && p.Host != "localhost") || !path.IsAbs(p.Path) {
		return nil, fmt.Errorf("%s: not of the form file:///directory", Hide(u))
	}
	return os.Open(p.Path)
}

// Plain removes the URL, which may contain credentials, from an error.
func Plain(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

// tokenText matches an access token in the path of an Anaconda server's URL.
var tokenText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/t/([^/]+)(?:/|$)`) })

// WithoutToken replaces each /t/TOKEN in a path.
func WithoutToken(p, replacement string) string {
	return tokenText().ReplaceAllStringFunc(p, func(s string) string {
		if token := tokenText().FindStringSubmatch(s)[1]; token == "noarch" || IsPlatform(token) {
			return s // a channel named "t"
		}
		if strings.HasSuffix(s, "/") {
			return replacement + "/"
		}
		return replacement
	})
}

// Hide removes credentials from a URL for messages.
func Hide(u string) string {
	if _, err := url.Parse(u); err != nil {
		return "(an invalid URL)"
	}
	return without(u, "/t/xxxxx")
}

// Public returns a URL as images record it: without credentials, and "" for local paths.
func Public(u string) string {
	if u = Bare(u); strings.HasPrefix(u, "file:") {
		return ""
	}
	return u
}

// Bare returns a URL without credentials, or "" if it is invalid.
func Bare(u string) string { return without(u, "") }

// without removes user and query from a URL, and replaces each /t/TOKEN in its path.
func without(u, replacement string) string {
	p, err := url.Parse(u)
	if err != nil {
		return ""
	}
	p.User, p.RawQuery = nil, ""
	if p.Scheme != "file" && !artifact.IsURL(u) { // these have no tokens
		p.Path, p.RawPath = WithoutToken(p.Path, replacement), ""
	}
	return p.String()
}

// Expand expands environment variables, so that a file can refer to a credential without
// containing it. The error for an unset variable contains its name, but no values.
func Expand(s string) (string, error) {
	var missing []string
	s = variable().ReplaceAllStringFunc(s, func(m string) string {
		name := strings.Trim(m, "${}")
		v, ok := os.LookupEnv(name)
		if !ok {
			missing = append(missing, name)
		}
		return v
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("variable %s is not set; set it to the credential that the file refers to", strings.Join(missing, ", "))
	}
	return s, nil
}

// variable matches $NAME or ${NAME}.
var variable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)
})

var platformText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:linux|osx|win|freebsd|zos|emscripten|wasi)-[a-z0-9]+$`)
})

// IsPlatform reports whether s is a platform directory of a channel, such as linux-64.
func IsPlatform(s string) bool { return platformText().MatchString(s) }
