package unpack

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

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/unpack/sif"
	"hpcc/unpack/squashfs"
)

// HoldsSquashFS reports whether a file is a SquashFS or SIF file, by its content.
func HoldsSquashFS(file string) bool { return squashfs.Is(file) || sif.Is(file) }

// Load stores the images of a file of any kind, as [store.Store.Load] does, and also the image of a
// SquashFS or SIF file. It returns their names. notes are messages about a SIF file for the user.
func Load(ctx context.Context, s *store.Store, file, name string, progress func(done, total int64)) (names, notes []string, err error) {
	if !HoldsSquashFS(file) {
		names, err = s.Load(ctx, file, name, progress)
		return names, nil, err
	}
	if name == "" {
		base := filepath.Base(file)
		name = strings.ToLower(strings.TrimSuffix(base, filepath.Ext(base)))
	}
	notes, err = loadSquashFS(ctx, s, file, name)
	return []string{name}, notes, err
}

// loadSquashFS stores the image of a SquashFS or SIF file: one layer, and the configuration that the
// file contains, if any.
func loadSquashFS(ctx context.Context, s *store.Store, file, name string) (notes []string, err error) {
	var config []byte
	img, err := s.RootImage(ctx, func(w io.Writer) (err error) {
		config, notes, err = SquashFSLayer(ctx, file, w)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", file, err)
	}
	notes = sifNotes(file, notes)
	if config != nil {
		if img, err = WithConfig(img, config); err != nil {
			return notes, fmt.Errorf("loading %s: reading its configuration: %w", file, err)
		}
	}
	_, err = s.PutLoaded(ctx, name, img, file)
	return notes, err
}

// sifNotes returns messages about an image file: warnings about parts of a SIF file that have no
// effect, and its signatures.
func sifNotes(file string, ignored []string) (notes []string) {
	for _, n := range ignored {
		notes = append(notes, fmt.Sprintf("warning: %s: %s", file, n))
	}
	if !sif.Is(file) {
		return notes
	}
	if img, err := sif.Open(file); err == nil {
		for _, n := range img.Signatures() {
			notes = append(notes, fmt.Sprintf("%s: %s", file, n))
		}
	}
	return notes
}

// WithConfig returns an image with the layers of img and the given configuration.
func WithConfig(img v1.Image, config []byte) (v1.Image, error) {
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

// Source returns a named image, the image of an OCI layout, or the image of another file. It reads a
// layout in place, and copies the blobs of other files into the store. A file name need not be a valid
// image name. A nil platform selects this machine's. notes are as those of [Load].
func Source(ctx context.Context, storeDir, image string, p *v1.Platform,
	progress func(done, total int64)) (img v1.Image, notes []string, err error) {
	file, tag := store.SplitTag(image)
	if !ready.IsPath(image) {
		s, err := store.OpenToRead(storeDir)
		if err == nil {
			img, err = s.Get(image, p)
		}
		if err == nil {
			return img, nil, nil
		}
		if _, serr := os.Stat(file); serr != nil {
			return nil, nil, err
		}
	}
	if fi, err := os.Stat(file); err == nil && fi.IsDir() {
		if img, err := store.Layout(file, tag, p); !errors.Is(err, fs.ErrNotExist) {
			return img, nil, err
		}
	}
	s, err := store.Open(storeDir)
	if err != nil {
		return nil, nil, err
	}
	// Use a temporary name, because an image may have the name of the file. The next gc
	// deletes the blobs.
	temporary := fmt.Sprintf("hpcc-unpack-%d", os.Getpid())
	if HoldsSquashFS(image) {
		notes, err = loadSquashFS(ctx, s, image, temporary)
	} else {
		_, err = s.LoadOne(ctx, image, temporary, p, progress)
	}
	if err != nil {
		return nil, notes, err
	}
	img, err = s.Get(temporary, p)
	if rerr := s.Remove(temporary); err == nil {
		err = rerr
	}
	return img, notes, err
}

// CheckedTree returns the tree of an image after comparing it with the layers. Runs trust the tree,
// but copies that leave the store must not. If the tree differs, CheckedTree moves it away and unpacks
// the image again. It passes messages for the user to say, before it acts on them.
func CheckedTree(ctx context.Context, s *store.Store, img v1.Image, say func(line string)) (tree string, err error) {
	for again := false; ; again = true {
		tree, rep, err := Tree(ctx, s, img, Options{Owners: true})
		if err != nil {
			return "", err
		}
		err = checkTree(ctx, img, tree)
		if err == nil {
			for _, n := range rep.Notes() {
				say(n)
			}
			return tree, nil
		}
		var differs *treeError
		if again || !errors.As(err, &differs) {
			return "", err
		}
		moved := s.Discard(filepath.Join("trees", filepath.Base(tree)))
		if moved == "" {
			return "", text.Hint(err, "ask somebody who can write to the store to run hpcc gc --verify, which moves it away")
		}
		say(fmt.Sprintf("warning: %v; moved to %s and unpacked again", err, moved))
	}
}
