package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/front"
	"hpcc/runtime"
	"hpcc/text"
)

func installFrontsCommand() *cli.Command {
	return &cli.Command{
		Name: "install-fronts", Usage: "install hpcc under the names of other container programs", ArgsUsage: "DIR [NAME...]",
		Description: `Links the names docker, apptainer, singularity, ch-run, ch-image and ch-convert, or only
those given, in DIR to this hpcc. Workflow tools that call these programs then run containers with hpcc:

   hpcc install-fronts ~/fronts
   PATH=~/fronts:$PATH snakemake --use-singularity

hpcc translates their options to its own. It refuses an option whose meaning it cannot keep.`,
		Action: action(parseInstallFronts),
	}
}

type installFrontsArgs struct {
	dir   string
	names []string
}

func parseInstallFronts(c *cli.Context) (*installFrontsArgs, error) {
	args, err := parseArguments(c, 1, 1+len(front.Names()), "DIR [NAME...]")
	if err != nil {
		return nil, err
	}
	a := &installFrontsArgs{dir: args[0], names: args[1:]}
	for _, n := range a.names {
		if !slices.Contains(front.Names(), n) {
			return nil, text.Usagef("hpcc does not replace %q", n).Hint("choose from %s", strings.Join(front.Names(), ", "))
		}
	}
	if len(a.names) == 0 {
		a.names = front.Names()
	}
	return a, nil
}

func (a *installFrontsArgs) run(context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(a.dir, 0o777); err != nil {
		return fmt.Errorf("making the directory of the links: %w", err)
	}
	for _, n := range a.names {
		if err := link(self, filepath.Join(a.dir, n)); err != nil {
			return err
		}
		fmt.Println(filepath.Join(a.dir, n))
	}
	return nil
}

// link creates a symbolic link, or replaces one that names another hpcc. It keeps other files.
func link(target, name string) error {
	old, err := os.Readlink(name)
	switch {
	case err == nil && old == target:
		return nil
	case err == nil && filepath.Base(old) == "hpcc":
		if err := os.Remove(name); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return text.Hint(fmt.Errorf("%s exists and is not a link to hpcc", name), "give another directory, or remove the file")
	}
	return os.Symlink(target, name)
}

// isFront reports whether hpcc was called by the name of another program.
func isFront(argv0 string) bool { return slices.Contains(front.Names(), filepath.Base(argv0)) }

// runFront executes a command line of another program. Its commands are processes of their own,
// and the last one replaces this process.
func runFront(ctx context.Context, args []string) error {
	r, err := front.Read(filepath.Base(args[0]), args[1:], os.Environ())
	var no *front.Refusal
	if errors.As(err, &no) {
		m := &text.Error{Err: err, Status: cmp.Or(no.Status, text.StatusUsage)}
		if no.Advice != "" {
			return m.Hint("%s", no.Advice)
		}
		return m
	}
	if err != nil {
		return err
	}
	err = prepareFront(r)
	if err == nil {
		err = runCommands(ctx, r.Commands)
	}
	if r.Failed == 0 {
		return err
	}
	if errors.As(err, new(exitStatus)) { // of an earlier command, which must not look like the last one's
		return exitStatus(r.Failed)
	}
	return atStatus(r.Failed, err)
}

// runCommands executes the commands of a front. It returns after the last one only if this process
// has something to do after it.
func runCommands(ctx context.Context, commands []front.Command) error {
	for i, c := range commands {
		if c.Missing != "" && hasImage(os.Getenv("HPCC_STORE"), c.Missing, c.Platform) {
			continue
		}
		isLast := i == len(commands)-1
		if isLast && c.Wrote == "" && c.Stdin == "" && !c.Quiet {
			return runtime.Again(append([]string{"hpcc"}, c.Args...))
		}
		if err := runChild(ctx, c, isLast); err != nil {
			return err
		}
	}
	return nil
}

// runChild runs a command of a front as a process of its own. Only the last command of a front
// writes to standard output.
func runChild(ctx context.Context, c front.Command, isLast bool) error {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args, cmd.Stdin, cmd.Stdout, cmd.Stderr = append([]string{"hpcc"}, c.Args...), os.Stdin, os.Stderr, os.Stderr
	if isLast {
		cmd.Stdout = os.Stdout
	}
	if c.Stdin != "" {
		cmd.Stdin = strings.NewReader(c.Stdin)
	}
	var messages bytes.Buffer
	if c.Quiet {
		cmd.Stderr = &messages
	}
	err := cmd.Run()
	var status *exec.ExitError
	if errors.As(err, &status) {
		_, _ = os.Stderr.Write(messages.Bytes())
		return exitStatus(status.ExitCode()) // it has printed its error
	}
	if err == nil && c.Wrote != "" {
		if err := os.Rename(c.Wrote, c.Final); err != nil {
			return fmt.Errorf("naming the file that %q wrote: %w", "hpcc "+c.Args[0], err)
		}
	}
	return err
}

// prepareFront prints the output of a command line of another program, and prepares this process
// for its commands.
func prepareFront(r *front.Request) error {
	if _, err := io.WriteString(os.Stdout, r.Output); err != nil {
		return err
	}
	for _, n := range r.Notes {
		say("%s", n)
	}
	for _, path := range r.Make {
		if err := makePath(path); err != nil {
			return fmt.Errorf("creating a missing directory or mount point: %w", err)
		}
	}
	for _, kv := range r.Env {
		name, value, ok := strings.Cut(kv, "=")
		err := os.Unsetenv(name)
		if ok {
			err = os.Setenv(name, value)
		}
		if err != nil {
			return fmt.Errorf("setting variable %s: %w", name, err)
		}
	}
	if r.Umask != 0 {
		syscall.Umask(r.Umask)
	}
	if r.NoStdin {
		if err := closeStdin(); err != nil {
			return fmt.Errorf("opening %s: %w", os.DevNull, err)
		}
	}
	if r.Dir != "" {
		return os.Chdir(r.Dir)
	}
	return nil
}

// closeStdin replaces standard input with an empty file.
func closeStdin() error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	return syscall.Dup3(int(null.Fd()), int(os.Stdin.Fd()), 0)
}

// makePath creates an empty file, or a directory if the path ends in "/". It keeps existing ones.
func makePath(path string) error {
	if strings.HasSuffix(path, "/") {
		return os.MkdirAll(path, 0o777)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o666)
	if errors.Is(err, fs.ErrPermission) {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// hasImage reports whether a store has an image for a platform; "" is any.
func hasImage(dir, name, platform string) bool {
	var p *v1.Platform
	if platform != "" {
		var err error
		if p, err = v1.ParsePlatform(platform); err != nil {
			return false
		}
	}
	_, err := namedImage(dir, name, p)
	return err == nil
}
