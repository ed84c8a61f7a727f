package unpack

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"hpcc/unpack/squashfs"
)

// FillSquashFS unpacks a SquashFS file into an empty directory. If it fails, the content of
// dir is undefined.
func FillSquashFS(ctx context.Context, file, dir string) (Report, error) {
	t, err := openTree(dir, NewNotes(dir))
	if err != nil {
		return Report{}, err
	}
	defer t.close()
	t.created = map[string]bool{}
	config, err := eachInSquashFS(ctx, file, t.entry)
	if err == nil {
		err = t.finish()
	}
	if err == nil && config != nil {
		err = putConfig(dir, config)
	}
	if err == nil {
		err = t.notes.Save(dir)
	}
	return t.rep, err
}

// SquashFSLayer writes a SquashFS file as a layer, an uncompressed tar. It returns the
// image's configuration in the file, or nil.
func SquashFSLayer(ctx context.Context, file string, w io.Writer) (config []byte, err error) {
	tw := tar.NewWriter(w)
	config, err = eachInSquashFS(ctx, file, func(h *tar.Header, r io.Reader) error {
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
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	return config, nil
}

// isOurs reports whether a path of a tree is hpcc's own directory or below it.
func isOurs(name string) bool { return name == configDir || strings.HasPrefix(name, configDir+"/") }

// maxConfig is the maximum size of a configuration, in bytes.
const maxConfig = 4 << 20

// eachInSquashFS calls do for each file except the image's configuration, which it returns.
// It refuses files that images cannot hold.
func eachInSquashFS(ctx context.Context, file string, do func(*tar.Header, io.Reader) error) (config []byte, err error) {
	err = squashfs.Walk(ctx, file, func(h *tar.Header, r io.Reader) error {
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

// WriteSquashFS writes the tree in a directory to f as a SquashFS file, with the owners,
// modes and capabilities from the tree's notes. The same image gives the same bytes: files
// without a time in the image (the configuration, directories that no layer describes) get
// the newest time of any file. f must be empty.
//
// It does not use mksquashfs, which would need the owners on disk or in a list, and whose
// output depends on its version.
func WriteSquashFS(ctx context.Context, tree string, f io.WriteSeeker) error {
	if err := writeSquashFS(ctx, tree, f); err != nil {
		return fmt.Errorf("writing SquashFS: %w", err)
	}
	return nil
}

func writeSquashFS(ctx context.Context, tree string, f io.WriteSeeker) error {
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
	err = treeArchive(tree, notes, func(r io.Reader) error {
		tr := tar.NewReader(r)
		return eachEntry(ctx, tr, func(h *tar.Header) error {
			if isOurs(path.Clean(h.Name)) && h.Typeflag != tar.TypeDir {
				h.ModTime = time.Time{} // the tree's creation set it
			}
			return w.Add(h, tr)
		})
	})
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}
