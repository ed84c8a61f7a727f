package charliecloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"hpcc/files"
	"hpcc/front"
	"hpcc/runtime"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/unpack"
	"hpcc/unpack/squashfs"
)

// importImage keeps a directory, a SquashFS file or an archive as an image, and links it. Unless it may
// replace an image, it refuses the name of an existing one.
func (c *Storage) importImage(ctx context.Context, source, ref string, replace bool) error {
	name := front.CharliecloudName(ref)
	s, err := store.Open(c.Store)
	if err != nil {
		return err
	}
	if _, err := s.Get(name, nil); err == nil && !replace {
		return fmt.Errorf("image %q exists, and --no-clobber keeps it", name)
	}
	fi, err := os.Stat(source)
	if err == nil && fi.IsDir() {
		if err := loadTree(ctx, s, source, name); err != nil {
			return fmt.Errorf("importing %s: %w", source, err)
		}
		if _, err := c.tree(ctx, s, name); err != nil {
			return err
		}
		return c.link(ref)
	}
	if _, err := c.Load(ctx, s, source, name); err != nil {
		return err
	}
	tree, err := c.tree(ctx, s, name)
	if err != nil {
		return err
	}
	if top := onlyDirectory(tree); top != "" && !squashfs.Is(source) {
		if err := loadTree(ctx, s, top, name); err != nil {
			return fmt.Errorf("importing %s: %w", source, err)
		}
		if _, err := c.tree(ctx, s, name); err != nil {
			return err
		}
	}
	return c.link(ref)
}

// mountPoints are the directories that ch-run needs in an image.
var mountPoints = []string{"bin", "dev", "etc", "mnt", "proc", "sys", "tmp", "usr"}

// onlyDirectory returns the directory that contains all files of a tree, or "". Archives of images
// often have such a directory, which ch-image and ch-convert leave out.
func onlyDirectory(tree string) string {
	entries, err := os.ReadDir(tree)
	if err != nil {
		return ""
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == filepath.Dir(unpack.ConfigFile) })
	if len(entries) != 1 || !entries[0].IsDir() || slices.Contains(mountPoints, entries[0].Name()) {
		return ""
	}
	return filepath.Join(tree, entries[0].Name())
}

// loadTree keeps the files of a directory as an image of one layer, with the configuration that
// hpcc or Charliecloud wrote to the directory.
func loadTree(ctx context.Context, s *store.Store, dir, name string) error {
	img, err := s.RootImage(ctx, func(w io.Writer) error { return archiveTree(dir, w) })
	if err != nil {
		return err
	}
	config, err := os.ReadFile(filepath.Join(dir, unpack.ConfigFile))
	if err == nil {
		img, err = unpack.WithConfig(img, config)
	} else if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		err = nil
	}
	if err == nil {
		_, err = s.PutLoaded(ctx, name, img, dir)
	}
	return err
}

// archiveTree writes the files of an image directory as a tar archive.
func archiveTree(dir string, w io.Writer) error {
	empty, err := os.MkdirTemp("", "hpcc-")
	if err != nil {
		return err
	}
	defer os.Remove(empty)
	_, err = unpack.Compare(w, empty, dir, unpack.DiffOptions{Skip: []string{filepath.Dir(unpack.ConfigFile)}})
	return err
}

// chImage is the format of images of the store. The other formats of ch-convert are dir, squash and tar.
const chImage = "ch-image"

// convert converts an image from one format to a file or directory of another one. Unless it may replace
// a file, it refuses the name of an existing one.
func (c *Storage) convert(ctx context.Context, from, in, to, out string, replace bool) (err error) {
	if from == chImage {
		in = front.CharliecloudName(in)
	} else if !ready.IsPath(in) {
		in = "./" + in
	}
	if err := checkOld(to, out, replace); err != nil {
		return err
	}
	if to == "dir" {
		err = c.replaceDirectory(ctx, from, in, out)
	} else {
		err = c.toFile(ctx, from, in, to, out)
	}
	if err != nil {
		return fmt.Errorf("converting %s to %s: %w", in, out, err)
	}
	return nil
}

// checkOld refuses an old result of a conversion that must not be replaced: only a file, an empty
// directory, or one that is an image is.
func checkOld(to, out string, replace bool) error {
	fi, err := os.Stat(out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !replace:
		return fmt.Errorf("%s exists, and --no-clobber keeps it", out)
	case to != "dir":
		if fi.IsDir() {
			return text.Usagef("%s is a directory", out).Hint("name a file")
		}
		return nil
	}
	entries, err := os.ReadDir(out)
	if err != nil || len(entries) == 0 {
		return err
	}
	for _, d := range []string{"bin", "dev", "usr"} {
		if _, err := os.Stat(filepath.Join(out, d)); err != nil {
			return text.Usagef("%s exists and is not an image", out).Hint("name a new directory")
		}
	}
	if ready.InTree(out) {
		return text.Usagef("%s is an image of the store", out).Hint("name a new directory")
	}
	return nil
}

// replaceDirectory converts an image to a directory. An old directory stays until the new one is
// complete.
func (c *Storage) replaceDirectory(ctx context.Context, from, in, out string) error {
	if _, err := os.Stat(out); errors.Is(err, fs.ErrNotExist) {
		return c.toDirectory(ctx, from, in, out)
	}
	tmp, err := store.Sibling(out)
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	made := filepath.Join(tmp, "new")
	if err := c.toDirectory(ctx, from, in, made); err != nil {
		return err
	}
	return replaceBy(out, made)
}

// toDirectory unpacks an image, and adds the mount points that ch-run needs, so that other
// programs can use the directory as well.
func (c *Storage) toDirectory(ctx context.Context, from, in, out string) error {
	if from == "squash" {
		in, _ = filepath.Abs(in)
	}
	if err := c.Unpack(ctx, in, out, nil); err != nil {
		return err
	}
	if top := onlyDirectory(out); from == "tar" && top != "" {
		if err := replaceBy(out, top); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(out)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, d := range mountPoints {
		if err := root.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for i := range 10 {
		_ = root.Mkdir(fmt.Sprintf("mnt/%d", i), 0o755) // mnt may lead out of the image
	}
	for _, f := range []string{"etc/hosts", "etc/resolv.conf", "etc/passwd", "etc/group"} {
		if f, err := root.OpenFile(f, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err == nil {
			f.Close()
		}
	}
	return writeVariables(root, out)
}

// replaceBy replaces a directory by another one of the file system, which may be in it.
func replaceBy(dir, sub string) error {
	tmp, err := store.Sibling(dir)
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	moved := filepath.Join(tmp, "root")
	if err := os.Rename(sub, moved); err != nil {
		return err
	}
	if err := files.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(moved, dir)
}

// writeVariables writes the image's variables to the file in which ch-run looks for them.
func writeVariables(root *os.Root, dir string) error {
	img, err := runtime.ReadImage(dir, unpack.ConfigFile)
	if err != nil || len(img.Config.Env) == 0 {
		return err
	}
	if err := root.Mkdir("ch", 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return root.WriteFile("ch/environment", []byte(strings.Join(img.Config.Env, "\n")+"\n"), 0o644)
}

// toFile writes an image to a SquashFS file or a compressed tar archive.
func (c *Storage) toFile(ctx context.Context, from, in, to, out string) error {
	return store.NewFile(out, func(f *os.File) error {
		if from != "squash" {
			return c.writeTree(ctx, from, in, to, f)
		}
		return store.Compress(f, func(w io.Writer) error {
			_, notes, err := unpack.SquashFSLayer(ctx, in, w)
			for _, n := range notes {
				c.Say("note: " + n)
			}
			return err
		})
	})
}

// writeTree writes the tree of an image, or a directory.
func (c *Storage) writeTree(ctx context.Context, from, in, to string, f *os.File) error {
	tree := in
	if from != "dir" {
		s, err := store.Open(c.Store)
		if err != nil {
			return err
		}
		img, err := c.Source(ctx, in, nil)
		if err != nil {
			return err
		}
		if tree, err = unpack.CheckedTree(ctx, s, img, c.Say); err != nil {
			return err
		}
		if top := onlyDirectory(tree); from == "tar" && top != "" {
			tree = top
		}
	}
	if to == "squash" {
		return unpack.WriteSquashFS(ctx, tree, f, nil)
	}
	return store.Compress(f, func(w io.Writer) error { return archiveTree(tree, w) })
}
