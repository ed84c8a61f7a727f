package fetch

import (
	"cmp"
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

	"hpcc/conda/artifact"
	"hpcc/files"
)

// A File describes an archive as an index or a list does.
type File struct {
	MD5      string `json:"md5"`    // hexadecimal; "" if unknown
	SHA256   string `json:"sha256"` // hexadecimal; "" if unknown
	Size     int64  `json:"size"`   // bytes; 0 if unknown
	FileName string `json:"-"`
	URL      string `json:"-"` // may contain credentials

	Mirrors *Mirrors `json:"-"` // mirrors of URL; nil if there are none
}

// maxArchive limits the size of an archive, in bytes.
const maxArchive = 32 << 30

// key returns the name of the file in the cache, its digest and file name, or "" if no digest
// is known.
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

// Cached returns the path of the package in dir after verifying its digest. It removes a
// damaged file, so that the file is downloaded again.
func (r *File) Cached(dir string) (string, bool) {
	p, fi, ok := r.Stat(dir)
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
		r.setIdentity(n, s)
	}
	if time.Since(fi.ModTime()) > time.Hour { // mark as used: the store's garbage collection goes by age
		now := time.Now()
		_ = os.Chtimes(p, now, now)
	}
	return p, true
}

// Stat finds the package in dir. It compares the size, if known, but does not verify the digest.
func (r *File) Stat(dir string) (string, os.FileInfo, bool) {
	if r.key() == "" {
		return "", nil, false
	}
	p := filepath.Join(dir, r.key())
	fi, err := os.Stat(p)
	ok := err == nil && fi.Mode().IsRegular() && (r.Size == 0 || fi.Size() == r.Size)
	return p, fi, ok
}

// Keep copies src into dir, verifies it, and returns the path of the file. tmp is a temporary
// directory on the same file system. add receives the number of bytes of each write.
func (r *File) Keep(ctx context.Context, src io.Reader, dir, tmp string, add func(n int64)) (string, error) {
	f, err := os.CreateTemp(tmp, "package-")
	if err != nil {
		return "", err
	}
	limit := int64(maxArchive)
	if r.Size > 0 {
		limit = r.Size
	}
	s, m, sums := r.sums()
	n, err := io.Copy(io.MultiWriter(f, sums, counting(add)), io.LimitReader(Reader(ctx, src), limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("response larger than %d bytes", limit)
	}
	if err == nil {
		err = r.verify(n, s, m)
	}
	key := r.key()
	if err == nil {
		r.setIdentity(n, s)
		err = f.Chmod(0o644)
	}
	final := filepath.Join(dir, cmp.Or(key, r.key()))
	return final, files.Commit(f, err, final, true)
}

// sums returns the hashes that verify compares, and a writer that feeds both. m is nil if no
// MD5 is known.
func (r *File) sums() (s, m hash.Hash, both io.Writer) {
	if s = sha256.New(); r.MD5 == "" {
		return s, nil, s
	}
	m = md5.New()
	return s, m, io.MultiWriter(s, m)
}

// verify compares size and digests with those of the export or index.
func (r *File) verify(n int64, s, m hash.Hash) error {
	if r.Size != 0 && n != r.Size {
		return fmt.Errorf("size mismatch: %d bytes, expected %d", n, r.Size)
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

// setIdentity records the size and SHA-256 of a package from a list without them. It does not record
// the MD5, because an image's description of a package must not depend on the list's format.
func (r *File) setIdentity(n int64, s hash.Hash) {
	r.Size, r.SHA256 = n, hex.EncodeToString(s.Sum(nil))
}

type counting func(n int64)

func (c counting) Write(p []byte) (int, error) { c(int64(len(p))); return len(p), nil }

// downloadFrom downloads a package into dir from one URL.
func (r *File) downloadFrom(ctx context.Context, u, dir, tmp string, add func(n int64)) (string, error) {
	if p, ok := r.Cached(dir); ok {
		add(r.Size)
		return p, nil
	}
	src, err := r.open(ctx, u)
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

// open opens the package at a URL.
func (r *File) open(ctx context.Context, u string) (io.ReadCloser, error) {
	if !artifact.IsURL(u) {
		return Open(ctx, u, r.SHA256 != "")
	}
	resp, err := getArtifact(ctx, u, "", r.SHA256)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Download downloads a package into dir, verifies it, and returns its path. tmp is a temporary
// directory on the same file system. If a mirror lacks the file, or has a different one,
// Download tries the next. add receives the number of bytes of each write, and a negative
// number for the bytes of a failed mirror.
func (r *File) Download(ctx context.Context, dir, tmp string, add func(n int64)) (file string, err error) {
	if r.Mirrors == nil {
		return r.downloadFrom(ctx, r.URL, dir, tmp, add)
	}
	err = r.Mirrors.Try(ctx, func(ctx context.Context, mirror string) (err error) {
		var done int64
		file, err = r.downloadFrom(ctx, mirror+strings.TrimPrefix(r.URL, r.Mirrors.URLs[0]), dir, tmp, func(n int64) { done += n; add(n) })
		if err != nil {
			add(-done)
		}
		return err
	})
	return file, err
}
