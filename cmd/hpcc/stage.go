package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/urfave/cli/v2"

	"hpcc/runtime"
	"hpcc/store"
	"hpcc/unpack"
	"hpcc/unpack/squashfs"
)

// stageFlag asks for a copy of the image on this node.
func stageFlag() cli.Flag {
	return &cli.BoolFlag{Name: "stage", Usage: "copy the image to storage of this node first, once for all programs on it ($HPCC_STAGE names the directory, or is 1)"}
}

// wantsStage says whether the image is to be copied to this node.
func wantsStage(c *cli.Context) bool {
	env := os.Getenv("HPCC_STAGE")
	return c.Bool("stage") || (env != "" && env != "0")
}

// namesSquashFS says whether IMAGE is the name of a SquashFS file. It is asked
// at every start, so it looks at no disk unless it is.
func namesSquashFS(image string) bool {
	switch filepath.Ext(image) {
	case ".sqfs", ".squashfs", ".sfs":
		fi, err := os.Stat(image)
		return err == nil && fi.Mode().IsRegular()
	}
	return false
}

// runRoot is the directory that a run has as its root: that of a name or path,
// of its copy on this node, or of a mounted file.
func runRoot(c *cli.Context, image string) (string, error) {
	file, stage := namesSquashFS(image), wantsStage(c)
	if !file && !stage {
		return imageDir(c, image)
	}
	if c.Bool("write") {
		return "", usagef("--write would change what others run from").hint("hpcc unpack %s DIR; hpcc run --write ./DIR ...", image)
	}
	s, err := openStage(true)
	if err != nil {
		return unstagedRoot(c, image, file, err)
	}
	if file {
		return squashRoot(c.Context, s, image, stage)
	}
	dir, err := stagedCopy(c, s, image)
	if noRoom(err) {
		say("%v; running from the original", err)
		return imageDir(c, image)
	}
	return dir, err
}

// openStage opens the node's directory for copies, where nobody but root and the
// user can exchange anything.
func openStage(create bool) (*store.Stage, error) {
	place, err := runtime.StagePlace()
	if err != nil {
		return nil, err
	}
	return store.OpenStage(place, create)
}

// unstagedRoot is runRoot on a node that has no directory for copies that the
// user can trust. The run begins from the original. A file that cannot be mounted
// is unpacked into the user's store.
func unstagedRoot(c *cli.Context, image string, file bool, why error) (string, error) {
	say("warning: copying nothing to this node: %v", why)
	say("hint: set HPCC_STAGE to a directory of this node that only you can write to")
	fi, err := os.Stat(image)
	if archive := err == nil && fi.Mode().IsRegular() && isPath(image); !file && !archive {
		return imageDir(c, image)
	}
	own, err := openStore(c)
	if err != nil {
		return "", err
	}
	if file {
		return squashRoot(c.Context, store.InStore(own), image, false)
	}
	return stagedCopy(c, store.InStore(own), image)
}

// noRoom says whether a copy failed for want of space.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// squashRoot mounts a SquashFS file, or its copy on this node; where the user may
// not mount, the file is unpacked on this node.
func squashRoot(ctx context.Context, s *store.Stage, file string, stage bool) (string, error) {
	key, err := store.FileKey(file)
	if err != nil {
		return "", err
	}
	mounted, err := squashMount(ctx, s, file, key, stage)
	var fuse *runtime.FUSEError
	if err == nil || !errors.As(err, &fuse) {
		return mounted, err
	}
	dir, err := s.Copy(ctx, key, 0, func(dir string) error {
		say("unpacking %s to %s, once for this node (%v)", file, s.Dir(), fuse)
		_, err := unpack.FillSquashFS(ctx, file, dir)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("unpacking %s on this node: %w", file, err)
	}
	return dir, nil
}

// squashMount mounts a file, or its copy.
func squashMount(ctx context.Context, s *store.Stage, file, key string, stage bool) (string, error) {
	at, err := s.Empty(ctx)
	if err != nil {
		return "", err
	}
	if stage {
		if err := runtime.CanMountSquashFS(); err != nil {
			return "", err // before the file is copied for nothing
		}
		fi, err := os.Stat(file)
		if err != nil {
			return "", err
		}
		dir, err := s.Copy(ctx, "file-"+key, fi.Size(), func(dir string) error {
			tellCopy(s, file)
			return store.CopyFile(file, filepath.Join(dir, "image.sqfs"))
		})
		switch {
		case noRoom(err):
			say("%v; running from the original", err)
		case err != nil:
			return "", err
		default:
			file = filepath.Join(dir, "image.sqfs")
		}
	}
	if file, err = filepath.Abs(file); err != nil {
		return "", err
	}
	return at, runtime.MountSquashFS(file, at)
}

// tellCopy says that this process makes the copy that others wait for.
func tellCopy(s *store.Stage, image string) {
	say("copying %s to %s, once for this node", image, s.Dir())
}

// stagedCopy is the tree of IMAGE on this node. A name is unpacked from its
// layers, a few large files; a directory is copied; an archive is unpacked.
func stagedCopy(c *cli.Context, s *store.Stage, image string) (string, error) {
	fi, serr := os.Stat(image)
	if serr == nil && fi.IsDir() && isPath(image) {
		return stagedTree(c.Context, s, image)
	}
	if serr == nil && fi.Mode().IsRegular() && isPath(image) {
		key, err := store.FileKey(image)
		if err != nil {
			return "", err
		}
		return s.Copy(c.Context, key, fi.Size(), func(dir string) error {
			tellCopy(s, image)
			img, err := sourceImage(c, image)
			if err != nil {
				return err
			}
			_, err = unpack.Fill(c.Context, img, dir, unpack.Options{})
			return err
		})
	}
	img, err := getImage(c, image)
	var missing *store.NotFoundError
	if errors.As(err, &missing) && serr == nil && fi.IsDir() {
		return stagedTree(c.Context, s, image)
	}
	if err != nil {
		return "", err
	}
	d, err := img.Digest()
	if err != nil {
		return "", err
	}
	m, err := img.Manifest()
	if err != nil {
		return "", err
	}
	var packed int64
	for _, l := range m.Layers {
		packed += l.Size
	}
	return s.Copy(c.Context, d.Hex, packed, func(dir string) error {
		tellCopy(s, image)
		_, err := unpack.Fill(c.Context, img, dir, unpack.Options{})
		return err
	})
}

// stagedTree is the copy of a directory. Its key follows the directory itself:
// a change below is not noticed, as with trees that are in use.
func stagedTree(ctx context.Context, s *store.Stage, dir string) (string, error) {
	key, err := store.FileKey(dir)
	if err != nil {
		return "", err
	}
	return s.Copy(ctx, key, 0, func(to string) error {
		tellCopy(s, dir)
		return unpack.CopyTree(ctx, dir, to)
	})
}

// saveSquashFS writes an image to a SquashFS file, which appears whole.
func saveSquashFS(c *cli.Context, name, file string) error {
	img, err := getImage(c, name)
	if err != nil {
		return err
	}
	s, err := openStore(c)
	if err != nil {
		return err
	}
	tree, err := checkedTree(c.Context, s, img)
	if err != nil {
		return fmt.Errorf("saving %s to %s: %w", name, file, err)
	}
	if err := store.NewFile(file, func(f *os.File) error { return unpack.WriteSquashFS(c.Context, tree, f) }); err != nil {
		return fmt.Errorf("saving %q to %s: %w", name, file, err)
	}
	return nil
}

// loadSquashFS keeps the image in a SquashFS file: one layer, and the
// configuration that is in it, if there is one.
func loadSquashFS(ctx context.Context, s *store.Store, file, name string) (string, error) {
	if name == "" {
		base := filepath.Base(file)
		name = strings.ToLower(strings.TrimSuffix(base, filepath.Ext(base)))
	}
	var config []byte
	img, err := s.RootImage(ctx, func(w io.Writer) (err error) {
		config, err = unpack.SquashFSLayer(ctx, file, w)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("loading: %w", err)
	}
	if config != nil {
		if img, err = withConfig(img, config); err != nil {
			return "", fmt.Errorf("loading %s: its configuration: %w", file, err)
		}
	}
	_, err = s.PutLoaded(ctx, name, img, file)
	return name, err
}

// withConfig gives an image another's configuration; its own layers stay.
func withConfig(img v1.Image, config []byte) (v1.Image, error) {
	want, err := v1.ParseConfigFile(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	have, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	want.RootFS, want.History = have.RootFS, have.History
	return mutate.ConfigFile(img, want)
}

// loadAny keeps the images of a file of any kind.
func loadAny(ctx context.Context, s *store.Store, file, name string) ([]string, error) {
	if !squashfs.Is(file) {
		return s.Load(ctx, file, name)
	}
	name, err := loadSquashFS(ctx, s, file, name)
	return []string{name}, err
}

// gcStage removes old copies from this node, if there are any.
func gcStage(c *cli.Context, o store.GCOptions) (store.GCReport, error) {
	s, err := openStage(false)
	if errors.Is(err, fs.ErrNotExist) {
		return store.GCReport{}, nil
	}
	if err != nil {
		say("%v", err)
		return store.GCReport{}, nil
	}
	return s.GC(c.Context, o)
}

// checkedTree is the tree of an image, compared with its layers, for what leaves
// the store: a tree is trusted to run from, not to be copied. One that differs is
// moved away and made again.
func checkedTree(ctx context.Context, s *store.Store, img v1.Image) (string, error) {
	for again := false; ; again = true {
		tree, rep, err := unpack.NotedTree(ctx, s, img)
		if err != nil {
			return "", err
		}
		err = unpack.CheckTree(ctx, img, tree)
		if err == nil {
			tellReport(rep)
			return tree, nil
		}
		var differs *unpack.TreeError
		if again || !errors.As(err, &differs) {
			return "", err
		}
		moved := s.Discard(filepath.Join("trees", filepath.Base(tree)))
		if moved == "" {
			return "", (&message{err: err}).hint("hpcc gc --verify, by somebody who can write to the store, moves it away")
		}
		say("warning: %v; moved to %s and unpacked again", err, moved)
	}
}
