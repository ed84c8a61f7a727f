package main

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/runtime"
	"hpcc/runtime/oci"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/text/terminal"
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
	unpackTo := func(dir string) error { return a.unpackTo(ctx, dir) }
	if a.bundle {
		return fullDiskHint(oci.WriteBundle(a.dir, unpack.ConfigFile, a.options, unpackTo), a.dir)
	}
	return fullDiskHint(unpackTo(a.dir), a.dir)
}

// unpackTo unpacks the image that SOURCE names to dir.
func (a *unpackArgs) unpackTo(ctx context.Context, dir string) error {
	if ready.NamesImageFile(a.source) || (ready.IsPath(a.source) && unpack.HoldsSquashFS(a.source)) {
		if a.platform != nil {
			return text.Usagef("--platform is for images; a SquashFS or SIF file holds one platform").Hint("leave it out")
		}
		notes, err := unpack.SquashFS(ctx, a.source, dir)
		sayEach(notes)
		return err
	}
	img, err := sourceImage(ctx, a.store, a.source, a.platform)
	if err != nil {
		return err
	}
	bar := terminal.NewBar("unpacking " + a.source)
	rep, err := unpack.Image(ctx, img, dir, unpack.Options{Progress: bar.Bytes})
	bar.End()
	reportLeftOut(rep)
	return err
}

// namedImage returns an image of a store by name. A nil platform selects this machine's.
func namedImage(storeDir, name string, p *v1.Platform) (v1.Image, error) {
	s, err := store.OpenToRead(storeDir)
	if err != nil {
		return nil, err
	}
	return s.Get(name, p)
}

// sourceImage returns the image that SOURCE names, as [unpack.Source] does, and shows the progress.
func sourceImage(ctx context.Context, storeDir, src string, p *v1.Platform) (v1.Image, error) {
	bar := terminal.NewBar("loading " + src)
	img, notes, err := unpack.Source(ctx, storeDir, src, p, bar.Bytes)
	bar.End()
	sayEach(notes)
	return img, err
}
