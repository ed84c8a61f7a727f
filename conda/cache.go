package conda

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"hpcc/conda/fetch"
	"hpcc/files"
)

// A cachedIndex is the first line, in JSON, of a cached index. The index follows as the
// server sent it.
type cachedIndex struct {
	ETag     string `json:"etag,omitempty"`
	Modified string `json:"modified,omitempty"`
	MaxAge   int    `json:"max_age,omitempty"` // seconds after the file's time during which the server is not asked
	Size     int64  `json:"size"`              // bytes after the line
	SHA256   string `json:"sha256"`            // digest of the bytes after the line
	fresh    bool
}

// longestAge limits max-age: how long an index is used without asking the server.
const longestAge = time.Hour

// maxAge returns max-age of Cache-Control in seconds (RFC 9111, section 5.2.2).
func maxAge(h http.Header) int {
	age := 0
	for _, w := range strings.Split(strings.ToLower(strings.Join(h.Values("Cache-Control"), ",")), ",") {
		switch k, v, _ := strings.Cut(strings.TrimSpace(w), "="); k {
		case "no-cache", "no-store":
			return 0
		case "max-age":
			if n, err := strconv.Atoi(strings.Trim(v, `"`)); err == nil {
				age = min(max(n, 0), int(longestAge/time.Second))
			}
		}
	}
	return age
}

// maxPacked limits the size of a downloaded index, in bytes.
const maxPacked = 1 << 30

// open opens an index. It revalidates a cached index with the server once max-age is over.
// Several processes and users can share the cache, because files are replaced atomically.
func (c channel) open(ctx context.Context, u string) (*indexFile, error) {
	if c.cache == "" || strings.HasPrefix(u, "file:") {
		r, err := fetch.Open(ctx, u, false)
		if err != nil {
			return nil, err
		}
		return localIndex(r), nil
	}
	file, tabled := c.file(u), ""
	if t := c.cachedTable(u); t != nil {
		tabled = t.Source
	}
	old, have := openCached(file, tabled)
	answer, asked := c.asked.Load(u)
	if gone, ok := answer.(error); ok {
		if old != nil { // another process has stored it meanwhile
			old.Close()
		}
		return nil, gone
	}
	if old != nil && (asked || have.fresh) {
		return old, nil
	}
	resp, err := fetch.Get(ctx, u, have.conditions(), false)
	if errors.Is(err, fetch.ErrUnchanged) && old != nil {
		now := time.Now() // mark as used: the store's garbage collection goes by age
		_ = os.Chtimes(file, now, now)
		c.asked.Store(u, true)
		return old, nil
	}
	if old != nil {
		old.Close()
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			c.asked.Store(u, err)
		}
		return nil, err
	}
	defer resp.Body.Close()
	digest, err := storeIndex(ctx, file, resp)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fetch.Hide(u), fetch.Plain(err))
	}
	if old, _ = openCached(file, digest); old == nil {
		return nil, fmt.Errorf("reading %s: the cached file is damaged", file)
	}
	c.asked.Store(u, true)
	return old, nil
}

// file returns the path of an index in the cache.
func (c channel) file(u string) string {
	sum := sha256.Sum256([]byte(u))
	return filepath.Join(c.cache, "index-"+hex.EncodeToString(sum[:]))
}

// forget removes an unreadable index and its table from the cache, so that the index is
// downloaded again.
func (c channel) forget(u string) {
	c.dropTable(u)
	if c.cache != "" {
		_ = os.Remove(c.file(u))
	}
}

func (k cachedIndex) conditions() http.Header {
	h := http.Header{}
	if k.ETag != "" {
		h.Set("If-None-Match", k.ETag)
	}
	if k.Modified != "" {
		h.Set("If-Modified-Since", k.Modified)
	}
	return h
}

// An indexFile is an open index.
type indexFile struct {
	io.Reader
	io.Closer
	size   int64  // bytes
	source string // identifies the content: its SHA-256 or, of a local file, localSource; "": unknown
	path   string // of a local file
}

// localIndex returns the index in a local file.
func localIndex(r io.ReadCloser) *indexFile {
	x := &indexFile{Reader: r, Closer: r}
	if f, ok := r.(*os.File); ok {
		if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() {
			x.size, x.path, x.source = fi.Size(), f.Name(), localSource(f.Name())
		}
	}
	return x
}

// localSource identifies a version of a local file by its inode, size and times.
func localSource(path string) string {
	key, err := files.Key(path)
	if err != nil {
		return ""
	}
	return "file " + key
}

// unchanged reports whether a local file is still the version that was opened.
func (x *indexFile) unchanged() bool { return x.path == "" || localSource(x.path) == x.source }

// openCached opens an index in the cache. It returns nil if the index is missing or damaged.
// An index with the digest trusted is not read: it was just written, or its table has
// its own digests.
func openCached(file, trusted string) (*indexFile, cachedIndex) {
	f, err := os.Open(file)
	if err != nil {
		return nil, cachedIndex{}
	}
	k, head, err := readHead(f, trusted)
	fi, serr := f.Stat()
	if err == nil && serr == nil {
		_, err = f.Seek(head, io.SeekStart)
	}
	if err != nil || serr != nil || fi.Size() != head+k.Size {
		f.Close()
		return nil, cachedIndex{}
	}
	age := time.Since(fi.ModTime())
	k.fresh = age >= 0 && age < min(time.Duration(k.MaxAge)*time.Second, longestAge)
	return &indexFile{Reader: bufio.NewReaderSize(f, 64<<10), Closer: f, size: k.Size, source: k.SHA256}, k
}

// checkCached compares a cached index with the digest in its first line. head is the length
// of that line.
func checkCached(r io.Reader) (k cachedIndex, head int64, err error) { return readHead(r, "") }

// readHead reads the first line of a cached index. It compares the content with the digest in
// the line, unless that is trusted.
func readHead(r io.Reader, trusted string) (k cachedIndex, head int64, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return k, 0, fmt.Errorf("reading the first line: %w", err)
	}
	if err := json.Unmarshal(line, &k); err != nil {
		return k, 0, fmt.Errorf("reading the first line: %w", err)
	}
	head = int64(len(line))
	if k.SHA256 == trusted && trusted != "" {
		return k, head, nil
	}
	sum := sha256.New()
	n, err := io.Copy(sum, in)
	if err != nil {
		return k, 0, err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != k.Size || got != k.SHA256 {
		return k, 0, fmt.Errorf("sha256 mismatch: %s, expected %s", got, k.SHA256)
	}
	return k, head, nil
}

// storeIndex stores a server's response in the cache and returns its SHA-256.
func storeIndex(ctx context.Context, file string, resp *http.Response) (digest string, err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	body, err := os.CreateTemp(filepath.Dir(file), ".index-")
	if err != nil {
		return "", err
	}
	defer os.Remove(body.Name())
	defer body.Close()
	// The line gets its final length before the size is known.
	k := cachedIndex{ETag: resp.Header.Get("ETag"), Modified: resp.Header.Get("Last-Modified"),
		MaxAge: maxAge(resp.Header), Size: maxPacked, SHA256: strings.Repeat("0", 2*sha256.Size)}
	if len(k.ETag)+len(k.Modified) > 1024 {
		k.ETag, k.Modified = "", ""
	}
	room, err := json.Marshal(k)
	if err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(body, "%s\n", room); err != nil {
		return "", err
	}
	sum := sha256.New()
	if k.Size, err = io.Copy(io.MultiWriter(body, sum), io.LimitReader(fetch.Reader(ctx, resp.Body), maxPacked+1)); err != nil {
		return "", err
	}
	if k.Size > maxPacked {
		return "", fmt.Errorf("response larger than %d bytes", maxPacked)
	}
	k.SHA256 = hex.EncodeToString(sum.Sum(nil))
	head, err := json.Marshal(k)
	if err != nil {
		return "", err
	}
	if _, err := body.WriteAt(append(head, strings.Repeat(" ", len(room)-len(head))...), 0); err != nil {
		return "", err
	}
	if err := errors.Join(body.Chmod(0o644), body.Sync()); err != nil {
		return "", err
	}
	return k.SHA256, os.Rename(body.Name(), file)
}
