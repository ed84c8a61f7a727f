// Package charliecloud keeps the storage directory of Charliecloud for ch-image, converts images for
// ch-convert, and reads images as ch-run does. Package front translates the command lines of these
// programs.
package charliecloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"

	"hpcc/files"
	"hpcc/front"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
)

// A Storage is a storage directory with the layout of Charliecloud's: img/NAME is the directory of an
// image, here a link to its tree in the store.
type Storage struct {
	Dir string // of the storage; it need not exist
	unpack.Loader
}

// Do does what a command of ch-image or ch-convert does:
//
//	link IMAGE | delete PATTERN... | reset | show IMAGE | import SOURCE IMAGE | convert FROM IN TO OUT
//
// The operation convert-new is convert, and replaces nothing. w is standard output.
func (c *Storage) Do(ctx context.Context, operation string, args []string, w io.Writer) error {
	want, ok := map[string]int{"link": 1, "delete": -1, "reset": 0, "show": 1, "import": 2, "convert": 4, "convert-new": 4}[operation]
	if !ok || (want >= 0 && len(args) != want) {
		return text.Usagef("%q is not an operation with %d arguments", operation, len(args))
	}
	switch operation {
	case "link":
		return c.link(args[0])
	case "delete":
		return c.delete(args)
	case "reset":
		return c.reset()
	case "show":
		return c.show(w, args[0])
	case "import":
		return c.importImage(ctx, args[0], args[1], true)
	}
	replace := operation == "convert"
	if args[2] == chImage {
		return c.importImage(ctx, args[1], args[3], replace)
	}
	return files.FullDiskHint(c.convert(ctx, args[0], args[1], args[2], args[3], replace), args[3])
}

// tree returns the tree of an image of the store, which it unpacks if necessary.
func (c *Storage) tree(ctx context.Context, s *store.Store, name string) (string, error) {
	img, err := s.Get(name, nil)
	if err != nil {
		return "", err
	}
	return c.Tree(ctx, s, img)
}

// chFile returns the name of an image in the directory img.
func chFile(ref string) string { return strings.NewReplacer("/", "%", ":", "+").Replace(ref) }

// link makes img/NAME lead to the tree of an image. It does nothing for an image of another architecture.
func (c *Storage) link(ref string) error {
	file, name := chFile(ref), front.CharliecloudName(ref)
	s, err := store.OpenToRead(c.Store)
	if err != nil {
		return err
	}
	tree, err := s.TreeOf(name)
	if errors.As(err, new(*store.PlatformError)) { // it has a tree, but not for this machine
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.create(); err != nil {
		return err
	}
	at := filepath.Join(c.Dir, "img", file)
	if fi, err := os.Lstat(at); err == nil && fi.Mode().Type() != fs.ModeSymlink {
		return text.Hint(fmt.Errorf("linking %s to the image: it is not a link: Charliecloud made it", at),
			"choose another directory with --storage or CH_IMAGE_STORAGE")
	}
	target := tree
	if rel, err := filepath.Rel(filepath.Dir(at), tree); err == nil && inDirectory(c.Dir, tree) {
		target = rel // the directory can be moved
	}
	tmp, err := store.Sibling(at)
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	if err := os.Symlink(target, filepath.Join(tmp, file)); err != nil {
		return fmt.Errorf("linking an image: %w", err)
	}
	return os.Rename(filepath.Join(tmp, file), at)
}

// inDirectory reports whether a path is below a directory.
func inDirectory(dir, p string) bool {
	rel, err := filepath.Rel(dir, p)
	return err == nil && filepath.IsLocal(rel)
}

// checkOwner refuses a storage directory of another user, who could replace the images: the default
// is in /var/tmp.
func (c *Storage) checkOwner() error {
	fi, err := os.Stat(c.Dir)
	if err != nil {
		return err
	}
	if int(fi.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() || fi.Mode().Perm()&0o022 != 0 {
		return text.Hint(fmt.Errorf("storage directory %s: other users can change it", c.Dir),
			"set CH_IMAGE_STORAGE to a directory that only you can write to")
	}
	return nil
}

// create creates the storage directory.
func (c *Storage) create() error {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("creating the storage directory: %w", err)
	}
	if err := c.checkOwner(); err != nil {
		return err
	}
	for _, d := range []string{"img", "dlcache"} { // Nextflow expects both
		if err := os.MkdirAll(filepath.Join(c.Dir, d), 0o755); err != nil {
			return fmt.Errorf("creating the storage directory: %w", err)
		}
	}
	return nil
}

// delete removes the images that match patterns.
func (c *Storage) delete(patterns []string) error {
	s, err := store.OpenToRead(c.Store)
	if err != nil {
		return err
	}
	list, err := s.Images()
	if err != nil {
		return err
	}
	var all []error
	for _, glob := range patterns {
		glob = front.CharliecloudName(glob)
		found := false
		for _, e := range list {
			if ok, err := path.Match(glob, e.Name); err != nil {
				return text.Usagef("%q is not a pattern", glob)
			} else if ok || e.Name+":latest" == glob {
				found = true
				all = append(all, s.Remove(e.Name), c.unlink(e.Name))
			}
		}
		if !found {
			all = append(all, &store.NotFoundError{Name: glob})
		}
	}
	return errors.Join(all...)
}

// unlink removes the links to an image.
func (c *Storage) unlink(name string) error {
	file := chFile(name)
	for _, f := range []string{file, file + "+latest"} {
		at := filepath.Join(c.Dir, "img", f)
		if fi, err := os.Lstat(at); err == nil && fi.Mode().Type() == fs.ModeSymlink {
			if err := os.Remove(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// reset removes all images of the storage directory.
func (c *Storage) reset() error {
	if err := c.checkOwner(); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	links, err := os.ReadDir(filepath.Join(c.Dir, "img"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s, err := store.OpenToRead(c.Store)
	if err != nil {
		return err
	}
	var all []error
	for _, e := range links {
		name := front.CharliecloudName(e.Name())
		if err := s.Remove(name); err != nil && !errors.As(err, new(*store.NotFoundError)) {
			all = append(all, err)
		}
		if e.Type() == fs.ModeSymlink {
			all = append(all, os.Remove(filepath.Join(c.Dir, "img", e.Name())))
		}
	}
	return errors.Join(all...)
}

// show writes the details of an image as "ch-image list IMAGE" does, without those of a registry.
func (c *Storage) show(w io.Writer, ref string) error {
	name := front.CharliecloudName(ref)
	s, err := store.OpenToRead(c.Store)
	if err != nil {
		return err
	}
	list, err := s.Images()
	if err != nil {
		return err
	}
	key, err := store.Canonical(name)
	if err != nil {
		return err
	}
	local, archs := "no", ""
	if i := slices.IndexFunc(list, func(e store.Entry) bool { return e.Name == key }); i >= 0 {
		local, archs = "yes", strings.ReplaceAll(strings.Join(list[i].Platforms, " "), "linux/", "")
	}
	out := fmt.Sprintf("details of image:    %s\nin local storage:    %s\nhost architecture:   %s\n", name, local, goruntime.GOARCH)
	if archs != "" {
		out += fmt.Sprintf("archs available:     %s\n", archs)
	}
	_, err = io.WriteString(w, out)
	return err
}
