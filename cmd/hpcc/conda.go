package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/conda"
)

func condaCommand() *cli.Command {
	return &cli.Command{
		Name: "conda", Usage: "look at conda environments without conda", ArgsUsage: "COMMAND",
		Subcommands: []*cli.Command{condaDiffCommand()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef("conda: unknown command %q", c.Args().First()).hint("hpcc conda diff A B")
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

func condaDiffCommand() *cli.Command {
	return &cli.Command{
		Name: "diff", Usage: "list what two environments do not have alike: exports, prefixes, images", ArgsUsage: "A B",
		Description: `A and B are files (of any kind that "hpcc build --conda" reads), directories of environments, or images.

   hpcc conda diff old.yml new.yml
   hpcc conda diff requirements.txt sci
   hpcc conda diff --json ~/miniconda3/envs/a ~/miniconda3/envs/b`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "one JSON object a line"},
			platformFlag(), storeFlag(),
		},
		Action: condaDiff,
	}
}

func condaDiff(c *cli.Context) error {
	a, err := parseArguments(c, 2, 2, "A B")
	if err != nil {
		return err
	}
	p, err := parsePlatformFlag(c)
	if err != nil {
		return err
	}
	var o conda.ReadOptions
	if p != nil {
		if o.Subdir, err = conda.Subdir(*p); err != nil {
			return usagef("--platform: %w", err)
		}
	}
	var sides [2]*conda.Export
	for i, name := range a {
		if sides[i], err = readEnvironment(c, name, o); err != nil {
			return err
		}
		for _, n := range sides[i].Notes {
			say("note: %s", n)
		}
	}
	return printChanges(os.Stdout, conda.Diff(sides[0], sides[1]), c.Bool("json"))
}

// readEnvironment reads a file or directory of that name, else an image.
func readEnvironment(c *cli.Context, name string, o conda.ReadOptions) (*conda.Export, error) {
	fi, err := os.Stat(name)
	switch {
	case err == nil && fi.IsDir():
		return conda.ReadPrefix(name, o)
	case err == nil:
		return conda.ReadFile(name, o)
	case filepath.IsAbs(name):
		return nil, fmt.Errorf("reading the environment: %w", err)
	}
	var img v1.Image
	p, err := parsePlatformFlag(c)
	if err != nil {
		return nil, err
	}
	if img, err = namedImage(c.String("store"), name, p); err != nil {
		return nil, fmt.Errorf("%q is no file, no directory and no image here: %w", name, err)
	}
	return conda.ReadImage(img, name, "", o)
}

// printChanges prints a table, or an object a line.
func printChanges(out io.Writer, changes []conda.Change, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetEscapeHTML(false)
		for _, ch := range changes {
			if err := enc.Encode(struct {
				Type string `json:"type"`
				conda.Change
			}{"change", ch}); err != nil {
				return err
			}
		}
		return nil
	}
	if len(changes) == 0 {
		_, err := fmt.Fprintln(out, "no difference")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "CHANGE\tPACKAGE\tBEFORE\tAFTER\tBY")
	for _, ch := range changes {
		rowf(w, "%s\t%s\t%s\t%s\t%s\n", ch.Kind, ch.Name, dash(ch.Old), dash(ch.New), ch.Manager)
	}
	return w.Flush()
}

// dash stands in a table where there is nothing.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
