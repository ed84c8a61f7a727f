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
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hpcc/files"
	"hpcc/runtime/runconf"
	"hpcc/text"
)

// Options describe the wrappers. Paths are absolute.
type Options struct {
	Hpcc   string   // the program hpcc
	Dir    string   // directory of the wrappers
	Image  string   // as the user knows it
	Run    []string // flags of "hpcc run" and the image
	Module string   // NAME/VERSION
}

// A Program is a program of an image that gets a wrapper.
type Program struct {
	Name   string
	argv   []string // inside the container
	argv0  string   // as in package runconf
	python string   // path of the Python interpreter that runs it; "" for none
}

// Write writes the wrappers and module files. Each file is replaced as a whole. Wrappers that an
// earlier call wrote for other programs are removed, after the new ones exist.
func Write(programs []Program, o Options) error {
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
func (p Program) text(o Options) (string, error) {
	var b strings.Builder
	first := o.Hpcc + " " + runconf.WrappedCommand
	if len(first) <= maxInterpreter && !strings.ContainsAny(o.Hpcc, " \t\n") {
		fmt.Fprintf(&b, "#!%s\n", first)
	} else {
		fmt.Fprintf(&b, "#!/bin/sh\n%s%s %s \"$0\" \"$@\"\n", runconf.NoArguments, text.Quote(o.Hpcc), runconf.WrappedCommand)
	}
	fmt.Fprintf(&b, "%s Run it again to change this file.\n", mark)
	args := slices.Concat(o.Run, []string{"--"}, p.argv)
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
