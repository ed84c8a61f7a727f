package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/unpack/sif"
	"hpcc/unpack/squashfs"
)

// SquashFS unpacks a SquashFS file, or the root file system of a SIF file, to dir, which must not exist
// or be empty. notes are messages for the user. If it fails, dir is unchanged.
func SquashFS(ctx context.Context, file, dir string) (notes []string, err error) {
	err = NewDir(dir, func(root string) error {
		rep, ignored, err := FillSquashFS(ctx, file, root)
		notes = append(rep.Notes(), sifNotes(file, ignored)...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("unpacking %s to %q: %w", file, dir, err)
	}
	return notes, nil
}

// FillSquashFS unpacks a SquashFS file, or the root file system of a SIF file, into an empty
// directory. It returns notes about parts of a SIF file that have no effect. If it fails, the
// content of dir is undefined.
func FillSquashFS(ctx context.Context, file, dir string) (rep Report, notes []string, err error) {
	t, err := openTree(dir, NewNotes(dir))
	if err != nil {
		return rep, nil, err
	}
	defer t.close()
	t.created = map[string]bool{}
	config, notes, err := eachInSquashFS(ctx, file, t.entry)
	if err == nil {
		err = t.finish()
	}
	if err == nil && config != nil {
		err = putConfig(dir, config)
	}
	if err == nil {
		err = t.notes.Save(dir)
	}
	return t.rep, notes, err
}

// SquashFSLayer writes a SquashFS file, or the root file system of a SIF file, as a layer, an
// uncompressed tar. It returns the image's configuration in the file, or nil, and notes about
// parts of a SIF file that have no effect.
func SquashFSLayer(ctx context.Context, file string, w io.Writer) (config []byte, notes []string, err error) {
	tw := tar.NewWriter(w)
	config, notes, err = eachInSquashFS(ctx, file, func(h *tar.Header, r io.Reader) error {
		if isOurs(h.Name) {
			return nil
		}
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if err := tw.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		_, err := io.Copy(tw, r)
		return err
	})
	if err == nil {
		err = tw.Close()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", file, err)
	}
	return config, notes, nil
}

// isOurs reports whether a path of a tree is hpcc's own directory or below it.
func isOurs(name string) bool { return name == configDir || strings.HasPrefix(name, configDir+"/") }

// maxConfig is the maximum size of a configuration, in bytes.
const maxConfig = 4 << 20

// eachInSquashFS calls do for each file except the image's configuration, which it returns.
func eachInSquashFS(ctx context.Context, file string, do func(*tar.Header, io.Reader) error) (config []byte, notes []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !sif.IsAt(f) {
		config, err = eachInRoot(ctx, f, fi.Size(), do)
		return config, nil, err
	}
	img, err := sif.Read(f, fi.Size())
	if err != nil {
		return nil, nil, err
	}
	at, size, err := img.Root()
	if err != nil {
		return nil, nil, err
	}
	files := sif.Files{}
	config, err = eachInRoot(ctx, io.NewSectionReader(f, at, size), size, func(h *tar.Header, r io.Reader) error {
		if h.Typeflag == tar.TypeReg && files.Wants(h.Name, h.Size) {
			b, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			files[h.Name], r = string(b), bytes.NewReader(b)
		}
		return do(h, r)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("the root file system: %w", err)
	}
	var own *v1.ConfigFile
	if config != nil {
		if own, err = v1.ParseConfigFile(bytes.NewReader(config)); err != nil {
			return nil, nil, fmt.Errorf("reading %s: %w", ConfigFile, err)
		}
	}
	c, notes := img.Config(files, own)
	config, err = json.Marshal(c)
	return config, append(img.Ignored(), notes...), err
}

// eachInRoot implements [eachInSquashFS] for the file system in r. It refuses files that
// images cannot hold.
func eachInRoot(ctx context.Context, r io.ReaderAt, size int64, do func(*tar.Header, io.Reader) error) (config []byte, err error) {
	err = squashfs.WalkAt(ctx, r, size, func(h *tar.Header, r io.Reader) error {
		for k := range h.PAXRecords {
			if strings.HasPrefix(k, xattrRecord+notePrefix) { // notes are created anew
				delete(h.PAXRecords, k)
			}
		}
		switch {
		case strings.HasPrefix(path.Base(h.Name), whPrefix):
			return fmt.Errorf("images cannot hold a file whose name begins with %s, which marks removed files (image-spec, \"Whiteouts\")", whPrefix)
		case h.Name != ConfigFile || h.Typeflag != tar.TypeReg:
			return do(h, r)
		case h.Size > maxConfig:
			return fmt.Errorf("the configuration has %d bytes; the maximum is %d", h.Size, maxConfig)
		}
		var err error
		config, err = io.ReadAll(r)
		return err
	})
	return config, err
}

// writeSIF writes an image, whose tree is given, as a SIF file. SIF files are executable.
func writeSIF(ctx context.Context, img v1.Image, tree string, f *os.File) error {
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	files, err := sif.FilesIn(tree)
	if err != nil {
		return err
	}
	add, err := sif.RootFiles(config, files)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	err = sif.Write(f, sif.Content{Digest: digest.String(), Config: config,
		Root: func(w io.WriteSeeker) error { return WriteSquashFS(ctx, tree, w, add) }})
	if err != nil {
		return err
	}
	return f.Chmod(fi.Mode() | fi.Mode()&0o444>>2)
}

// WriteSquashFS writes the tree in a directory to f as a SquashFS file, with the owners,
// modes and capabilities from the tree's notes. The same image gives the same bytes: files
// without a time in the image (the configuration, directories that no layer describes) get
// the newest time of any file. f must be empty. If add is not nil, the file system is for a
// SIF file: it has the files in add, but not the configuration.
//
// It does not use mksquashfs, which would need the owners on disk or in a list, and whose
// output depends on its version.
func WriteSquashFS(ctx context.Context, tree string, f io.WriteSeeker, add []sif.RootFile) error {
	if err := writeSquashFS(ctx, tree, f, add); err != nil {
		return fmt.Errorf("writing SquashFS: %w", err)
	}
	return nil
}

func writeSquashFS(ctx context.Context, tree string, f io.WriteSeeker, add []sif.RootFile) error {
	fi, err := os.Lstat(tree)
	if err != nil {
		return err
	}
	notes, err := OpenNotes(tree)
	if err != nil {
		return err
	}
	top := &tar.Header{Typeflag: tar.TypeDir, Name: ".", ModTime: fi.ModTime()}
	notes.Describe(top, tree, fi)
	w, err := squashfs.NewWriter(f, top)
	if err != nil {
		return err
	}
	extra := &added{w: w, files: add, have: map[string]byte{}}
	err = treeArchive(tree, notes, func(r io.Reader) error {
		tr := tar.NewReader(r)
		return eachEntry(ctx, tr, func(h *tar.Header) error {
			name := path.Clean(h.Name)
			if isOurs(name) && h.Typeflag != tar.TypeDir {
				h.ModTime = time.Time{} // the tree's creation set it
			}
			if extra.replaces(name, h.Typeflag) {
				return nil
			}
			return w.Add(h, tr)
		})
	})
	if err == nil {
		err = extra.add()
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}

// added adds files to the file system of a SIF file.
type added struct {
	w     *squashfs.Writer
	files []sif.RootFile
	have  map[string]byte // types of the tree's files of these names
}

// replaces reports whether a file of the tree is left out.
func (a *added) replaces(name string, kind byte) bool {
	if a.files == nil {
		return false
	}
	i := slices.IndexFunc(a.files, func(f sif.RootFile) bool { return f.Name == name })
	switch {
	case isOurs(name):
		return true
	case i < 0:
		return false
	case a.files[i].Replace && kind != tar.TypeDir:
		return true
	}
	a.have[name] = kind
	return false
}

// add adds the files that the tree does not have.
func (a *added) add() error {
	for _, f := range a.files {
		kind, have := a.have[f.Name]
		if parent, ok := a.have[path.Dir(f.Name)]; f.MountPoint && (have || (ok && parent != tar.TypeDir)) {
			continue
		}
		if have && f.Dir != (kind == tar.TypeDir) {
			return fmt.Errorf("/%s of the image is in the way of Apptainer's file of this name: remove it from the image", f.Name)
		}
		if have {
			continue
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode, Size: int64(len(f.Data))}
		if f.Dir {
			h.Typeflag, h.ModTime = tar.TypeDir, time.Unix(math.MaxUint32, 0) // reduced to the newest
		}
		if err := a.w.Add(h, strings.NewReader(f.Data)); err != nil {
			return fmt.Errorf("/%s: %w", f.Name, err)
		}
	}
	return nil
}
