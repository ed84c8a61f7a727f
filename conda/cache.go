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
)

// A keptIndex is what a file of the cache begins with: a line of JSON. The file is a
// channel's index as the server sent it.
type keptIndex struct {
	ETag     string `json:"etag,omitempty"`
	Modified string `json:"modified,omitempty"`
	MaxAge   int    `json:"max_age,omitempty"` // seconds after the file's time in which nobody asks
	Size     int64  `json:"size"`              // of what follows the line
	SHA256   string `json:"sha256"`            // of what follows the line
	fresh    bool
}

// longestAge bounds for how long a server can have us not ask it again.
const longestAge = time.Hour

// maxAge reads Cache-Control (RFC 9111, section 5.2.2).
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

// maxPacked bounds an index on its way.
const maxPacked = 1 << 30

// open opens an index. Servers are asked whether the one in the cache is still
// good, unless they said how long it is; several processes and users can share the cache, in which files are renamed into
// place whole.
func (c channel) open(ctx context.Context, u string) (io.ReadCloser, error) {
	if c.cache == "" || strings.HasPrefix(u, "file:") {
		return fetch.Open(ctx, u, false)
	}
	file := c.file(u)
	old, have := openKept(file)
	answer, asked := c.asked.Load(u)
	if gone, ok := answer.(error); ok {
		if old != nil { // another process put it there since
			old.Close()
		}
		return nil, gone
	}
	if old != nil && (asked || have.fresh) {
		return old, nil
	}
	resp, err := fetch.Get(ctx, u, have.conditions(), false)
	if errors.Is(err, fetch.ErrUnchanged) && old != nil {
		now := time.Now() // used: the store's GC goes by age
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
	if err := keepIndex(ctx, file, resp); err != nil {
		return nil, fmt.Errorf("%s: %w", fetch.Hide(u), fetch.Plain(err))
	}
	if old, _ = openKept(file); old == nil {
		return nil, fmt.Errorf("reading %s: it is not what was written to it", file)
	}
	c.asked.Store(u, true)
	return old, nil
}

// file is where the cache has an index.
func (c channel) file(u string) string {
	sum := sha256.Sum256([]byte(u))
	return filepath.Join(c.cache, "index-"+hex.EncodeToString(sum[:]))
}

// forget takes an index that cannot be read out of the cache, so that it is
// asked for anew.
func (c channel) forget(u string) {
	if c.cache != "" {
		_ = os.Remove(c.file(u))
	}
}

func (k keptIndex) conditions() http.Header {
	h := http.Header{}
	if k.ETag != "" {
		h.Set("If-None-Match", k.ETag)
	}
	if k.Modified != "" {
		h.Set("If-Modified-Since", k.Modified)
	}
	return h
}

// A keptFile reads an index behind its first line.
type keptFile struct {
	io.Reader
	io.Closer
}

// openKept opens an index in the cache; nil when there is none, or when it is
// not what was written.
func openKept(file string) (io.ReadCloser, keptIndex) {
	f, err := os.Open(file)
	if err != nil {
		return nil, keptIndex{}
	}
	k, head, err := checkKept(f)
	fi, serr := f.Stat()
	if err == nil && serr == nil {
		_, err = f.Seek(head, io.SeekStart)
	}
	if err != nil || serr != nil {
		f.Close()
		return nil, keptIndex{}
	}
	age := time.Since(fi.ModTime())
	k.fresh = age >= 0 && age < min(time.Duration(k.MaxAge)*time.Second, longestAge)
	return keptFile{bufio.NewReaderSize(f, 64<<10), f}, k
}

// checkKept reads an index of the cache and compares it with the digest in its
// first line, of which it returns the length.
func checkKept(r io.Reader) (k keptIndex, head int64, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return k, 0, fmt.Errorf("reading its first line: %w", err)
	}
	if err := json.Unmarshal(line, &k); err != nil {
		return k, 0, fmt.Errorf("reading its first line: %w", err)
	}
	head = int64(len(line))
	sum := sha256.New()
	n, err := io.Copy(sum, in)
	if err != nil {
		return k, 0, err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != k.Size || got != k.SHA256 {
		return k, 0, fmt.Errorf("its sha256 is %s, it should be %s", got, k.SHA256)
	}
	return k, head, nil
}

// keepIndex puts a server's answer into the cache.
func keepIndex(ctx context.Context, file string, resp *http.Response) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	body, err := os.CreateTemp(filepath.Dir(file), ".index-")
	if err != nil {
		return err
	}
	defer os.Remove(body.Name())
	defer body.Close()
	// The line has its full length before the size is known.
	k := keptIndex{ETag: resp.Header.Get("ETag"), Modified: resp.Header.Get("Last-Modified"), MaxAge: maxAge(resp.Header), Size: maxPacked, SHA256: strings.Repeat("0", 2*sha256.Size)}
	if len(k.ETag)+len(k.Modified) > 1024 {
		k.ETag, k.Modified = "", ""
	}
	room, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(body, "%s\n", room); err != nil {
		return err
	}
	sum := sha256.New()
	if k.Size, err = io.Copy(io.MultiWriter(body, sum), io.LimitReader(fetch.Reader(ctx, resp.Body), maxPacked+1)); err != nil {
		return err
	}
	if k.Size > maxPacked {
		return fmt.Errorf("more than %d bytes came", maxPacked)
	}
	k.SHA256 = hex.EncodeToString(sum.Sum(nil))
	head, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if _, err := body.WriteAt(append(head, strings.Repeat(" ", len(room)-len(head))...), 0); err != nil {
		return err
	}
	if err := errors.Join(body.Chmod(0o644), body.Sync()); err != nil {
		return err
	}
	return os.Rename(body.Name(), file)
}
