package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"

	"hpcc/web"
)

// A Web requests pages and archives. It sends the credentials of its URLs and of netrc
// only to their own hosts, and keeps them out of messages.
type Web struct {
	client http.Client
	logins map[string]*url.Userinfo // by host:port
	netrc  map[string]*url.Userinfo // by host name; "": any other host
	plain  bool                     // plain HTTP is allowed
}

// NewWeb returns a Web that sends the credentials in the addresses to their hosts. With
// plainHTTP it allows servers without TLS; servers on this host are always allowed.
func NewWeb(addresses []string, plainHTTP bool) (*Web, error) {
	w := &Web{logins: map[string]*url.Userinfo{}, plain: plainHTTP}
	w.client.Transport = web.Transport{}
	w.client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if len(via) >= 10 {
			return errors.New("more than 10 redirections")
		}
		return w.allowed(req.URL)
	}
	for _, s := range addresses {
		if u, err := url.Parse(s); err == nil && u.User != nil {
			w.logins[u.Host] = u.User
		}
	}
	var err error
	w.netrc, err = readNetrc()
	return w, err
}

// allowed returns an error for other URLs than http and https. It refuses plain HTTP, except
// to this host or if the user allowed it.
func (w *Web) allowed(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%s: not an http or https URL", Hide(u.String()))
	case !w.plain && !isPrivate(u):
		return fmt.Errorf("%s has no TLS, so the response could be modified in transit; use the https address, or allow plain HTTP", Hide(u.String()))
	}
	return nil
}

// A Response is the body of a server's response, with its origin.
type Response struct {
	io.ReadCloser
	URL  *url.URL // after redirections
	Kind string   // the content type
}

// Get requests an address. The error for a missing file is fs.ErrNotExist. accept is the
// Accept header; if it is empty, the response is an archive, which the server must not encode.
// pinned means that the caller verifies a digest.
func (w *Web) Get(ctx context.Context, address, accept string, pinned bool) (*Response, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("parsing the address: %w", Plain(err))
	}
	if u.Scheme == "file" {
		f, err := openFile(address)
		if err != nil {
			return nil, err
		}
		return &Response{ReadCloser: f, URL: u}, nil
	}
	if err := w.allowed(u); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Hide(u.String()), Plain(err))
	}
	req.URL.User = nil
	if login := w.login(u); login != nil {
		password, _ := login.Password()
		req.SetBasicAuth(login.Username(), password)
	}
	req.Header.Set("User-Agent", "hpcc")
	if accept == "" {
		accept = "*/*"
		req.Header.Set("Accept-Encoding", "identity") // so that net/http does not decompress an archive
	}
	req.Header.Set("Accept", accept)
	resp, err := web.Get(&w.client, req, pinned)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Hide(u.String()), Plain(err))
	}
	switch c := resp.StatusCode; {
	case c == http.StatusOK:
		return &Response{resp.Body, resp.Request.URL, resp.Header.Get("Content-Type")}, nil
	case c == http.StatusNotFound || c == http.StatusGone:
		err := refusal(u.String(), resp)
		return nil, fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	case c == http.StatusUnauthorized || c == http.StatusForbidden:
		return nil, fmt.Errorf("%w; add credentials for the host to ~/.netrc", refusal(u.String(), resp))
	}
	return nil, refusal(u.String(), resp)
}

// login returns the credentials for an address: its own, those of the index on the same host,
// or netrc's if the connection is private.
func (w *Web) login(u *url.URL) *url.Userinfo {
	if u.User != nil {
		return u.User
	}
	if l := w.logins[u.Host]; l != nil {
		return l
	}
	if !isPrivate(u) {
		return nil
	}
	if l := w.netrc[u.Hostname()]; l != nil {
		return l
	}
	return w.netrc[""]
}
