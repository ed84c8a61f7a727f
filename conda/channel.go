package conda

import (
	"context"
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
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// defaultAlias is where a channel that is only a name is looked for.
const defaultAlias = "https://conda.anaconda.org/"

// A channel is a place with a subdirectory of packages for each platform.
type channel struct{ url string } // without a slash at the end

// openChannel reads what a user calls a channel: a URL, a directory, or a name.
func openChannel(s string) (channel, error) {
	switch {
	case s == "":
		return channel{}, errors.New("the name of a channel is empty")
	case s == "defaults":
		return channel{}, errors.New(`channel "defaults": its terms of service need your consent; name a channel by its URL`)
	case strings.Contains(s, "://"):
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "file" {
			return channel{}, fmt.Errorf("channel %q: not an http, https or file URL", s)
		}
		return channel{strings.TrimRight(s, "/")}, nil
	case filepath.IsAbs(s) || strings.HasPrefix(s, "."):
		abs, err := filepath.Abs(s)
		if err != nil {
			return channel{}, fmt.Errorf("channel %q: %w", s, err)
		}
		return channel{"file://" + abs}, nil
	}
	if !nameText.MatchString(strings.ReplaceAll(s, "/", "")) {
		return channel{}, fmt.Errorf("channel %q: not a URL, a directory or a name", s)
	}
	return channel{defaultAlias + s}, nil
}

// tries is how often a request is made when a server is busy or breaks off.
const tries = 5

// fetch opens a URL; a missing file is fs.ErrNotExist.
func fetch(ctx context.Context, u string) (io.ReadCloser, error) {
	if p, ok := strings.CutPrefix(u, "file://"); ok {
		if un, err := url.PathUnescape(p); err == nil {
			p = un
		}
		return os.Open(p)
	}
	var last error
	for n := range tries {
		if n > 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Duration(200<<n) * time.Millisecond):
			}
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("User-Agent", "hpcc")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			last = err
			continue
		}
		switch {
		case resp.StatusCode == http.StatusOK:
			return resp.Body, nil
		case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusForbidden:
			resp.Body.Close()
			return nil, fmt.Errorf("%s: the server answers %s: %w", hide(u), resp.Status, fs.ErrNotExist)
		case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500:
			resp.Body.Close()
			last = fmt.Errorf("%s: the server answers %s", hide(u), resp.Status)
		default:
			resp.Body.Close()
			return nil, fmt.Errorf("%s: the server answers %s", hide(u), resp.Status)
		}
	}
	return nil, last
}

// hide takes credentials out of a URL for messages and records.
func hide(u string) string {
	p, err := url.Parse(u)
	if err != nil {
		return u
	}
	p.User = nil
	if f := strings.Split(p.Path, "/"); len(f) > 3 && f[1] == "t" {
		f[2] = "***"
		p.Path = strings.Join(f, "/")
		p.RawPath = ""
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
	fn, url, origin string          // origin is the channel
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

// maxIndex bounds an index file once it is unpacked, in bytes.
const maxIndex = 4 << 30

// index reads the records of the wanted names from one subdirectory of a
// channel; a subdirectory that is not there has none.
func (c channel) index(ctx context.Context, subdir string, wanted map[string]bool) ([]*record, error) {
	base := c.url + "/" + subdir + "/"
	var r io.ReadCloser
	var err error
	if r, err = fetch(ctx, base+"repodata.json.zst"); err == nil {
		z, zerr := zstd.NewReader(r, zstd.WithDecoderMaxWindow(256<<20))
		if zerr != nil {
			r.Close()
			return nil, zerr
		}
		defer z.Close()
		defer r.Close()
		return c.scan(z, subdir, wanted)
	}
	if errors.Is(err, fs.ErrNotExist) {
		r, err = fetch(ctx, base+"repodata.json")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("reading the index of %s: %w", hide(base), err)
	}
	defer r.Close()
	return c.scan(r, subdir, wanted)
}

// scan reads repodata.json as a stream and keeps the wanted names.
func (c channel) scan(r io.Reader, subdir string, wanted map[string]bool) ([]*record, error) {
	fail := func(err error) ([]*record, error) {
		return nil, fmt.Errorf("reading the index of %s/%s: %w", hide(c.url), subdir, err)
	}
	d := json.NewDecoder(io.LimitReader(r, maxIndex))
	if err := delim(d, '{'); err != nil {
		return fail(err)
	}
	base := c.url + "/" + subdir
	var out []*record
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return fail(err)
		}
		switch key {
		case "info":
			var info struct {
				BaseURL string `json:"base_url"`
			}
			if err := d.Decode(&info); err != nil {
				return fail(err)
			}
			if info.BaseURL != "" { // CEP 15
				if base, err = resolveURL(base+"/", info.BaseURL); err != nil {
					return fail(err)
				}
			}
		case "packages", "packages.conda":
			rs, err := c.packages(d, wanted)
			if err != nil {
				return fail(err)
			}
			out = append(out, rs...)
		default:
			var skip json.RawMessage
			if err := d.Decode(&skip); err != nil {
				return fail(err)
			}
		}
	}
	for _, x := range out {
		x.url = strings.TrimRight(base, "/") + "/" + x.fn
		if x.Subdir == "" {
			x.Subdir = subdir
		}
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

func delim(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err == nil && t != want {
		err = fmt.Errorf("expected %q, found %v", want, t)
	}
	return err
}

// packages reads one of the two lists of an index.
func (c channel) packages(d *json.Decoder, wanted map[string]bool) ([]*record, error) {
	if err := delim(d, '{'); err != nil {
		return nil, err
	}
	var out []*record
	var raw json.RawMessage
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		if err := d.Decode(&raw); err != nil {
			return nil, err
		}
		fn, _ := t.(string)
		name, _, _, ok := splitFile(fn)
		if !ok || !wanted[name] || path.Base(fn) != fn || string(raw) == "null" {
			continue
		}
		r := &record{fn: fn, origin: c.url}
		if err := json.Unmarshal(raw, r); err != nil {
			return nil, fmt.Errorf("record of %s: %w", fn, err)
		}
		if r.Name != name {
			return nil, fmt.Errorf("record of %s calls it %q", fn, r.Name)
		}
		out = append(out, r)
	}
	return out, delim(d, '}')
}
