package fetch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"hpcc/conda/artifact"
	"hpcc/files"
	"hpcc/web"
)

// Reader returns a reader of r that fails after ctx has ended.
func Reader(ctx context.Context, r io.Reader) io.Reader { return &contextReader{ctx, r} }

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// ErrUnchanged means that the client's copy is current (HTTP 304).
var ErrUnchanged = errors.New("not modified")

// Open opens a URL. The error for a missing file is fs.ErrNotExist. pinned means that the
// caller verifies a digest.
func Open(ctx context.Context, u string, pinned bool) (io.ReadCloser, error) {
	if strings.HasPrefix(u, "file:") {
		return openFile(u)
	}
	resp, err := Get(ctx, u, nil, pinned)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Get requests a URL with the credentials in the URL, or netrc's for its host if the
// connection is private. The credentials for an oci URL are docker's. pinned means that the caller verifies a digest. The error is
// fs.ErrNotExist for status 404 or 403, and ErrUnchanged if the file did not change according
// to the conditions in the header.
func Get(ctx context.Context, u string, header http.Header, pinned bool) (*http.Response, error) {
	if artifact.IsURL(u) {
		return getArtifact(ctx, u, header.Get("If-None-Match"), "")
	}
	logins, err := readNetrc()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Hide(u), Plain(err))
	}
	if header != nil {
		req.Header = header.Clone()
	}
	req.Header.Set("User-Agent", "hpcc")
	if login := logins[req.URL.Hostname()]; login != nil && req.URL.User == nil && isPrivate(req.URL) {
		password, _ := login.Password()
		req.SetBasicAuth(login.Username(), password)
	}
	resp, err := web.Get(nil, req, pinned)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Hide(u), Plain(err))
	}
	switch c := resp.StatusCode; {
	case c == http.StatusOK:
		return resp, nil
	case c == http.StatusNotModified:
		resp.Body.Close()
		return nil, ErrUnchanged
	case c == http.StatusNotFound || c == http.StatusForbidden:
		err := refusal(u, resp)
		return nil, fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	case c == http.StatusUnauthorized:
		return nil, fmt.Errorf("%w; add credentials for the host to ~/.netrc or to the channel's URL", refusal(u, resp))
	}
	return nil, refusal(u, resp)
}

// getArtifact requests an oci URL. sha256 is the digest that the caller verifies, or "".
func getArtifact(ctx context.Context, u, etag, sha256 string) (*http.Response, error) {
	resp, err := artifact.Get(ctx, u, etag, sha256)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", Hide(u), err)
	case resp.StatusCode == http.StatusNotModified:
		return nil, ErrUnchanged
	}
	return resp, nil
}

// refusal returns the error for an unexpected response, and closes the response.
func refusal(u string, resp *http.Response) error {
	resp.Body.Close()
	return fmt.Errorf("%s: the server returned %d %s", Hide(u), resp.StatusCode, http.StatusText(resp.StatusCode))
}

// isPrivate reports whether nobody else can read the connection: it uses TLS or loopback.
func isPrivate(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "https" || u.Hostname() == "localhost" || (ip != nil && ip.IsLoopback())
}

// maxNetrc limits the netrc file, in bytes.
const maxNetrc = 1 << 20

// readNetrc reads the credentials in the file named by NETRC, or in ~/.netrc. The map is
// empty if the file does not exist.
func readNetrc() (map[string]*url.Userinfo, error) {
	name := os.Getenv("NETRC")
	if name == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, nil
		}
		name = filepath.Join(home, ".netrc")
	}
	f, err := files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading netrc: %w", err)
	}
	defer f.Close()
	return parseNetrc(f), nil
}

// parseNetrc parses "machine HOST login USER password WORD" and "default", whose host name in
// the map is "". Like other readers, it skips unknown tokens.
func parseNetrc(r io.Reader) map[string]*url.Userinfo {
	out := map[string]*url.Userinfo{}
	host, user, password, open := "", "", "", false
	flush := func() {
		if _, duplicate := out[host]; open && !duplicate && (user != "" || password != "") {
			out[host] = url.UserPassword(user, password)
		}
		host, user, password = "", "", ""
	}
	key, macro := "", false
	sc := bufio.NewScanner(io.LimitReader(r, maxNetrc))
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		macro = macro && line != ""
		if macro || strings.HasPrefix(line, "#") {
			continue
		}
		for _, token := range strings.Fields(line) {
			switch {
			case key == "machine":
				host, open = token, true
			case key == "login":
				user = token
			case key == "password":
				password = strings.Trim(token, `"`)
			case key == "account":
			case token == "machine" || token == "default":
				flush()
				open = token == "default"
			}
			if key != "" {
				key = ""
				continue
			}
			switch token {
			case "machine", "login", "password", "account":
				key = token
			case "macdef":
				macro = true
			}
		}
	}
	flush()
	return out
}
