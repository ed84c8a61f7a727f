package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/files"
	"hpcc/text"
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
	case slices.Contains([]string{".sqfs", ".sif"}, filepath.Ext(a.file)):
		a.platform, err = parsePlatformFlag(c)
	case c.String("platform") != "":
		err = text.Usagef("--platform needs FILE.sqfs or FILE.sif; other files contain all platforms of an image").Hint("leave it out")
	case a.file == "-" && term.IsTerminal(int(os.Stdout.Fd())):
		err = text.Usagef("standard output is a terminal").Hint("hpcc save %s FILE.tar, or pipe the output to ssh HOST hpcc load -", a.name)
	}
	return a, err
}

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
	return files.FullDiskHint(loader(a.store).Save(ctx, a.name, a.file, a.platform), a.file)
}
