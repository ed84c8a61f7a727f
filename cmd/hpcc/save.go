package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
)

func saveCommand() *cli.Command {
	return &cli.Command{
		Name: "save", Usage: "save an image to a file or directory", ArgsUsage: "NAME FILE",
		Description: `Saves an image as an OCI layout: a directory if FILE ends in "/" or is a directory, else a tar
archive; - is standard output. FILE.tar.gz is compressed. FILE.docker.tar becomes a docker archive,
FILE.sqfs a SquashFS file, and FILE.sif an image of Apptainer. "hpcc run FILE" runs the last two.

   hpcc save sci sci.tar
   hpcc save sci sci.sqfs`,
		Flags:  []cli.Flag{platformFlag(), storeFlag()},
		Action: action(parseSave),
	}
}

type saveArgs struct {
	name, file string
	platform   *v1.Platform // for a SquashFS or SIF file
	store      string
}

func parseSave(c *cli.Context) (*saveArgs, error) {
	args, err := parseArguments(c, 2, 2, "NAME FILE")
	if err != nil {
		return nil, err
	}
	a := &saveArgs{name: args[0], file: args[1], store: c.String("store")}
	switch {
	case a.file != "-" && checkDirectory(strings.TrimSuffix(a.file, "/")) != nil:
		err = checkDirectory(strings.TrimSuffix(a.file, "/"))
	case a.misspelled() != "":
		ext := filepath.Ext(a.file)
		err = text.Usagef("hpcc does not write %s files", ext).
			Hint("did you mean %s? A file with another extension becomes a tar archive", strings.TrimSuffix(a.file, ext)+a.misspelled())
	case a.isSquashFS() || a.isSIF():
		a.platform, err = parsePlatformFlag(c)
	case c.String("platform") != "":
		err = text.Usagef("--platform needs FILE.sqfs or FILE.sif; other files contain all platforms of an image").Hint("leave it out")
	case a.file == "-" && term.IsTerminal(int(os.Stdout.Fd())):
		err = text.Usagef("standard output is a terminal").Hint("hpcc save %s FILE.tar, or pipe the output to ssh HOST hpcc load -", a.name)
	}
	return a, err
}

func (a *saveArgs) isSquashFS() bool { return filepath.Ext(a.file) == ".sqfs" }
func (a *saveArgs) isSIF() bool      { return filepath.Ext(a.file) == ".sif" }

// misspelled returns the extension that the user of a similar one probably means, or "".
func (a *saveArgs) misspelled() string {
	known := []string{".sqfs", ".sif", ".tar", ".gz", ".tgz"}
	switch ext := filepath.Ext(a.file); {
	case slices.Contains(known, ext), len(ext) < 4:
		return ""
	case slices.Contains([]string{".squashfs", ".sfs", ".sqsh", ".squash"}, ext):
		return ".sqfs"
	case ext == ".simg", ext == ".img":
		return ".sif"
	default:
		return text.Nearest(ext, known)
	}
}

func (a *saveArgs) run(ctx context.Context) error {
	if a.isSquashFS() || a.isSIF() {
		return a.oneTree(ctx)
	}
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	switch {
	case a.file == "-":
		return s.SaveTo(ctx, a.name, os.Stdout)
	case strings.HasSuffix(a.file, ".gz") || strings.HasSuffix(a.file, ".tgz"):
		err = store.NewFile(a.file, func(f *os.File) error {
			return store.Compress(f, func(w io.Writer) error { return s.SaveTo(ctx, a.name, w) })
		})
	case strings.HasSuffix(a.file, ".docker.tar"):
		err = s.SaveDocker(a.name, a.file)
	default:
		err = s.Save(ctx, a.name, a.file)
	}
	return fullDiskHint(err, a.file)
}

// oneTree writes the image to a SquashFS or SIF file.
func (a *saveArgs) oneTree(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	img, err := s.Get(a.name, a.platform)
	if err != nil {
		return err
	}
	if s, err = store.Open(a.store); err != nil { // its tree may be unpacked into the store
		return err
	}
	if err := unpack.SaveFile(ctx, s, img, a.file, sayLine); err != nil {
		return fmt.Errorf("saving %q to %s: %w", a.name, a.file, err)
	}
	return nil
}
