package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/front/charliecloud"
	"hpcc/front/docker"
	"hpcc/front/scripts"
	"hpcc/runtime"
	"hpcc/runtime/caps"
	"hpcc/runtime/devices"
	"hpcc/runtime/process"
	"hpcc/runtime/root"
	"hpcc/runtime/runconf"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/unpack"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "run a program in an image",
		ArgsUsage: "IMAGE [--] [CMD [ARG...]]",
		Description: `Runs CMD in IMAGE: an image name, a directory made by "hpcc unpack", or a file whose name ends
in .sqfs (SquashFS) or .sif (Apptainer). The program replaces hpcc: it has the same process ID and
its own exit status.

   hpcc run base -- python3 main.py
   hpcc run --set-env config.env --cd dir base -- python3 main.py --id 3
   hpcc run -b /data:/mnt/data:ro base -- ls /mnt/data
   hpcc run --measure=run.jsonl base -- python3 main.py

The container sees /proc, /sys, /dev, /tmp, your home directory, the current directory, /etc/hosts
and /etc/resolv.conf of the host. The image is read-only.

Exit status: the program's; 125 if hpcc failed, 126 if the program is not executable, 127 if it
was not found.`,
		Flags:  runCommandFlags(),
		Action: programAction(parseRun),
	}
}

// runCommandFlags returns the flags of "hpcc run": the flags that jobs share, and those that only
// a run on this machine has.
func runCommandFlags() []cli.Flag {
	env := new(envChanges)
	flags := runFlags(env)
	inSection("", flagsOf(flags, containerSection)...)
	rm := []cli.Flag{&cli.BoolFlag{Name: "rm", Hidden: true, Usage: "accepted: hpcc run leaves nothing behind"}}
	only := inSection(containerSection,
		&cli.StringFlag{Name: "only", Usage: "mount only directory `DIR` of the image, over the host's files"},
		&cli.BoolFlag{Name: "explain", Usage: "print what the program would see, with its sources, and exit"},
		&cli.BoolFlag{Name: "json", Usage: "with --explain: print one JSON object"},
		&cli.StringFlag{Name: "argv0", Hidden: true, Usage: "give the program `NAME` as argv[0]"},
	)
	return slices.Concat(rm, actionFlags(), flags, only, chRunFlags(env), dockerRunFlags(), []cli.Flag{measureFlagOfRun()},
		inSection(isolationSection, storeFlag()))
}

// stagedFile is the flag for an image in a file with another extension than .sqfs and .sif. Its
// name begins like --stage, so that the process does not create namespaces before the file is
// mounted (runtime/entry.go).
const stagedFile = "staged-file"

// actionFlags are hidden flags, which the front for apptainer uses; that for docker uses one of them.
func actionFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "action", Hidden: true, Usage: "run `ACTION` of Apptainer"},
		&cli.StringSliceFlag{Name: "inject", Hidden: true, Usage: "set `NAME=VALUE` after the image's scripts"},
		&cli.BoolFlag{Name: "no-eval", Hidden: true, Usage: "do not evaluate the values of --inject"},
		&cli.StringFlag{Name: "capabilities", Hidden: true, Usage: "give the program the capabilities in `LIST` (front)"},
		&cli.BoolFlag{Name: stagedFile, Hidden: true, Usage: "IMAGE is a SquashFS or SIF file with another extension"},
	}
}

// capabilities returns those of --capabilities. Only apptainer's survive the exec of a program that is
// not root.
func capabilities(list string, isApptainer bool) (*specs.LinuxCapabilities, error) {
	options := "--cap-add or --cap-drop"
	if isApptainer {
		options = "--add-caps or --drop-caps"
	}
	set, err := caps.Parse(list)
	if err != nil {
		return nil, text.Usagef("%s: %w", options, err)
	}
	l := &specs.LinuxCapabilities{Bounding: set, Permitted: set, Effective: set}
	if isApptainer {
		l.Inheritable, l.Ambient = set, set
	}
	return l, nil
}

// parseAction returns the action of a command line, or nil.
func parseAction(c *cli.Context) *scripts.Action {
	if c.String("action") == "" {
		return nil
	}
	return &scripts.Action{Name: c.String("action"), Inject: c.StringSlice("inject"), NoEval: c.Bool("no-eval")}
}

// atStatus sets the exit status of an error of a command that runs a program, so that it differs
// from the program's own. It keeps a status that is more specific than failure or wrong usage.
func atStatus(status int, err error) error {
	var m *text.Error
	var re *process.Error
	var st exitStatus
	if err == nil || errors.As(err, &re) || errors.As(err, &st) {
		return err
	}
	if errors.As(err, &m) && m.Status != 0 && m.Status != text.StatusUsage {
		return err
	}
	if m != nil {
		m.Status = status
		return err
	}
	return &text.Error{Err: err, Status: status}
}

// notOverHost are the flags that have no meaning if the root is the host's.
var notOverHost = []string{"write", "write-fake", "uid", "gid", "seccomp", "no-home", "pid", "ipc", "hostname", "device", "mpi"}

// runArgs is the command line of "hpcc run", completed from the run.conf files.
type runArgs struct {
	root       root.Image
	options    runtime.Options
	entrypoint *string // replaces the image's ENTRYPOINT and CMD; nil keeps them
	env        []envfile.Change
	imageEnv   []int // positions in env of the image's variables; only with options.ChRun
	keepDollar bool  // do not expand $NAME in the values of env
	devices    devices.Request
	measure    string // file of the record; the measured child process parses the other flags
	defaults   []runconf.Line
	action     *scripts.Action // of the front for apptainer; nil without it
	docker     docker.Run      // of the front for docker
	explains   *explanation    // of --explain; nil without it
}

func parseRun(c *cli.Context) (*runArgs, error) {
	a, err := parseRunWith(c, runconf.Read)
	switch {
	case err != nil:
	case c.Bool("explain"):
		a.explains, err = parseExplanation(c, a)
	case c.Bool("json"):
		err = text.Usagef("--json needs --explain")
	}
	return a, err
}

// parseRunWith parses a command line of "hpcc run". read returns the lines of the run.conf files.
func parseRunWith(c *cli.Context, read func() ([]runconf.Line, error)) (_ *runArgs, err error) {
	defer setChRunStatus(c.Bool("ch-run"), &err)
	if c.NArg() == 0 {
		return nil, text.Usagef("run needs an image").Hint(`hpcc run IMAGE -- CMD; "hpcc images" lists the images`)
	}
	args := trimDashes(c.Args().Tail())
	a := &runArgs{
		root:    newRoot(c.Args().First(), c.String("store")),
		options: runtime.Options{Args: args},
		measure: c.Generic("measure").(*fileFlag).file,
	}
	if c.Bool("explain") {
		a.measure = ""
	}
	a.root.Write, a.root.IsFile = c.Bool("write"), c.Bool(stagedFile)
	if a.root.Stage, err = parseStage(c); err != nil || a.measure != "" {
		return a, err
	}
	w, err := parseRunSources(c, read)
	if err != nil {
		return nil, err
	}
	if a.options, err = w.options(args); err != nil {
		return nil, err
	}
	if err := w.join(&a.options); err != nil {
		return nil, err
	}
	if a.imageEnv = envOf(c).image; c.Bool("ch-run") {
		a.options.ChRun, a.root.Name = true, charliecloud.Image(a.root.Name)
	}
	if a.options.Only, a.options.Argv0 = c.String("only"), c.String("argv0"); a.options.Only != "" {
		for _, name := range notOverHost {
			if w.isSet(name) || c.IsSet(name) {
				return nil, text.Usagef("--%s cannot be used with --only, with which the program sees the host's files", name).
					Hint("leave one of them out")
			}
		}
	}
	if w.isSet("entrypoint") {
		e := w.text("entrypoint")
		a.entrypoint = &e
	}
	a.env, a.keepDollar, a.devices = w.env(), w.boolean("env-no-expand"), w.devices()
	a.action = parseAction(c)
	a.options.Apptainer = a.action != nil
	if c.IsSet("capabilities") {
		if a.options.Capabilities, err = capabilities(c.String("capabilities"), a.action != nil); err != nil {
			return nil, err
		}
	}
	if a.docker, err = parseDockerRun(c, &a.options); err != nil {
		return nil, err
	}
	a.defaults = w.lines
	return a, nil
}

func (a *runArgs) run(ctx context.Context) (err error) {
	defer setChRunStatus(a.options.ChRun, &err)
	if err := a.checkWrite(); err != nil {
		return err
	}
	if a.measure != "" {
		return a.measured(ctx)
	}
	root, err := a.root.Directory(ctx)
	if err != nil {
		return err
	}
	read := a.root.Config
	if a.action != nil { // it executes the scripts that the configuration of a SIF file is read from
		read = func(root string) (runtime.Image, error) { return runtime.ReadImage(root, unpack.ConfigFile) }
	}
	img, err := read(root)
	if err != nil && !ready.IsPath(a.root.Name) {
		return text.Hint(err, "hpcc gc --verify moves a damaged tree away; the next run unpacks the image again")
	}
	if err != nil {
		return err
	}
	if a.action != nil {
		if done, err := a.action.Prepare(root, &img, &a.options); done || err != nil {
			return err
		}
	}
	if a.explains != nil {
		return a.explains.print(root, img)
	}
	spec, notes, err := a.spec(root, img)
	sayNotes(notes)
	if err == nil {
		err = a.docker.Check(img.Architecture)
	}
	if err == nil {
		err = runtime.Exec(spec)
	}
	if err != nil {
		return blame(a.defaults, fmt.Errorf("running %s: %w", a.root.Name, err))
	}
	return nil
}

// checkWrite refuses "hpcc run -w DIR IMAGE" if DIR is not an image directory. In docker, -w means
// --workdir, but hpcc would take IMAGE for a program in DIR.
func (a *runArgs) checkWrite() error {
	if !a.root.Write || !ready.IsPath(a.root.Name) || len(a.options.Args) == 0 || strings.Contains(a.options.Args[0], "/") {
		return nil
	}
	for _, name := range []string{"bin", "usr", unpack.ConfigFile} {
		if _, err := os.Lstat(filepath.Join(a.root.Name, name)); err == nil {
			return nil
		}
	}
	return text.Usagef("%s is not an image directory", a.root.Name).Hint("-w is --write; --workdir DIR sets the working directory")
}

// spec returns the specification of the container, the program, its environment and devices, and
// notes for the user.
func (a *runArgs) spec(root string, img runtime.Image) (_ *specs.Spec, notes []string, err error) {
	if a.entrypoint != nil {
		img.Config.Entrypoint = nil
		if *a.entrypoint != "" {
			img.Config.Entrypoint, img.Config.Cmd = []string{*a.entrypoint}, nil
		}
	}
	if a.options.Only != "" && a.entrypoint == nil {
		img.Config.Entrypoint = nil // it may be a file of the image that is not mounted
	}
	a.options.Architecture = img.Architecture
	if a.options.ChRun {
		if a.env, err = charliecloud.Environment(root, &img, a.env, a.imageEnv); err != nil {
			return nil, nil, err
		}
	}
	spec, err := runtime.Spec(root, img.Config, a.options)
	if err != nil {
		return nil, nil, err
	}
	if a.options.Only != "" {
		a.devices = devices.Request{} // the host's devices and libraries are in place
	}
	if notes, err = a.devices.Add(spec); err != nil {
		return nil, notes, err
	}
	if err := runtime.ChangeEnv(spec, a.options, a.env, !a.keepDollar); err != nil {
		return nil, notes, err
	}
	devices.SetSearchPaths(spec)
	if a.action != nil {
		a.action.Wrap(root, img, spec)
	}
	return spec, notes, nil
}

// newRoot returns an image that shows messages and progress to the user.
func newRoot(image, storeDir string) root.Image {
	return root.Image{Name: image, Store: storeDir, Say: sayLine}
}
