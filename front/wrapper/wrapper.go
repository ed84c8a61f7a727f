// Package wrapper writes directories of wrappers: small executable files that run programs of an
// image, so that other programs can use them as programs of the host.
//
//	DIR/bin/NAME                     a wrapper for each program (package runconf, "Wrappers")
//	DIR/modulefiles/NAME/VERSION     a module file in Tcl, and in Lua with the extension .lua
//	DIR/.inside                      empty; it shows DIR/bin inside the container
//
// The kernel starts a wrapper as "hpcc wrapped FILE ARG...". Python gets the path of its wrapper as
// argv[0], from which it computes sys.executable: that path works inside the container, outside, and
// on other nodes.
package wrapper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hpcc/envfile"
	"hpcc/files"
	"hpcc/runtime"
	"hpcc/runtime/inherit"
	"hpcc/runtime/process"
	"hpcc/runtime/runconf"
	"hpcc/text"
	"hpcc/unpack"
)

// Options describe the wrappers. Paths are absolute.
type Options struct {
	Hpcc   string   // the program hpcc
	Dir    string   // directory of the wrappers
	Image  string   // a name, or an absolute path
	Flags  []string // of "hpcc run"
	Module string   // NAME/VERSION; see [DefaultModule]

	Patterns  []string // names, patterns of path.Match, and paths in the image; see also All
	All       bool     // all programs of the image's PATH
	Only      string   // mount only this directory of the image; "" for that of a conda environment, if it has one
	ImageRoot bool     // run in all files of the image; Only is ""
}

// Check returns an error if the options are wrong or contradict each other.
func (o *Options) Check() error {
	switch {
	case o.All && len(o.Patterns) > 0:
		return text.Usagef("--all and PROGRAM contradict each other").Hint("use only one of them")
	case o.ImageRoot && o.Only != "":
		return text.Usagef("--image-root and --only contradict each other").Hint("use only one of them")
	case !moduleName.MatchString(o.Module):
		return text.Usagef("--module %q is not NAME/VERSION", o.Module).Hint("use letters, digits and . _ + - in both parts")
	}
	return nil
}

// Write writes wrappers for programs of an image and their module files, and returns the paths of the
// wrappers. tree is the image's directory, or one with the files that [Skeleton] writes. notes are for
// the user, also after an error.
func Write(ctx context.Context, tree string, o Options) (written, notes []string, err error) {
	img, err := runtime.ReadImage(tree, unpack.ConfigFile)
	if err != nil {
		return nil, nil, err
	}
	s, err := o.selection(tree, envfile.Lookup(img.Config.Env, "PATH"))
	if err != nil {
		return nil, nil, err
	}
	programs, err := selectPrograms(s, o.Dir)
	if err != nil {
		advice := "hpcc wrap IMAGE DIR PROGRAM...; --all writes all programs"
		if like := s.similar(); like != "" {
			advice = fmt.Sprintf("did you mean %q?", like)
		}
		return nil, nil, text.Hint(fmt.Errorf("wrapping %s: %w", o.Image, err), "%s", advice)
	}
	bin := filepath.Join(o.Dir, "bin")
	flags := []string{"--entrypoint=", "--bind=" + bin + ":" + filepath.Join(o.Dir, ".inside"), "--set-env=PATH=" + bin + ":$PATH"}
	if o.Only != "" {
		flags = append([]string{"--no-config", "--only=" + o.Only}, flags...)
	} else {
		flags = append([]string{"--bind=" + o.Dir}, flags...)
	}
	o.Flags = append(flags, o.Flags...)
	if err := write(programs, o); err != nil {
		return nil, nil, err
	}
	if notes, err = findPrefixes(ctx, tree, programs, o); err != nil {
		return nil, notes, err
	}
	for _, p := range programs {
		written = append(written, filepath.Join(bin, p.Name))
	}
	return written, notes, nil
}

// A program is a program of an image that gets a wrapper.
type program struct {
	Name   string
	argv   []string // inside the container
	argv0  string   // as in package runconf
	python string   // path of the Python interpreter that runs it; "" for none
}

// write writes the wrappers and module files. Each file is replaced as a whole. Wrappers that an
// earlier call wrote for other programs are removed, after the new ones exist.
func write(programs []program, o Options) error {
	if strings.ContainsAny(o.Dir, ":\n") {
		return fmt.Errorf("writing wrappers: PATH cannot hold the directory %q", o.Dir)
	}
	bin := filepath.Join(o.Dir, "bin")
	for _, dir := range []string{bin, filepath.Join(o.Dir, ".inside")} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return fmt.Errorf("making the directory of the wrappers: %w", err)
		}
	}
	keep := map[string]bool{}
	for _, p := range programs {
		keep[p.Name] = true
		file := filepath.Join(bin, p.Name)
		if !mayReplace(file) {
			return fmt.Errorf("%s exists and is not a wrapper that hpcc wrote; give another directory, or remove the file", file)
		}
		text, err := p.text(o)
		if err != nil {
			return err
		}
		if err := files.Replace(file, []byte(text), 0o777); err != nil {
			return fmt.Errorf("writing the wrapper of %s: %w", p.Name, err)
		}
	}
	if err := writeModules(o); err != nil {
		return fmt.Errorf("writing module files: %w", err)
	}
	return removeOthers(bin, keep)
}

// mark is in the third line of every wrapper at the latest.
const mark = "# Written by hpcc wrap."

// mayReplace reports whether a file is a wrapper that hpcc wrote, or does not exist.
func mayReplace(file string) bool {
	head, err := readHead(file)
	return errors.Is(err, fs.ErrNotExist) || (err == nil && bytes.Contains(head, []byte(mark)))
}

// removeOthers removes the wrappers whose names are not in keep.
func removeOthers(bin string, keep map[string]bool) error {
	entries, err := os.ReadDir(bin)
	if err != nil {
		return fmt.Errorf("looking for old wrappers: %w", err)
	}
	for _, e := range entries {
		file := filepath.Join(bin, e.Name())
		if keep[e.Name()] || !mayReplace(file) {
			continue
		}
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("removing an old wrapper: %w", err)
		}
	}
	return nil
}

// maxInterpreter is the length of the first line of a script that all kernels accept, without "#!"
// and the end of the line (BINPRM_BUF_SIZE before Linux 5.1).
const maxInterpreter = 124

// text returns the content of the wrapper.
func (p program) text(o Options) (string, error) {
	var b strings.Builder
	first := o.Hpcc + " " + runconf.WrappedCommand
	if len(first) <= maxInterpreter && !strings.ContainsAny(o.Hpcc, " \t\n") {
		fmt.Fprintf(&b, "#!%s\n", first)
	} else {
		fmt.Fprintf(&b, "#!/bin/sh\n%s%s %s \"$0\" \"$@\"\n", runconf.NoArguments, text.Quote(o.Hpcc), runconf.WrappedCommand)
	}
	fmt.Fprintf(&b, "%s Run it again to change this file.\n", mark)
	args := slices.Concat(o.Flags, []string{o.Image, "--"}, p.argv)
	lines := []string{text.Quote(filepath.Join(o.Dir, ".inside", p.Name)) + " " + text.Quote(p.argv0)}
	for _, w := range args {
		if strings.Contains(w, "\n") {
			return "", fmt.Errorf("writing the wrapper of %s: a wrapper cannot hold the line break in %q", p.Name, w)
		}
		lines = append(lines, text.Quote(w))
	}
	b.WriteString(strings.Join(lines, "\n") + "\n")
	return b.String(), nil
}

// Exec executes the program of a wrapper: directly inside its container, or else with "hpcc run".
// argv is hpcc, [runconf.WrappedCommand], the wrapper and the arguments. Usually package bare does it.
func Exec(argv []string) error {
	args, err := runconf.ReadWrapper(argv[2])
	if err != nil {
		return text.Hint(err, "run hpcc wrap again")
	}
	inside, argv0, args := args[0], args[1], slices.Concat(args[2:], argv[3:])
	switch argv0 {
	case runconf.OwnName:
		argv0 = ""
	case runconf.WrapperName:
		argv0 = argv[2]
	}
	if _, err := os.Stat(inside); errors.Is(err, fs.ErrNotExist) {
		return runtime.Again(slices.Concat([]string{"hpcc", "run", "--argv0=" + argv0}, args))
	}
	program := args[slices.Index(args, "--")+1:]
	file := program[0]
	if argv0 != "" {
		program[0] = argv0
	}
	return process.ExecError(file, file, inherit.Exec(file, program, os.Environ()))
}
