package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/unpack"
)

func runCommand() *cli.Command {
	var env envChanges
	return &cli.Command{
		Name:      "run",
		Usage:     "run a program in an image",
		ArgsUsage: "IMAGE [--] [CMD [ARG...]]",
		Description: `Runs CMD in IMAGE, the name of an image, a directory that one was unpacked to, or a
SquashFS file (.sqfs).
The program takes hpcc's place: same pid, its own exit status, no process of hpcc remains.

Visible inside: /proc /sys /dev /tmp, your home, the current directory, the host's
/etc/hosts and /etc/resolv.conf. The image itself is read-only.

   hpcc run base -- python3 main.py
   hpcc run --set-env config.env --cd dir base -- python3 main.py --id 3
   hpcc run -b /data:/mnt/data:ro base -- ls /mnt/data
   hpcc run --stage sci.sqfs -- python3 main.py

Exit status: the program's own; 125 hpcc failed, 126 not executable, 127 not found.`,
		Flags:  append(runFlags(&env), otherRuntimeFlag(), storeFlag()),
		Action: func(c *cli.Context) error { return atStatus(runtime.ExitFailed, run(c, &env)) },
	}
}

// runFlags are the flags of run, which the words for a job have too.
func runFlags(env *envChanges) []cli.Flag {
	return append(append(env.flags(), deviceFlags()...),
		&cli.StringFlag{Name: "cd", Usage: "start in `DIR` inside; relative to where the program would start"},
		&cli.StringSliceFlag{Name: "bind", Aliases: []string{"b"}, Usage: "show `SRC[:DST[:ro]]` of the host inside (repeatable)"},
		&cli.BoolFlag{Name: "write", Aliases: []string{"w"}, Usage: "let the program change the image directory"},
		&cli.BoolFlag{Name: "private-tmp", Aliases: []string{"t"}, Usage: "an empty /tmp of its own"},
		&cli.BoolFlag{Name: "home", Usage: "show the home directory (the default)"},
		&cli.BoolFlag{Name: "no-home", Usage: "do not show the home directory"},
		stageFlag(),
	)
}

// atStatus gives an error of run that has no status of its own the one for
// "hpcc failed", so that it cannot be taken for the program's.
func atStatus(status int, err error) error {
	var m *message
	var re *runtime.Error
	var st exitStatus
	if err == nil || errors.As(err, &re) || errors.As(err, &st) || errors.As(err, &m) && m.status != 0 {
		return err
	}
	if m != nil {
		m.status = status
		return err
	}
	return &message{err: err, status: status}
}

func run(c *cli.Context, env *envChanges) error {
	if c.NArg() == 0 {
		return usagef("run needs an image").hint(`hpcc run IMAGE -- CMD; "hpcc images" lists them`)
	}
	if c.Bool("home") && c.Bool("no-home") {
		return usagef("--home and --no-home contradict each other").hint("give one of them")
	}
	args := c.Args().Tail()
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	root, err := runRoot(c, c.Args().First())
	if err != nil {
		return err
	}
	img, err := runtime.ReadImage(root, unpack.ConfigFile)
	if err != nil {
		return err
	}
	spec, err := runtime.Spec(root, img.Config, runtime.Options{
		Args: args, Architecture: img.Architecture, Dir: c.String("cd"), Binds: c.StringSlice("bind"),
		Write: c.Bool("write"), NoHome: c.Bool("no-home"), PrivateTmp: c.Bool("private-tmp"),
	})
	if err != nil {
		return fmt.Errorf("running %s: %w", c.Args().First(), err)
	}
	if err := addDevices(c, spec); err != nil {
		return fmt.Errorf("running %s: %w", c.Args().First(), err)
	}
	spec.Process.Env = append(envfile.Apply(without(spec.Process.Env, "HPCC_RUNNING"), env.list, !env.noExpand), "HPCC_RUNNING=1")
	runtime.SearchDevices(spec)
	if other := c.String("runtime"); other != "" {
		return handOver(other, spec)
	}
	if err := runtime.Exec(spec); err != nil {
		return fmt.Errorf("running %s: %w", c.Args().First(), err)
	}
	return nil
}

// without removes a variable.
func without(env []string, name string) []string {
	out := env[:0]
	for _, e := range env {
		if !strings.HasPrefix(e, name+"=") {
			out = append(out, e)
		}
	}
	return out
}

// isPath says whether IMAGE names a directory: it has a slash at its head
// ("/x", "./x", "../x") or is one and no image has that name.
func isPath(image string) bool {
	return filepath.IsAbs(image) || image == "." || image == ".." ||
		strings.HasPrefix(image, "./") || strings.HasPrefix(image, "../")
}
