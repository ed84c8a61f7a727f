package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/store"
)

// Parts holds layers that were unpacked from the same bytes while they were written. Building
// the image's tree from them does not read, decompress or digest the layers again. Each part
// has its own directory, so that layers may be written concurrently in any order. [Tree]
// moves the content of the parts into place.
//
// A layer can be a part only if its effect does not depend on the layers below. A layer with
// whiteouts, owners or links in paths is unpacked from its blob, and so is a layer whose part
// could not be written.
type Parts struct {
	store *store.Store
	mu    sync.Mutex
	dir   string           // directory of the parts; empty until the first one
	trees map[string]*tree // by the diff IDs of their layers
	pool  blockPool
}

// NewParts returns an empty set of parts. The caller must close it.
func NewParts(s *store.Store) *Parts {
	return &Parts{store: s, trees: map[string]*tree{}, pool: make(blockPool, blocksAhead*goruntime.GOMAXPROCS(0))}
}

// Close removes the unused parts.
func (p *Parts) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir != "" {
		_ = files.RemoveAll(p.dir)
	}
	p.dir, p.trees = "", nil
}

// newTree creates an empty directory for a part.
func (p *Parts) newTree() (*tree, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir == "" {
		dir, err := p.store.TempDir()
		if err != nil {
			return nil, err
		}
		p.dir = dir
	}
	dir, err := os.MkdirTemp(p.dir, "part-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // without a set-group-id bit, see Fill
		return nil, err
	}
	t, err := openTree(dir, NewNotes(dir))
	if err != nil {
		return nil, err
	}
	t.linkOwners = false
	t.open = max(2, t.open/goruntime.GOMAXPROCS(0)) // GOMAXPROCS parts may be written concurrently
	return t, nil
}

// take returns the part of a layer and removes it from the set, or returns nil. p may be
// nil.
func (p *Parts) take(l v1.Layer) *tree {
	if p == nil {
		return nil
	}
	id, err := l.DiffID()
	if err != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.trees[id.String()]
	delete(p.trees, id.String())
	return t
}

// A Part is a layer that is being unpacked while it is written.
type Part struct {
	parts   *Parts
	content *content
	cur     *block // the block being filled
	lost    bool   // some written bytes are missing
	ctx     context.Context
	stop    context.CancelFunc
	done    chan *tree // receives the unpacked layer, or nil
}

// Begin starts a part. The caller writes the layer's tar to it and must then call End.
func (p *Parts) Begin(ctx context.Context) *Part {
	x := &Part{parts: p, content: &content{stream: newStream(p.pool)}, done: make(chan *tree, 1)}
	x.ctx, x.stop = context.WithCancel(ctx)
	go func() {
		t, err := x.unpack()
		x.stop() // so that Write does not wait for a reader
		x.content.drop()
		if err != nil {
			t = nil
		}
		x.done <- t
	}()
	return x
}

// Write receives the next bytes of the tar. It never fails: the data of a layer that cannot
// be a part is discarded.
func (x *Part) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 && !x.lost {
		if x.cur == nil {
			x.cur = x.parts.pool.get()
		}
		b := x.cur
		k := copy(b.buf[len(b.data):], p)
		b.data, p = b.buf[:len(b.data)+k], p[k:]
		if len(b.data) == blockSize {
			x.cur = nil
			x.send(b)
		}
	}
	return n, nil
}

func (x *Part) send(b *block) {
	if x.content.send(x.ctx, b) != nil {
		x.lost = true
	}
}

// End ends the layer and sets its diff ID. A zero Hash discards it.
func (x *Part) End(diffID v1.Hash) {
	last := x.cur
	if last == nil {
		last = &block{}
	}
	last.err = io.EOF
	x.send(last)
	close(x.content.blocks)
	t := <-x.done
	if t == nil || x.lost || diffID == (v1.Hash{}) {
		return
	}
	x.parts.mu.Lock()
	defer x.parts.mu.Unlock()
	if x.parts.trees != nil {
		x.parts.trees[diffID.String()] = t
	}
}

// unpack builds the part's tree.
func (x *Part) unpack() (*tree, error) {
	t, err := x.parts.newTree()
	if err != nil {
		return nil, err
	}
	defer t.close()
	t.content, t.created = x.content, map[string]bool{}
	tr := tar.NewReader(x.content)
	err = t.each(x.ctx, tr, func(h *tar.Header) error {
		if err := t.checkIndependent(h); err != nil {
			return err
		}
		return t.entry(h, tr)
	})
	if err == nil {
		_, err = io.Copy(io.Discard, x.content) // the bytes after the archive's end
	}
	t.content, t.created, t.buf = nil, nil, nil
	return t, err
}

// checkIndependent refuses entries whose effect depends on other layers. Each entry must be a
// new file, link or directory of root, in a directory that the layer described earlier.
func (t *tree) checkIndependent(h *tar.Header) error {
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	dir, base := path.Dir(name), path.Base(name)
	_, described := t.time[dir]
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeReg, tar.TypeSymlink, tar.TypeLink:
	default:
		return fmt.Errorf("its type is %q", h.Typeflag)
	}
	switch {
	case name == "." || name == configDir || strings.HasPrefix(base, whPrefix):
		return errors.New("it refers to other entries")
	case dir != "." && !described:
		return errors.New("its directory is not described")
	case t.created[name]:
		return errors.New("it already exists")
	case h.Uid|h.Gid != 0 || (h.Typeflag != tar.TypeSymlink && !plain(h)):
		return errors.New("it needs a note")
	}
	if h.Typeflag == tar.TypeLink {
		if target, err := cleanName(h.Linkname); err != nil || !t.created[target] {
			return errors.New("it is a link to another layer's file")
		}
	}
	return nil
}

// adopt moves a part's content into t. The result is the same as applying the layer.
func (t *tree) adopt(part *tree) error {
	root := part.file.Name()
	dirs := []string{"."}
	for len(dirs) > 0 {
		dir := dirs[len(dirs)-1]
		below, err := t.adoptDir(filepath.Join(root, dir), dir)
		if err != nil {
			return fmt.Errorf("moving %q into place: %w", dir, err)
		}
		dirs = append(dirs[:len(dirs)-1], below...)
	}
	for p, m := range part.time {
		t.time[p] = dirTime{m.time, t.removals}
	}
	t.rep.add(part.rep)
	return nil
}

// adoptDir moves the contents of the directory from into the tree's directory to. It returns
// directories that exist in both instead of moving them.
func (t *tree) adoptDir(from, to string) (both []string, err error) {
	f, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := path.Join(to, e.Name())
		if len(t.dirs) > t.open {
			t.forgetDirs()
		}
		if e.IsDir() {
			merged, err := t.mergeDir(int(f.Fd()), name)
			if err != nil {
				return nil, err
			}
			if merged {
				both = append(both, name)
				continue
			}
		}
		if err := t.move(int(f.Fd()), name, e.Type()&os.ModeSymlink != 0); err != nil {
			return nil, err
		}
	}
	return both, nil
}

// mergeDir reports whether the tree has the directory name. If so, it sets its mode to that of
// the directory with the same base name in from. It removes any other file with this name.
func (t *tree) mergeDir(from int, name string) (bool, error) {
	parent, err := t.dir(path.Dir(name))
	if err != nil {
		return false, err
	}
	st, err := lstat(parent, path.Base(name))
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, err
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return false, t.remove(name)
	}
	d, err := t.dir(name)
	if err != nil {
		return false, err
	}
	var source unix.Stat_t
	if err := unix.Fstatat(from, path.Base(name), &source, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, err
	}
	h := tar.Header{Typeflag: tar.TypeDir, Mode: int64(source.Mode & 0o7777)}
	t.notes.keep(d.fd, &h, false)
	return true, unix.Fchmodat(parent.fd, path.Base(name), source.Mode&0o7777, 0)
}

// move moves one name of the directory from to its path in the tree.
func (t *tree) move(from int, name string, link bool) error {
	base := path.Base(name)
	parent, err := t.dir(path.Dir(name))
	if err != nil {
		return err
	}
	err = unix.Renameat(from, base, parent.fd, base)
	if errors.Is(err, unix.EISDIR) {
		if err = t.remove(name); err != nil {
			return err
		}
		if parent, err = t.dir(path.Dir(name)); err != nil {
			return err
		}
		err = unix.Renameat(from, base, parent.fd, base)
	}
	if err == nil {
		t.forgetLinked() // it may replace a link
	}
	if err == nil && link && t.linkOwners {
		_ = t.notes.setLinkOwner(procPath(parent.fd), base, 0, 0)
	}
	return err
}

// add adds the counts of another report.
func (r *Report) add(o Report) {
	r.Files, r.Dirs, r.Links, r.Bytes = r.Files+o.Files, r.Dirs+o.Dirs, r.Links+o.Links, r.Bytes+o.Bytes
	r.Devices, r.FIFOs, r.SetID, r.Copies = r.Devices+o.Devices, r.FIFOs+o.FIFOs, r.SetID+o.SetID, r.Copies+o.Copies
}
