package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/front/kernel"
	"hpcc/front/wrapper"
	"hpcc/runtime"
	"hpcc/runtime/inherit"
	"hpcc/runtime/process"
	"hpcc/runtime/runconf"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
	"hpcc/unpack/squashfs"
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
		}, slices.DeleteFunc(new(envChanges).flags(), func(f cli.Flag) bool { return f.Names()[0] == "env-no-expand" }), []cli.Flag{stageFlag(), storeFlag()}),
		Action: action(parseWrap),
	}
}

// wrapArgs is the command line of "hpcc wrap".
type wrapArgs struct {
	root      rootArgs
	dir       string
	patterns  []string
	all       bool
	module    string
	only      string
	imageRoot bool
	given     []string // flags for "hpcc run"
}

// moduleName matches the name and version of a module.
var moduleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*/[A-Za-z0-9][A-Za-z0-9._+-]*$`)

func parseWrap(c *cli.Context) (*wrapArgs, error) {
	args, err := parseArguments(c, 2, math.MaxInt, "IMAGE DIR [PROGRAM...]")
	if err != nil {
		return nil, err
	}
	a := &wrapArgs{
		root: rootArgs{image: args[0], store: c.String("store")}, patterns: args[2:], all: c.Bool("all"),
		module: c.String("module"), only: c.String("only"), imageRoot: c.Bool("image-root"),
	}
	if a.dir, err = filepath.Abs(args[1]); err != nil {
		return nil, err
	}
	switch {
	case a.all && len(a.patterns) > 0:
		return nil, text.Usagef("--all and PROGRAM contradict each other").Hint("use only one of them")
	case a.imageRoot && a.only != "":
		return nil, text.Usagef("--image-root and --only contradict each other").Hint("use only one of them")
	}
	if a.module == "" {
		a.module = defaultModule(a.root.image)
	}
	if !moduleName.MatchString(a.module) {
		return nil, text.Usagef("--module %q is not NAME/VERSION", a.module).Hint("use letters, digits and . _ + - in both parts")
	}
	if err := parseRunCheck(c); err != nil {
		return nil, err
	}
	a.given, err = parseAbsolute(c, runFlags(new(envChanges)))
	return a, err
}

// defaultModule returns the module's name and version for an image.
func defaultModule(image string) string {
	base := path.Base(filepath.ToSlash(image))
	if namesSquashFS(image) {
		base = strings.TrimSuffix(base, path.Ext(base))
	}
	base, _, _ = strings.Cut(base, "@")
	name, tag, ok := strings.Cut(base, ":")
	if !ok || tag == "" {
		tag = "latest"
	}
	return name + "/" + tag
}

func (a *wrapArgs) run(ctx context.Context) error {
	tree, done, err := a.tree(ctx)
	if err != nil {
		return err
	}
	defer done()
	img, err := runtime.ReadImage(tree, unpack.ConfigFile)
	if err != nil {
		return err
	}
	s, err := a.selection(tree, envfile.Lookup(img.Config.Env, "PATH"))
	if err != nil {
		return err
	}
	programs, err := wrapper.Select(s, a.dir)
	if err != nil {
		if like := similarProgram(s); like != "" {
			return text.Hint(fmt.Errorf("wrapping %s: %w", a.root.image, err), "did you mean %q?", like)
		}
		return text.Hint(fmt.Errorf("wrapping %s: %w", a.root.image, err), "hpcc wrap IMAGE DIR PROGRAM...; --all writes all programs")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o := wrapper.Options{Hpcc: self, Dir: a.dir, Image: a.root.image, Run: append(a.flags(), a.root.image), Module: a.module}
	if err := wrapper.Write(programs, o); err != nil {
		return err
	}
	notes, err := wrapper.FindPrefixes(ctx, tree, programs, o)
	sayNotes(notes)
	if err != nil {
		return err
	}
	for _, p := range programs {
		fmt.Println(filepath.Join(a.dir, "bin", p.Name))
	}
	say("to use them: module use %s && module load %s", filepath.Join(a.dir, "modulefiles"), a.module)
	return nil
}

// similarProgram returns the program that the user of a name that the image lacks probably means, or "".
func similarProgram(s wrapper.Selection) string {
	var dirs []string
	for _, d := range s.Path {
		if dir, err := securejoin.SecureJoin(s.Tree, d); err == nil {
			dirs = append(dirs, dir)
		}
	}
	for _, p := range s.Patterns {
		missing := !slices.ContainsFunc(dirs, func(d string) bool { _, err := os.Lstat(filepath.Join(d, p)); return err == nil })
		if like := text.NearestEntry(p, dirs...); missing && like != "" {
			return like
		}
	}
	return ""
}

// tree returns the image's directory, and makes the image of a.root a name or an absolute path. done
// removes temporary files.
func (a *wrapArgs) tree(ctx context.Context) (dir string, done func(), err error) {
	dir, store, done, err := a.root.readable(ctx)
	if store != "" {
		a.given = append([]string{"--store=" + store}, a.given...)
	}
	return dir, done, err
}

// readable returns the image's directory, or one with the files of a SquashFS file that addToSkeleton
// selects. It makes the image a name or an absolute path; store is the directory of the store for a
// name. done removes temporary files.
func (r *rootArgs) readable(ctx context.Context) (dir, storeDir string, done func(), err error) {
	if namesSquashFS(r.image) {
		if r.image, err = filepath.Abs(r.image); err != nil {
			return "", "", nil, err
		}
		dir, done, err = skeleton(ctx, r.image)
		return dir, "", done, err
	}
	if dir, err = r.imageDir(ctx); err != nil {
		return "", "", nil, err
	}
	if dir == r.image { // not a name
		if r.image, err = filepath.Abs(r.image); err != nil {
			return "", "", nil, err
		}
		return r.image, "", func() {}, nil
	}
	s, err := store.OpenToRead(r.store)
	if err != nil {
		return "", "", nil, err
	}
	storeDir, err = filepath.Abs(s.Dir())
	return dir, storeDir, func() {}, err
}

// selection returns the selection of programs in the image's directory, whose PATH is given. It
// decides whether the programs run over the host's files.
func (a *wrapArgs) selection(tree, list string) (wrapper.Selection, error) {
	s := wrapper.Selection{Tree: tree, Patterns: a.patterns, All: a.all, Path: filepath.SplitList(list)}
	if list == "" {
		s.Path = filepath.SplitList(runtime.StandardPath)
	}
	if st, err := os.Stat(filepath.Join(tree, condaPrefix, "conda-meta")); err == nil && st.IsDir() {
		s.Prefix = condaPrefix
	}
	if a.only == "" && !a.imageRoot {
		a.only = s.Prefix
	}
	if a.only == "" {
		return s, nil
	}
	a.only = path.Clean(a.only)
	outside := func(dir string) bool { return dir != a.only && !strings.HasPrefix(dir, a.only+"/") }
	s.Path = slices.DeleteFunc(s.Path, outside)
	if bin := path.Join(a.only, "bin"); !slices.Contains(s.Path, bin) {
		s.Path = append(s.Path, bin)
	}
	for _, p := range a.patterns {
		if path.IsAbs(p) && outside(p) {
			return s, text.Usagef("%s is outside %s, the only directory of the image that wrappers mount", p, a.only).Hint("--image-root runs programs in all files of the image")
		}
	}
	return s, nil
}

// condaPrefix is the prefix of conda environments in images.
const condaPrefix = "/opt/conda"

// flags returns the flags of "hpcc run" for all wrappers.
func (a *wrapArgs) flags() []string {
	bin := filepath.Join(a.dir, "bin")
	out := []string{"--entrypoint=", "--bind=" + bin + ":" + filepath.Join(a.dir, ".inside")}
	if a.only != "" {
		out = append([]string{"--no-config", "--only=" + a.only}, out...)
	} else {
		out = append([]string{"--bind=" + a.dir}, out...)
	}
	return slices.Concat(out, []string{"--set-env=PATH=" + bin + ":$PATH"}, a.given)
}

// skeleton writes some files of a SquashFS file to a temporary directory: links, programs without most
// of their content, records of packages, and kernelspecs.
func skeleton(ctx context.Context, file string) (dir string, done func(), err error) {
	if dir, err = os.MkdirTemp("", "hpcc-wrap-"); err != nil {
		return "", nil, err
	}
	done = func() { os.RemoveAll(dir) }
	root, err := os.OpenRoot(dir)
	if err == nil {
		defer root.Close()
		err = squashfs.Walk(ctx, file, func(h *tar.Header, r io.Reader) error { return addToSkeleton(root, h, r) })
	}
	if err != nil {
		done()
		return "", nil, fmt.Errorf("reading the programs of %s: %w", file, err)
	}
	return dir, done, nil
}

func addToSkeleton(root *os.Root, h *tar.Header, r io.Reader) error {
	name := strings.Trim(path.Clean("/"+h.Name), "/")
	limit := int64(1 << 10)
	switch {
	case h.Typeflag == tar.TypeSymlink:
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		return root.Symlink(h.Linkname, name)
	case h.Typeflag != tar.TypeReg:
		return nil
	case name == unpack.ConfigFile, path.Base(path.Dir(name)) == "conda-meta":
		limit = 64 << 20
	case strings.Contains(name, kernel.Dir+"/"):
		limit = 1 << 20
	case h.Mode&0o111 == 0:
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, io.LimitReader(r, limit)); err != nil {
		return err
	}
	return f.Chmod(os.FileMode(h.Mode&0o111 | 0o600))
}

// isWrapped reports whether the kernel started hpcc as the interpreter of a wrapper.
func isWrapped(argv []string) bool { return len(argv) > 2 && argv[1] == runconf.WrappedCommand }

// runWrapped executes the program of a wrapper: directly inside its container, or else with "hpcc
// run". Usually package bare does it.
func runWrapped(argv []string) error {
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
