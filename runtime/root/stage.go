package root

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/files"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/unpack"
)

// stagedFile returns the copy of an image file on this node. It takes the file that the job sent to
// this node, or copies the original.
func (i *Image) stagedFile(ctx context.Context, s *store.Stage, key string) (string, error) {
	fi, err := os.Stat(i.Name)
	if err != nil {
		return "", err
	}
	sent, need := s.Sent(key), fi.Size()
	if sent != "" {
		need = 0
	}
	dir, err := s.Copy(ctx, "file-"+key, need, func(dir string) error {
		to := filepath.Join(dir, "image.sqfs")
		if sent != "" && os.Rename(sent, to) == nil {
			return nil
		}
		i.sayCopy(s)
		return files.Copy(i.Name, to)
	})
	return filepath.Join(dir, "image.sqfs"), err
}

// sayCopy reports that this process copies the image. Other processes wait for the copy.
func (i *Image) sayCopy(s *store.Stage) {
	i.say("copying %s to %s, once for this node", i.Name, s.Dir())
}

// stagedCopy returns the copy of the image's tree on this node. It unpacks a name from its layers,
// which are a few large files, copies a directory, and unpacks an archive.
func (i *Image) stagedCopy(ctx context.Context, s *store.Stage) (string, error) {
	fi, serr := os.Stat(i.Name)
	isDir := serr == nil && fi.IsDir()
	switch {
	case isDir && ready.IsPath(i.Name):
		return i.stagedTree(ctx, s)
	case serr == nil && fi.Mode().IsRegular() && ready.IsPath(i.Name):
		return i.stagedArchive(ctx, s, fi.Size())
	}
	own, err := store.OpenToRead(i.Store)
	var img v1.Image
	if err == nil {
		img, err = own.Get(i.Name, nil)
	}
	if errors.As(err, new(*store.NotFoundError)) && isDir {
		return i.stagedTree(ctx, s)
	}
	if err != nil {
		return "", err
	}
	return i.stagedLayers(ctx, s, img)
}

// stagedLayers returns the copy of an image of the store. It unpacks the layers that the job sent to
// this node, or those of the store.
func (i *Image) stagedLayers(ctx context.Context, s *store.Stage, img v1.Image) (string, error) {
	d, err := img.Digest()
	if err != nil {
		return "", err
	}
	packed, err := store.LayersSize(img)
	if err != nil {
		return "", err
	}
	defer s.Done(d.Hex)
	if sent := s.Sent(d.Hex); sent != "" {
		dir, err := s.Copy(ctx, d.Hex, packed, func(dir string) error {
			local, err := s.Split(img, sent)
			if err == nil {
				_, err = unpack.Fill(ctx, local, dir, unpack.Options{})
			}
			return err
		})
		if err == nil {
			return dir, nil
		}
		i.say("warning: unpacking the layers of %s that the job sent to this node: %v", i.Name, err)
	}
	return s.Copy(ctx, d.Hex, packed, func(dir string) error {
		i.sayCopy(s)
		_, err := unpack.Fill(ctx, img, dir, unpack.Options{})
		return err
	})
}

// stagedArchive returns the copy of the image in an archive of this many bytes.
func (i *Image) stagedArchive(ctx context.Context, s *store.Stage, size int64) (string, error) {
	key, err := files.Key(i.Name)
	if err != nil {
		return "", err
	}
	return s.Copy(ctx, key, size, func(dir string) error {
		i.sayCopy(s)
		img, err := i.loader().Source(ctx, i.Name, nil)
		if err != nil {
			return err
		}
		_, err = unpack.Fill(ctx, img, dir, unpack.Options{})
		return err
	})
}

// stagedTree returns the copy of a directory. The key depends on the directory itself, so changes
// below it go unnoticed, as with trees that are in use.
func (i *Image) stagedTree(ctx context.Context, s *store.Stage) (string, error) {
	key, err := files.Key(i.Name)
	if err != nil {
		return "", err
	}
	return s.Copy(ctx, key, 0, func(to string) error {
		i.sayCopy(s)
		return unpack.CopyTree(ctx, i.Name, to)
	})
}
