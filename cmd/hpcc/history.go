package main

import (
	"context"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

func historyCommand() *cli.Command {
	return &cli.Command{
		Name: "history", Usage: "show the build steps of an image", ArgsUsage: "NAME",
		Description: `Shows the steps that built an image, the newest first, with the compressed size of their layers.

   hpcc history sci`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print one JSON object per line"}, platformFlag(), storeFlag()},
		Action: action(parseHistory),
	}
}

type historyArgs struct {
	name     string
	json     bool
	platform *v1.Platform
	store    string
}

func parseHistory(c *cli.Context) (*historyArgs, error) {
	names, err := parseArguments(c, 1, 1, "NAME")
	if err != nil {
		return nil, err
	}
	a := &historyArgs{name: names[0], json: c.Bool("json"), store: c.String("store")}
	a.platform, err = parsePlatformFlag(c)
	return a, err
}

func (a *historyArgs) run(context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	img, err := s.Get(a.name, a.platform)
	if err != nil {
		return err
	}
	list, err := store.History(img)
	if err != nil {
		return err
	}
	if a.json {
		return printObjects(list)
	}
	t := terminal.NewTable("CREATED", "SIZE", "STEP")
	for _, st := range list {
		created := "-"
		if !st.Created.IsZero() {
			created = st.Created.UTC().Format("2006-01-02 15:04")
		}
		t.Row(created, text.Size(st.Bytes), text.OneLine(st.Step))
	}
	return t.Write(os.Stdout)
}
