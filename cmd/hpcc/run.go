package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/runtime/devices"
	"hpcc/runtime/process"
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
The program takes hpcc's place: same pid, its own exit status, no process of hpcc remains
but with --measure (docs/measure.md) and --pid.

Visible inside: /proc /sys /dev /tmp, your home, the current directory, the host's
/etc/hosts and /etc/resolv.conf. The image itself is read-only.

   hpcc run base -- python3 main.py
   hpcc run --set-env config.env --cd dir base -- python3 main.py --id 3
   hpcc run -b /data:/mnt/data:ro base -- ls /mnt/data
   hpcc run --stage sci.sqfs -- python3 main.py
   hpcc run --measure=run.jsonl base -- python3 main.py

Exit status: the program's own; 125 hpcc failed, 126 not executable, 127 not found.`,
		Flags:  append(runFlags(&env), otherRuntimeFlag(), measureFlagOfRun(), storeFlag()),
		Action: func(c *cli.Context) error { return atStatus(process.ExitFailed, run(c, &env)) },
	}
}

// runFlags are the flags of run, which the words for a job have too. A name or
// letter that ch-run has too means the same.
func runFlags(env *envChanges) []cli.Flag {
	return append(append(env.flags(), deviceFlags()...),
		&cli.BoolFlag{Name: "clean-env", Usage: "start from the image's environment; of the caller's only HOME, USER, LOGNAME and TERM"},
		&cli.StringFlag{Name: "cd", Aliases: []string{"c"}, Usage: "start in `DIR` inside; relative to where the program would start"},
		&cli.StringSliceFlag{Name: "bind", Aliases: []string{"b"}, Usage: "show `SRC[:DST[:ro]]` of the host inside (repeatable)"},
		&cli.StringSliceFlag{Name: "mount", Usage: "mount `type=bind|tmpfs,source=SRC,target=DST[,readonly]`, as docker spells it (repeatable)"},
		&cli.BoolFlag{Name: "write", Aliases: []string{"w"}, Usage: "let the program change the image directory"},
		&cli.GenericFlag{Name: "write-fake", Aliases: []string{"W"}, Value: &sizeFlag{}, Usage: "let the program change what it sees of the image, and forget that; -W=`SIZE` bounds the memory (12%)"},
		&cli.BoolFlag{Name: "private-tmp", Aliases: []string{"t"}, Usage: "an empty /tmp of its own"},
		&cli.BoolFlag{Name: "home", Usage: "show the home directory (the default)"},
		&cli.BoolFlag{Name: "no-home", Usage: "do not show the home directory"},
		&cli.StringFlag{Name: "entrypoint", Usage: "run `PROG` with the arguments, instead of the image's ENTRYPOINT and CMD; \"\" runs CMD alone"},
		&cli.IntFlag{Name: "uid", Aliases: []string{"u"}, Usage: "be user `N` inside (outside all is yours)"},
		&cli.IntFlag{Name: "gid", Aliases: []string{"g"}, Usage: "be group `N` inside"},
		&cli.BoolFlag{Name: "seccomp", Usage: "as root inside, let changes of owners, ids and devices seem to succeed, as in a build"},
		&cli.BoolFlag{Name: "no-passwd", Usage: "keep the image's /etc/passwd and /etc/group as they are"},
		&cli.StringFlag{Name: "network", Usage: "`host` (the default), or none: a loopback interface only"},
		&cli.StringFlag{Name: "hostname", Usage: "be on host `NAME`"},
		&cli.BoolFlag{Name: "pid", Usage: "see own processes only: 1 is an init of hpcc, 2 the program, with which all end"},
		&cli.BoolFlag{Name: "join", Aliases: []string{"j"}, Usage: "share namespaces with the job's other tasks on this node, which MPI needs to read their memory"},
		&cli.IntFlag{Name: "join-ct", Usage: "--join `N` tasks (default: as the launcher says)"},
		&cli.StringFlag{Name: "join-tag", Usage: "--join the tasks that say `TAG` (default: those of the launcher)"},
		&cli.IntFlag{Name: "join-pid", Usage: "share namespaces with process `N`, a run of yours"},
		&cli.BoolFlag{Name: "no-config", EnvVars: []string{"HPCC_NO_CONFIG"}, Usage: "ignore /etc/hpcc/run.conf and ~/.config/hpcc/run.conf"},
		stageFlag(),
	)
}

// atStatus gives an error of a command that runs a program the status for "hpcc
// failed", so that it cannot be taken for the program's. An error keeps a status that
// says more than that hpcc failed or was used wrongly.
func atStatus(status int, err error) error {
	var m *message
	var re *process.Error
	var st exitStatus
	if err == nil || errors.As(err, &re) || errors.As(err, &st) {
		return err
	}
	if errors.As(err, &m) && m.status != 0 && m.status != exitUsage {
		return err
	}
	if m != nil {
		m.status = status
		return err
	}
	return &message{err: err, status: status}
}

// ownFlags are those that only hpcc's own way to run a program knows.
var ownFlags = []string{"write-fake", "uid", "gid", "seccomp", "network", "hostname", "pid", "join", "join-ct", "join-tag", "join-pid"}

func run(c *cli.Context, env *envChanges) error {
	if c.NArg() == 0 {
		return usagef("run needs an image").hint(`hpcc run IMAGE -- CMD; "hpcc images" lists them`)
	}
	if file := c.Generic("measure").(*measureFlag).file; file != "" {
		return measured(c.Context, file, c.String("store"), c.Args().First(), c.Args().Tail())
	}
	args := c.Args().Tail()
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	w, err := readRunWords(c, env)
	if err != nil {
		return err
	}
	o, err := w.options(args)
	if err != nil {
		return err
	}
	if c.IsSet("runtime") {
		for _, name := range ownFlags {
			if w.given(name) {
				return usagef("--%s is not to be had with --runtime", name).hint("without --runtime, hpcc runs the program itself")
			}
		}
	}
	at := rootArgs{image: c.Args().First(), store: c.String("store"), write: c.Bool("write"), stage: parseStage(c)}
	root, err := at.directory(c.Context)
	if err != nil {
		return err
	}
	img, err := runtime.ReadImage(root, unpack.ConfigFile)
	if err != nil && !isPath(c.Args().First()) {
		return (&message{err: err}).hint("hpcc gc --verify moves a damaged tree away; the next run unpacks the image again")
	}
	if err != nil {
		return err
	}
	if w.given("entrypoint") {
		img.Config.Entrypoint = nil
		if e := w.text("entrypoint"); e != "" {
			img.Config.Entrypoint, img.Config.Cmd = []string{e}, nil
		}
	}
	o.Architecture = img.Architecture
	spec, err := runtime.Spec(root, img.Config, o)
	if err != nil {
		return w.blame(fmt.Errorf("running %s: %w", c.Args().First(), err))
	}
	if err := addDevices(w, spec); err != nil {
		return w.blame(fmt.Errorf("running %s: %w", c.Args().First(), err))
	}
	vars, err := envfile.Apply(without(spec.Process.Env, "HPCC_RUNNING"), w.env(env), !w.yes("env-no-expand"))
	if err != nil {
		return w.blame(fmt.Errorf("running %s: %w", c.Args().First(), err))
	}
	spec.Process.Env = append(without(vars, "HPCC_RUNNING"), "HPCC_RUNNING=1")
	devices.Search(spec)
	if other := c.String("runtime"); other != "" {
		return handOver(other, spec)
	}
	if err := runtime.Exec(spec); err != nil {
		return w.blame(fmt.Errorf("running %s: %w", c.Args().First(), err))
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

func otherRuntimeFlag() cli.Flag {
	return &cli.StringFlag{Name: "runtime", Usage: "hand over to the OCI runtime `NAME` (crun, runc) instead"}
}

// handOver runs the spec by another runtime.
func handOver(name string, s *specs.Spec) error {
	dir, err := stateDir("", true)
	if err == nil {
		err = runtime.HandOver(name, filepath.Join(dir, "bundles"), s)
	}
	var re *process.Error
	var m *message
	if errors.As(err, &m) || errors.As(err, &re) {
		return err
	}
	return fmt.Errorf("running with --runtime %s: %w", name, err)
}
