package main

import (
	"context"
	"errors"
	"os"

	"github.com/urfave/cli/v2"

	"hpcc/job/dispatch"
	"hpcc/job/tunnel"
)

// relayCommand returns the command that serves the node's end of a tunnel.
func relayCommand() *cli.Command {
	return &cli.Command{
		Name: "relay", Hidden: true, Usage: "connect standard streams with a local port (started by hpcc forward)", ArgsUsage: "PORT",
		Action: action(parseRelay),
	}
}

type relayArgs struct{ port int }

func parseRelay(c *cli.Context) (*relayArgs, error) {
	args, err := parseArguments(c, 1, 1, "PORT")
	if err != nil {
		return nil, err
	}
	port, err := dispatch.ParsePort(args[0])
	return &relayArgs{port}, err
}

func (a *relayArgs) run(ctx context.Context) error {
	return tunnel.Relay(ctx, stdio{os.Stdin, os.Stdout}, a.port)
}

// stdio joins the standard streams to one io.ReadWriteCloser.
type stdio struct{ in, out *os.File }

func (s stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s stdio) Close() error                { return errors.Join(s.in.Close(), s.out.Close()) }
