package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/job/quantity"
	"hpcc/job/results"
	"hpcc/job/site"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

func fetchCommand() *cli.Command {
	return &cli.Command{
		Name: "fetch", Usage: "copy the results of a job to this machine", ArgsUsage: "JOB [PATH]",
		Description: `Copies the file or directory PATH of a job to the current directory, from the pods' volume, the
artifacts of a workflow, or the file system of a site. Prints its name. A result appears complete
or not at all, and replaces nothing without --force.

   hpcc fetch main out/model.pt
   hpcc fetch --into results study prune/model
   hpcc fetch main

A relative PATH is below the directory in which the program ran, or below the only volume. In a
workflow, PATH may be the name of an artifact, NAME or STEP/NAME. Without PATH: all artifacts, the
only volume, or the output files of the tasks.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "into", Usage: "put the result into directory `DIR` (default: the current one)"},
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "replace an existing file or directory"},
			&cli.StringFlag{Name: "max", Usage: "refuse results larger than `SIZE` (default 100G)"},
			&cli.StringFlag{Name: "image", Usage: "read a volume with tar of image `NAME` (default: the job's)"},
			&cli.BoolFlag{Name: "tar", Hidden: true, Usage: "write a tar archive to standard output, for another hpcc"},
			onFlag(), storeFlag(),
		},
		Action: action(parseFetch),
	}
}

type fetchArgs struct {
	id, path, into, image, store string
	options                      results.Options
	tar                          bool
	in                           site.Scope
}

func parseFetch(c *cli.Context) (*fetchArgs, error) {
	args, err := parseArguments(c, 1, 2, "JOB [PATH]")
	if err != nil {
		return nil, err
	}
	a := &fetchArgs{id: args[0], into: c.String("into"), image: c.String("image"), store: c.String("store"),
		tar: c.Bool("tar"), in: parseJobScope(c)}
	a.options.Replace = c.Bool("force")
	if len(args) == 2 {
		if a.path = args[1]; a.path == "" {
			return nil, text.Usagef("PATH is empty").Hint("leave it out to copy all results")
		}
	}
	if s := c.String("max"); s != "" {
		if a.options.Max, err = quantity.ParseMemory(s); err != nil {
			return nil, text.Usagef("--max: %w", err)
		}
	}
	return a, nil
}

func (a *fetchArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	sub, err := a.in.Find(ctx, s.Jobs(), a.id)
	if err != nil {
		return err
	}
	id := sub.ID
	if a.tar {
		if sub.Remote != nil {
			return text.Usagef("--tar: job %s belongs to site %s", id, sub.Remote.Site.Name)
		}
		if err := sub.Fetch(ctx, s.Jobs(), a.path, a.image, a.options, sayLine, os.Stdout); err != nil {
			return a.explain(id, err)
		}
		return nil
	}
	final := filepath.Join(a.into, a.localName(id))
	if err := a.options.Free(final); err != nil {
		return a.explain(id, err)
	}
	a.options.Temp = filepath.Dir(final)
	open := func() (io.ReadCloser, error) {
		return results.Pipe(func(w io.Writer) error {
			return sub.Fetch(ctx, s.Jobs(), a.path, a.image, a.options, sayLine, w)
		}), nil
	}
	if sub.Remote != nil {
		open = func() (io.ReadCloser, error) { return sub.Remote.Fetch(ctx, id, a.path, a.image) }
	}
	return a.receive(ctx, id, final, open)
}

// localName returns the name of the result in the local directory.
func (a *fetchArgs) localName(id string) string {
	name := path.Base(path.Clean(a.path))
	if a.path == "" || name == "." || name == ".." || name == "/" {
		return id
	}
	return name
}

// receive creates final from a stream and prints its name.
func (a *fetchArgs) receive(ctx context.Context, id, final string, open func() (io.ReadCloser, error)) error {
	if err := os.MkdirAll(filepath.Dir(final), 0o777); err != nil {
		return err
	}
	r, err := open()
	if err != nil {
		return err
	}
	bar, received := terminal.NewBar("fetching "+filepath.Base(final)), int64(0)
	a.options.Progress = func(n int64) {
		received = n
		bar.Bytes(n, 0)
	}
	leftOut, first, err := results.Receive(ctx, r, final, a.options)
	bar.End()
	if err != nil {
		return a.explain(id, err)
	}
	if leftOut > 0 {
		say("left out %s: %s", text.Count(leftOut, "device, socket or pipe", "devices, sockets and pipes"), strings.Join(first, " "))
	}
	say("fetched %s", text.Size(received))
	_, err = fmt.Println(final)
	return err
}

// explain adds the job and a hint to an error.
func (a *fetchArgs) explain(id string, err error) error {
	if errors.As(err, new(exitStatus)) { // hpcc at the site has printed the reason
		return err
	}
	what := id
	if a.path != "" {
		what = a.path + " of job " + id
	}
	m := &text.Error{Err: fmt.Errorf("fetching %s: %w", what, err)}
	switch {
	case errors.As(err, new(*results.ExistsError)):
		return m.Hint("--force replaces it, --into DIR puts the result elsewhere")
	case errors.As(err, new(*results.TooLargeError)):
		return m.Hint("allow more with --max SIZE, or fetch a part: hpcc fetch %s PATH", id)
	case errors.As(err, new(*results.LinkError)):
		return m.Hint("fetch the paths that you need one by one: hpcc fetch %s PATH", text.Quote(id))
	}
	return m.Err
}
