package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"hpcc/store"
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
	load := loader(a.store)
	names, err := load.Load(ctx, s, a.file, a.name)
	if err != nil {
		return err
	}
	for _, n := range names {
		img, err := s.Get(n, nil)
		if err != nil {
			return err
		}
		if _, err := load.Tree(ctx, s, img); err != nil {
			return err
		}
		if _, err := fmt.Println(n); err != nil {
			return err
		}
	}
	return nil
}

// loader returns a loader that shows messages and progress to the user.
func loader(storeDir string) unpack.Loader { return unpack.Loader{Store: storeDir, Say: sayLine} }
