package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
	verb := "freed"
	if a.dryRun {
		verb = "would be freed"
	}
	_, err = fmt.Printf("%s %s: %s, %s, %s, %s\n", text.Size(rep.Bytes), verb,
		text.Count(rep.Blobs, "blob", "blobs"), text.Count(rep.Trees, "tree", "trees"),
		text.Count(rep.Records, "cache entry", "cache entries"), text.Count(rep.Temps, "leftover", "leftovers"))
	if err == nil && !rep.Until.IsZero() {
		_, err = fmt.Printf("kept: %s and %s that no image needs, until %s or later; --age 0 frees them now\n",
			text.Size(rep.Kept), text.Count(rep.KeptTrees, "tree", "trees"), rep.Until.Local().Format("2006-01-02 15:04"))
	}
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
	v := &verification{s: s, dryRun: dryRun, begun: time.Now()}
	for _, step := range []struct {
		what string
		do   func(context.Context, *terminal.Bar) error
	}{
		{"reading blobs", v.blobs}, {"reading packages", v.packages},
		{"comparing trees with their layers", v.trees}, {"reading jobs", v.jobs},
	} {
		show := terminal.NewTerminalBar(step.what)
		err := step.do(ctx, show)
		show.End()
		if err != nil {
			return err
		}
	}
	return v.report()
}

// A verification collects the damaged files of a store.
type verification struct {
	s      *store.Store
	dryRun bool
	begun  time.Time

	found               []store.Finding
	n                   store.Verified
	archives, records   int
	compared, unchecked int   // trees
	packed              int64 // bytes of packages
}

func (v *verification) blobs(ctx context.Context, show *terminal.Bar) (err error) {
	v.found, v.n, err = v.s.Verify(ctx, store.VerifyOptions{DryRun: v.dryRun, Progress: show.Bytes})
	return err
}

func (v *verification) packages(ctx context.Context, show *terminal.Bar) error {
	var done int64
	damaged, files, bytes, err := conda.VerifyCache(ctx, v.s, func(n int64) {
		done += n
		show.Bytes(done, 0)
	})
	v.archives, v.packed = files, bytes
	for path, reason := range damaged {
		v.discard(store.Finding{Path: path, Reason: "is damaged: " + reason.Error(),
			Cure: "nothing to do: it is fetched again when it is needed"})
	}
	return err
}

// discard records a damaged file and moves it away, because hpcc creates it again when it is needed.
func (v *verification) discard(f store.Finding) {
	if !v.dryRun {
		f.Moved = v.s.Discard(f.Path)
	}
	v.found = append(v.found, f)
}

func (v *verification) trees(ctx context.Context, show *terminal.Bar) (err error) {
	damaged := map[string]bool{}
	for _, f := range v.found {
		damaged[filepath.Base(f.Path)] = true
	}
	v.compared, v.unchecked, err = unpack.VerifyTrees(ctx, v.s, damaged, v.discard, func(n int64) { show.Bytes(n, 0) })
	return err
}

func (v *verification) jobs(ctx context.Context, show *terminal.Bar) (err error) {
	report := func(path, reason, cure string) {
		v.found = append(v.found, store.Finding{Path: filepath.Join("jobs", path), Reason: reason, Cure: cure})
	}
	v.records, err = dispatch.Verify(ctx, v.s.Jobs(), report, func(done, total int) { show.Items(int64(done), int64(total)) })
	return err
}

// report prints the damaged files, and then a summary of the files that were read.
func (v *verification) report() error {
	for _, f := range v.found {
		fmt.Printf("%s %s\n", terminal.Clean(f.Path), terminal.Clean(strings.NewReplacer("\n", " ", "\r", " ").Replace(f.Reason)))
		if len(f.Images) > 0 {
			fmt.Printf("  used by:  %s\n", terminal.Clean(strings.Join(f.Images, ", ")))
		}
		if f.Moved != "" {
			fmt.Printf("  moved to: %s\n", terminal.Clean(f.Moved))
		}
		if f.Cure != "" {
			fmt.Printf("  repair:   %s\n", terminal.Clean(f.Cure))
		}
	}
	fmt.Printf("read %s (%s), %s, %s, %s (%s), %s, %s in %.1f s: %d damaged\n",
		text.Count(v.n.Blobs, "blob", "blobs"), text.Size(v.n.Bytes),
		text.Count(v.n.Names, "name", "names"), text.Count(v.n.Records, "record", "records"),
		text.Count(v.archives, "package or index", "packages and indexes"), text.Size(v.packed), text.Count(v.compared, "tree", "trees"),
		text.Count(v.records, "job file", "job files"), time.Since(v.begun).Seconds(), len(v.found))
	if v.unchecked > 0 {
		fmt.Printf("not compared: %s, because the store lacks an undamaged copy of a layer\n", text.Count(v.unchecked, "tree", "trees"))
	}
	switch n := len(v.found); {
	case n == 0:
		return nil
	case v.dryRun:
		return fmt.Errorf("the store has %s; nothing was moved (--dry-run)", text.Count(n, "damaged file", "damaged files"))
	default:
		return fmt.Errorf("the store has %s; the list above says how to repair each one", text.Count(n, "damaged file", "damaged files"))
	}
}
