package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v2"

	"hpcc/store"
)

func rmCommand() *cli.Command {
	return &cli.Command{
		Name: "rm", Usage: "remove image names", ArgsUsage: "NAME...",
		Description: `Removes image names. "hpcc gc" deletes the data that no image and no unfinished job needs any more.

   hpcc rm sci`,
		Flags:  []cli.Flag{storeFlag()},
		Action: action(parseRm),
	}
}

type rmArgs struct {
	names []string
	store string
}

func parseRm(c *cli.Context) (*rmArgs, error) {
	names, err := parseArguments(c, 1, 1000, "NAME...")
	return &rmArgs{names: names, store: c.String("store")}, err
}

func (a *rmArgs) run(context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	var all []error
	for _, n := range a.names {
		all = append(all, s.Remove(n))
	}
	return errors.Join(all...)
}
