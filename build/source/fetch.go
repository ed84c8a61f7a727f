package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"hpcc/build/git"
	"hpcc/web"
)

// maxDownload limits a download of ADD, in bytes.
const maxDownload = 64 << 30

// IsRemote reports whether ADD downloads a source.
func IsRemote(word string) bool {
	return strings.HasPrefix(word, "http://") || strings.HasPrefix(word, "https://") || git.IsAddress(word)
}

// A Download is a file that was downloaded.
type Download struct {
	Path     string
	Sum      string    // sha256:HEX
	Modified time.Time // as the server reports it; zero: unknown
}

// Fetch downloads a URL to the file to. pinned means that the caller verifies the checksum, as
// in [web.Get]. Fetch calls fetched with the number of bytes received and the total number,
// which is 0 if it is unknown.
func Fetch(ctx context.Context, from, to string, pinned bool, fetched func(done, total int64)) (d Download, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return d, errors.New("not a URL")
	}
	req.Header.Set("User-Agent", "hpcc")
	resp, err := web.Get(nil, req, pinned)
	if err != nil {
		if ue := (*url.Error)(nil); errors.As(err, &ue) {
			err = ue.Err // the caller names the address without its password
		}
		return d, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return d, fmt.Errorf("the server returned %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	f, err := os.Create(to)
	if err != nil {
		return d, err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h, &counter{total: resp.ContentLength, report: fetched}), io.LimitReader(resp.Body, maxDownload+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if n > maxDownload {
		return d, fmt.Errorf("the file is larger than %d bytes", int64(maxDownload))
	}
	d = Download{Path: to, Sum: "sha256:" + hex.EncodeToString(h.Sum(nil))}
	if t, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		d.Modified = t.UTC()
	}
	return d, err
}

// A counter reports the number of bytes written to it, and the expected total (-1: unknown).
type counter struct {
	done, total int64
	report      func(done, total int64)
}

func (c *counter) Write(p []byte) (int, error) {
	c.done += int64(len(p))
	c.report(c.done, max(0, c.total))
	return len(p), nil
}
