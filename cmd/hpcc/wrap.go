package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"hpcc/front/wrapper"
	"hpcc/runtime/root"
	"hpcc/runtime/runconf"
	"hpcc/store"
	"hpcc/store/ready"
)

func wrapCommand() *cli.Command {
	return &cli.Command{
		Name: "wrap", Usage: "write programs of an image as files for PATH, and a module file", ArgsUsage: "IMAGE DIR [PROGRAM...]",
		Description: `Writes a small executable file in DIR/bin for each PROGRAM, which runs it in IMAGE, and a module file
in DIR/modulefiles. "#!DIR/bin/python", job scripts, dask-jobqueue, submitit and Parsl use these files
as programs of the host. PROGRAM is a name, a pattern or a path in the image.

   hpcc wrap sci ~/sci
   ~/sci/bin/python main.py
   module use ~/sci/modulefiles && module load sci

For a conda environment, the programs see all files of the host and, in them, the environment in
/opt/conda. They can start the host's programs. Without PROGRAM, these are Python, pip, R, the entry
points of Python packages, and the programs of packages that no other package needs.`,
		// All variables may expand others, because PATH does.
		Flags: slices.Concat([]cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "write all programs of the image's PATH"},
			&cli.StringFlag{Name: "module", Usage: "name the module `NAME/VERSION` (default: the image's name and tag)"},
			&cli.StringFlag{Name: "only", Usage: "mount only directory `DIR` of the image (default /opt/conda)"},
			&cli.BoolFlag{Name: "image-root", Usage: "run in all files of the image, as hpcc run does"},
			&cli.StringSliceFlag{Name: "bind", Aliases: []string{"b"}, Usage: "bind host path `SRC`[:DST[:ro]]"},
			&cli.BoolFlag{Name: "gpu", Usage: "make the GPUs and their driver libraries available"},
		}, slices.DeleteFunc(new(envChanges).flags(),
			func(f cli.Flag) bool { return f.Names()[0] == "env-no-expand" }), []cli.Flag{stageFlag(), storeFlag()}),
		Action: action(parseWrap),
	}
}

// wrapArgs is the command line of "hpcc wrap".
type wrapArgs struct {
	root root.Image
	wrapper.Options
}

func parseWrap(c *cli.Context) (*wrapArgs, error) {
	args, err := parseArguments(c, 2, math.MaxInt, "IMAGE DIR [PROGRAM...]")
	if err != nil {
		return nil, err
	}
	a := &wrapArgs{newRoot(args[0], c.String("store")), wrapper.Options{
		Patterns: args[2:], All: c.Bool("all"), Module: c.String("module"), Only: c.String("only"), ImageRoot: c.Bool("image-root"),
	}}
	if a.Dir, err = filepath.Abs(args[1]); err != nil {
		return nil, err
	}
	if a.Module == "" {
		a.Module = wrapper.DefaultModule(a.root.Name)
	}
	if err := a.Check(); err != nil {
		return nil, err
	}
	if err := parseRunCheck(c); err != nil {
		return nil, err
	}
	a.Flags, err = parseAbsolute(c, runFlags(new(envChanges)))
	return a, err
}

func (a *wrapArgs) run(ctx context.Context) error {
	tree, store, done, err := readable(ctx, &a.root)
	if err != nil {
		return err
	}
	defer done()
	if a.Image = a.root.Name; store != "" {
		a.Flags = append([]string{"--store=" + store}, a.Flags...)
	}
	if a.Hpcc, err = os.Executable(); err != nil {
		return err
	}
	written, notes, err := wrapper.Write(ctx, tree, a.Options)
	sayNotes(notes)
	if err != nil {
		return err
	}
	for _, file := range written {
		fmt.Println(file)
	}
	say("to use them: module use %s && module load %s", filepath.Join(a.Dir, "modulefiles"), a.Module)
	return nil
}

// readable returns the image's directory, or one with the files of a SquashFS file that [wrapper.Skeleton]
// selects. It makes the image a name or an absolute path; store is the directory of the store for a
// name. done removes temporary files.
func readable(ctx context.Context, r *root.Image) (dir, storeDir string, done func(), err error) {
	if ready.NamesImageFile(r.Name) {
		if r.Name, err = filepath.Abs(r.Name); err != nil {
			return "", "", nil, err
		}
		dir, done, err = wrapper.Skeleton(ctx, r.Name)
		return dir, "", done, err
	}
	if dir, err = r.Tree(ctx); err != nil {
		return "", "", nil, err
	}
	if dir == r.Name { // not a name
		if r.Name, err = filepath.Abs(r.Name); err != nil {
			return "", "", nil, err
		}
		return r.Name, "", func() {}, nil
	}
	s, err := store.OpenToRead(r.Store)
	if err != nil {
		return "", "", nil, err
	}
	storeDir, err = filepath.Abs(s.Dir())
	return dir, storeDir, func() {}, err
}

// isWrapped reports whether the kernel started hpcc as the interpreter of a wrapper.
func isWrapped(argv []string) bool { return len(argv) > 2 && argv[1] == runconf.WrappedCommand }
