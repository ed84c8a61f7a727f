package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/files"
	"hpcc/store"
)

func loginCommand() *cli.Command {
	return &cli.Command{
		Name: "login", Usage: "save credentials for a registry", ArgsUsage: "HOST",
		Description: `Reads a password from the terminal or standard input, checks it at the registry, and saves it in
~/.docker/config.json, which hpcc, docker, podman and skopeo read.

   hpcc login -u alice registry.example.org`,
		Flags: []cli.Flag{&cli.StringFlag{Name: "username", Aliases: []string{"u"}, Required: true,
			Usage: "log in as `NAME`"}, plainHTTPFlag()},
		Action: action(parseLogin),
	}
}

type loginArgs struct {
	host, username string
	plainHTTP      bool
}

func parseLogin(c *cli.Context) (*loginArgs, error) {
	hosts, err := parseArguments(c, 1, 1, "HOST")
	if err != nil {
		return nil, err
	}
	return &loginArgs{host: hosts[0], username: c.String("username"), plainHTTP: c.Bool("plain-http")}, nil
}

func (a *loginArgs) run(ctx context.Context) error {
	password, err := readPassword(ctx)
	if err != nil {
		return err
	}
	return store.Login(ctx, a.host, a.username, password, store.Remote{PlainHTTP: a.plainHTTP})
}

// readPassword prompts on a terminal, or else reads the first line of standard input.
func readPassword(ctx context.Context) (string, error) {
	if fd := int(os.Stdin.Fd()); term.IsTerminal(fd) {
		// The signals that main handles do not end the read from the terminal.
		state, err := term.GetState(fd)
		if err != nil {
			return "", fmt.Errorf("reading the password: %w", err)
		}
		defer context.AfterFunc(ctx, func() {
			_ = term.Restore(fd, state)
			fmt.Fprintln(os.Stderr)
			os.Exit(printError(context.Cause(ctx)))
		})()
		fmt.Fprint(os.Stderr, "Password: ")
		b, err := term.ReadPassword(fd)
		fmt.Fprintln(os.Stderr)
		if err != nil {
			return "", fmt.Errorf("reading the password: %w", err)
		}
		return string(b), nil
	}
	line, err := bufio.NewReader(io.LimitReader(files.Stdin(), 64<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("reading the password: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}
