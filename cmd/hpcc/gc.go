package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/conda"
	"hpcc/job/dispatch"
	"hpcc/job/quantity"
	"hpcc/runtime/root"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
	"hpcc/unpack"
)

func gcCommand() *cli.Command {
	return &cli.Command{
		Name: "gc", Usage: "delete unused data from the store",
		Description: `Deletes layers, trees and cached steps that no image needs and that were not used within --age, but
not the images of jobs that have not ended. Also deletes files that killed processes left behind,
and old copies of images on this node (hpcc run --stage). Other hpcc processes can keep running.

   hpcc gc --dry-run
   hpcc gc --age 0
   hpcc gc --verify

With --verify, gc deletes nothing. It compares every file of the store with its digest, moves
damaged files to the directory damaged/ in the store (not with --dry-run), and names the command
that replaces each one.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "age", Value: "7d", Usage: "keep data used within the last `TIME`; 0 keeps none"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print what would be deleted"},
			&cli.BoolFlag{Name: "verify", Usage: "check every file of the store and delete nothing"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"}, storeFlag(),
		},
		Action: action(parseGC),
	}
}

type gcArgs struct {
	age            time.Duration
	dryRun, verify bool
	json           bool
	store          string
}

func parseGC(c *cli.Context) (*gcArgs, error) {
	if _, err := parseArguments(c, 0, 0, "no arguments"); err != nil {
		return nil, err
	}
	age, err := parseAge(c.String("age"))
	if err != nil {
		return nil, err
	}
	a := &gcArgs{age: age, dryRun: c.Bool("dry-run"), verify: c.Bool("verify"), json: c.Bool("json"), store: c.String("store")}
	if a.verify && a.json {
		return nil, text.Usagef("--verify and --json cannot be used together")
	}
	if a.verify && c.IsSet("age") {
		return nil, text.Usagef("--age and --verify cannot be used together").Hint("run hpcc gc --verify, then hpcc gc --age %s", c.String("age"))
	}
	if a.age == 0 {
		a.age = -1 // keep nothing
	}
	return a, nil
}

// parseAge reads the value of --age: 0, a duration of Go's syntax, or days.
func parseAge(s string) (time.Duration, error) {
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return d, nil
	}
	d, err := quantity.ParseTime(s)
	if err != nil {
		return 0, text.Usagef("--age %q: not a duration", s).Hint("write --age 90m, 36h, 7d or 0")
	}
	return d, nil
}

func (a *gcArgs) run(ctx context.Context) error {
	if a.verify {
		return verifyStore(ctx, a.store, a.dryRun)
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	rep, err := a.collect(ctx, s)
	if err != nil {
		return err
	}
	if a.json {
		return json.NewEncoder(os.Stdout).Encode(struct {
			Type   string `json:"type"`
			DryRun bool   `json:"dry_run"`
			store.GCReport
		}{"gc", a.dryRun, rep})
	}
	_, err = os.Stdout.WriteString(rep.Text(a.dryRun))
	return err
}

// collect removes unused data of the store, and old copies from this node. It shows the progress on a
// terminal.
func (a *gcArgs) collect(ctx context.Context, s *store.Store) (store.GCReport, error) {
	what := "examining and deleting files"
	if a.dryRun {
		what = "examining files"
	}
	show := terminal.NewTerminalBar(what)
	defer show.End()
	o := store.GCOptions{Age: a.age, DryRun: a.dryRun, Progress: func(files int64) { show.Items(files, 0) }}
	o.Keep = func(ctx context.Context) ([]string, error) {
		digests, warnings, err := dispatch.ActiveImages(ctx, s.Jobs())
		warn(warnings)
		return digests, err
	}
	rep, err := s.GC(ctx, o)
	if err != nil {
		return rep, err
	}
	stage, err := root.OpenStage(false)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			say("%v", err)
		}
		return rep, nil
	}
	o.Keep = nil
	staged, err := stage.GC(ctx, o)
	rep.Add(staged)
	return rep, err
}

// verifyStore checks every file in the store and prints each damaged one with the command that
// replaces it. It returns an error if a file is damaged.
func verifyStore(ctx context.Context, dir string, dryRun bool) error {
	s, err := store.OpenToRead(dir)
	if err != nil {
		return err
	}
	begun := time.Now()
	var found []store.Finding
	discard := func(f store.Finding) { // hpcc creates the file again when it is needed
		if !dryRun {
			f.Moved = s.Discard(f.Path)
		}
		found = append(found, f)
	}
	bar := terminal.NewTerminalBar("reading blobs")
	defer func() { bar.End() }()
	next := func(what string) {
		bar.End()
		bar = terminal.NewTerminalBar(what)
	}
	found, n, err := s.Verify(ctx, store.VerifyOptions{DryRun: dryRun, Progress: bar.Bytes})
	if err != nil {
		return err
	}
	next("reading packages")
	var done int64
	damaged, archives, packed, err := conda.VerifyCache(ctx, s, func(n int64) {
		done += n
		bar.Bytes(done, 0)
	})
	for path, reason := range damaged {
		discard(store.Finding{Path: path, Reason: "is damaged: " + reason.Error(), Cure: "nothing to do: it is fetched again when it is needed"})
	}
	if err != nil {
		return err
	}
	next("comparing trees with their layers")
	wrong := map[string]bool{}
	for _, f := range found {
		wrong[filepath.Base(f.Path)] = true
	}
	compared, unchecked, err := unpack.VerifyTrees(ctx, s, wrong, discard, func(n int64) { bar.Bytes(n, 0) })
	if err != nil {
		return err
	}
	next("reading jobs")
	records, err := dispatch.Verify(ctx, s.Jobs(), func(path, reason, cure string) {
		found = append(found, store.Finding{Path: filepath.Join("jobs", path), Reason: reason, Cure: cure})
	}, func(done, total int) { bar.Items(int64(done), int64(total)) })
	if err != nil {
		return err
	}
	bar.End()
	for _, f := range found {
		fmt.Print(f.Text())
	}
	fmt.Printf("read %s (%s), %s, %s, %s (%s), %s, %s in %.1f s: %d damaged\n",
		text.Count(n.Blobs, "blob", "blobs"), text.Size(n.Bytes),
		text.Count(n.Names, "name", "names"), text.Count(n.Records, "record", "records"),
		text.Count(archives, "package or index", "packages and indexes"), text.Size(packed), text.Count(compared, "tree", "trees"),
		text.Count(records, "job file", "job files"), time.Since(begun).Seconds(), len(found))
	if unchecked > 0 {
		fmt.Printf("not compared: %s, because the store lacks an undamaged copy of a layer\n", text.Count(unchecked, "tree", "trees"))
	}
	if len(found) == 0 {
		return nil
	}
	advice := "the list above says how to repair each one"
	if dryRun {
		advice = "nothing was moved (--dry-run)"
	}
	return fmt.Errorf("the store has %s; %s", text.Count(len(found), "damaged file", "damaged files"), advice)
}
