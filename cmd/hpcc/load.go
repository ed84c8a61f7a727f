package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"hpcc/files"
	"hpcc/store"
	"hpcc/text/terminal"
	"hpcc/unpack"
)

func loadCommand() *cli.Command {
	return &cli.Command{
		Name: "load", Usage: "load images from a file or directory", ArgsUsage: "FILE [NAME]",
		Description: `Loads the images in FILE: an OCI layout (directory or tar), a docker archive, a root file system
as tar (plain, gzip or zstd), a SquashFS file or a SIF file of Apptainer; - is standard input.
LAYOUT:TAG selects one image of an OCI layout.

   hpcc load rootfs.tar.gz debian:12
   hpcc load ./layout:v2 sci`,
		Flags:  []cli.Flag{storeFlag()},
		Action: action(parseLoad),
	}
}

type loadArgs struct {
	file  string // "-" is standard input
	name  string // "" to use the name in the file
	store string
}

func parseLoad(c *cli.Context) (*loadArgs, error) {
	args, err := parseArguments(c, 1, 2, "FILE [NAME]")
	if err != nil {
		return nil, err
	}
	a := &loadArgs{file: args[0], store: c.String("store")}
	if len(args) == 2 {
		a.name = args[1]
	}
	return a, nil
}

func (a *loadArgs) run(ctx context.Context) error {
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	file, done, err := spool(s, a.file)
	if err != nil {
		return err
	}
	defer done()
	names, err := loadAny(ctx, s, file, a.name)
	if err != nil {
		return err
	}
	for _, n := range names {
		img, err := s.Get(n, nil)
		if err != nil {
			return err
		}
		if err := unpackTree(ctx, s, img, nil); err != nil {
			return err
		}
		if _, err := fmt.Println(n); err != nil {
			return err
		}
	}
	return nil
}

// spool returns the file that an argument names. Archives are read more than once, so it copies
// standard input to a temporary file in the store, which done removes.
func spool(s *store.Store, arg string) (file string, done func(), err error) {
	if arg != "-" {
		return arg, func() {}, nil
	}
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
		return "", nil, fullDiskHint(fmt.Errorf("reading standard input: %w", err), s.Dir())
	}
	return file, done, nil
}

// loadAny loads the images of a file of any kind, shows the progress and returns their names.
func loadAny(ctx context.Context, s *store.Store, file, name string) ([]string, error) {
	bar := terminal.NewBar("loading " + file)
	names, notes, err := unpack.Load(ctx, s, file, name, bar.Bytes)
	bar.End()
	sayEach(notes)
	return names, err
}
