// Package root finds the directory that becomes the root of a run: it decides what IMAGE means.
//
//	name in the store ─► tree ───────────────────┐
//	directory ───────────────────────────────────┼─► directory, or its copy on this node
//	SquashFS or SIF file ─► mount, or else unpack ┘
package root

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/files"
	"hpcc/runtime"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/unpack"
	"hpcc/unpack/sif"
)

// An Image is the IMAGE of a run and how the run uses it.
type Image struct {
	Name  string // a name in the store, a directory or a SquashFS or SIF file
	Store string // the directory of the store; "" for the default
	Write bool   // the program may change the directory
	Stage bool   // copy the image to this node
	// IsFile reports that the image is a SquashFS or SIF file, whatever its extension, unless the
	// store has the name.
	IsFile bool

	Say func(line string) // receives messages for the user

	mounted *sif.Image // the SIF file that Directory mounted, if any
	local   string     // the copy of an image file on this node, if there is one
}

func (i *Image) say(format string, a ...any) { i.Say(fmt.Sprintf(format, a...)) }

// Directory returns the root directory of the run: the directory of the image, its copy on this node,
// or a mounted SquashFS file.
func (i *Image) Directory(ctx context.Context) (string, error) {
	if i.IsFile && !ready.IsPath(i.Name) { // a name of the store comes first, as with ch-run
		if dir, err := i.Tree(ctx); !errors.As(err, new(*store.NotFoundError)) {
			return dir, err
		}
		i.Name = "./" + i.Name
	}
	file := i.IsFile || ready.NamesImageFile(i.Name)
	if !file && !i.Stage {
		return i.Tree(ctx)
	}
	if i.Write {
		return "", text.Usagef("--write would change a copy that other runs use").
			Hint("hpcc unpack %s DIR; hpcc run --write ./DIR ...", i.Name)
	}
	s, err := OpenStage(true)
	if err != nil {
		return i.withoutStage(ctx, file, err)
	}
	if file {
		return i.squashRoot(ctx, s, i.Stage)
	}
	dir, err := i.stagedCopy(ctx, s)
	if outOfSpace(err) {
		i.say("%v; running from the original", err)
		return i.Tree(ctx)
	}
	return dir, err
}

// Tree returns the directory of an image that is not a file. It refuses a shared tree that the program
// may change.
func (i *Image) Tree(ctx context.Context) (string, error) {
	dir, err := i.tree(ctx)
	if err != nil || !i.Write || !ready.InTree(dir) {
		return dir, err
	}
	name, _, _ := strings.Cut(i.Name, "@sha256:") // of a job
	image := name
	if ready.IsPath(image) {
		image = "IMAGE"
	}
	return "", text.Usagef("--write would change %q for everybody who uses it", name).
		Hint("hpcc unpack %s DIR; hpcc run --write ./DIR ...", image)
}

// tree returns the directory of the image: a path, or the tree of a name, which it unpacks if the tree
// does not exist yet.
func (i *Image) tree(ctx context.Context) (string, error) {
	if ready.IsPath(i.Name) {
		return i.Name, nil
	}
	s, err := store.OpenToRead(i.Store)
	if err != nil {
		return "", err
	}
	dir, err := s.TreeOf(i.Name)
	switch {
	case errors.As(err, new(*store.NotFoundError)):
		if fi, serr := os.Stat(i.Name); serr == nil && fi.IsDir() {
			return i.Name, nil
		}
		return "", err
	case errors.As(err, new(*store.NoTreeError)):
		img, err := s.Get(i.Name, nil)
		if err != nil {
			return "", err
		}
		dir, err := i.loader().Tree(ctx, s, img)
		if err != nil {
			return "", files.ReadOnlyHint(err, s.Dir(), "unpack it to node-local storage with --stage")
		}
		return dir, nil
	}
	return dir, err
}

func (i *Image) loader() unpack.Loader { return unpack.Loader{Store: i.Store, Say: i.Say} }

// OpenStage opens the node's directory for copies, which only root and the user can change. If create
// is not set, a missing directory is [fs.ErrNotExist].
func OpenStage(create bool) (*store.Stage, error) {
	dir, err := runtime.StagePlace()
	if err != nil {
		return nil, err
	}
	return store.OpenStage(dir, create)
}

// withoutStage returns the root directory of the run on a node without a trusted directory for copies.
// It uses the original image. If a file cannot be mounted, it unpacks the file into the user's store.
func (i *Image) withoutStage(ctx context.Context, file bool, why error) (string, error) {
	i.say("warning: not copying the image to this node: %v", why)
	i.say("hint: set HPCC_STAGE to a directory of this node that only you can write to")
	fi, err := os.Stat(i.Name)
	if archive := err == nil && fi.Mode().IsRegular() && ready.IsPath(i.Name); !file && !archive {
		return i.Tree(ctx)
	}
	own, err := store.Open(i.Store)
	if err != nil {
		return "", err
	}
	if file {
		return i.squashRoot(ctx, store.InStore(own), false)
	}
	return i.stagedCopy(ctx, store.InStore(own))
}

// outOfSpace reports whether a copy failed because a disk or quota is full.
func outOfSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// squashRoot mounts a SquashFS or SIF file, or its copy on this node. If the user may not mount, it
// unpacks the file on this node.
func (i *Image) squashRoot(ctx context.Context, s *store.Stage, stage bool) (string, error) {
	key, err := files.Key(i.Name)
	if err != nil {
		return "", err
	}
	defer s.Done(key)
	mounted, err := i.squashMount(ctx, s, key, stage)
	var fuse *runtime.FUSEError
	if err == nil || !errors.As(err, &fuse) {
		return mounted, err
	}
	i.mounted = nil
	file := cmp.Or(i.local, s.Sent(key), i.Name)
	dir, err := s.Copy(ctx, key, 0, func(dir string) error {
		i.say("unpacking %s to %s, once for this node (%v)", i.Name, s.Dir(), fuse)
		_, notes, err := unpack.FillSquashFS(ctx, file, dir)
		for _, n := range notes {
			i.say("warning: %s: %s", i.Name, n)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("unpacking %s on this node: %w", i.Name, err)
	}
	return dir, nil
}

// squashMount mounts the file system of a SquashFS or SIF file, or of its copy if stage is set.
func (i *Image) squashMount(ctx context.Context, s *store.Stage, key string, stage bool) (string, error) {
	at, err := s.Empty(ctx)
	if err != nil {
		return "", err
	}
	file := i.Name
	if stage {
		if err := runtime.CanMountSquashFS(); err != nil {
			return "", err // do not copy a file that cannot be mounted
		}
		switch file, err = i.stagedFile(ctx, s, key); {
		case outOfSpace(err):
			i.say("%v; running from the original", err)
			file = i.Name
		case err != nil:
			return "", err
		default:
			i.local = file
		}
	}
	if file, err = filepath.Abs(file); err != nil {
		return "", err
	}
	var offset int64
	if sif.Is(file) { // the copy, because the original may be on a slow file system
		if i.mounted, err = sif.Open(file); err == nil {
			offset, _, err = i.mounted.Root()
		}
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", i.Name, err)
		}
	}
	return at, runtime.MountSquashFS(file, offset, at)
}

// Config returns the configuration of the image whose directory is root. That of a mounted SIF file is
// read from its scripts.
func (i *Image) Config(root string) (runtime.Image, error) {
	img, err := runtime.ReadImage(root, unpack.ConfigFile)
	if i.mounted == nil || err != nil {
		return img, err
	}
	files, err := sif.FilesIn(root)
	if err != nil {
		return img, err
	}
	var own *v1.ConfigFile
	if c := img.Config; img.Architecture != "" {
		own = &v1.ConfigFile{Config: v1.Config{
			User: c.User, Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd, WorkingDir: c.WorkingDir}}
	}
	c, notes := i.mounted.Config(files, own)
	for _, n := range append(i.mounted.Ignored(), notes...) {
		i.say("warning: %s: %s", i.Name, n)
	}
	return runtime.Image{Architecture: c.Architecture, Config: runtime.ImageConfig{User: c.Config.User, Env: c.Config.Env,
		Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, WorkingDir: c.Config.WorkingDir}}, nil
}
