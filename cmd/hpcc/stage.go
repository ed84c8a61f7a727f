package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/urfave/cli/v2"

	"hpcc/runtime"
	"hpcc/store"
	"hpcc/store/disk"
	"hpcc/store/ready"
	"hpcc/unpack"
	"hpcc/unpack/sif"
	"hpcc/unpack/squashfs"
)

// stageFlag is --stage, which copies the image to this node.
func stageFlag() cli.Flag {
	return &cli.BoolFlag{Name: "stage", Usage: "copy the image to the node's local storage first"}
}

// parseStage reports whether a flag or variable asks to copy the image to this node.
func parseStage(c *cli.Context) bool {
	env := os.Getenv("HPCC_STAGE")
	return c.Bool("stage") || (env != "" && env != "0")
}

// rootArgs name the image of a run and how the run uses it.
type rootArgs struct {
	image string // a name, a directory or a SquashFS file
	store string
	write bool // the program may change the directory
	stage bool // copy the image to this node

	mounted *sif.Image // the SIF file that directory mounted, if any
	isFile  bool       // the image is a SquashFS or SIF file, whatever its name
}

// namesSquashFS reports whether IMAGE is the name of a SquashFS or SIF file. Every start calls
// it, so it reads the disk only if the extension matches.
func namesSquashFS(image string) bool {
	if !ready.IsImageFile(image) {
		return false
	}
	fi, err := os.Stat(image)
	return err == nil && fi.Mode().IsRegular()
}

// holdsSquashFS reports whether a file is a SquashFS or SIF file, by its content.
func holdsSquashFS(file string) bool { return squashfs.Is(file) || sif.Is(file) }

// directory returns the root directory of the run: the directory of the image, its copy on
// this node, or a mounted SquashFS file.
func (r *rootArgs) directory(ctx context.Context) (string, error) {
	file := r.isFile || namesSquashFS(r.image)
	if !file && !r.stage {
		return r.imageDir(ctx)
	}
	if r.write {
		return "", usagef("--write would change a copy that other runs use").hint("hpcc unpack %s DIR; hpcc run --write ./DIR ...", r.image)
	}
	s, err := openStage(true)
	if err != nil {
		return r.withoutStage(ctx, file, err)
	}
	if file {
		return r.squashRoot(ctx, s, r.stage)
	}
	dir, err := r.stagedCopy(ctx, s)
	if outOfSpace(err) {
		say("%v; running from the original", err)
		return r.imageDir(ctx)
	}
	return dir, err
}

// imageDir returns the directory of the image: a path, or the tree of a name, which it unpacks
// if the tree does not exist yet.
func (r *rootArgs) imageDir(ctx context.Context) (string, error) {
	image := r.image
	if isPath(image) {
		return image, nil
	}
	s, err := store.OpenToRead(r.store)
	if err != nil {
		return "", err
	}
	dir, err := s.TreeOf(image)
	var missing *store.NotFoundError
	var noTree *store.NoTreeError
	switch {
	case err == nil:
		if r.write {
			return "", usagef("--write would change %q for everybody who uses it", image).hint("hpcc unpack %s DIR; hpcc run --write ./DIR ...", image)
		}
		return dir, nil
	case errors.As(err, &missing):
		if fi, serr := os.Stat(image); serr == nil && fi.IsDir() {
			return image, nil
		}
		return "", err
	case errors.As(err, &noTree):
		img, err := s.Get(image, nil)
		if err != nil {
			return "", err
		}
		if err := unpackTree(ctx, s, img, nil); err != nil {
			return "", readOnlyHint(err, s.Dir(), "unpack it to node-local storage with --stage")
		}
		return s.TreeOf(image)
	}
	return "", err
}

// openStage opens the node's directory for copies, which only root and the user can change.
func openStage(create bool) (*store.Stage, error) {
	dir, err := runtime.StagePlace()
	if err != nil {
		return nil, err
	}
	return store.OpenStage(dir, create)
}

// withoutStage returns the root directory of the run on a node without a trusted directory for
// copies. It uses the original image. If a file cannot be mounted, it unpacks the file into the
// user's store.
func (r *rootArgs) withoutStage(ctx context.Context, file bool, why error) (string, error) {
	say("warning: not copying the image to this node: %v", why)
	say("hint: set HPCC_STAGE to a directory of this node that only you can write to")
	fi, err := os.Stat(r.image)
	if archive := err == nil && fi.Mode().IsRegular() && isPath(r.image); !file && !archive {
		return r.imageDir(ctx)
	}
	own, err := store.Open(r.store)
	if err != nil {
		return "", err
	}
	if file {
		return r.squashRoot(ctx, store.InStore(own), false)
	}
	return r.stagedCopy(ctx, store.InStore(own))
}

// outOfSpace reports whether a copy failed because a disk or quota is full.
func outOfSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// squashRoot mounts a SquashFS or SIF file, or its copy on this node. If the user may not
// mount, it unpacks the file on this node.
func (r *rootArgs) squashRoot(ctx context.Context, s *store.Stage, stage bool) (string, error) {
	file := r.image
	key, err := disk.FileKey(file)
	if err != nil {
		return "", err
	}
	var offset int64
	if sif.Is(file) {
		if r.mounted, err = sif.Open(file); err == nil {
			offset, _, err = r.mounted.Root()
		}
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", file, err)
		}
	}
	mounted, err := squashMount(ctx, s, file, key, offset, stage)
	var fuse *runtime.FUSEError
	if err == nil || !errors.As(err, &fuse) {
		return mounted, err
	}
	r.mounted = nil
	dir, err := s.Copy(ctx, key, 0, func(dir string) error {
		say("unpacking %s to %s, once for this node (%v)", file, s.Dir(), fuse)
		_, notes, err := unpack.FillSquashFS(ctx, file, dir)
		for _, n := range notes {
			say("warning: %s: %s", file, n)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("unpacking %s on this node: %w", file, err)
	}
	return dir, nil
}

// config returns the image's configuration, whose tree is in root.
func (r *rootArgs) config(root string) (runtime.Image, error) {
	img, err := runtime.ReadImage(root, unpack.ConfigFile)
	if r.mounted == nil || err != nil {
		return img, err
	}
	files, err := sif.FilesIn(root)
	if err != nil {
		return img, err
	}
	var own *v1.ConfigFile
	if img.Architecture != "" {
		own = &v1.ConfigFile{Config: v1.Config{User: img.Config.User, Env: img.Config.Env, Entrypoint: img.Config.Entrypoint, Cmd: img.Config.Cmd, WorkingDir: img.Config.WorkingDir}}
	}
	c, notes := r.mounted.Config(files, own)
	for _, n := range append(r.mounted.Ignored(), notes...) {
		say("warning: %s: %s", r.image, n)
	}
	return runtime.Image{Architecture: c.Architecture, Config: runtime.ImageConfig{User: c.Config.User, Env: c.Config.Env,
		Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, WorkingDir: c.Config.WorkingDir}}, nil
}

// squashMount mounts the file system at an offset of a file, or of its copy if stage is set.
func squashMount(ctx context.Context, s *store.Stage, file, key string, offset int64, stage bool) (string, error) {
	at, err := s.Empty(ctx)
	if err != nil {
		return "", err
	}
	if stage {
		if err := runtime.CanMountSquashFS(); err != nil {
			return "", err // do not copy a file that cannot be mounted
		}
		fi, err := os.Stat(file)
		if err != nil {
			return "", err
		}
		dir, err := s.Copy(ctx, "file-"+key, fi.Size(), func(dir string) error {
			reportCopy(s, file)
			return disk.CopyFile(file, filepath.Join(dir, "image.sqfs"))
		})
		switch {
		case outOfSpace(err):
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
	return at, runtime.MountSquashFS(file, offset, at)
}

// reportCopy prints that this process copies the image. Other processes wait for the copy.
func reportCopy(s *store.Stage, image string) {
	say("copying %s to %s, once for this node", image, s.Dir())
}

// stagedCopy returns the copy of the image's tree on this node. It unpacks a name from its
// layers, which are a few large files, copies a directory, and unpacks an archive.
func (r *rootArgs) stagedCopy(ctx context.Context, s *store.Stage) (string, error) {
	image := r.image
	fi, serr := os.Stat(image)
	if serr == nil && fi.IsDir() && isPath(image) {
		return stagedTree(ctx, s, image)
	}
	if serr == nil && fi.Mode().IsRegular() && isPath(image) {
		key, err := disk.FileKey(image)
		if err != nil {
			return "", err
		}
		return s.Copy(ctx, key, fi.Size(), func(dir string) error {
			reportCopy(s, image)
			img, err := sourceImage(ctx, r.store, image, nil)
			if err != nil {
				return err
			}
			_, err = unpack.Fill(ctx, img, dir, unpack.Options{})
			return err
		})
	}
	img, err := namedImage(r.store, image, nil)
	var missing *store.NotFoundError
	if errors.As(err, &missing) && serr == nil && fi.IsDir() {
		return stagedTree(ctx, s, image)
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
	return s.Copy(ctx, d.Hex, packed, func(dir string) error {
		reportCopy(s, image)
		_, err := unpack.Fill(ctx, img, dir, unpack.Options{})
		return err
	})
}

// stagedTree returns the copy of a directory. The key depends on the directory itself, so
// changes below it go unnoticed, as with trees that are in use.
func stagedTree(ctx context.Context, s *store.Stage, dir string) (string, error) {
	key, err := disk.FileKey(dir)
	if err != nil {
		return "", err
	}
	return s.Copy(ctx, key, 0, func(to string) error {
		reportCopy(s, dir)
		return unpack.CopyTree(ctx, dir, to)
	})
}

// loadSquashFS stores the image of a SquashFS or SIF file: one layer, and the configuration
// that the file contains, if any.
func loadSquashFS(ctx context.Context, s *store.Store, file, name string) (string, error) {
	if name == "" {
		base := filepath.Base(file)
		name = strings.ToLower(strings.TrimSuffix(base, filepath.Ext(base)))
	}
	var config []byte
	var notes []string
	img, err := s.RootImage(ctx, func(w io.Writer) (err error) {
		config, notes, err = unpack.SquashFSLayer(ctx, file, w)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("loading %s: %w", file, err)
	}
	reportSIF(file, notes)
	if config != nil {
		if img, err = withConfig(img, config); err != nil {
			return "", fmt.Errorf("loading %s: reading its configuration: %w", file, err)
		}
	}
	_, err = s.PutLoaded(ctx, name, img, file)
	return name, err
}

// reportSIF prints notes about parts of a SIF file that have no effect, and the signatures.
func reportSIF(file string, notes []string) {
	for _, n := range notes {
		say("warning: %s: %s", file, n)
	}
	if !sif.Is(file) {
		return
	}
	if img, err := sif.Open(file); err == nil {
		for _, n := range img.Signatures() {
			say("%s: %s", file, n)
		}
	}
}

// withConfig returns an image with the layers of img and the given configuration.
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
	if want.Architecture == "" { // a SIF file may not know it
		want.Architecture = have.Architecture
	}
	return mutate.ConfigFile(img, want)
}

// checkedTree returns the tree of an image after comparing it with the layers. Runs trust the tree,
// but copies that leave the store must not. If the tree differs, checkedTree moves it away and
// unpacks the image again.
func checkedTree(ctx context.Context, s *store.Store, img v1.Image) (string, error) {
	for again := false; ; again = true {
		tree, rep, err := unpack.Tree(ctx, s, img, unpack.Options{Owners: true})
		if err != nil {
			return "", err
		}
		err = unpack.CheckTree(ctx, img, tree)
		if err == nil {
			reportLeftOut(rep)
			return tree, nil
		}
		var differs *unpack.TreeError
		if again || !errors.As(err, &differs) {
			return "", err
		}
		moved := s.Discard(filepath.Join("trees", filepath.Base(tree)))
		if moved == "" {
			return "", (&message{err: err}).hint("ask somebody who can write to the store to run hpcc gc --verify, which moves it away")
		}
		say("warning: %v; moved to %s and unpacked again", err, moved)
	}
}
