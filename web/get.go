package web

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Get sends a GET request with client. A nil client follows redirections as usual. Get
// repeats the request within the limits of its context.
//
// The body of an answer with status 200 resumes after a failure: with a range if the server
// identifies the version of the content, otherwise from a new answer that starts with the
// same bytes. If pinned is set, the caller verifies a digest, and ranges need no version.
//
// Get returns answers with other statuses unchanged. If the server is still busy at the last
// attempt, it returns an error with the status.
func Get(client *http.Client, req *http.Request, pinned bool) (*http.Response, error) {
	if client == nil {
		client = &http.Client{Transport: Transport{}}
	}
	g := &resuming{client: client, req: req, pinned: pinned, tries: tries{c: from(req.Context()), host: req.URL.Host}}
	g.sum.SetSeed(maphash.MakeSeed())
	resp, err := g.ask(nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	g.first, g.body = resp, resp.Body
	out := *resp
	out.Body = g
	return &out, nil
}

// resuming is a body that may take several requests.
type resuming struct {
	client *http.Client
	req    *http.Request
	pinned bool
	first  *http.Response // identifies the version of the content
	body   io.ReadCloser  // nil: the rest must be requested
	failed error          // why body is nil
	tries  tries
	off    int64 // bytes that were read
	since  int64 // bytes since the last failure
	sum    maphash.Hash
}

// ask sends the request until it is answered. change modifies its header.
func (g *resuming) ask(change func(http.Header)) (*http.Response, error) {
	for {
		req := g.req.Clone(once(g.req.Context()))
		if change != nil {
			change(req.Header)
		}
		resp, err := g.client.Do(req)
		if err == nil {
			return resp, nil
		}
		if ue := (*url.Error)(nil); errors.As(err, &ue) {
			err = ue.Err // callers name the URL, without its secrets
		}
		if resp != nil { // a redirection that the client refused
			return nil, err
		}
		if err := g.tries.pause(g.req.Context(), err); err != nil {
			return nil, err
		}
	}
}

func (g *resuming) Read(p []byte) (int, error) {
	for {
		if g.body == nil {
			if err := g.resume(); err != nil {
				return 0, fmt.Errorf("%w (%s)", err, g.received())
			}
		}
		n, err := g.body.Read(p)
		g.off += int64(n)
		_, _ = g.sum.Write(p[:n])
		if g.since += int64(n); g.since >= progress {
			g.tries.n = 0
		}
		if err == nil || err == io.EOF {
			return n, err
		}
		_ = g.Close()
		g.failed = err
		if n > 0 {
			return n, nil
		}
	}
}

// received describes how much of the content has arrived.
func (g *resuming) received() string {
	if g.first.ContentLength > 0 {
		return fmt.Sprintf("received %d of %d bytes", g.off, g.first.ContentLength)
	}
	return fmt.Sprintf("received %d bytes", g.off)
}

// resume requests the rest after a failure.
func (g *resuming) resume() error {
	ctx := g.req.Context()
	for {
		if err := g.tries.pause(ctx, g.failed); err != nil {
			return err
		}
		g.since = 0
		resp, err := g.ask(g.rangeHeader)
		if err != nil {
			return err
		}
		switch resp.StatusCode {
		case http.StatusPartialContent:
			if !g.continues(resp) {
				resp.Body.Close()
				return errors.New("the server continued with different content")
			}
		case http.StatusOK:
			same, err := g.skip(resp.Body)
			if err != nil {
				resp.Body.Close()
				g.failed = err
				continue
			}
			if !same {
				resp.Body.Close()
				return errors.New("the content changed on the server in the meantime; try again")
			}
		default:
			resp.Body.Close()
			return fmt.Errorf("requesting the rest: the server returned %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
		}
		g.body = resp.Body
		return nil
	}
}

// digestHeader is the header with a blob's digest in registries' answers.
const digestHeader = "Docker-Content-Digest"

// rangeHeader sets a header that requests only the rest, if the rest certainly belongs to the
// same content.
func (g *resuming) rangeHeader(h http.Header) {
	etag, modified := g.first.Header.Get("ETag"), g.first.Header.Get("Last-Modified")
	if strings.HasPrefix(etag, "W/") {
		etag = ""
	}
	pinned := g.pinned || g.first.Header.Get(digestHeader) != ""
	unknown := !pinned && etag == "" && modified == ""
	if g.off == 0 || unknown || g.first.Uncompressed || g.first.Header.Get("Accept-Ranges") == "none" {
		return
	}
	last := ""
	if g.first.ContentLength > 0 {
		last = fmt.Sprint(g.first.ContentLength - 1)
	}
	h.Set("Range", fmt.Sprintf("bytes=%d-%s", g.off, last))
	switch {
	case pinned:
	case etag != "":
		h.Set("If-Range", etag)
	default:
		h.Set("If-Range", modified)
	}
}

// continues reports whether a partial answer is the missing rest.
func (g *resuming) continues(resp *http.Response) bool {
	for _, name := range []string{"ETag", digestHeader} {
		if was, is := g.first.Header.Get(name), resp.Header.Get(name); was != "" && is != "" && was != is {
			return false
		}
	}
	var start, end, size int64
	n, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &start, &end, &size)
	if n < 2 || start != g.off {
		return false
	}
	return err != nil || g.first.ContentLength < 0 || size == g.first.ContentLength
}

// skip reads past the bytes that were already returned, and reports whether they are the
// same.
func (g *resuming) skip(body io.Reader) (same bool, err error) {
	var sum maphash.Hash
	sum.SetSeed(g.sum.Seed())
	if _, err := io.CopyN(&sum, body, g.off); err == io.EOF {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return sum.Sum64() == g.sum.Sum64(), nil
}

func (g *resuming) Close() error {
	if g.body == nil {
		return nil
	}
	err := g.body.Close()
	g.body = nil
	return err
}
