package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

func imagesCommand() *cli.Command {
	return &cli.Command{
		Name: "images", Usage: "list images",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print only the names"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per line"}, storeFlag(),
		},
		Action: action(parseImages),
	}
}

type imagesArgs struct {
	json, quiet bool
	store       string
}

func parseImages(c *cli.Context) (*imagesArgs, error) {
	_, err := parseArguments(c, 0, 0, "no arguments")
	return &imagesArgs{json: c.Bool("json"), quiet: c.Bool("quiet"), store: c.String("store")}, err
}

func (a *imagesArgs) run(context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	list, err := s.Images()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(e store.Entry) bool {
		if e.Problem != nil {
			say("warning: image %s: %s", e.Name, terminal.Clean(problemLine(e.Problem)))
		}
		return e.Digest.Hex == "" // the reference is unreadable
	})
	enc, t := json.NewEncoder(os.Stdout), terminal.NewTable("NAME", "DIGEST", "PLATFORM", "SIZE")
	for _, e := range list {
		switch {
		case a.json:
			err = enc.Encode(map[string]any{"type": "image", "name": e.Name, "digest": e.Digest.String(),
				"platforms": e.Platforms, "bytes": e.Size, "created": e.Created.UTC().Format(time.RFC3339)})
		case a.quiet:
			_, err = fmt.Println(e.Name)
		default:
			t.Row(e.Name, fmt.Sprintf("%.12s", e.Digest.Hex), strings.Join(e.Platforms, ","), text.Size(e.Size))
		}
		if err != nil {
			return err
		}
	}
	if a.json || a.quiet {
		return nil
	}
	return t.Write(os.Stdout)
}

// problemLine returns an error with its hint on one line.
func problemLine(err error) string {
	advice, _ := adviceFor(err)
	if advice != "" {
		advice = "; " + advice
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ") + advice
}
