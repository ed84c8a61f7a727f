// Package fetch brings files here for conda and pip: it asks servers, keeps archives in
// the store's cache, and takes credentials out of addresses.
//
//	URL with login or $VARIABLE → Get, Open, Web → File.Keep: digest compared → cache
//
// No error, layer or lock file that is made of [Hide], [Bare] or [Public] has a credential.
// What is kept was compared with its digest, as far as one is known.
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
)

// openFile opens a file URL.
func openFile(u string) (*os.File, error) {
	p, err := url.Parse(u)
	if err != nil {
		return nil, err
	}
	if (p.Host != "" && p.Host != "localhost") || !path.IsAbs(p.Path) {
		return nil, fmt.Errorf("%s: not of the form file:///directory", u)
	}
	return os.Open(p.Path)
}

// Plain takes the URL, which may hold credentials, out of an error.
func Plain(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

// tokenText is a credential in the path of a URL, as Anaconda's servers have it.
var tokenText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/t/([^/]+)(?:/|$)`) })

// WithoutToken replaces the tokens in a path.
func WithoutToken(p, by string) string {
	return tokenText().ReplaceAllStringFunc(p, func(s string) string {
		if token := tokenText().FindStringSubmatch(s)[1]; token == "noarch" || IsPlatform(token) {
			return s // a channel that is called "t"
		}
		if strings.HasSuffix(s, "/") {
			return by + "/"
		}
		return by
	})
}

// Hide takes credentials out of a URL for messages.
func Hide(u string) string {
	if _, err := url.Parse(u); err != nil {
		return "(a URL that cannot be read)"
	}
	return without(u, "/t/xxxxx")
}

// Public is a URL as an image may record it: without credentials, and without
// directories of this machine (then "").
func Public(u string) string {
	if u = Bare(u); strings.HasPrefix(u, "file:") {
		return ""
	}
	return u
}

// Bare is a URL without credentials; "" is one that cannot be read.
func Bare(u string) string { return without(u, "") }

// without removes user, query and token from a URL and puts token in its place.
func without(u, token string) string {
	p, err := url.Parse(u)
	if err != nil {
		return ""
	}
	p.User, p.RawQuery = nil, ""
	if p.Scheme != "file" {
		p.Path, p.RawPath = WithoutToken(p.Path, token), ""
	}
	return p.String()
}

// Expand puts variables of the environment in: that is how a file names a
// credential without holding it. One that is not set is an error, which names
// the variable and never a value.
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
		return "", fmt.Errorf("variable %s is not set; export it, as the file names it instead of a credential", strings.Join(missing, ", "))
	}
	return s, nil
}

// variable is $NAME or ${NAME}.
var variable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)
})

var platformText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:linux|osx|win|freebsd|zos|emscripten|wasi)-[a-z0-9]+$`)
})

// IsPlatform reports whether s names a channel's directory for a platform, such as
// linux-64.
func IsPlatform(s string) bool { return platformText().MatchString(s) }
