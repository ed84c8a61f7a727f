package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

func pushCommand() *cli.Command {
	return &cli.Command{
		Name: "push", Usage: "push an image to a registry", ArgsUsage: "NAME [REF]",
		Description: `Pushes NAME to REF (default NAME) with the credentials of "hpcc login" or docker.

   hpcc push sci registry.example.org/lab/sci:1`,
		Flags:  []cli.Flag{plainHTTPFlag(), storeFlag()},
		Action: action(parsePush),
	}
}

type pushArgs struct {
	name, ref string
	to        store.Remote
	store     string
}

func parsePush(c *cli.Context) (*pushArgs, error) {
	a, err := parseArguments(c, 1, 2, "NAME [REF]")
	if err != nil {
		return nil, err
	}
	// REF defaults to NAME.
	return &pushArgs{name: a[0], ref: a[len(a)-1], to: store.Remote{PlainHTTP: c.Bool("plain-http")}, store: c.String("store")}, nil
}

func (a *pushArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	p, err := push(ctx, s, a.name, a.ref, a.to)
	if err != nil {
		return err
	}
	_, err = fmt.Println(p.Digest)
	return err
}

// push sends an image and reports how much of it was transferred.
func push(ctx context.Context, s *store.Store, name, ref string, to store.Remote) (*store.Pushed, error) {
	bar := terminal.NewBar("pushing " + name)
	to.Progress = bar.Bytes
	p, err := s.Push(ctx, name, ref, to)
	bar.End()
	if err != nil {
		return nil, err
	}
	if p.NotNoted != nil {
		say("warning: the store cannot record where %s was pushed; use the full reference in \"hpcc submit --to kubernetes\": %v",
			name, p.NotNoted)
	}
	if had := p.Size - p.Sent; had > 0 {
		say("sent %s of %s; the registry already had the rest", text.Size(p.Sent), text.Size(p.Size))
	} else {
		say("sent %s", text.Size(p.Sent))
	}
	return p, nil
}
