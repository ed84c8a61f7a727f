package pip

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/net/html"

	"hpcc/conda/fetch"
	"hpcc/text"
)

// defaultIndex is the package index that is used when none is named.
const defaultIndex = "https://pypi.org/simple/"

// Indexes are the sources of wheels: package indexes, pages of links and directories.
type Indexes struct {
	URL       string   // "": defaultIndex
	Extra     []string // further indexes; the best version of all is chosen, as pip does
	FindLinks []string // directories of wheels, or pages that link to wheels
	NoIndex   bool     // use only FindLinks
	PlainHTTP bool     // allow HTTP without TLS; servers on this host are always allowed
}

// indexes returns the URLs of the indexes, each with a trailing slash.
func (x *Indexes) indexes() []string {
	if x.NoIndex {
		return nil
	}
	var out []string
	for _, u := range append([]string{x.URL}, x.Extra...) {
		if u == "" {
			u = defaultIndex
		}
		out = append(out, strings.TrimRight(u, "/")+"/")
	}
	return slices.Compact(out)
}

// Before returns x, the user's settings, with those of a file in dir added behind. As
// with pip, directories in the file may be relative to dir.
func (x Indexes) Before(file Indexes, dir string) Indexes {
	x.NoIndex = x.NoIndex || (file.NoIndex && x.URL == "")
	x.URL = cmp.Or(x.URL, file.URL)
	x.Extra = slices.Concat(x.Extra, file.Extra)
	x.FindLinks = slices.Clone(x.FindLinks)
	for _, l := range file.FindLinks {
		if path := filepath.Join(dir, l); !strings.Contains(l, "://") && !filepath.IsAbs(l) {
			if _, err := os.Stat(path); err == nil {
				l = path
			}
		}
		x.FindLinks = append(x.FindLinks, l)
	}
	return x
}

func (x *Indexes) all() []string { return append(x.indexes(), x.FindLinks...) }

// An indexFile is a file that an index offers.
type indexFile struct {
	name     string // file name
	url      string
	size     int64    // 0 if the index does not list it
	hashes   []string // "sha256:…"
	python   string   // Requires-Python
	yanked   bool
	reason   string     // why it was yanked
	metadata string     // digest of the METADATA at url+".metadata": "sha256:…", or "?" if unknown
	wheel    *wheelName // nil for sources
	subdir   string     // directory of the package in a source archive; "": the top
	version  pyVersion  // without a release if only the sources contain it
	// For the target:
	rank int  // rank of the wheel's best tag; 0: no tag fits
	fits bool // Requires-Python allows the target's python
}

// indexKinds is the Accept header, by preference (PEP 691).
const indexKinds = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"

// Limits of an index page.
const (
	maxPage      = 64 << 20 // bytes
	maxPageFiles = 200_000
)

// An indexSet looks packages up in all indexes.
type indexSet struct {
	Indexes
	web   *fetch.Web
	links []indexFile // files of FindLinks
}

// openIndexes reads the FindLinks.
func openIndexes(ctx context.Context, x Indexes) (*indexSet, error) {
	x.Extra, x.FindLinks = slices.Clone(x.Extra), slices.Clone(x.FindLinks)
	for _, list := range [][]string{x.Extra, x.FindLinks} {
		for i := range list {
			var err error
			if list[i], err = fetch.Expand(list[i]); err != nil {
				return nil, err
			}
		}
	}
	var err error
	if x.URL, err = fetch.Expand(x.URL); err != nil {
		return nil, err
	}
	web, err := fetch.NewWeb(x.all(), x.PlainHTTP)
	if err != nil {
		return nil, err
	}
	in := &indexSet{Indexes: x, web: web}
	for _, link := range x.FindLinks {
		list, err := in.findLinks(ctx, link)
		if err != nil {
			return nil, fmt.Errorf("looking for wheels in %s: %w", display(link), err)
		}
		in.links = append(in.links, list...)
	}
	return in, nil
}

// files lists the files of a distribution: those of FindLinks first, then those of the
// indexes in their order. If own is not "", it replaces these indexes.
func (x *indexSet) files(ctx context.Context, name, own string) ([]indexFile, error) {
	var out []indexFile
	take := func(list []indexFile) {
		for _, f := range list {
			if f.sort(name) {
				out = append(out, f)
			}
		}
	}
	take(x.links)
	bases := x.indexes()
	if own != "" && !x.NoIndex {
		bases = (&Indexes{URL: own}).indexes()
	}
	for _, base := range bases {
		list, err := x.page(ctx, base+name+"/")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("looking for %s: %w", name, err)
		}
		take(list)
	}
	return out, nil
}

// sort parses the file name and reports whether the file belongs to the distribution.
func (f *indexFile) sort(name string) bool {
	if w, err := parseWheelName(f.name); err == nil {
		f.wheel, f.version = w, w.version
		return NormalName(w.dist) == name
	}
	dist, version, ok := sourceName(f.name)
	f.version = version
	return ok && NormalName(dist) == name
}

// findLinks lists the files of a directory or page.
func (x *indexSet) findLinks(ctx context.Context, link string) ([]indexFile, error) {
	dir := link
	if u, err := url.Parse(link); err == nil && u.Scheme == "file" {
		dir = u.Path
	} else if strings.Contains(link, "://") {
		return x.page(ctx, link)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		return x.page(ctx, (&url.URL{Scheme: "file", Path: dir}).String())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []indexFile
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		f := indexFile{name: e.Name(), url: (&url.URL{Scheme: "file", Path: filepath.Join(dir, e.Name())}).String()}
		if fi, err := os.Stat(filepath.Join(dir, e.Name())); err == nil {
			f.size = fi.Size()
		}
		out = append(out, f)
	}
	return out, nil
}

// page reads one page, in HTML or JSON.
func (x *indexSet) page(ctx context.Context, address string) ([]indexFile, error) {
	a, err := x.web.Get(ctx, address, indexKinds, false)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	limited := &io.LimitedReader{R: a, N: maxPage + 1}
	kind, _, _ := mime.ParseMediaType(a.Kind)
	var list []indexFile
	switch {
	case kind == "application/vnd.pypi.simple.v1+json":
		list, err = parseIndexJSON(limited, a.URL)
	case kind == "application/vnd.pypi.simple.v1+html" || kind == "text/html" || a.URL.Scheme == "file":
		list, err = parseIndexHTML(limited, a.URL)
	default:
		err = fmt.Errorf("content type %q: not a package index", text.Short(a.Kind))
	}
	if limited.N <= 0 {
		err = fmt.Errorf("the page has more than %d bytes", maxPage)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", fetch.Hide(address), err)
	}
	return list, nil
}

// at resolves a link of a page against base and takes the digest in its fragment.
func (f *indexFile) at(base *url.URL, ref string) error {
	u, err := base.Parse(strings.TrimSpace(ref))
	if err != nil {
		return fmt.Errorf("link %q: %w", text.Short(ref), fetch.Plain(err))
	}
	if u.Scheme == "file" && base.Scheme != "file" {
		return fmt.Errorf("link %q points to local files", text.Short(ref))
	}
	h, err := fragmentHash(u.Fragment)
	if err != nil {
		return fmt.Errorf("link %q: %w", text.Short(ref), err)
	}
	if h != "" {
		f.hashes = append(f.hashes, h)
	}
	u.Fragment, u.RawFragment = "", ""
	f.url = u.String()
	if f.name == "" {
		f.name = path.Base(u.Path)
	}
	return nil
}

// parseIndexHTML reads the links of a page (PEP 503, 592, 629, 658, 714).
func parseIndexHTML(r io.Reader, base *url.URL) ([]indexFile, error) {
	z := html.NewTokenizer(r)
	z.SetMaxBuf(1 << 20)
	var out []indexFile
	for {
		switch kind := z.Next(); kind {
		case html.ErrorToken:
			if err := z.Err(); !errors.Is(err, io.EOF) {
				return nil, err
			}
			return out, nil
		case html.StartTagToken, html.SelfClosingTagToken:
			t := z.Token()
			attr := map[string]*string{}
			for _, a := range t.Attr {
				attr[a.Key] = &a.Val
			}
			switch {
			case t.Data == "base" && attr["href"] != nil:
				u, err := base.Parse(*attr["href"])
				if err != nil {
					return nil, fmt.Errorf("base URL of the page: %w", fetch.Plain(err))
				}
				if u.Scheme == "file" && base.Scheme != "file" {
					return nil, errors.New("base URL of the page: it points to local files")
				}
				base = u
			case t.Data == "meta" && attr["name"] != nil && *attr["name"] == "pypi:repository-version" && attr["content"] != nil:
				if err := knownAPI(*attr["content"]); err != nil {
					return nil, err
				}
			case t.Data == "a" && attr["href"] != nil:
				f := indexFile{}
				if err := f.at(base, *attr["href"]); err != nil {
					return nil, err
				}
				f.attributes(attr)
				if out = append(out, f); len(out) > maxPageFiles {
					return nil, fmt.Errorf("the page has more than %d links", maxPageFiles)
				}
			}
		}
	}
}

// attributes takes the attributes of a link except its address.
func (f *indexFile) attributes(attr map[string]*string) {
	if v := attr["data-requires-python"]; v != nil {
		f.python = *v
	}
	if v := attr["data-yanked"]; v != nil {
		f.yanked, f.reason = true, *v
	}
	for _, key := range []string{"data-dist-info-metadata", "data-core-metadata"} {
		if v := attr[key]; v != nil && *v != "false" {
			f.metadata = "?"
			if h, err := fragmentHash(*v); err == nil && h != "" {
				f.metadata = h
			}
		}
	}
}

// knownAPI returns an error for an index of a newer major version.
func knownAPI(version string) error {
	if major, _, _ := strings.Cut(version, "."); major != "1" {
		return fmt.Errorf("index version %q: only 1.x is supported", text.Short(version))
	}
	return nil
}

// parseIndexJSON reads a page of PEP 691.
func parseIndexJSON(r io.Reader, base *url.URL) ([]indexFile, error) {
	var p struct {
		Meta struct {
			Version string `json:"api-version"`
		} `json:"meta"`
		Files []struct {
			Name     string            `json:"filename"`
			URL      string            `json:"url"`
			Hashes   map[string]string `json:"hashes"`
			Python   string            `json:"requires-python"`
			Size     int64             `json:"size"`
			Yanked   any               `json:"yanked"`
			Core     any               `json:"core-metadata"`
			DistInfo any               `json:"dist-info-metadata"`
		} `json:"files"`
	}
	if err := json.NewDecoder(r).Decode(&p); err != nil {
		return nil, err
	}
	if err := knownAPI(p.Meta.Version); err != nil {
		return nil, err
	}
	if len(p.Files) > maxPageFiles {
		return nil, fmt.Errorf("the page has more than %d files", maxPageFiles)
	}
	var out []indexFile
	for _, x := range p.Files {
		f := indexFile{name: x.Name, python: x.Python, size: max(x.Size, 0)}
		if err := f.at(base, x.URL); err != nil {
			return nil, err
		}
		for _, alg := range slices.Sorted(maps.Keys(x.Hashes)) {
			h, err := fragmentHash(alg + "=" + x.Hashes[alg])
			if err != nil {
				return nil, fmt.Errorf("file %q: %w", text.Short(x.Name), err)
			}
			if h != "" && !slices.Contains(f.hashes, h) {
				f.hashes = append(f.hashes, h)
			}
		}
		switch y := x.Yanked.(type) {
		case bool:
			f.yanked = y
		case string:
			f.yanked, f.reason = true, y
		}
		f.metadata = metadataHash(x.Core)
		if f.metadata == "" {
			f.metadata = metadataHash(x.DistInfo)
		}
		out = append(out, f)
	}
	return out, nil
}

// metadataHash reads core-metadata, which is true or a table of digests.
func metadataHash(v any) string {
	switch m := v.(type) {
	case bool:
		if m {
			return "?"
		}
	case map[string]any:
		if s, ok := m["sha256"].(string); ok {
			if h, err := fragmentHash("sha256=" + s); err == nil && h != "" {
				return h
			}
		}
		return "?"
	}
	return ""
}
