package conda

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/bzip2"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Bounds of a package.
const (
	maxPackage  = 32 << 30 // bytes as it is fetched
	maxUnpacked = 64 << 30 // bytes of all files of one package
	slack       = 1 << 30  // bytes of an archive besides the files that the package lists
	maxRatio    = 1000     // times its size as it is fetched, besides slack
	maxInfo     = 64 << 20 // bytes of one file below info/
	maxMembers  = 1 << 16  // bytes of the directory of a .conda file, which has three members
	maxFiles    = 2_000_000
	maxWindow   = 256 << 20 // of zstd; "--ultra -22" has 128 MiB
)

// key is the name of a package in the cache: its digest and its file name. ""
// is a package that nothing identifies.
func (r *record) key() string {
	digest := r.SHA256
	if digest == "" {
		digest = r.MD5
	}
	if digest == "" {
		return ""
	}
	return digest + "-" + r.fn
}

// cached finds a package in dir and compares its bytes with what the index or the
// list says of it. A damaged one is removed, so that it is fetched again.
func (r *record) cached(dir string) (string, bool) {
	p, fi, ok := r.kept(dir)
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

// kept finds the file of a package in dir, of the right size as far as that is
// known. Its bytes are not read.
func (r *record) kept(dir string) (string, os.FileInfo, bool) {
	if r.key() == "" {
		return "", nil, false
	}
	p := filepath.Join(dir, r.key())
	fi, err := os.Stat(p)
	ok := err == nil && fi.Mode().IsRegular() && (r.Size == 0 || fi.Size() == r.Size)
	return p, fi, ok
}

// downloadFrom brings a package into dir from one place.
func (r *record) downloadFrom(ctx context.Context, u, dir, tmp string, add func(n int64)) (string, error) {
	if p, ok := r.cached(dir); ok {
		add(r.Size)
		return p, nil
	}
	src, err := fetch(ctx, u, r.SHA256 != "")
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", r.fn, err)
	}
	defer src.Close()
	file, err := r.keep(ctx, src, dir, tmp, add)
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", hide(u), plain(err))
	}
	return file, nil
}

// keep writes what comes from src into dir, verified, and returns its path.
func (r *record) keep(ctx context.Context, src io.Reader, dir, tmp string, add func(n int64)) (string, error) {
	f, err := os.CreateTemp(tmp, "package-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	limit := int64(maxPackage)
	if r.Size > 0 {
		limit = r.Size
	}
	s, m, sums := r.sums()
	n, err := io.Copy(io.MultiWriter(f, sums, counting(add)), io.LimitReader(&ctxReader{ctx, src}, limit+1))
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
func (r *record) sums() (s, m hash.Hash, both io.Writer) {
	if s = sha256.New(); r.MD5 == "" {
		return s, nil, s
	}
	m = md5.New()
	return s, m, io.MultiWriter(s, m)
}

// verify compares what came with what the export or the index says.
func (r *record) verify(n int64, s, m hash.Hash) error {
	if r.Size != 0 && n != r.Size {
		return fmt.Errorf("%d bytes came, the index says %d", n, r.Size)
	}
	if got := hex.EncodeToString(s.Sum(nil)); r.SHA256 != "" && got != r.SHA256 {
		return fmt.Errorf("its sha256 is %s, it should be %s", got, r.SHA256)
	}
	if r.MD5 == "" {
		return nil
	}
	if got := hex.EncodeToString(m.Sum(nil)); got != r.MD5 {
		return fmt.Errorf("its md5 is %s, it should be %s", got, r.MD5)
	}
	return nil
}

// learn notes the size and sha256 of a package that came from a list without
// them. It notes no md5: what an image records of a package must not depend on
// where the package was found.
func (r *record) learn(n int64, s hash.Hash) {
	r.Size, r.SHA256 = n, hex.EncodeToString(s.Sum(nil))
}

type counting func(n int64)

func (c counting) Write(p []byte) (int, error) { c(int64(len(p))); return len(p), nil }

type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// walk calls info for each file below info/ and then, in the archive's order,
// member for each of the others; either may be nil. limit bounds what it unpacks
// to, in bytes. CEP 34 and 35 have the two formats.
func walk(file string, limit int64, info func(name string, r io.Reader) error, member func(h *tar.Header, r io.Reader) error) error {
	if strings.HasSuffix(file, ".conda") {
		return walkConda(file, limit, info, member)
	}
	// One archive, info/ anywhere in it: two passes.
	pass := func(info func(name string, r io.Reader) error, member func(h *tar.Header, r io.Reader) error) error {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		return walkTar(bzip2.NewReader(bufio.NewReaderSize(f, 1<<20)), limit, func(h *tar.Header, r io.Reader) error { return onInfo(h, r, info, member) })
	}
	if info != nil {
		if err := pass(info, nil); err != nil {
			return err
		}
	}
	if member != nil {
		return pass(nil, member)
	}
	return nil
}

// onInfo sorts an entry of a package into the two kinds; a nil function passes
// its kind over.
func onInfo(h *tar.Header, r io.Reader, info func(string, io.Reader) error, member func(*tar.Header, io.Reader) error) error {
	if rest, ok := strings.CutPrefix(h.Name, "info/"); ok || h.Name == "info" {
		if info != nil && h.Typeflag == tar.TypeReg {
			return info(rest, r)
		}
		return nil
	}
	if member == nil {
		return nil
	}
	return member(h, r)
}

func walkConda(file string, limit int64, info func(name string, r io.Reader) error, member func(h *tar.Header, r io.Reader) error) error {
	z, err := openZip(file, maxMembers)
	if err != nil {
		return fmt.Errorf("opening the package: %w", err)
	}
	defer z.Close()
	parts, err := condaParts(z.Reader.File)
	if err != nil {
		return err
	}
	if info != nil {
		if err := walkPart(parts[1], min(limit, slack), func(h *tar.Header, r io.Reader) error { return onInfo(h, r, info, nil) }); err != nil {
			return err
		}
	}
	if member != nil {
		return walkPart(parts[2], limit, func(h *tar.Header, r io.Reader) error { return onInfo(h, r, nil, member) })
	}
	return nil
}

// condaParts finds metadata.json, the info part and the pkg part; it refuses
// whatever else there is.
func condaParts(files []*zip.File) ([3]*zip.File, error) {
	var parts [3]*zip.File
	for _, f := range files {
		i := -1
		switch {
		case f.Name == "metadata.json":
			i = 0
		case strings.HasPrefix(f.Name, "info-") && strings.HasSuffix(f.Name, ".tar.zst"):
			i = 1
		case strings.HasPrefix(f.Name, "pkg-") && strings.HasSuffix(f.Name, ".tar.zst"):
			i = 2
		}
		switch {
		case i < 0:
			return parts, fmt.Errorf("the package holds %q, which is no part of one", short(f.Name))
		case parts[i] != nil:
			return parts, fmt.Errorf("the package holds %q, of which it has another already", short(f.Name))
		case f.Method != zip.Store:
			return parts, fmt.Errorf("%q is compressed a second time, which packages never are", short(f.Name))
		}
		parts[i] = f
	}
	if parts[0] == nil || parts[1] == nil || parts[2] == nil {
		return parts, errors.New("the package lacks its metadata, info or pkg part")
	}
	r, err := parts[0].Open()
	if err != nil {
		return parts, err
	}
	defer r.Close()
	var m struct {
		Version int `json:"conda_pkg_format_version"`
	}
	if err := json.NewDecoder(io.LimitReader(r, 1<<20)).Decode(&m); err != nil {
		return parts, fmt.Errorf("reading metadata.json: %w", err)
	}
	if m.Version != 2 {
		return parts, fmt.Errorf("the package's format has version %d; 2 is known", m.Version)
	}
	return parts, nil
}

// decoders are used again: each has megabytes.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
	if err != nil {
		panic(err) // of the options alone
	}
	return d
}}

// walkPart reads the archive in one part of a .conda file.
func walkPart(f *zip.File, limit int64, fn func(h *tar.Header, r io.Reader) error) error {
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("%s: %w", short(f.Name), err)
	}
	defer r.Close()
	d := decoders.Get().(*zstd.Decoder)
	defer func() {
		_ = d.Reset(nil) // lets the package go
		decoders.Put(d)
	}()
	if err := d.Reset(r); err != nil {
		return fmt.Errorf("%s: %w", short(f.Name), err)
	}
	if err := walkTar(d, limit, fn); err != nil {
		return fmt.Errorf("%s: %w", short(f.Name), err)
	}
	return nil
}

// walkTar reads one archive within bounds, with names cleaned and checked.
func walkTar(r io.Reader, limit int64, fn func(h *tar.Header, r io.Reader) error) error {
	limited := &io.LimitedReader{R: r, N: limit}
	tooLarge := fmt.Errorf("it unpacks to more than %d bytes", limit)
	tr := tar.NewReader(limited)
	sizes := int64(0) // holes of sparse files are not in the archive
	for n := 0; ; n++ {
		h, err := tr.Next()
		if limited.N <= 0 {
			return tooLarge
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if n >= maxFiles {
			return fmt.Errorf("it holds more than %d files", maxFiles)
		}
		if h.Size > limit-sizes {
			return tooLarge
		}
		sizes += h.Size
		clean, err := cleanPath(h.Name)
		if err != nil {
			return fmt.Errorf("entry %q: %w", short(h.Name), err)
		}
		if clean == "." {
			continue
		}
		h.Name = clean
		if err := fn(h, tr); err != nil {
			if limited.N <= 0 {
				return tooLarge
			}
			return fmt.Errorf("entry %q: %w", short(clean), err)
		}
	}
}

// cleanPath refuses paths that lead out of the prefix, or that a terminal
// would not show as they are.
func cleanPath(p string) (string, error) {
	if p == "" || len(p) > 4096 || strings.ContainsFunc(p, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return "", errors.New("its name is empty, too long or holds control characters")
	}
	c := path.Clean(p)
	if path.IsAbs(p) || c == ".." || strings.HasPrefix(c, "../") {
		return "", errors.New("path leaves the prefix")
	}
	return c, nil
}
