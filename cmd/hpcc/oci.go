package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"hpcc/files"
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
				return parseOCILog(c).failed(text.Usagef("oci %s: unknown command; hpcc has no control groups and no checkpoints", c.Args().First()).Hint(`"hpcc oci --help" lists the commands`))
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
		ociSub("kill", "send a signal (default TERM) to a container", "ID [SIGNAL]", 2, []cli.Flag{all}, func(k *oci.Containers, a *ociArgs) error {
			sig, err := signalOf(append(a.args, "TERM")[1])
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
		ociSub("features", "print the supported features of the runtime specification", "", 0, nil, func(k *oci.Containers, a *ociArgs) error {
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
				return nil, a.log.failed(text.Usagef("oci %s takes %s", name, cmp.Or(args, "no arguments")).Hint(`"hpcc oci %s --help" lists its flags`, name))
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
	log        ociLog
	create     oci.CreateOptions
	exec       oci.ExecOptions
	all, force bool
	do         func(*oci.Containers, *ociArgs) error
}

func parseOCI(c *cli.Context, command string) *ociArgs {
	return &ociArgs{
		command: command, args: c.Args().Slice(), root: c.String("root"), log: parseOCILog(c), all: c.Bool("all"), force: c.Bool("force"),
		create: oci.CreateOptions{Bundle: c.String("bundle"), PidFile: c.String("pid-file"), ConsoleSocket: c.String("console-socket"), PreserveFDs: c.Int("preserve-fds")},
		exec: oci.ExecOptions{Process: c.String("process"), PidFile: c.String("pid-file"),
			ConsoleSocket: c.String("console-socket"), PreserveFDs: c.Int("preserve-fds"), Detach: c.Bool("detach")},
	}
}

func (a *ociArgs) run(context.Context) error {
	creates := a.command == "create" || a.command == "run"
	root, err := stateDir(a.root, creates)
	if errors.Is(err, fs.ErrNotExist) && !creates {
		return a.log.failed(a.withoutState())
	}
	if err != nil {
		return a.log.failed(err)
	}
	k := &oci.Containers{Root: root, Note: func(s string) {
		if err := a.log.write("warning", s); err != nil {
			say("warning: %v", err)
		}
	}}
	return a.log.failed(a.do(k, a))
}

// withoutState runs a command on a state directory that does not exist. Only create and run
// create one.
func (a *ociArgs) withoutState() error {
	switch {
	case a.command == "list":
		return printJSON([]struct{}{})
	case a.command == "features":
		return printJSON(oci.Features())
	case a.command == "delete" && a.force:
		return nil
	}
	return fmt.Errorf("%w: %q", oci.ErrNotExist, a.args[0])
}

// stateDir returns the directory for the states of containers: root, or else one in
// XDG_RUNTIME_DIR, or else one in the temporary directory. Its records name processes to signal and
// hooks to execute, so it must belong to the user, and no other user may be able to replace it.
// If it does not exist and create is false, the error is [fs.ErrNotExist].
func stateDir(root string, create bool) (string, error) {
	d := root
	if x := os.Getenv("XDG_RUNTIME_DIR"); d == "" && filepath.IsAbs(x) {
		d = filepath.Join(x, "hpcc")
	}
	refused := func(err error) error {
		return text.Hint(fmt.Errorf("opening the state directory: %w", err), "set XDG_RUNTIME_DIR to a directory of your own, or use --root DIR")
	}
	if d == "" {
		parent, err := files.Trusted(os.TempDir())
		if err == nil {
			d, err = files.PrivateDir(parent, "hpcc-oci-"+strconv.Itoa(os.Geteuid()), create)
		}
		if err != nil {
			return "", refused(err)
		}
		return d, nil
	}
	if st, err := os.Lstat(d); err == nil && st.IsDir() && os.Geteuid() == 0 && st.Sys().(*syscall.Stat_t).Uid != 0 {
		if err := becomeOwner(st.Sys().(*syscall.Stat_t)); err != nil {
			return "", err
		}
	}
	physical, exposed, err := files.Resolve(d)
	if errors.Is(err, fs.ErrNotExist) && create && len(exposed) == 0 {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return "", fmt.Errorf("creating the state directory: %w", err)
		}
		physical, exposed, err = files.Resolve(d)
	}
	if len(exposed) > 0 {
		return "", refused(exposed[0])
	}
	if err != nil {
		return "", refused(err)
	}
	st, err := os.Lstat(physical)
	if err != nil {
		return "", refused(err)
	}
	if st.Mode().Perm()&0o022 != 0 || int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return "", refused(fmt.Errorf("other users can write to %q", d))
	}
	return physical, nil
}

// becomeOwner switches from root to the owner of a directory. Slurm queries, kills and deletes
// the containers of a user as root. The user's records must not make root signal or remove
// anything else.
func becomeOwner(s *syscall.Stat_t) error {
	err := syscall.Setgroups(nil)
	if err == nil {
		err = syscall.Setresgid(int(s.Gid), int(s.Gid), int(s.Gid))
	}
	if err == nil {
		err = syscall.Setresuid(int(s.Uid), int(s.Uid), int(s.Uid))
	}
	if err != nil {
		return fmt.Errorf("acting as user %d, who owns the state directory: %w", s.Uid, err)
	}
	return nil
}

// An ociLog is the file in which container engines look for errors.
type ociLog struct {
	file string // "" for no log
	json bool
}

func parseOCILog(c *cli.Context) ociLog {
	return ociLog{file: c.String("log"), json: c.String("log-format") == "json"}
}

// failed writes an error to the log and returns it.
func (l ociLog) failed(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, l.write("error", err.Error()))
}

// write adds a line in the format of logrus, which runc and crun use.
func (l ociLog) write(level, text string) error {
	if l.file == "" {
		return nil
	}
	now := time.Now().Format(time.RFC3339)
	line := fmt.Sprintf("time=%q level=%s msg=%q\n", now, level, text)
	if l.json {
		b, err := json.Marshal(map[string]string{"level": level, "msg": text, "time": now})
		if err != nil {
			return err
		}
		line = string(b) + "\n"
	}
	f, err := os.OpenFile(l.file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// signalOf parses a signal: a number, or a name with or without SIG.
func signalOf(s string) (unix.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && n <= 64 {
		return unix.Signal(n), nil
	}
	name := strings.ToUpper(s)
	if n := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); n != 0 {
		return n, nil
	}
	return 0, text.Usagef("unknown signal %q", s).Hint("write a name (TERM) or a number (15)")
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
