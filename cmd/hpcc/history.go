package main

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"text/tabwriter"
	"time"

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

// A builtStep is a step of an image's history.
type builtStep struct {
	Created time.Time `json:"created,omitzero"`
	Step    string    `json:"step"`
	Bytes   int64     `json:"bytes"`           // compressed size of its layer; 0 without a layer
	Digest  string    `json:"layer,omitempty"` // of the layer
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
	list, err := stepsOf(img)
	if err != nil {
		return err
	}
	if a.json {
		enc := json.NewEncoder(os.Stdout)
		for _, st := range list {
			if err := enc.Encode(st); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	terminal.Rowf(w, "CREATED\tSIZE\tSTEP\n")
	for _, st := range list {
		created := "-"
		if !st.Created.IsZero() {
			created = st.Created.UTC().Format("2006-01-02 15:04")
		}
		terminal.Rowf(w, "%s\t%s\t%s\n", created, text.Size(st.Bytes), text.OneLine(st.Step))
	}
	return w.Flush()
}

// stepsOf returns the history of an image, the newest step first. Layers that the history
// does not mention come last, as the oldest.
func stepsOf(img v1.Image) (list []builtStep, err error) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	layers := m.Layers
	take := func(st *builtStep) {
		last := layers[len(layers)-1]
		st.Bytes, st.Digest, layers = last.Size, last.Digest.String(), layers[:len(layers)-1]
	}
	for i := len(cfg.History) - 1; i >= 0; i-- {
		h := cfg.History[i]
		st := builtStep{Created: h.Created.Time, Step: cmp.Or(h.CreatedBy, h.Comment)}
		if !h.EmptyLayer && len(layers) > 0 {
			take(&st)
		}
		list = append(list, st)
	}
	for len(layers) > 0 {
		st := builtStep{Created: cfg.Created.Time}
		take(&st)
		list = append(list, st)
	}
	return list, nil
}
