package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job/node"
	"hpcc/runtime/root"
	"hpcc/text"
)

// stageFlag is --stage, which copies the image to this node.
func stageFlag() cli.Flag {
	return &cli.BoolFlag{Name: "stage", Usage: "copy the image to the node's local storage first"}
}

// parseStage reports whether a flag or else the variable HPCC_STAGE, a boolean or a directory, asks to
// copy the image to this node.
func parseStage(c *cli.Context) (bool, error) {
	env := os.Getenv("HPCC_STAGE")
	if c.IsSet("stage") || env == "" || filepath.IsAbs(env) {
		return c.Bool("stage") || (!c.IsSet("stage") && env != ""), nil
	}
	on, err := strconv.ParseBool(env)
	if err != nil {
		return false, text.Usagef("HPCC_STAGE=%s is neither true nor false, nor an absolute path", env).
			Hint("unset HPCC_STAGE, or set it to 1 or to a directory of this node")
	}
	return on, nil
}

// stageCommand returns the command with which the script of a job sends its image to the nodes. The
// script runs it on the first node. There it runs itself on each node, with --node.
func stageCommand() *cli.Command {
	return &cli.Command{
		Name: "stage", Hidden: true, Usage: "send an image to the nodes of a job (started by job scripts)", ArgsUsage: "IMAGE",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "each", Usage: "run a command on each node with `ARGV`"},
			&cli.StringFlag{Name: "send", Usage: "copy a file to each node with `ARGV`"},
			&cli.StringFlag{Name: "node", Usage: "prepare this node for broadcast `NAME`"},
			storeFlag(),
		},
		Action: action(parseStageCommand),
	}
}

// stageArgs are the arguments of "hpcc stage".
type stageArgs struct {
	node.Broadcast
	node   string // name of the broadcast that this node receives; "" on the node that sends
	refuse bool   // instead, remove what it received
}

func parseStageCommand(c *cli.Context) (verb, error) {
	a := &stageArgs{node: c.String("node"), refuse: c.Args().Get(1) == "refuse"}
	a.Image, a.Store = c.Args().First(), c.String("store")
	for _, flag := range []struct {
		name string
		argv *[]string
	}{{"each", &a.Each}, {"send", &a.Send}} {
		list, err := text.Words(c.String(flag.name), true)
		if err != nil {
			return nil, text.Usagef("--%s: %w", flag.name, err)
		}
		for _, w := range list {
			*flag.argv = append(*flag.argv, w.Text)
		}
	}
	receives, sends := a.node != "", len(a.Each) > 0 && len(a.Send) > 0
	if a.Image == "" || (!receives && !sends) || strings.ContainsRune(a.node, filepath.Separator) {
		return nil, text.Usagef("stage is for job scripts only").Hint("hpcc submit --stage --nodes 4 IMAGE -- CMD")
	}
	return a, nil
}

// run sends the image, and prints the directory of the nodes that it sent it to. Without it, each
// node copies the image itself. So a failure gives a message, and the job continues.
func (a *stageArgs) run(ctx context.Context) error {
	if a.node != "" {
		if err := a.onNode(ctx); err != nil {
			host, _ := os.Hostname()
			return fmt.Errorf("node %s: %w", host, err)
		}
		return nil
	}
	dir, err := a.broadcast(ctx)
	if err != nil {
		say("note: not sending %s to all nodes at once: %v; each node copies it from the original", a.Image, err)
		return nil
	}
	_, err = fmt.Println(dir)
	return err
}

// broadcast sends the image to the nodes, and returns the directory that each node prepared.
func (a *stageArgs) broadcast(ctx context.Context) (string, error) {
	s, err := root.OpenStage(true)
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding hpcc itself: %w", err)
	}
	a.Self = []string{self, "stage", "--node=" + strings.ToLower(rand.Text()[:16]), a.Image}
	begin := time.Now()
	dir, sent, err := a.Run(ctx, s)
	if sent > 0 {
		say("sent %s to all nodes: %s in %v", a.Image, text.Size(sent), time.Since(begin).Round(time.Millisecond))
	}
	return dir, err
}

// onNode prepares this node, and prints the directory for the file and whether the node needs it.
func (a *stageArgs) onNode(ctx context.Context) error {
	s, err := root.OpenStage(true)
	if err != nil {
		return err
	}
	if a.refuse {
		return s.Refuse(a.node)
	}
	line, err := a.Receive(ctx, s, a.node)
	if err == nil {
		_, err = fmt.Println(line)
	}
	return err
}
