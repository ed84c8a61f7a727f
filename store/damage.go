package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// damagedDir holds damaged blobs, trees and cache entries. They count as missing, so that
// the next command which can recreate them does. GC removes them by age.
const damagedDir = "damaged"

// DamagedError reports a blob that is missing, or whose bytes do not match its digest.
type DamagedError struct {
	Digest v1.Hash
	Reason string   // "is missing", "is damaged: its digest is sha256:…"
	Moved  string   // path it was moved to; empty if it could not be moved
	Images []string // the names that use it, sorted
	Cures  []string // for each of Images: the command that replaces the blob
}

func (e *DamagedError) Error() string {
	text := fmt.Sprintf("blob %s %s", e.Digest, e.Reason)
	if len(e.Images) > 0 {
		text += "; used by " + strings.Join(e.Images, ", ")
	}
	if e.Moved != "" {
		text += "; moved to " + e.Moved
	}
	return text
}

// Advice says how to replace the blob.
func (e *DamagedError) Advice() string {
	const rest = "; hpcc gc --verify checks everything else"
	switch {
	case len(e.Cures) == 0:
		return "repeat the hpcc build, load or pull that created it; copy a layout or archive again"
	case len(e.Cures) == 1:
		return e.Cures[0] + " replaces it" + rest
	}
	return "any of these commands replaces it: " + strings.Join(e.Cures, "; ") + rest
}

// missing is the reason for a missing blob.
const missing = "is missing"

// errUnsteady reports bytes that were wrong on the first read and correct on the second.
var errUnsteady = errors.New("its bytes were wrong at first and right when they were read again: another process replaced it, or the memory or disk of this machine is unreliable; run the command again")

// A checkedReader reads a blob and verifies its digest. If it does not match, it returns the
// error of bad instead of the last bytes.
type checkedReader struct {
	r    io.ReadCloser
	sum  hash.Hash
	want string // hexadecimal
	size int64  // in bytes; -1: not known
	n    int64
	bad  func() error
	err  error
}

func (c *checkedReader) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.r.Read(p)
	c.sum.Write(p[:n])
	c.n += int64(n)
	ended := errors.Is(err, io.EOF)
	switch {
	case (ended || c.n == c.size) && hex.EncodeToString(c.sum.Sum(nil)) != c.want, errors.Is(err, syscall.EIO):
		c.err = c.bad()
		return 0, c.err
	case c.size >= 0 && c.n > c.size:
		c.err = c.bad()
		return 0, c.err
	}
	c.err = err
	return n, err
}

func (c *checkedReader) Close() error { return c.r.Close() }

// openBlob opens a blob of size bytes (-1: unknown). If its bytes do not match the digest,
// its reader returns a [DamagedError] instead of the last bytes.
func (s *Store) openBlob(h v1.Hash, size int64) (io.ReadCloser, error) {
	if err := checkHash(h); err != nil {
		return nil, err
	}
	bad := func() error { return s.condemn(h, size) }
	f, err := openRegular(s.blob(h))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.damaged(h, missing, "")
	}
	if err != nil {
		return nil, fmt.Errorf("opening blob %s: %w", h, err)
	}
	if fi, err := f.Stat(); err == nil && size >= 0 && fi.Size() != size {
		f.Close()
		return nil, bad()
	}
	return &checkedReader{r: f, sum: sha256.New(), want: h.Hex, size: size, bad: bad}, nil
}

// OpenLayer opens the blob of a layer. If its bytes do not match the digest, its reader
// returns an error instead of the last bytes, a [DamagedError] for layers of a store.
func OpenLayer(l v1.Layer) (io.ReadCloser, error) {
	if _, ok := l.(*layer); ok {
		return l.Compressed()
	}
	h, err := l.Digest()
	if err != nil {
		return nil, err
	}
	r, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	return &checkedReader{r: r, sum: sha256.New(), want: h.Hex, size: -1,
		bad: func() error { return fmt.Errorf("its bytes do not have the digest %s", h) }}, nil
}

// VerifyLayer reads the full blob of a store's layer. It returns a [DamagedError] if the
// blob does not match its digest. Readers that stop at an error in the content call it to
// find out whether the blob is the cause.
func VerifyLayer(ctx context.Context, l v1.Layer) error {
	if _, ok := l.(*layer); !ok {
		return nil
	}
	r, err := l.Compressed()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, readerWith(ctx, r))
	return err
}

// defect reads a blob and returns why it is damaged, or "" if it is intact. count gets the bytes that
// were read.
func (s *Store) defect(ctx context.Context, h v1.Hash, size int64, count io.Writer) (string, error) {
	f, err := openRegular(s.blob(h))
	if errors.Is(err, fs.ErrNotExist) {
		return missing, nil
	}
	if err != nil {
		return "", fmt.Errorf("opening blob %s: %w", h, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("reading blob %s: %w", h, err)
	}
	if size >= 0 && fi.Size() != size {
		return fmt.Sprintf("is damaged: it has %d bytes instead of %d", fi.Size(), size), nil
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(sum, count), readerWith(ctx, f))
	switch got := hex.EncodeToString(sum.Sum(nil)); {
	case errors.Is(err, syscall.EIO):
		return "cannot be read: " + err.Error(), nil
	case err != nil:
		return "", fmt.Errorf("reading blob %s: %w", h, err)
	case got != h.Hex:
		return "is damaged: its digest is sha256:" + got, nil
	}
	return "", nil
}

// condemn returns the error for a blob with wrong bytes. It reads the blob again before
// moving it away.
func (s *Store) condemn(h v1.Hash, size int64) error {
	reason, err := s.defect(context.Background(), h, size, io.Discard)
	if err != nil {
		return err
	}
	if reason == "" {
		return fmt.Errorf("reading blob %s: %w", h, errUnsteady)
	}
	return s.damaged(h, reason, s.moveAway(s.blob(h), h.Hex))
}

// damaged returns the error for a damaged blob, with the images that use it.
func (s *Store) damaged(h v1.Hash, reason, moved string) *DamagedError {
	e := &DamagedError{Digest: h, Reason: reason, Moved: moved}
	if s.foreign {
		return e
	}
	refs, _ := s.refs()
	for n, r := range refs {
		if s.reaches(r.Descriptor, h, 0) {
			e.Images = append(e.Images, n)
		}
	}
	slices.Sort(e.Images)
	for _, n := range e.Images {
		e.Cures = append(e.Cures, s.cure(n, refs[n]))
	}
	return e
}

// reaches reports whether a manifest or index references a blob. It ignores unreadable
// parts.
func (s *Store) reaches(d v1.Descriptor, h v1.Hash, depth int) bool {
	if d.Digest == h {
		return true
	}
	if depth > maxDepth || checkHash(d.Digest) != nil {
		return false
	}
	b, err := readSmall(openRegular(s.blob(d.Digest)))
	if err != nil {
		return false
	}
	if d.MediaType.IsIndex() {
		idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
		return err == nil && slices.ContainsFunc(idx.Manifests, func(m v1.Descriptor) bool { return s.reaches(m, h, depth+1) })
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	return err == nil && (m.Config.Digest == h || slices.ContainsFunc(m.Layers, func(l v1.Descriptor) bool { return l.Digest == h }))
}

// cure returns the command that recreates the image of a name.
func (s *Store) cure(n string, r ref) string {
	if strings.HasPrefix(r.Source, "pull ") || strings.HasPrefix(r.Source, "load ") {
		return "hpcc " + r.Source
	}
	if p, err := s.readPushed(s.pushedFile(n)); err == nil && p.Digest == r.Digest && r.Digest.Hex != "" {
		return fmt.Sprintf("hpcc pull %s %s", p.Reference, n)
	}
	if r.Source == sourceBuild {
		return fmt.Sprintf("hpcc build … -t %s (the same build: it repeats the damaged step)", n)
	}
	if host, _, ok := strings.Cut(n, "/"); ok && strings.ContainsAny(host, ".:") {
		return "hpcc pull " + n
	}
	return fmt.Sprintf("hpcc pull REF %[1]s, hpcc load FILE %[1]s or hpcc build … -t %[1]s", n)
}

// moveAway moves a damaged file or directory of the store to damagedDir and returns its new
// path, or "" if it could not be moved.
func (s *Store) moveAway(path, name string) string {
	if s.foreign || os.MkdirAll(s.path(damagedDir), 0o755) != nil {
		return ""
	}
	to := s.path(damagedDir, name+"."+strconv.FormatInt(time.Now().UnixNano(), 36))
	if renameDir(path, to) != nil {
		return ""
	}
	now := time.Now() // GC counts the age from now
	_ = os.Chtimes(to, now, now)
	return to
}

// intact reports whether a blob exists, of the expected size (-1: any) and with
// the bytes of its digest. A damaged one is moved away. count gets the bytes that were read.
func (s *Store) intact(ctx context.Context, h v1.Hash, size int64, count io.Writer) (bool, error) {
	reason, err := s.defect(ctx, h, size, count)
	if err != nil || reason == "" {
		if err == nil {
			touch(s.blob(h))
		}
		return err == nil, err
	}
	s.moveAway(s.blob(h), h.Hex)
	return false, nil
}

// damagedFiles removes damaged files that were moved away long ago.
func (g *collector) damagedFiles(context.Context) error {
	entries, err := os.ReadDir(g.s.path(damagedDir))
	if err != nil {
		return ignoreGone(err)
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || !g.old(fi) {
			continue
		}
		g.rep.Temps++
		if err := g.remove(filepath.Join(g.s.path(damagedDir), e.Name())); err != nil {
			return err
		}
	}
	return nil
}
