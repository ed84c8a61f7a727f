package front

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"hpcc/runtime"
	"hpcc/text"
)

// Install links names of programs in a directory to the program hpcc, and returns the links. No names
// mean all [Names]. It replaces links to another hpcc, and no other files.
func Install(hpcc, dir string, names []string) (links []string, err error) {
	if len(names) == 0 {
		names = Names()
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("making the directory of the links: %w", err)
	}
	for _, n := range names {
		name := filepath.Join(dir, n)
		if err := link(hpcc, name); err != nil {
			return links, err
		}
		links = append(links, name)
	}
	return links, nil
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

// CheckNames returns an error if hpcc does not replace one of the programs.
func CheckNames(names []string) error {
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return text.Usagef("hpcc does not replace %q", n).Hint("choose from %s", strings.Join(Names(), ", "))
		}
	}
	return nil
}

// Run prepares this process for the commands of a request, and executes them. The last command replaces
// this process, unless something has to be done after it; the others are processes of their own. Run
// returns an [exec.ExitError] for a command that has failed and printed the reason. hasImage reports
// whether the store has an image for a platform; "" is any.
func (r *Request) Run(ctx context.Context, hasImage func(name, platform string) bool) error {
	if err := r.prepare(); err != nil {
		return err
	}
	for i, c := range r.Commands {
		if c.Missing != "" && hasImage(c.Missing, c.Platform) {
			continue
		}
		isLast := i == len(r.Commands)-1
		if isLast && c.Wrote == "" && c.Stdin == "" && !c.Quiet {
			return runtime.Again(append([]string{"hpcc"}, c.Args...))
		}
		if err := c.run(ctx, isLast); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command as a process of its own. Only the last command of a request writes to standard
// output.
func (c *Command) run(ctx context.Context, isLast bool) error {
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
	if errors.As(err, new(*exec.ExitError)) {
		_, _ = os.Stderr.Write(messages.Bytes())
		return err
	}
	if err == nil && c.Wrote != "" {
		if err := os.Rename(c.Wrote, c.Final); err != nil {
			return fmt.Errorf("naming the file that %q wrote: %w", "hpcc "+c.Args[0], err)
		}
	}
	return err
}

// prepare creates missing paths, and gives this process the environment, mask, standard input and
// directory of the commands.
func (r *Request) prepare() error {
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
