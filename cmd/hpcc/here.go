package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/job/site"
	"hpcc/store"
)

func hereCommand() *cli.Command {
	return &cli.Command{
		Name: "here", Hidden: true, Usage: "describe this machine (started by hpcc on another machine)",
		Flags:  []cli.Flag{&cli.StringFlag{Name: "image", Usage: "describe image `NAME` as well"}, storeFlag()},
		Action: action(parseHere),
	}
}

type hereArgs struct{ image, store string }

func parseHere(c *cli.Context) (*hereArgs, error) {
	return &hereArgs{image: c.String("image"), store: c.String("store")}, nil
}

func (a *hereArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	g, err := site.Here(ctx, s, a.image, version)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(g)
}
