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
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"hpcc/conda/fetch"
	"hpcc/conda/solve"
	"hpcc/text"
)

// defaultAlias is the base URL of channels that are only a name.
const defaultAlias = "https://conda.anaconda.org/"

// A channel is a URL with a subdirectory of packages for each platform.
type channel struct {
	url   string    // without a trailing slash
	cache string    // directory of cached indexes; "": no cache
	asked *sync.Map // indexes that were requested already, by URL
	names *sync.Map // collects the names of all packages, if not nil

	tables *sync.Map // *table by the URL of the index; an empty one: do not use a table; nil: never

	mirrors *fetch.Mirrors // URLs of the channel, url first; nil if there is only one
}

// openChannel parses a channel: a URL, a directory or a name.
func openChannel(s string) (channel, error) {
	switch {
	case s == "":
		return channel{}, errors.New("empty channel name")
	case s == "defaults":
		return channel{}, errors.New(`channel "defaults" requires consent to its terms of service; name a channel by its URL`)
	case strings.Contains(s, "://"):
		u, err := url.Parse(s)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "file" && u.Scheme != "oci") {
			return channel{}, fmt.Errorf("channel %q: not an http, https, oci or file URL", fetch.Hide(s))
		}
		return channel{url: strings.TrimRight(s, "/")}, nil
	case filepath.IsAbs(s) || strings.HasPrefix(s, "."):
		abs, err := filepath.Abs(s)
		if err != nil {
			return channel{}, fmt.Errorf("channel %q: %w", s, err)
		}
		return channel{url: (&url.URL{Scheme: "file", Path: abs}).String()}, nil
	}
	if !solve.IsName(strings.ReplaceAll(s, "/", "")) {
		return channel{}, fmt.Errorf("channel %q: not a URL, a directory or a name", s)
	}
	return channel{url: defaultAlias + s}, nil
}

// fetchIndex reads the records of the wanted names from one subdirectory at the channel's
// own URL.
func (c channel) fetchIndex(ctx context.Context, subdir string, wanted map[string]bool) ([]*solve.Record, error) {
	base := c.url + "/" + subdir + "/"
	rs, serr := c.sharded(ctx, subdir, wanted)
	switch {
	case serr == nil:
		return rs, nil
	case !errors.Is(serr, fs.ErrNotExist):
		return nil, fmt.Errorf("reading the index of %s: %w", fetch.Hide(base), serr)
	}
	rs, err := c.fullIndex(ctx, subdir, base, wanted)
	if errors.Is(err, errNoTable) { // the table was damaged: build it again
		rs, err = c.fullIndex(ctx, subdir, base, wanted)
	}
	if errors.Is(err, errNoTable) {
		c.tables = nil
		rs, err = c.fullIndex(ctx, subdir, base, wanted)
	}
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(serr, errNoShards) {
		return nil, fmt.Errorf("reading the index of %s: %v", fetch.Hide(base), serr) // the sharded index exists, but is incomplete
	}
	return rs, err
}

// fullIndex reads the records of the wanted names from repodata.json below base. The error is
// fs.ErrNotExist if the channel lacks the file, and errNoTable if the index's table is unusable;
// the next call builds it again or reads the index without it.
func (c channel) fullIndex(ctx context.Context, subdir, base string, wanted map[string]bool) ([]*solve.Record, error) {
	u := base + "repodata.json.zst"
	r, err := c.open(ctx, u)
	if errors.Is(err, fs.ErrNotExist) {
		u = base + "repodata.json"
		r, err = c.open(ctx, u)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("reading the index of %s: %w", fetch.Hide(base), err)
	}
	defer r.Close()
	t, err := c.table(ctx, u, r)
	if err != nil {
		return nil, err
	}
	out, err := c.search(t, r, u, subdir, base, wanted)
	switch {
	case errors.Is(err, errNoTable):
		c.dropTable(u)
	case err != nil && ctx.Err() == nil:
		c.forget(u)
	}
	return out, err
}

// search reads the records of the wanted names from a table, or from an index without a table.
func (c channel) search(t *table, r io.Reader, u, subdir, base string, wanted map[string]bool) ([]*solve.Record, error) {
	if t == nil || t.Source == "" {
		in, err := unpackIndex(r, u)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		return c.scan(in, subdir, base, wanted)
	}
	if c.names != nil {
		for name := range t.Names {
			c.names.Store(name, true)
		}
	}
	var out []*solve.Record
	err := t.each(wanted, func(s *scanner, fn []byte) error { return c.add(&out, s, fn, wanted) })
	return c.finish(out, subdir, base, t.Base, err)
}

// unpackIndex returns a reader of the text of an index.
func unpackIndex(r io.Reader, u string) (io.ReadCloser, error) {
	if !strings.HasSuffix(u, ".zst") {
		return io.NopCloser(r), nil
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}

// scan reads repodata.json as a stream and keeps the wanted names. base is the URL of the
// packages, unless the index contains another.
func (c channel) scan(r io.Reader, subdir, base string, wanted map[string]bool) ([]*solve.Record, error) {
	s := newScanner(r)
	var out []*solve.Record
	ref, err := walkIndex(s, func(fn []byte) error {
		if c.names != nil {
			c.names.Store(string(nameOf(fn)), true)
		}
		return c.add(&out, s, fn, wanted)
	})
	return c.finish(out, subdir, base, ref, err)
}

// walkIndex reads repodata.json as a stream. each receives the quoted file name of each record
// and reads the record. base is the URL of the packages in the index (CEP 15), or "".
func walkIndex(s *scanner, each func(fn []byte) error) (base string, err error) {
	return base, s.object(func(key []byte) error {
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
			if err = json.Unmarshal(raw, &info); err == nil && info.BaseURL != "" {
				base = info.BaseURL
			}
			return err
		case "packages", "packages.conda":
			if first, err := s.next(); err != nil || first != '{' {
				return s.null()
			}
			return s.object(each)
		}
		return s.skip()
	})
}

// add reads the record of a quoted file name and appends it to out if its name is wanted.
func (c channel) add(out *[]*solve.Record, s *scanner, fn []byte, wanted map[string]bool) error {
	if !wanted[string(nameOf(fn))] && bytes.IndexByte(fn, '\\') < 0 {
		return s.skip()
	}
	r, err := c.record(s, fn, wanted)
	if r != nil {
		*out = append(*out, r)
	}
	return err
}

// finish sets the URLs of the records of an index. ref is the index's own base URL, or "". err
// is the error of reading the index.
func (c channel) finish(out []*solve.Record, subdir, base, ref string, err error) ([]*solve.Record, error) {
	if err == nil && ref != "" {
		base, err = resolveURL(base, ref)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the index of %s/%s: %w", fetch.Hide(c.url), subdir, err)
	}
	seen := map[string]bool{}
	for _, x := range out {
		if seen[x.FileName] {
			return nil, fmt.Errorf("reading the index of %s/%s: duplicate record of %s", fetch.Hide(c.url), subdir, x.FileName)
		}
		seen[x.FileName] = true
		x.URL, x.Subdir = strings.TrimRight(base, "/")+"/"+x.FileName, subdir
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
		return "", fmt.Errorf("base_url %q points to local files", ref)
	}
	return u.String(), nil
}

// nameOf guesses the package name from a quoted file name, without parsing it.
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

// record parses the record of a file name. It returns nil if the name is not wanted.
func (c channel) record(s *scanner, key []byte, wanted map[string]bool) (*solve.Record, error) {
	fn, err := unquote(key)
	if err != nil {
		return nil, err
	}
	raw, err := s.value()
	if err != nil {
		return nil, err
	}
	name, _, _, ok := solve.SplitFile(fn)
	if !ok || !wanted[name] || path.Base(fn) != fn || string(raw) == "null" {
		return nil, nil
	}
	r := &solve.Record{File: fetch.File{FileName: fn}, Origin: c.url}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("record of %s: %w", fn, err)
	}
	if r.Name != name {
		return nil, fmt.Errorf("record of %s: name mismatch: %q", fn, text.Short(r.Name))
	}
	r.MD5, r.SHA256 = hexText(r.MD5, 16), hexText(r.SHA256, 32)
	if !isHex(r.MD5, 32) || !isHex(r.SHA256, 64) {
		return nil, fmt.Errorf("record of %s: invalid md5 %q or sha256 %q", fn, text.Short(r.MD5), text.Short(r.SHA256))
	}
	return r, nil
}

// hexText converts a digest of n bytes to lower-case hex. Shards use base64. Text in
// neither form is returned unchanged.
func hexText(s string, n int) string {
	if b, err := base64.StdEncoding.DecodeString(s); err == nil && len(b) == n {
		return hex.EncodeToString(b)
	}
	return strings.ToLower(s)
}

// isHex reports whether s is empty or n hex digits.
func isHex(s string, n int) bool {
	_, err := hex.DecodeString(s)
	return s == "" || (len(s) == n && err == nil)
}
