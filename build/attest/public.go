package attest

import (
	"regexp"
	"strings"
	"sync"
)

// PublicURL returns a URL without its password, and without its user unless it is that of ssh.
// An address that is not a URL, such as USER@HOST:PATH of ssh, is returned as it is.
func PublicURL(address string) string { return PublicText(address) }

// login matches what precedes the host in a URL: user, password and "@". A continuation line of
// a Dockerfile may split it.
var login = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("([a-zA-Z][a-zA-Z0-9+.-]*://)((?:[^\\s/?#\"<>\\\\`]|[\\\\`]\\r?\\n)*@)")
})

// wrongLogin matches a password with characters that must be escaped, such as a slash. It looks
// like a port that is not a number.
var wrongLogin = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/?#:@\[$"<>]+:[^\s/?#@$]*[^\s/?#0-9@$:][^\s@"<>]*@`)
})

// continued matches the end of a line that the next one continues.
var continued = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("[\\\\`]\\r?\\n") })

// PublicText returns a text, such as an instruction or a message, without the credentials of its
// URLs. The number of its lines does not change.
func PublicText(text string) string {
	if !strings.Contains(text, "://") || !strings.Contains(text, "@") {
		return text
	}
	text = login().ReplaceAllStringFunc(text, func(found string) string {
		scheme, user, _ := strings.Cut(found, "://")
		isImage := strings.HasSuffix(scheme, "docker-image") || strings.HasSuffix(scheme, "oci-layout") // NAME@DIGEST
		isUser := strings.HasSuffix(scheme, "ssh") && !strings.ContainsAny(user, ":\n")
		if isImage || isUser {
			return found
		}
		return scheme + "://" + strings.Join(continued().FindAllString(user, -1), "")
	})
	return wrongLogin().ReplaceAllString(text, "$1")
}
