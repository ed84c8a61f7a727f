package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"hpcc/runtime/oci"
	"hpcc/runtime/process"
	"hpcc/text"
)

// ociName is the name of a link to hpcc that makes it an OCI runtime. Container engines run
// "RUNTIME create …", so they cannot run "hpcc oci create …".
const ociName = "hpcc-oci"

// ociCommand returns the command that serves container engines as an OCI runtime. Its command
// line is that of runc, which all engines support.
func ociCommand() *cli.Command {
	return &cli.Command{
		Name: "oci", Usage: "serve Slurm or Podman as an OCI runtime", ArgsUsage: "COMMAND [ARG...]",
		Description: `Runs OCI bundles with the command line of runc, so that Slurm's oci.conf and "podman --runtime"
can use hpcc. A link to hpcc named hpcc-oci does the same without the word "oci".

   hpcc unpack --bundle base ./bundle
   hpcc oci run --bundle ./bundle mine`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "root", Usage: "keep state in `DIR` (default $XDG_RUNTIME_DIR/hpcc)"},
			&cli.StringFlag{Name: "log", Usage: "also write errors and omissions to `FILE`"},
			&cli.StringFlag{Name: "log-format", Value: "text", Usage: "write the log as `FORMAT`: text or json"},
			&cli.BoolFlag{Name: "debug", Usage: "accepted: hpcc has no more messages"},
			&cli.BoolFlag{Name: "systemd-cgroup", Usage: "accepted: hpcc creates no control groups"},
			&cli.StringFlag{Name: "cgroup-manager", Usage: "accepted: hpcc creates no control groups"},
			&cli.StringFlag{Name: "rootless", Usage: "accepted: hpcc is always rootless"},
		},
		Subcommands: ociCommands(),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return parseOCILog(c).Failed(text.Usagef("oci %s: unknown command; hpcc has no control groups and no checkpoints", c.Args().First()).
					Hint(`"hpcc oci --help" lists the commands`))
			}
			return printHelp(c.App.Writer, c.Command, false, "")
		},
	}
}

func ociCommands() []*cli.Command {
	bundle := []cli.Flag{
		&cli.StringFlag{Name: "bundle", Aliases: []string{"b"}, Value: ".", Usage: "run the bundle in `DIR`"},
		&cli.StringFlag{Name: "pid-file", Usage: "write the process ID to `FILE`"},
		&cli.StringFlag{Name: "console-socket", Usage: "send the console to `SOCKET`"},
		&cli.IntFlag{Name: "preserve-fds", Usage: "keep `N` more file descriptors open"},
		&cli.BoolFlag{Name: "no-pivot", Usage: "accepted: hpcc finds out itself whether it can pivot"},
		&cli.BoolFlag{Name: "no-new-keyring", Usage: "accepted: hpcc never makes a keyring"},
		&cli.BoolFlag{Name: "no-subreaper", Usage: "accepted: hpcc is never a subreaper"},
	}
	all := &cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "signal every process of the container"}
	force := &cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "kill the container first if it runs"}
	return []*cli.Command{
		ociSub("state", "print a container's state as JSON", "ID", 1, nil, func(k *oci.Containers, a *ociArgs) error {
			s, err := k.State(a.args[0])
			if err != nil {
				return err
			}
			return printJSON(s)
		}),
		ociSub("create", "create a container", "ID", 1, bundle, func(k *oci.Containers, a *ociArgs) error {
			return k.Create(a.args[0], a.create)
		}),
		ociSub("start", "start the program of a created container", "ID", 1, nil, func(k *oci.Containers, a *ociArgs) error {
			return k.Start(a.args[0])
		}),
		ociSub("run", "create a container and replace hpcc with its program", "ID", 1, bundle, func(k *oci.Containers, a *ociArgs) error {
			return atStatus(process.ExitFailed, k.Run(a.args[0], a.create))
		}),
		ociSub("exec", "run another program in a container", "ID", 1, []cli.Flag{
			&cli.StringFlag{Name: "process", Aliases: []string{"p"}, Required: true, Usage: "run the process that `FILE` specifies"},
			&cli.StringFlag{Name: "pid-file", Usage: "write the process ID to `FILE`"},
			&cli.StringFlag{Name: "console-socket", Usage: "send the console to `SOCKET`"},
			&cli.IntFlag{Name: "preserve-fds", Usage: "keep `N` more file descriptors open"},
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "return when the program has started"},
			&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "accepted: --process specifies it"},
		}, func(k *oci.Containers, a *ociArgs) error {
			return k.Exec(a.args[0], a.exec)
		}),
		ociSub("kill", "send a signal (default TERM) to a container", "ID [SIGNAL]", 2, []cli.Flag{all},
			func(k *oci.Containers, a *ociArgs) error {
				sig, err := oci.ParseSignal(append(a.args, "TERM")[1])
				if err != nil {
					return err
				}
				return k.Kill(a.args[0], sig, a.all)
			}),
		ociSub("delete", "delete a container that has ended", "ID", 1, []cli.Flag{force}, func(k *oci.Containers, a *ociArgs) error {
			return k.Delete(a.args[0], a.force)
		}),
		ociSub("list", "print the state of every container as JSON", "", 0, []cli.Flag{
			&cli.StringFlag{Name: "format", Aliases: []string{"f"}, Value: "json", Usage: "accept `json` only"},
		}, func(k *oci.Containers, a *ociArgs) error {
			list, err := k.List()
			if err != nil {
				return err
			}
			return printJSON(list)
		}),
		ociSub("features", "print the supported features of the runtime specification", "", 0, nil,
			func(k *oci.Containers, a *ociArgs) error {
				return printJSON(oci.Features())
			}),
	}
}

// ociSub returns one command with one to max arguments, or without arguments if max is 0. do
// runs it.
func ociSub(name, usage, args string, max int, flags []cli.Flag, do func(*oci.Containers, *ociArgs) error) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: args, Flags: flags, OnUsageError: usageError, HideHelpCommand: true,
		Action: action(func(c *cli.Context) (*ociArgs, error) {
			a := parseOCI(c, name)
			a.do = do
			if len(a.args) > max || (max > 0 && len(a.args) == 0) {
				return nil, a.log.Failed(text.Usagef("oci %s takes %s", name, cmp.Or(args, "no arguments")).
					Hint(`"hpcc oci %s --help" lists its flags`, name))
			}
			return a, nil
		}),
	}
}

// ociArgs is the command line of "hpcc oci COMMAND". Flags that the command does not have are
// zero.
type ociArgs struct {
	command    string
	args       []string // the ID, and for kill the signal
	root       string   // the state directory; "" for the default
	log        oci.Log
	create     oci.CreateOptions
	exec       oci.ExecOptions
	all, force bool
	do         func(*oci.Containers, *ociArgs) error
}

func parseOCI(c *cli.Context, command string) *ociArgs {
	pidFile, console, keep := c.String("pid-file"), c.String("console-socket"), c.Int("preserve-fds")
	return &ociArgs{
		command: command, args: c.Args().Slice(), root: c.String("root"), log: parseOCILog(c), all: c.Bool("all"), force: c.Bool("force"),
		create: oci.CreateOptions{Bundle: c.String("bundle"), PidFile: pidFile, ConsoleSocket: console, PreserveFDs: keep},
		exec: oci.ExecOptions{Process: c.String("process"), PidFile: pidFile, ConsoleSocket: console, PreserveFDs: keep,
			Detach: c.Bool("detach")},
	}
}

func (a *ociArgs) run(context.Context) error {
	k, err := oci.Open(a.root, a.command == "create" || a.command == "run")
	if err != nil {
		return a.log.Failed(err)
	}
	k.Note = func(s string) {
		if err := a.log.Write("warning", s); err != nil {
			say("warning: %v", err)
		}
	}
	return a.log.Failed(a.do(k, a))
}

func parseOCILog(c *cli.Context) oci.Log {
	return oci.Log{File: c.String("log"), JSON: c.String("log-format") == "json"}
}

// printJSON prints v as indented JSON.
func printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		_, err = fmt.Println(string(b))
	}
	return err
}

// ociArgv converts the command line of an OCI runtime to one that the parser accepts. It adds
// "hpcc oci", and moves flags before the other arguments, because engines write them anywhere
// ("run ID -b BUNDLE").
func ociArgv(args []string) []string {
	if len(args) > 0 && filepath.Base(args[0]) == ociName {
		args = append([]string{"hpcc", "oci"}, args[1:]...)
		if len(args) == 3 && (args[2] == "--version" || args[2] == "-v") {
			return []string{"hpcc", "--version"}
		}
	}
	if len(args) < 2 || args[1] != "oci" {
		return args
	}
	at, oci := skipFlags(args, 2, ociCommand().Flags), ociCommands()
	for _, sub := range oci {
		if at >= len(args) || sub.Name != args[at] {
			continue
		}
		var flags, rest []string
		for i := at + 1; i < len(args); {
			n := skipFlags(args, i, sub.Flags)
			if flags = append(flags, args[i:n]...); n < len(args) {
				rest = append(rest, args[n])
			}
			i = n + 1
		}
		return append(append(args[:at+1:at+1], flags...), rest...)
	}
	return args
}

// skipFlags returns the index of the first argument from i on that is neither a flag nor the
// value of a flag.
func skipFlags(args []string, i int, flags []cli.Flag) int {
	i = eachFlag(args, i, flags, func(cli.Flag, []string) {})
	if i < len(args) && args[i] == "--" {
		return skipFlags(args, i+1, flags)
	}
	return i
}
