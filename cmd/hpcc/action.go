package main

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/runtime/process"
	"hpcc/text"
)

// A verb is a parsed command line that is ready to run.
type verb interface {
	run(ctx context.Context) error
}

// action returns an Action that parses a command line into a verb and runs it. Only parsers
// see flags.
func action[V verb](parse func(*cli.Context) (V, error)) cli.ActionFunc {
	return func(c *cli.Context) error {
		v, err := parse(c)
		if err != nil {
			return err
		}
		return v.run(c.Context)
	}
}

// programAction is like action, for a verb that runs a program. If hpcc itself fails, the exit
// status is 125, so that it is not mistaken for the program's.
func programAction[V verb](parse func(*cli.Context) (V, error)) cli.ActionFunc {
	return func(c *cli.Context) error { return atStatus(process.ExitFailed, action(parse)(c)) }
}

// storeFlag is --store, for every command that uses images.
func storeFlag() cli.Flag {
	return &cli.StringFlag{Name: "store", EnvVars: []string{"HPCC_STORE"}, Usage: "keep images in `DIR` (default ~/.local/share/hpcc)"}
}

// platformFlag is --platform, which selects one platform of an image.
func platformFlag() cli.Flag {
	return &cli.StringFlag{Name: "platform", Usage: "select platform `OS/ARCH` (default: this machine's)"}
}

// parsePlatformFlag returns the value of --platform, or nil if it is not set.
func parsePlatformFlag(c *cli.Context) (*v1.Platform, error) {
	if c.String("platform") == "" {
		return nil, nil
	}
	return parsePlatform(c.String("platform"))
}

func parsePlatform(s string) (*v1.Platform, error) {
	p, err := v1.ParsePlatform(s)
	if err != nil || p.OS == "" || p.Architecture == "" {
		return nil, text.Usagef("--platform %q is not OS/ARCH", s).Hint("write linux/amd64, linux/arm64 or linux/ppc64le")
	}
	return p, nil
}

func plainHTTPFlag() cli.Flag {
	return &cli.BoolFlag{Name: "plain-http", Usage: "use HTTP without TLS (loopback registries need no flag)"}
}

// parseArguments returns the arguments of a command. It refuses a wrong number of arguments.
// It also refuses flags after them, which the parser would take for arguments.
func parseArguments(c *cli.Context, min, max int, usage string) ([]string, error) {
	a := c.Args().Slice()
	for _, x := range a {
		if len(x) > 1 && x[0] == '-' {
			return nil, text.Usagef("flag %q comes after an argument", x).
				Hint("flags come before arguments: hpcc %s %s", c.Command.Name, usage)
		}
	}
	if len(a) < min || len(a) > max {
		verb := "needs"
		switch {
		case max == 0:
			verb = "takes"
		case len(a) > max:
			verb = "only takes"
		}
		return nil, text.Usagef("%s %s %s", c.Command.Name, verb, usage).Hint(`"hpcc %s --help" shows examples`, c.Command.Name)
	}
	return a, nil
}
