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
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Bounds of a package.
const (
	maxMember = 64 << 30 // bytes of all files of one package
	maxInfo   = 64 << 20 // bytes of one file below info/
	maxFiles  = 2_000_000
	maxWindow = 256 << 20 // of zstd; "--ultra -22" has 128 MiB
)

// download brings a package into dir, verified, and returns its path. A file
// that is there under its digest was verified before.
func (r *record) download(ctx context.Context, dir string, add func(n int64)) (string, error) {
	key := r.SHA256
	if key == "" {
		key = r.MD5
	}
	if key != "" {
		p := filepath.Join(dir, key+"-"+r.fn)
		if fi, err := os.Stat(p); err == nil && (r.Size == 0 || fi.Size() == r.Size) {
			add(fi.Size())
			return p, nil
		}
	}
	src, err := fetch(ctx, r.url)
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", hide(r.url), err)
	}
	defer src.Close()
	tmp, err := os.CreateTemp(dir, ".new-")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name())
	s, m := sha256.New(), md5.New()
	n, err := io.Copy(io.MultiWriter(tmp, s, m, counting(add)), &ctxReader{ctx, src})
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", hide(r.url), err)
	}
	if err := r.verify(n, s, m); err != nil {
		return "", fmt.Errorf("fetching %s: %w", hide(r.url), err)
	}
	r.SHA256, r.MD5, r.Size = hex.EncodeToString(s.Sum(nil)), hex.EncodeToString(m.Sum(nil)), n
	final := filepath.Join(dir, r.SHA256+"-"+r.fn)
	return final, os.Rename(tmp.Name(), final)
}

// verify compares what came with what the export or the index says.
func (r *record) verify(n int64, s, m hash.Hash) error {
	if r.Size != 0 && n != r.Size {
		return fmt.Errorf("%d bytes came, the index says %d", n, r.Size)
	}
	if got := hex.EncodeToString(s.Sum(nil)); r.SHA256 != "" && got != r.SHA256 {
		return fmt.Errorf("its sha256 is %s, it should be %s", got, r.SHA256)
	}
	if got := hex.EncodeToString(m.Sum(nil)); r.MD5 != "" && got != r.MD5 {
		return fmt.Errorf("its md5 is %s, it should be %s", got, r.MD5)
	}
	return nil
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
// member for each of the others. CEP 34 and 35 have the two formats.
func walk(file string, info func(name string, r io.Reader) error, member func(h *tar.Header, r io.Reader) error) error {
	if strings.HasSuffix(file, ".conda") {
		return walkConda(file, info, member)
	}
	// One archive, info/ anywhere in it: two passes.
	for _, pass := range []func(h *tar.Header, r io.Reader) error{
		func(h *tar.Header, r io.Reader) error { return onInfo(h, r, info, nil) },
		func(h *tar.Header, r io.Reader) error { return onInfo(h, r, nil, member) },
	} {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = walkTar(bzip2.NewReader(bufio.NewReaderSize(f, 1<<20)), pass)
		f.Close()
		if err != nil {
			return err
		}
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

func walkConda(file string, info func(name string, r io.Reader) error, member func(h *tar.Header, r io.Reader) error) error {
	z, err := zip.OpenReader(file)
	if err != nil {
		return fmt.Errorf("opening the package: %w", err)
	}
	defer z.Close()
	var infoPart, pkgPart *zip.File
	for _, f := range z.File {
		slot := (**zip.File)(nil)
		switch {
		case f.Name == "metadata.json":
			continue
		case strings.HasPrefix(f.Name, "info-") && strings.HasSuffix(f.Name, ".tar.zst"):
			slot = &infoPart
		case strings.HasPrefix(f.Name, "pkg-") && strings.HasSuffix(f.Name, ".tar.zst"):
			slot = &pkgPart
		}
		if slot == nil || *slot != nil || f.Method != zip.Store {
			return fmt.Errorf("the package holds %q, which a .conda archive has not, or twice", f.Name)
		}
		*slot = f
	}
	if infoPart == nil || pkgPart == nil {
		return errors.New("the package lacks its info or pkg part")
	}
	for _, part := range []struct {
		f  *zip.File
		fn func(h *tar.Header, r io.Reader) error
	}{
		{infoPart, func(h *tar.Header, r io.Reader) error { return onInfo(h, r, info, nil) }},
		{pkgPart, func(h *tar.Header, r io.Reader) error { return onInfo(h, r, nil, member) }},
	} {
		r, err := part.f.Open()
		if err != nil {
			return err
		}
		d, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err == nil {
			err = walkTar(d, part.fn)
			d.Close()
		}
		r.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", part.f.Name, err)
		}
	}
	return nil
}

// walkTar reads one archive within bounds, with names cleaned and checked.
func walkTar(r io.Reader, fn func(h *tar.Header, r io.Reader) error) error {
	limited := &io.LimitedReader{R: r, N: maxMember}
	tr := tar.NewReader(limited)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if limited.N <= 0 {
			return fmt.Errorf("it unpacks to more than %d bytes", int64(maxMember))
		}
		if err != nil {
			return err
		}
		if n > maxFiles {
			return fmt.Errorf("it holds more than %d files", maxFiles)
		}
		clean, err := cleanPath(h.Name)
		if err != nil {
			return fmt.Errorf("entry %q: %w", short(h.Name), err)
		}
		if clean == "." {
			continue
		}
		h.Name = clean
		if err := fn(h, tr); err != nil {
			return fmt.Errorf("entry %q: %w", short(clean), err)
		}
	}
}

// cleanPath refuses paths that lead out of the prefix.
func cleanPath(p string) (string, error) {
	if p == "" || strings.ContainsRune(p, 0) || len(p) > 4096 {
		return "", errors.New("its name is empty, too long or holds a NUL byte")
	}
	c := path.Clean(p)
	if path.IsAbs(p) || c == ".." || strings.HasPrefix(c, "../") {
		return "", errors.New("path leaves the prefix")
	}
	return c, nil
}
