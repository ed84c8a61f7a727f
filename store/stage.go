package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"hpcc/files"
)

// A Stage holds copies of images in this node's local storage, shared by all processes of
// the user. It is a separate store without names: data that was not used for a while is
// removed.
type Stage struct {
	s      *Store
	shared bool // s is also the user's store of images
}

// OpenStage opens the user's stage, the directory hpcc-UID in place, and creates it if
// create is set. Otherwise a missing stage is [fs.ErrNotExist]. place must be a result of
// [files.Trusted], so that nobody else can replace it; for "" OpenStage uses
// [files.NodeLocal]. If another user holds the name, the stage has a longer one.
func OpenStage(place string, create bool) (*Stage, error) {
	fail := func(err error) (*Stage, error) {
		return nil, fmt.Errorf("opening the node's copies of images in %q: %w", cmp.Or(place, files.NodeLocal()), err)
	}
	safe := place
	var err error
	if place == "" {
		if safe, err = files.Trusted(files.NodeLocal()); err != nil {
			return fail(err)
		}
	}
	dir, err := files.PrivateDir(safe, "hpcc-"+strconv.Itoa(os.Geteuid()), create)
	if err != nil {
		return fail(err)
	}
	s, err := Open(dir)
	if err != nil {
		return nil, err
	}
	return &Stage{s: s}, nil
}

// InStore returns a stage that keeps its copies in s, for a node without another suitable
// directory. It does not collect garbage.
func InStore(s *Store) *Stage { return &Stage{s: s, shared: true} }

// Dir returns the stage's directory.
func (g *Stage) Dir() string { return g.s.dir }

// Copy returns the directory with this key and fills it if it is missing. Of concurrent
// processes, one fills it and the others wait; if that one is killed, another continues.
// need is the minimum number of bytes that fill writes; if less space is free, Copy returns
// ENOSPC without calling fill. It first removes copies that were unused for a week.
func (g *Stage) Copy(ctx context.Context, key string, need int64, fill func(dir string) error) (string, error) {
	rel := filepath.Join("trees", key)
	final := g.s.path(rel)
	if used(final) {
		return final, nil
	}
	release := g.s.Alone(ctx, "stage", key)
	defer release()
	if used(final) {
		return final, nil
	}
	if !g.shared {
		if _, err := g.s.GC(ctx, GCOptions{}); err != nil {
			return "", err
		}
	}
	if err := g.checkFree(need); err != nil {
		return "", err
	}
	dir, err := g.s.Once(ctx, rel, fill)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return "", fmt.Errorf("copying to %s: the file system became full: %w", g.s.dir, syscall.ENOSPC)
	}
	return dir, err
}

// checkFree returns ENOSPC if fewer than need bytes are free.
func (g *Stage) checkFree(need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(g.s.dir, &st); err == nil && int64(st.Bavail)*st.Bsize < need {
		return fmt.Errorf("copying %d bytes to %s, but only %d are free: %w", need, g.s.dir, int64(st.Bavail)*st.Bsize, syscall.ENOSPC)
	}
	return nil
}

// used reports whether a copy exists, and records its use for GC.
func used(dir string) bool {
	now := time.Now()
	mark := filepath.Join(dir, ".hpcc")
	if os.Chtimes(mark, now, now) == nil {
		return true
	}
	return os.Chtimes(dir, now, now) == nil
}

// Empty returns an empty directory, as a mount point that others do not see.
func (g *Stage) Empty(ctx context.Context) (string, error) {
	return g.s.Once(ctx, "cache/mount/empty", func(string) error { return nil })
}

// GC removes copies that were unused for long, as [Store.GC] does.
func (g *Stage) GC(ctx context.Context, o GCOptions) (GCReport, error) { return g.s.GC(ctx, o) }

// sentTo is the variable with the directory of the stage to which a job sent its image, the
// same on all nodes of the job.
const sentTo = "HPCC_BROADCAST"

// sentPrefix is the prefix of these directories in the stage's directory tmp. GC removes them
// after a day if their job did not use them.
const sentPrefix = "broadcast-"

// Has reports whether there is a copy with this key, and records its use for GC.
func (g *Stage) Has(key string) bool { return used(g.s.path("trees", key)) }

// Receive creates a directory of the stage, to which a job can send a file of need bytes, and
// returns its path. name distinguishes jobs. If less space is free, the error is ENOSPC.
func (g *Stage) Receive(ctx context.Context, name string, need int64) (string, error) {
	if _, err := g.s.GC(ctx, GCOptions{}); err != nil {
		return "", err
	}
	if err := g.checkFree(need); err != nil {
		return "", err
	}
	dir := g.s.path("tmp", sentPrefix+name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("receiving an image: %w", err)
	}
	return dir, nil
}

// Refuse removes the directory that [Stage.Receive] created, with the file in it.
func (g *Stage) Refuse(name string) error { return os.RemoveAll(g.s.path("tmp", sentPrefix+name)) }

// sent returns the path for the file key in the directory to which the job sent its image, or ""
// if this job did not send one to this stage.
func (g *Stage) sent(key string) string {
	dir := os.Getenv(sentTo)
	if filepath.Dir(dir) != g.s.path("tmp") || !strings.HasPrefix(filepath.Base(dir), sentPrefix) {
		return ""
	}
	return filepath.Join(dir, SentName(key))
}

// SentName returns the name of the file that a job sends for a key, a digest or a result of
// [files.Key]: the part of the key that is the same on all nodes, without the number of the device.
func SentName(key string) string {
	if _, rest, hasDevice := strings.Cut(key, "-"); hasDevice {
		return rest
	}
	return key
}

// LayersSize returns the size of an image's layers, in bytes.
func LayersSize(img v1.Image) (n int64, err error) {
	m, err := img.Manifest()
	if err != nil {
		return 0, err
	}
	for _, l := range m.Layers {
		n += l.Size
	}
	return n, nil
}

// Sent returns the path of the file that the job sent to this node for a key, or "". The caller
// may move the file away.
func (g *Stage) Sent(key string) string {
	file := g.sent(key)
	if fi, err := os.Lstat(file); err != nil || !fi.Mode().IsRegular() {
		return ""
	}
	return file
}

// Done removes the file that the job sent to this node for a key, if it is still there, and its
// directory.
func (g *Stage) Done(key string) {
	if file := g.sent(key); file != "" {
		_ = os.Remove(file)
		_ = os.Remove(filepath.Dir(file)) // fails if it has a file with another key
	}
}

// Join writes the layers of an image one after another to a new file of the stage, which
// [Stage.Split] reads. The caller removes the file.
func (g *Stage) Join(ctx context.Context, img v1.Image) (file string, err error) {
	layers, err := img.Layers()
	if err != nil {
		return "", err
	}
	f, err := g.s.tempFile()
	if err != nil {
		return "", err
	}
	for _, l := range layers {
		if err = appendLayer(ctx, f, l); err != nil {
			break
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("joining the layers of an image in %s: %w", g.s.dir, err)
	}
	return f.Name(), nil
}

func appendLayer(ctx context.Context, w io.Writer, l v1.Layer) error {
	r, err := OpenLayer(l)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, readerWith(ctx, r))
	return err
}

// Split returns an image whose layers are read from a file that [Stage.Join] wrote. Readers of
// the layers must verify their digests, as those of other files.
func (g *Stage) Split(img v1.Image, file string) (v1.Image, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	out, at := &splitImage{Image: img}, int64(0)
	for _, l := range layers {
		size, err := l.Size()
		if err != nil {
			return nil, err
		}
		out.layers = append(out.layers, &splitLayer{l, file, at, size})
		at += size
	}
	if fi, err := os.Stat(file); err != nil || fi.Size() != at {
		return nil, fmt.Errorf("reading layers from %s: it does not have the %d bytes of the layers", file, at)
	}
	return out, nil
}

// A splitImage is an image with other layers.
type splitImage struct {
	v1.Image
	layers []v1.Layer
}

// Layers returns the layers in the joined file.
func (i *splitImage) Layers() ([]v1.Layer, error) { return slices.Clone(i.layers), nil }

// A splitLayer is a layer whose blob is a part of a file.
type splitLayer struct {
	v1.Layer
	file     string
	at, size int64
}

// Compressed opens the blob.
func (l *splitLayer) Compressed() (io.ReadCloser, error) {
	f, err := openRegular(l.file)
	if err != nil {
		return nil, err
	}
	return readCloser{io.NewSectionReader(f, l.at, l.size), f}, nil
}

// Uncompressed opens the blob and decompresses it.
func (l *splitLayer) Uncompressed() (io.ReadCloser, error) {
	f, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	return uncompressed(f)
}
