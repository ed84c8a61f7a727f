package fetch

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A File is an archive as an index or a list describes it.
type File struct {
	MD5      string `json:"md5"`    // hexadecimal; "" is unknown
	SHA256   string `json:"sha256"` // hexadecimal; "" is unknown
	Size     int64  `json:"size"`   // bytes; 0 is unknown
	FileName string `json:"-"`
	URL      string `json:"-"` // where it is fetched from; it may hold credentials

	Mirrors *Mirrors `json:"-"` // where URL is too; nil for nowhere else
}

// maxArchive bounds an archive, in bytes.
const maxArchive = 32 << 30

// key is the name of a package in the cache: its digest and its file name. ""
// is a package that nothing identifies.
func (r *File) key() string {
	digest := r.SHA256
	if digest == "" {
		digest = r.MD5
	}
	if digest == "" {
		return ""
	}
	return digest + "-" + r.FileName
}

// Cached finds a package in dir and compares its bytes with what the index or the
// list says of it. A damaged one is removed, so that it is fetched again.
func (r *File) Cached(dir string) (string, bool) {
	p, fi, ok := r.Kept(dir)
	if !ok {
		return "", false
	}
	f, err := os.Open(p)
	if err != nil {
		return "", false
	}
	defer f.Close()
	s, m, sums := r.sums()
	n, err := io.Copy(sums, f)
	if err == nil {
		err = r.verify(n, s, m)
	}
	if err != nil {
		_ = os.Remove(p)
		return "", false
	}
	if r.Size == 0 || r.SHA256 == "" {
		r.learn(n, s)
	}
	if time.Since(fi.ModTime()) > time.Hour { // used: the store's GC goes by age
		now := time.Now()
		_ = os.Chtimes(p, now, now)
	}
	return p, true
}

// Kept finds the file of a package in dir, of the right size as far as that is
// known. Its bytes are not read.
func (r *File) Kept(dir string) (string, os.FileInfo, bool) {
	if r.key() == "" {
		return "", nil, false
	}
	p := filepath.Join(dir, r.key())
	fi, err := os.Stat(p)
	ok := err == nil && fi.Mode().IsRegular() && (r.Size == 0 || fi.Size() == r.Size)
	return p, fi, ok
}

// Keep writes what comes from src into dir, verified, and returns its path.
func (r *File) Keep(ctx context.Context, src io.Reader, dir, tmp string, add func(n int64)) (string, error) {
	f, err := os.CreateTemp(tmp, "package-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	limit := int64(maxArchive)
	if r.Size > 0 {
		limit = r.Size
	}
	s, m, sums := r.sums()
	n, err := io.Copy(io.MultiWriter(f, sums, counting(add)), io.LimitReader(Reader(ctx, src), limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("more than %d bytes came", limit)
	}
	if err == nil {
		err = r.verify(n, s, m)
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return "", err
	}
	key := r.key()
	r.learn(n, s)
	if key == "" {
		key = r.key()
	}
	final := filepath.Join(dir, key)
	return final, os.Rename(f.Name(), final)
}

// sums are the digests that verify compares, and what writes to them: the md5 only of a
// package of which one is known.
func (r *File) sums() (s, m hash.Hash, both io.Writer) {
	if s = sha256.New(); r.MD5 == "" {
		return s, nil, s
	}
	m = md5.New()
	return s, m, io.MultiWriter(s, m)
}

// verify compares what came with what the export or the index says.
func (r *File) verify(n int64, s, m hash.Hash) error {
	if r.Size != 0 && n != r.Size {
		return fmt.Errorf("%d bytes came, the index says %d", n, r.Size)
	}
	if got := hex.EncodeToString(s.Sum(nil)); r.SHA256 != "" && got != r.SHA256 {
		return fmt.Errorf("sha256 mismatch: %s, expected %s", got, r.SHA256)
	}
	if r.MD5 == "" {
		return nil
	}
	if got := hex.EncodeToString(m.Sum(nil)); got != r.MD5 {
		return fmt.Errorf("md5 mismatch: %s, expected %s", got, r.MD5)
	}
	return nil
}

// learn notes the size and sha256 of a package that came from a list without
// them. It notes no md5: what an image records of a package must not depend on
// where the package was found.
func (r *File) learn(n int64, s hash.Hash) {
	r.Size, r.SHA256 = n, hex.EncodeToString(s.Sum(nil))
}

type counting func(n int64)

func (c counting) Write(p []byte) (int, error) { c(int64(len(p))); return len(p), nil }

// downloadFrom brings a package into dir from one place.
func (r *File) downloadFrom(ctx context.Context, u, dir, tmp string, add func(n int64)) (string, error) {
	if p, ok := r.Cached(dir); ok {
		add(r.Size)
		return p, nil
	}
	src, err := Open(ctx, u, r.SHA256 != "")
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", r.FileName, err)
	}
	defer src.Close()
	file, err := r.Keep(ctx, src, dir, tmp, add)
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", Hide(u), Plain(err))
	}
	return file, nil
}

// Download brings a package into dir, verified, and returns its path. Work is
// done in tmp, on the same file system. A place that has it not, or another file under
// its name, is passed over for the channel's next.
func (r *File) Download(ctx context.Context, dir, tmp string, add func(n int64)) (file string, err error) {
	if r.Mirrors == nil {
		return r.downloadFrom(ctx, r.URL, dir, tmp, add)
	}
	err = r.Mirrors.Try(ctx, func(ctx context.Context, place string) (err error) {
		var done int64
		file, err = r.downloadFrom(ctx, place+strings.TrimPrefix(r.URL, r.Mirrors.Places[0]), dir, tmp, func(n int64) { done += n; add(n) })
		if err != nil {
			add(-done)
		}
		return err
	})
	return file, err
}
