package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CopyTree copies a tree, its notes and its configuration into an empty directory. If it
// fails, the content of to is undefined.
func CopyTree(ctx context.Context, from, to string) error {
	fi, err := os.Stat(from)
	if err != nil {
		return err
	}
	notes, err := OpenNotes(from)
	if err != nil {
		return err
	}
	t, err := openTree(to, NewNotes(to))
	if err != nil {
		return err
	}
	defer t.close()
	top := &tar.Header{Typeflag: tar.TypeDir, Name: ".", ModTime: fi.ModTime()}
	notes.Describe(top, from, fi)
	if err := t.entry(top, nil); err != nil {
		return err
	}
	err = treeArchive(from, notes, func(r io.Reader) error { return t.entries(ctx, tar.NewReader(r)) })
	if err == nil {
		err = t.finish()
	}
	if err != nil {
		return fmt.Errorf("copying %s: %w", from, err)
	}
	config, err := os.ReadFile(filepath.Join(from, ConfigFile))
	switch {
	case err == nil:
		err = putConfig(to, config)
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		err = nil
	}
	if err != nil {
		return err
	}
	return t.notes.Save(to)
}

// treeArchive passes a tree to read as a tar archive, without the notes file: the headers
// contain the notes.
func treeArchive(tree string, notes *Notes, read func(io.Reader) error) error {
	pr, pw := io.Pipe()
	ended := make(chan bool)
	go func() {
		defer close(ended)
		_, err := diff(pw, nil, tree, true, DiffOptions{Notes: notes, Skip: []string{NotesFile}})
		pw.CloseWithError(err)
	}()
	err := read(pr)
	pr.CloseWithError(errors.New("the reader has stopped"))
	<-ended
	return err
}
