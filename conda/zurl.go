package conda

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
)

// fileURL is the URL of a file or directory of this machine.
func fileURL(abs string) string { return (&url.URL{Scheme: "file", Path: abs}).String() }

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

// plain takes the URL, which may hold credentials, out of an error.
func plain(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

// tokenText is a credential in the path of a URL, as Anaconda's servers have it.
var tokenText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/t/([^/]+)(?:/|$)`) })

// without replaces the tokens in a path.
func without(p, by string) string {
	return tokenText().ReplaceAllStringFunc(p, func(s string) string {
		if token := tokenText().FindStringSubmatch(s)[1]; token == "noarch" || platformText().MatchString(token) {
			return s // a channel that is called "t"
		}
		if strings.HasSuffix(s, "/") {
			return by + "/"
		}
		return by
	})
}

// hide takes credentials out of a URL for messages.
func hide(u string) string {
	p, err := url.Parse(u)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	p.User, p.RawQuery = nil, ""
	if p.Scheme != "file" {
		p.Path, p.RawPath = without(p.Path, "/t/xxxxx"), ""
	}
	return p.String()
}

// public is a URL as an image may record it: without credentials, and without
// directories of this machine (then "").
func public(u string) string {
	if u = bare(u); strings.HasPrefix(u, "file:") {
		return ""
	}
	return u
}

// bare is a URL without credentials; "" is one that cannot be read.
func bare(u string) string {
	p, err := url.Parse(u)
	if err != nil {
		return ""
	}
	p.User, p.RawQuery = nil, ""
	if p.Scheme != "file" {
		p.Path, p.RawPath = without(p.Path, ""), ""
	}
	return p.String()
}

// isDigest tells whether s is empty or n hex digits.
func isDigest(s string, n int) bool {
	_, err := hex.DecodeString(s)
	return s == "" || (len(s) == n && err == nil)
}

// expandURL reads a URL in which variables may stand.
func expandURL(s string) (*url.URL, error) {
	s, err := expand(s)
	if err != nil {
		return nil, err
	}
	return url.Parse(s)
}

// expand puts variables of the environment in: that is how a file names a
// credential without holding it. One that is not set is an error, which names
// the variable and never a value.
func expand(s string) (string, error) {
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

// hideText takes credentials out of a line that holds a URL.
func hideText(s string) string {
	f := strings.Fields(s)
	for i, w := range f {
		if strings.Contains(w, "://") {
			f[i] = hide(w)
		}
	}
	return strings.Join(f, " ")
}

// platformText is the name of a channel's directory for a platform.
var platformText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:linux|osx|win|freebsd|zos|emscripten|wasi)-[a-z0-9]+$`)
})
