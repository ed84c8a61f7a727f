package main

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/files"
	"hpcc/runtime"
	"hpcc/runtime/oci"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/unpack"
)

func unpackCommand() *cli.Command {
	return &cli.Command{
		Name: "unpack", Usage: "unpack an image to a directory tree", ArgsUsage: "SOURCE DIR",
		Description: `Unpacks SOURCE, an image name or anything that "hpcc load" reads, to the new directory DIR, for
any architecture. "hpcc run DIR", ch-run and chroot can use it.

   hpcc unpack --platform linux/ppc64le sci ./sci-ppc64le
   hpcc unpack ./layout:v2 ./v2
   hpcc unpack --bundle sci ./bundle && crun run --bundle ./bundle sci`,
		Flags: []cli.Flag{
			platformFlag(), storeFlag(),
			&cli.BoolFlag{Name: "bundle", Usage: "write an OCI bundle: DIR/config.json and DIR/rootfs"},
			&cli.StringSliceFlag{Name: "bind", Aliases: []string{"b"}, Usage: "with --bundle: bind host path `SRC`[:DST[:ro]]"},
			&cli.StringFlag{Name: "cd", Usage: "with --bundle: start in directory `DIR`"},
			&cli.BoolFlag{Name: "write", Aliases: []string{"w"}, Usage: "with --bundle: let the program modify the rootfs"},
		},
		Action: action(parseUnpack),
	}
}

type unpackArgs struct {
	source, dir string
	platform    *v1.Platform
	store       string
	bundle      bool
	options     runtime.Options // for the bundle
}

func parseUnpack(c *cli.Context) (*unpackArgs, error) {
	args, err := parseArguments(c, 2, 2, "SOURCE DIR")
	if err != nil {
		return nil, err
	}
	p, err := parsePlatformFlag(c)
	if err != nil {
		return nil, err
	}
	if ready.IsImageFile(args[1]) {
		return nil, text.Usagef("%q is the name of an image file, but unpack makes a directory", args[1]).
			Hint("name another directory; hpcc save NAME %s writes an image file", args[1])
	}
	return &unpackArgs{source: args[0], dir: args[1], platform: p, store: c.String("store"), bundle: c.Bool("bundle"),
		options: runtime.Options{Binds: c.StringSlice("bind"), Dir: c.String("cd"), Write: c.Bool("write")}}, nil
}

func (a *unpackArgs) run(ctx context.Context) error {
	unpackTo := func(dir string) error { return loader(a.store).Unpack(ctx, a.source, dir, a.platform) }
	if a.bundle {
		return files.FullDiskHint(oci.WriteBundle(a.dir, unpack.ConfigFile, a.options, unpackTo), a.dir)
	}
	return files.FullDiskHint(unpackTo(a.dir), a.dir)
}
