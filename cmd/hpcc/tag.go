package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"hpcc/store"
)

func tagCommand() *cli.Command {
	return &cli.Command{
		Name: "tag", Usage: "add a name to an image", ArgsUsage: "NAME NEW",
		Description: `Adds the name NEW to the image NAME. If another image has the name NEW, the name moves to this one.

   hpcc tag sci registry.example.org/lab/sci:1`,
		Flags:  []cli.Flag{storeFlag()},
		Action: action(parseTag),
	}
}

type tagArgs struct{ name, added, store string }

func parseTag(c *cli.Context) (*tagArgs, error) {
	names, err := parseArguments(c, 2, 2, "NAME NEW")
	if err != nil {
		return nil, err
	}
	return &tagArgs{name: names[0], added: names[1], store: c.String("store")}, nil
}

func (a *tagArgs) run(context.Context) error {
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	return s.Tag(a.name, a.added)
}
