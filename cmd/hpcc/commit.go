package main

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
	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/build/source"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
)

func commitCommand() *cli.Command {
	return &cli.Command{
		Name: "commit", Usage: "make an image from a changed directory tree", ArgsUsage: "TREE NAME",
		Description: `Makes the image NAME from TREE, a directory of "hpcc unpack" that "hpcc run --write" changed. The
changes are one new layer on top of the image that TREE was unpacked from, which must be in the
store. The configuration stays the same. Prints the digest of the new image.

   hpcc unpack sci ./tree
   hpcc run --write ./tree -- pip install requests
   hpcc commit --message "pip install requests" ./tree sci2`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "message", Aliases: []string{"m"}, Usage: "describe the change in the image's history as `TEXT`"},
			&cli.StringFlag{Name: "author", Aliases: []string{"a"}, Usage: "set the image's author to `NAME`"},
			storeFlag(),
		},
		Action: action(parseCommit),
	}
}

type commitArgs struct{ tree, name, message, author, store string }

func parseCommit(c *cli.Context) (*commitArgs, error) {
	args, err := parseArguments(c, 2, 2, "TREE NAME")
	if err != nil {
		return nil, err
	}
	if _, err := store.Canonical(args[1]); err != nil {
		return nil, text.Usagef("%w", err).Hint("hpcc commit TREE NAME; NAME is the new image")
	}
	return &commitArgs{tree: args[0], name: args[1], message: c.String("message"), author: c.String("author"), store: c.String("store")}, nil
}

func (a *commitArgs) run(ctx context.Context) error {
	created, newest := time.Now().UTC().Truncate(time.Second), time.Time{}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		var err error
		if created, newest, err = source.Date(epoch); err != nil {
			return err
		}
	}
	tree, config, err := a.open()
	if err != nil {
		return err
	}
	defer tree.Close()
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	base, err := a.base(s, config)
	if err != nil {
		return err
	}
	layer, err := a.changes(ctx, s, base, tree, newest)
	if err != nil {
		m := &text.Error{Err: fmt.Errorf("finding the changes in %q: %w", a.tree, err)}
		if errors.Is(err, fs.ErrPermission) {
			return m.Hint("give yourself access: chmod u+rwx PATH; the image records that mode")
		}
		return m.Err
	}
	img, err := a.image(base, layer, created)
	if err != nil {
		return fmt.Errorf("assembling image %q: %w", a.name, err)
	}
	digest, err := s.Put(ctx, a.name, img)
	if err != nil {
		return err
	}
	if err := unpackTree(ctx, s, img, nil); err != nil {
		return err
	}
	_, err = fmt.Println(digest)
	return err
}

// open opens the tree and returns the configuration of the image that it was unpacked from.
func (a *commitArgs) open() (tree *os.Root, config []byte, err error) {
	const advice = "hpcc unpack IMAGE DIR makes such a directory; hpcc load FILE.tar NAME makes an image of any files"
	tree, err = os.OpenRoot(a.tree)
	if err != nil {
		return nil, nil, text.Hint(fmt.Errorf("opening the tree: %w", err), advice)
	}
	config, err = readInTree(tree, unpack.ConfigFile, 16<<20)
	switch {
	case err == nil:
		return tree, config, nil
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
		err = fmt.Errorf("reading the image's configuration in %q: %w", a.tree, err)
	default:
		m := &text.Error{Err: fmt.Errorf("%q is not a directory of hpcc unpack: it has no %s", a.tree, unpack.ConfigFile)}
		err = m.Hint(advice)
		if _, e := tree.Lstat(path.Join("rootfs", unpack.ConfigFile)); e == nil {
			err = m.Hint("it is a bundle: hpcc commit %s %s", text.Quote(filepath.Join(a.tree, "rootfs")), a.name)
		}
	}
	tree.Close()
	return nil, nil, err
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

// base returns the image of the store with a configuration.
func (a *commitArgs) base(s *store.Store, config []byte) (v1.Image, error) {
	id, _, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	img, err := s.ByConfig(id)
	var missing *store.NotFoundError
	if errors.As(err, &missing) {
		m := &text.Error{Err: fmt.Errorf("the image that %q was unpacked from, with the configuration %s, is not in the store", a.tree, id)}
		return nil, m.Hint("fetch it with hpcc pull REF or hpcc load FILE NAME; then commit again")
	}
	return img, err
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
func (a *commitArgs) changes(ctx context.Context, s *store.Store, base v1.Image, tree *os.Root, newest time.Time) (v1.Layer, error) {
	fresh, err := checkedTree(ctx, s, base)
	if err != nil {
		return nil, err
	}
	freshRoot, err := os.OpenRoot(fresh)
	if err != nil {
		return nil, err
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
		n, err = unpack.Compare(w, fresh, a.tree, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(left) > 0 {
		say("left out %s, which images cannot hold: %s", text.Count(len(left), "socket or device node", "sockets and device nodes"), shortened(left))
	}
	if n == 0 {
		say("warning: %q does not differ from its image", a.tree)
		return nil, nil
	}
	return s.Layer(info)
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
func (a *commitArgs) image(base v1.Image, layer v1.Layer, created time.Time) (v1.Image, error) {
	h := v1.History{Created: v1.Time{Time: created}, CreatedBy: "hpcc commit", Comment: a.message, Author: a.author, EmptyLayer: layer == nil}
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
	return build.EditConfig(img, raw, func(fields map[string]json.RawMessage) error {
		set := map[string]any{"rootfs": now.RootFS, "history": now.History, "created": h.Created}
		if a.author != "" {
			set["author"] = a.author
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
