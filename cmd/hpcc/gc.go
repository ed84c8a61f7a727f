package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/store"
)

func gcCommand() *cli.Command {
	return &cli.Command{
		Name: "gc", Usage: "remove what no image needs",
		Description: `Removes blobs, trees and cached steps that no image names and that nobody used for the
given time, and what processes that were killed have left; also this node's copies (run --stage). It is safe beside other hpcc processes.

With --verify it removes nothing: it reads every file of the store, compares it with its digest or checksum, and
lists what is damaged with the command that replaces it. Damaged blobs, trees and cache entries are moved to the
store's directory damaged/ (not with --dry-run), so that the next command that needs them makes them again.

   hpcc gc --verify
   hpcc gc --verify --dry-run`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "age", Value: 7 * 24 * time.Hour, Usage: "keep what was used within this `TIME`; 0 keeps nothing"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would go, remove nothing"},
			&cli.BoolFlag{Name: "verify", Usage: "check every file of the store and remove nothing"}, storeFlag(),
		},
		Action: action(parseGC),
	}
}

type gcArgs struct {
	age            time.Duration
	dryRun, verify bool
	store          string
}

func parseGC(c *cli.Context) (*gcArgs, error) {
	if _, err := parseArguments(c, 0, 0, "no arguments"); err != nil {
		return nil, err
	}
	a := &gcArgs{age: c.Duration("age"), dryRun: c.Bool("dry-run"), verify: c.Bool("verify"), store: c.String("store")}
	if a.verify && c.IsSet("age") {
		return nil, usagef("--age and --verify cannot be used together").hint("run hpcc gc --verify, then hpcc gc --age %v", a.age)
	}
	if a.age == 0 {
		a.age = -1 // keep nothing
	}
	return a, nil
}

func (a *gcArgs) run(ctx context.Context) error {
	if a.verify {
		return verifyStore(ctx, a.store, a.dryRun)
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	o := store.GCOptions{Age: a.age, DryRun: a.dryRun}
	rep, err := s.GC(ctx, o)
	if err != nil {
		return err
	}
	staged, err := gcStage(ctx, o)
	if err != nil {
		return err
	}
	rep.Trees, rep.Temps = rep.Trees+staged.Trees, rep.Temps+staged.Temps
	_, err = fmt.Printf("%s freed: %d blobs, %d trees, %d cache entries, %d leftovers\n", size(rep.Bytes), rep.Blobs, rep.Trees, rep.Records, rep.Temps)
	return err
}

// gcStage removes old copies from this node, if there are any.
func gcStage(ctx context.Context, o store.GCOptions) (store.GCReport, error) {
	s, err := openStage(false)
	if errors.Is(err, fs.ErrNotExist) {
		return store.GCReport{}, nil
	}
	if err != nil {
		say("%v", err)
		return store.GCReport{}, nil
	}
	return s.GC(ctx, o)
}
