package main

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/store"
	"hpcc/text"
)

func commitCommand() *cli.Command {
	return &cli.Command{
		Name: "commit", Usage: "make an image from a changed directory tree", ArgsUsage: "TREE NAME",
		Description: `Makes the image NAME from TREE, a directory of "hpcc unpack" that "hpcc run --write" changed. The
changes are one new layer on top of the image that TREE was unpacked from, which must be in the
store. The configuration stays the same. Prints the digest of the new image.

   hpcc unpack sci ./tree
   hpcc run --write ./tree -- pip install requests
   hpcc commit --message "pip install requests" ./tree sci2`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "message", Aliases: []string{"m"}, Usage: "describe the change in the image's history as `TEXT`"},
			&cli.StringFlag{Name: "author", Aliases: []string{"a"}, Usage: "set the image's author to `NAME`"},
			storeFlag(),
		},
		Action: action(parseCommit),
	}
}

type commitArgs struct {
	commit build.Commit
	store  string
}

func parseCommit(c *cli.Context) (*commitArgs, error) {
	args, err := parseArguments(c, 2, 2, "TREE NAME")
	if err != nil {
		return nil, err
	}
	if _, err := store.Canonical(args[1]); err != nil {
		return nil, text.Usagef("%w", err).Hint("hpcc commit TREE NAME; NAME is the new image")
	}
	return &commitArgs{store: c.String("store"), commit: build.Commit{Tree: args[0], Name: args[1],
		Message: c.String("message"), Author: c.String("author"), Epoch: os.Getenv("SOURCE_DATE_EPOCH")}}, nil
}

func (a *commitArgs) run(ctx context.Context) error {
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	img, notes, err := a.commit.Do(ctx, s)
	sayEach(notes)
	if err != nil {
		return err
	}
	if _, err := loader(a.store).Tree(ctx, s, img); err != nil {
		return err
	}
	digest, err := img.Digest()
	if err == nil {
		_, err = fmt.Println(digest)
	}
	return err
}
