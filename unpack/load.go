package unpack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"hpcc/files"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/text/terminal"
	"hpcc/unpack/sif"
	"hpcc/unpack/squashfs"
)

// HoldsSquashFS reports whether a file is a SquashFS or SIF file, by its content.
func HoldsSquashFS(file string) bool { return squashfs.Is(file) || sif.Is(file) }

// A Loader reads and unpacks images for a user. It shows the progress.
type Loader struct {
	Store string            // directory of the store; "" for the default
	Say   func(line string) // receives messages for the user
}

func (l Loader) say(lines []string) {
	for _, line := range lines {
		l.Say(line)
	}
}

// Load stores the images of a file of any kind, as [store.Store.Load] does, and also the image of a
// SquashFS or SIF file; - is standard input. It returns their names.
func (l Loader) Load(ctx context.Context, s *store.Store, file, name string) ([]string, error) {
	if file == "-" { // archives are read more than once
		copied, done, err := spool(s)
		if err != nil {
			return nil, err
		}
		defer done()
		file = copied
	}
	bar := terminal.NewBar("loading " + file)
	defer bar.End()
	if !HoldsSquashFS(file) {
		return s.Load(ctx, file, name, bar.Bytes)
	}
	if name == "" {
		base := filepath.Base(file)
		name = strings.ToLower(strings.TrimSuffix(base, filepath.Ext(base)))
	}
	return []string{name}, l.loadSquashFS(ctx, s, file, name)
}

// spool copies standard input to a temporary file in the store, which done removes.
func spool(s *store.Store) (file string, done func(), err error) {
	dir, err := s.TempDir()
	if err != nil {
		return "", nil, err
	}
	done = func() { files.RemoveAll(dir) }
	file = filepath.Join(dir, "image")
	f, err := os.Create(file)
	if err == nil {
		_, err = io.Copy(f, files.Stdin())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		done()
		return "", nil, files.FullDiskHint(fmt.Errorf("reading standard input: %w", err), s.Dir())
	}
	return file, done, nil
}

// Tree is [Tree] without options. It reports the files that the tree lacks.
func (l Loader) Tree(ctx context.Context, s *store.Store, img v1.Image) (dir string, err error) {
	bar := terminal.NewBar("unpacking")
	dir, rep, err := Tree(ctx, s, img, Options{Progress: bar.Bytes})
	bar.End()
	if err == nil {
		l.say(rep.Notes())
	}
	return dir, err
}

// Unpack unpacks an image for a platform to dir, which must not exist or be empty. The image is one that [Loader.Source]
// finds, or a SquashFS or SIF file. A nil platform selects this machine's.
func (l Loader) Unpack(ctx context.Context, source, dir string, p *v1.Platform) error {
	if ready.NamesImageFile(source) || (ready.IsPath(source) && HoldsSquashFS(source)) {
		if p != nil {
			return text.Usagef("--platform is for images; a SquashFS or SIF file holds one platform").Hint("leave it out")
		}
		notes, err := SquashFS(ctx, source, dir)
		l.say(notes)
		return err
	}
	img, err := l.Source(ctx, source, p)
	if err != nil {
		return err
	}
	bar := terminal.NewBar("unpacking " + source)
	rep, err := Image(ctx, img, dir, Options{Progress: bar.Bytes})
	bar.End()
	l.say(rep.Notes())
	return err
}

// loadSquashFS stores the image of a SquashFS or SIF file: one layer, and the configuration that the
// file contains, if any.
func (l Loader) loadSquashFS(ctx context.Context, s *store.Store, file, name string) error {
	var config []byte
	var notes []string
	img, err := s.RootImage(ctx, func(w io.Writer) (err error) {
		config, notes, err = SquashFSLayer(ctx, file, w)
		return err
	})
	if err != nil {
		return fmt.Errorf("loading %s: %w", file, err)
	}
	l.say(sifNotes(file, notes))
	if config != nil {
		if img, err = WithConfig(img, config); err != nil {
			return fmt.Errorf("loading %s: reading its configuration: %w", file, err)
		}
	}
	_, err = s.PutLoaded(ctx, name, img, file)
	return err
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
// image name. A nil platform selects this machine's.
func (l Loader) Source(ctx context.Context, image string, p *v1.Platform) (img v1.Image, err error) {
	bar := terminal.NewBar("loading " + image)
	defer bar.End()
	file, tag := store.SplitTag(image)
	if !ready.IsPath(image) {
		s, err := store.OpenToRead(l.Store)
		if err == nil {
			img, err = s.Get(image, p)
		}
		if err == nil {
			return img, nil
		}
		if _, serr := os.Stat(file); serr != nil {
			return nil, err
		}
	}
	if fi, err := os.Stat(file); err == nil && fi.IsDir() {
		if img, err := store.Layout(file, tag, p); !errors.Is(err, fs.ErrNotExist) {
			return img, err
		}
	}
	s, err := store.Open(l.Store)
	if err != nil {
		return nil, err
	}
	// Use a temporary name, because an image may have the name of the file. The next gc
	// deletes the blobs.
	temporary := fmt.Sprintf("hpcc-unpack-%d", os.Getpid())
	if HoldsSquashFS(image) {
		err = l.loadSquashFS(ctx, s, image, temporary)
	} else {
		_, err = s.LoadOne(ctx, image, temporary, p, bar.Bytes)
	}
	if err != nil {
		return nil, err
	}
	img, err = s.Get(temporary, p)
	if rerr := s.Remove(temporary); err == nil {
		err = rerr
	}
	return img, err
}

// Save writes an image of the store to a file. Its name selects the format: .sqfs is a SquashFS file and .sif a SIF
// file, both of a platform; .docker.tar is a docker archive. Other files and directories are OCI layouts, compressed
// if the name ends in gz; - is standard output. A nil platform selects this machine's.
func (l Loader) Save(ctx context.Context, name, file string, p *v1.Platform) error {
	s, err := store.OpenToRead(l.Store)
	if err != nil {
		return err
	}
	switch ext := filepath.Ext(file); {
	case ext == ".sqfs" || ext == ".sif":
		if err := l.saveTree(ctx, s, name, file, p); err != nil {
			return fmt.Errorf("saving %q to %s: %w", name, file, err)
		}
		return nil
	case file == "-":
		return s.SaveTo(ctx, name, os.Stdout)
	case ext == ".gz" || ext == ".tgz":
		return store.NewFile(file, func(f *os.File) error {
			return store.Compress(f, func(w io.Writer) error { return s.SaveTo(ctx, name, w) })
		})
	case strings.HasSuffix(file, ".docker.tar"):
		return s.SaveDocker(name, file)
	}
	return s.Save(ctx, name, file)
}

// saveTree writes an image to a SIF or SquashFS file, which appears complete or not at all.
func (l Loader) saveTree(ctx context.Context, s *store.Store, name, file string, p *v1.Platform) error {
	img, err := s.Get(name, p)
	if err != nil {
		return err
	}
	if s, err = store.Open(l.Store); err != nil { // its tree may be unpacked into the store
		return err
	}
	tree, err := CheckedTree(ctx, s, img, l.Say)
	if err != nil {
		return err
	}
	return store.NewFile(file, func(f *os.File) error {
		if filepath.Ext(file) == ".sif" {
			return writeSIF(ctx, img, tree, f)
		}
		return WriteSquashFS(ctx, tree, f, nil)
	})
}

// A SIFDescription describes a SIF file.
type SIFDescription struct {
	Config json.RawMessage `json:"image"` // the configuration of its image; nil if hpcc cannot read its root file system
	Notes  []string        `json:"notes"` // about signatures, and parts that have no effect
	SIF    *sif.Image      `json:"sif"`
}

// DescribeSIF describes a SIF file.
func DescribeSIF(ctx context.Context, file string) (*SIFDescription, error) {
	img, err := sif.Open(file)
	if err != nil {
		return nil, err
	}
	config, ignored, err := SquashFSLayer(ctx, file, io.Discard)
	if err != nil {
		ignored = append(img.Ignored(), err.Error())
	}
	return &SIFDescription{Config: config, Notes: append(append([]string{}, img.Signatures()...), ignored...), SIF: img}, ctx.Err()
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
