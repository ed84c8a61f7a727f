package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"hpcc/store"
	"hpcc/text/terminal"
)

func pullCommand() *cli.Command {
	return &cli.Command{
		Name: "pull", Usage: "pull an image from a registry", ArgsUsage: "REF [NAME]",
		Description: `Pulls REF, names it NAME (default REF), and unpacks it.

   hpcc pull debian:12
   hpcc pull --platform linux/ppc64le registry.example.org/lab/sci:1 sci`,
		Flags:  []cli.Flag{platformFlag(), plainHTTPFlag(), storeFlag()},
		Action: action(parsePull),
	}
}

type pullArgs struct {
	ref   string
	from  store.Remote
	store string
}

func parsePull(c *cli.Context) (*pullArgs, error) {
	a, err := parseArguments(c, 1, 2, "REF [NAME]")
	if err != nil {
		return nil, err
	}
	p, err := parsePlatformFlag(c)
	if err != nil {
		return nil, err
	}
	from := store.Remote{Platform: p, PlainHTTP: c.Bool("plain-http")}
	if len(a) == 2 {
		from.Name = a[1]
	}
	return &pullArgs{ref: a[0], from: from, store: c.String("store")}, nil
}

func (a *pullArgs) run(ctx context.Context) error {
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	bar := terminal.NewBar("pulling " + a.ref)
	a.from.Progress = bar.Bytes
	img, err := s.Pull(ctx, a.ref, a.from)
	bar.End()
	if err != nil {
		return err
	}
	if _, err := loader(a.store).Tree(ctx, s, img); err != nil {
		return err
	}
	d, err := img.Digest()
	if err == nil {
		_, err = fmt.Println(d)
	}
	return err
}

// sayEach prints messages.
func sayEach(lines []string) {
	for _, l := range lines {
		sayLine(l)
	}
}
