package build

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/build/source"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
)

// A Commit describes an image that is made from a changed directory tree.
type Commit struct {
	Tree    string // directory of "hpcc unpack"; its image must be in the store
	Name    string // of the new image
	Message string // comment in the image's history, or ""
	Author  string // of the image, or "" for that of the tree's image
	Epoch   string // value of SOURCE_DATE_EPOCH; "" for the current time, and the times of files as they are
}

// Do stores the image: the one that the tree was unpacked from, with one more layer for the changes.
// notes are messages for the user, also if it fails.
func (c Commit) Do(ctx context.Context, s *store.Store) (img v1.Image, notes []string, err error) {
	created, newest := time.Now().UTC().Truncate(time.Second), time.Time{}
	if c.Epoch != "" {
		if created, newest, err = source.Date(c.Epoch); err != nil {
			return nil, nil, err
		}
	}
	tree, config, err := c.open()
	if err != nil {
		return nil, nil, err
	}
	defer tree.Close()
	base, err := c.base(s, config)
	if err != nil {
		return nil, nil, err
	}
	layer, notes, err := c.changes(ctx, s, base, tree, newest)
	if err != nil {
		m := &text.Error{Err: fmt.Errorf("finding the changes in %q: %w", c.Tree, err)}
		if errors.Is(err, fs.ErrPermission) {
			return nil, notes, m.Hint("give yourself access: chmod u+rwx PATH; the image records that mode")
		}
		return nil, notes, m.Err
	}
	if img, err = c.image(base, layer, created); err != nil {
		return nil, notes, fmt.Errorf("assembling image %q: %w", c.Name, err)
	}
	_, err = s.Put(ctx, c.Name, img)
	return img, notes, err
}

// open opens the tree and returns the configuration of the image that it was unpacked from.
func (c Commit) open() (tree *os.Root, config []byte, err error) {
	const advice = "hpcc unpack IMAGE DIR makes such a directory; hpcc load FILE.tar NAME makes an image of any files"
	tree, err = os.OpenRoot(c.Tree)
	if err != nil {
		return nil, nil, text.Hint(fmt.Errorf("opening the tree: %w", err), advice)
	}
	config, err = readInTree(tree, unpack.ConfigFile, 16<<20)
	switch {
	case err == nil:
		return tree, config, nil
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
		err = fmt.Errorf("reading the image's configuration in %q: %w", c.Tree, err)
	default:
		m := &text.Error{Err: fmt.Errorf("%q is not a directory of hpcc unpack: it has no %s", c.Tree, unpack.ConfigFile)}
		err = m.Hint(advice)
		if _, e := tree.Lstat(path.Join("rootfs", unpack.ConfigFile)); e == nil {
			err = m.Hint("it is a bundle: hpcc commit %s %s", text.Quote(filepath.Join(c.Tree, "rootfs")), c.Name)
		}
	}
	tree.Close()
	return nil, nil, err
}

// base returns the image of the store with a configuration.
func (c Commit) base(s *store.Store, config []byte) (v1.Image, error) {
	id, _, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	img, err := s.ByConfig(id)
	var missing *store.NotFoundError
	if errors.As(err, &missing) {
		m := &text.Error{Err: fmt.Errorf("the image that %q was unpacked from, with the configuration %s, is not in the store", c.Tree, id)}
		return nil, m.Hint("fetch it with hpcc pull REF or hpcc load FILE NAME; then commit again")
	}
	return img, err
}

// readInTree reads a regular file of at most max bytes below a tree. Programs may have replaced
// it by a link or a FIFO.
func readInTree(tree *os.Root, name string, max int64) ([]byte, error) {
	f, err := tree.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > max {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", name, max)
	}
	return io.ReadAll(io.LimitReader(f, max))
}

// mountPointsFile is the file of a tree in which runs list the mount points that they created
// (runtime/rootfs).
const mountPointsFile = ".hpcc/mountpoints"

// usualMountPoints are mount points that other OCI runtimes create in a bundle of hpcc.
var usualMountPoints = []string{"proc", "sys", "dev", "tmp", "etc/hosts", "etc/resolv.conf"}

// mountPoints returns the paths of the tree that runs created to mount something there: those
// that are still empty and that the image does not have. fresh is the image's tree.
func mountPoints(tree, fresh *os.Root) []string {
	list := slices.Clone(usualMountPoints)
	b, err := readInTree(tree, mountPointsFile, 1<<20)
	for sc := bufio.NewScanner(bytes.NewReader(b)); err == nil && sc.Scan() && len(list) < 1000; {
		if p := strings.TrimPrefix(path.Clean("/"+sc.Text()), "/"); p != "" {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) }) // lower ones first
	var out []string
	for _, p := range list {
		if _, err := fresh.Lstat(p); errors.Is(err, fs.ErrNotExist) && isEmpty(tree, p, out) {
			out = append(out, p)
		}
	}
	return out
}

// isEmpty reports whether a path of the tree is an empty file, or a directory with nothing but
// the given paths.
func isEmpty(tree *os.Root, p string, except []string) bool {
	fi, err := tree.Lstat(p)
	if err != nil || !fi.IsDir() {
		return err == nil && fi.Mode().IsRegular() && fi.Size() == 0
	}
	dir, err := tree.OpenFile(p, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer dir.Close()
	names, err := dir.Readdirnames(len(except) + 1)
	if err != nil && err != io.EOF {
		return false
	}
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(except, path.Join(p, name)) })
}

// changes stores the layer of the differences between the tree and its image, with times of files
// up to newest; zero: no limit. The layer is nil if nothing differs.
func (c Commit) changes(ctx context.Context, s *store.Store, base v1.Image, tree *os.Root, newest time.Time) (v1.Layer, []string, error) {
	var notes []string
	fresh, err := unpack.CheckedTree(ctx, s, base, func(line string) { notes = append(notes, line) })
	if err != nil {
		return nil, notes, err
	}
	freshRoot, err := os.OpenRoot(fresh)
	if err != nil {
		return nil, notes, err
	}
	defer freshRoot.Close()
	mt := types.OCILayer
	if m, err := base.MediaType(); err == nil && m == types.DockerManifestSchema2 {
		mt = types.DockerLayer
	}
	var left []string
	o := unpack.DiffOptions{
		Skip: append(mountPoints(tree, freshRoot), path.Dir(unpack.ConfigFile)), Newest: newest, Stamp: newest,
		By:      &unpack.User{}, // a file that replaces another keeps its owner; new ones belong to root
		LeftOut: func(p string) { left = append(left, p) },
	}
	var n int
	info, err := s.PutLayer(ctx, mt, func(w io.Writer) (err error) {
		n, err = unpack.Compare(w, fresh, c.Tree, o)
		return err
	})
	if err != nil {
		return nil, notes, err
	}
	if len(left) > 0 {
		count := text.Count(len(left), "socket or device node", "sockets and device nodes")
		notes = append(notes, fmt.Sprintf("left out %s, which images cannot hold: %s", count, shortened(left)))
	}
	if n == 0 {
		return nil, append(notes, fmt.Sprintf("warning: %q does not differ from its image", c.Tree)), nil
	}
	layer, err := s.Layer(info)
	return layer, notes, err
}

// shortened joins the first paths of a list.
func shortened(paths []string) string {
	var out []string
	for i, p := range paths {
		if i == 3 {
			out = append(out, "…")
			break
		}
		out = append(out, text.Quote("/"+p))
	}
	return strings.Join(out, " ")
}

// image returns the base with the layer, which may be nil, and with its step in the history.
func (c Commit) image(base v1.Image, layer v1.Layer, created time.Time) (v1.Image, error) {
	h := v1.History{Created: v1.Time{Time: created}, CreatedBy: "hpcc commit", Comment: c.Message,
		Author: c.Author, EmptyLayer: layer == nil}
	img, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: h})
	if err != nil {
		return nil, err
	}
	now, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	raw, err := base.RawConfigFile()
	if err != nil {
		return nil, err
	}
	return editConfig(img, raw, func(fields map[string]json.RawMessage) error {
		set := map[string]any{"rootfs": now.RootFS, "history": now.History, "created": h.Created}
		if c.Author != "" {
			set["author"] = c.Author
		}
		for name, value := range set {
			b, err := json.Marshal(value)
			if err != nil {
				return err
			}
			fields[name] = b
		}
		return nil
	})
}
