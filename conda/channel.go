package conda

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"hpcc/store/wait"
)

// defaultAlias is where a channel that is only a name is looked for.
const defaultAlias = "https://conda.anaconda.org/"

// A channel is a place with a subdirectory of packages for each platform.
type channel struct {
	url   string    // without a slash at the end
	cache string    // the directory that keeps indexes; "" is none
	asked *sync.Map // indexes that the server was asked for already, by URL

	mirrors *mirrors // its places, url first; nil where it is the only one
}

// openChannel reads what a user calls a channel: a URL, a directory, or a name.
func openChannel(s string) (channel, error) {
	switch {
	case s == "":
		return channel{}, errors.New("the name of a channel is empty")
	case s == "defaults":
		return channel{}, errors.New(`channel "defaults": its terms of service need your consent; name a channel by its URL`)
	case strings.Contains(s, "://"):
		u, err := url.Parse(s)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "file") {
			return channel{}, fmt.Errorf("channel %q: not an http, https or file URL", hide(s))
		}
		return channel{url: strings.TrimRight(s, "/")}, nil
	case filepath.IsAbs(s) || strings.HasPrefix(s, "."):
		abs, err := filepath.Abs(s)
		if err != nil {
			return channel{}, fmt.Errorf("channel %q: %w", s, err)
		}
		return channel{url: fileURL(abs)}, nil
	}
	if !nameText().MatchString(strings.ReplaceAll(s, "/", "")) {
		return channel{}, fmt.Errorf("channel %q: not a URL, a directory or a name", s)
	}
	return channel{url: defaultAlias + s}, nil
}

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

// get asks a server for a URL, with the login that the URL has, or netrc's for its
// host where nobody on the way hears it. pinned says that the caller compares a
// digest. A missing file is fs.ErrNotExist; one that conditions in the header
// leave as it is, errUnchanged.
func get(ctx context.Context, u string, header http.Header, pinned bool) (*http.Response, error) {
	logins, err := readNetrc()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", hide(u), plain(err))
	}
	if header != nil {
		req.Header = header.Clone()
	}
	req.Header.Set("User-Agent", "hpcc")
	if login := logins[req.URL.Hostname()]; login != nil && req.URL.User == nil && unheard(req.URL) {
		password, _ := login.Password()
		req.SetBasicAuth(login.Username(), password)
	}
	resp, err := wait.Get(nil, req, pinned)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", hide(u), plain(err))
	}
	switch c := resp.StatusCode; {
	case c == http.StatusOK:
		return resp, nil
	case c == http.StatusNotModified:
		resp.Body.Close()
		return nil, errUnchanged
	case c == http.StatusNotFound || c == http.StatusForbidden:
		err := refusal(u, resp)
		return nil, fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	case c == http.StatusUnauthorized:
		return nil, fmt.Errorf("%w; a login for the host can stand in ~/.netrc or in the channel's URL", refusal(u, resp))
	}
	return nil, refusal(u, resp)
}

// refusal is the error of an answer that is not what was asked for, which it closes.
func refusal(u string, resp *http.Response) error {
	resp.Body.Close()
	return fmt.Errorf("%s: the server answers %d %s", hide(u), resp.StatusCode, http.StatusText(resp.StatusCode))
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

// A record is what a channel's index says of a package (CEP 36), and where it is.
type record struct {
	Name            string          `json:"name"`
	Version         string          `json:"version"`
	Build           string          `json:"build"`
	BuildNumber     int             `json:"build_number"`
	Depends         []string        `json:"depends"`
	Constrains      []string        `json:"constrains,omitempty"`
	MD5             string          `json:"md5"`
	SHA256          string          `json:"sha256"`
	Size            int64           `json:"size"`
	Subdir          string          `json:"subdir"`
	Noarch          json.RawMessage `json:"noarch,omitempty"`
	Timestamp       int64           `json:"timestamp"`
	License         string          `json:"license,omitempty"`
	SitePackages    string          `json:"python_site_packages_path,omitempty"`
	TrackFeatures   features        `json:"track_features,omitempty"`
	fn, url, origin string          // origin is the channel
	mirrors         *mirrors        // where url is too; nil where nowhere else
}

// noarch is "", "generic" or "python".
func (r *record) noarch() string { return noarchKind(r.Noarch) }

func noarchKind(raw json.RawMessage) string {
	switch s := strings.Trim(string(raw), `"`); s {
	case "python", "generic":
		return s
	case "true":
		return "generic"
	}
	return ""
}

// channel is where the package is from, as an image records it; conda has the
// same word for packages that it does not know from where they are.
func (r *record) channel() string {
	if s := public(r.origin); s != "" {
		return s
	}
	return "<unknown>"
}

// indexHere reads the records of the wanted names from one subdirectory at the
// channel's URL.
func (c channel) indexHere(ctx context.Context, subdir string, wanted map[string]bool) ([]*record, error) {
	base := c.url + "/" + subdir + "/"
	rs, serr := c.sharded(ctx, subdir, wanted)
	switch {
	case serr == nil:
		return rs, nil
	case !errors.Is(serr, fs.ErrNotExist):
		return nil, fmt.Errorf("reading the index of %s: %w", hide(base), serr)
	}
	u := base + "repodata.json.zst"
	r, err := c.open(ctx, u)
	if errors.Is(err, fs.ErrNotExist) {
		u = base + "repodata.json"
		r, err = c.open(ctx, u)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if !errors.Is(serr, errNoShards) {
			return nil, fmt.Errorf("reading the index of %s: %v", hide(base), serr) // it is there, in part
		}
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("reading the index of %s: %w", hide(base), err)
	}
	defer r.Close()
	in := io.Reader(r)
	if strings.HasSuffix(u, ".zst") {
		z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		in = z
	}
	out, err := c.scan(in, subdir, base, wanted)
	if err != nil && ctx.Err() == nil {
		c.forget(u)
	}
	return out, err
}

// scan reads repodata.json as a stream and keeps the wanted names; base is the
// URL of the packages, unless the index names another.
func (c channel) scan(r io.Reader, subdir, base string, wanted map[string]bool) ([]*record, error) {
	s := newScanner(r)
	var out []*record
	err := s.object(func(key []byte) error {
		name, err := unquote(key)
		if err != nil {
			return err
		}
		switch name {
		case "info":
			raw, err := s.value()
			if err != nil {
				return err
			}
			var info struct {
				BaseURL string `json:"base_url"`
			}
			if err = json.Unmarshal(raw, &info); err == nil && info.BaseURL != "" { // CEP 15
				base, err = resolveURL(base, info.BaseURL)
			}
			return err
		case "packages", "packages.conda":
			if first, err := s.next(); err != nil || first != '{' {
				return s.null()
			}
			return s.object(func(fn []byte) error {
				if !wanted[string(nameOf(fn))] && bytes.IndexByte(fn, '\\') < 0 {
					return s.skip()
				}
				r, err := c.record(s, fn, wanted)
				if r != nil {
					out = append(out, r)
				}
				return err
			})
		}
		return s.skip()
	})
	if err != nil {
		return nil, fmt.Errorf("reading the index of %s/%s: %w", hide(c.url), subdir, err)
	}
	seen := map[string]bool{}
	for _, x := range out {
		if seen[x.fn] {
			return nil, fmt.Errorf("reading the index of %s/%s: it has two records of %s", hide(c.url), subdir, x.fn)
		}
		seen[x.fn] = true
		x.url, x.Subdir = strings.TrimRight(base, "/")+"/"+x.fn, subdir
	}
	return out, nil
}

func resolveURL(base, ref string) (string, error) {
	b, err := url.Parse(base)
	if err != nil {
		return "", err
	}
	u, err := b.Parse(ref)
	if err != nil {
		return "", err
	}
	if u.Scheme == "file" && b.Scheme != "file" {
		return "", fmt.Errorf("base_url %q points to this machine's files", ref)
	}
	return u.String(), nil
}

// nameOf is the package's name in a quoted file name, as far as a glance tells.
func nameOf(key []byte) []byte {
	for range 2 {
		i := bytes.LastIndexByte(key, '-')
		if i < 0 {
			return nil
		}
		key = key[:i]
	}
	return key[1:]
}

// record reads the value of a file name that is wanted; nil when it is none
// of a package after all.
func (c channel) record(s *scanner, key []byte, wanted map[string]bool) (*record, error) {
	fn, err := unquote(key)
	if err != nil {
		return nil, err
	}
	raw, err := s.value()
	if err != nil {
		return nil, err
	}
	name, _, _, ok := splitFile(fn)
	if !ok || !wanted[name] || path.Base(fn) != fn || string(raw) == "null" {
		return nil, nil
	}
	r := &record{fn: fn, origin: c.url}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("record of %s: %w", fn, err)
	}
	if r.Name != name {
		return nil, fmt.Errorf("record of %s calls it %q", fn, short(r.Name))
	}
	r.MD5, r.SHA256 = hexText(r.MD5, 16), hexText(r.SHA256, 32)
	if !isDigest(r.MD5, 32) || !isDigest(r.SHA256, 64) {
		return nil, fmt.Errorf("record of %s: its md5 %q or sha256 %q is no digest", fn, short(r.MD5), short(r.SHA256))
	}
	return r, nil
}

// hexText is a digest of n bytes as lower-case hex digits, also when it is
// base64, as those of shards are. What is neither stays as it is.
func hexText(s string, n int) string {
	if b, err := base64.StdEncoding.DecodeString(s); err == nil && len(b) == n {
		return hex.EncodeToString(b)
	}
	return strings.ToLower(s)
}

// isDigest tells whether s is empty or n hex digits.
func isDigest(s string, n int) bool {
	_, err := hex.DecodeString(s)
	return s == "" || (len(s) == n && err == nil)
}
