package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"hpcc/front/charliecloud"
	"hpcc/runtime"
	"hpcc/runtime/process"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
)

// charliecloudCommand does what ch-image and ch-convert do and other commands of hpcc do not.
func charliecloudCommand() *cli.Command {
	return &cli.Command{
		Name: "charliecloud", Hidden: true, Usage: "manage a storage directory of Charliecloud (started by ch-image and ch-convert)", ArgsUsage: "OPERATION DIR [ARG...]",
		Flags:  []cli.Flag{storeFlag()},
		Action: action(parseCharliecloud),
	}
}

// charliecloudArgs is a command line of "hpcc charliecloud".
type charliecloudArgs struct {
	operation string
	args      []string
	storage   charliecloud.Storage
}

func parseCharliecloud(c *cli.Context) (*charliecloudArgs, error) {
	args := c.Args().Slice()
	if len(args) < 2 {
		return nil, text.Usagef("charliecloud needs an operation and a storage directory").Hint("use ch-image or ch-convert: hpcc install-fronts DIR")
	}
	dir := c.String("store")
	return &charliecloudArgs{args[0], args[2:], charliecloud.Storage{Dir: args[1], Store: dir, Loader: charliecloudLoader(dir)}}, nil
}

// charliecloudLoader returns the functions that load and unpack images, for a store.
func charliecloudLoader(dir string) charliecloud.Loader {
	return charliecloud.Loader{
		Load: func(ctx context.Context, s *store.Store, file, name string) error {
			_, err := loadAny(ctx, s, file, name)
			return err
		},
		Tree: func(ctx context.Context, s *store.Store, name string) (string, error) {
			img, err := s.Get(name, nil)
			if err == nil {
				err = unpackTree(ctx, s, img, nil)
			}
			if err != nil {
				return "", err
			}
			return s.TreeOf(name)
		},
		CheckedTree: func(ctx context.Context, source string) (string, error) {
			s, err := store.Open(dir)
			if err != nil {
				return "", err
			}
			img, err := sourceImage(ctx, dir, source, nil)
			if err != nil {
				return "", err
			}
			return unpack.CheckedTree(ctx, s, img, sayLine)
		},
		Unpack: func(ctx context.Context, source, to string) error {
			return (&unpackArgs{source: source, dir: to, store: dir}).unpackTo(ctx, to)
		},
	}
}

func (a *charliecloudArgs) run(ctx context.Context) error {
	want, ok := map[string]int{"link": 1, "delete": -1, "reset": 0, "show": 1, "import": 2, "convert": 4, "convert-new": 4}[a.operation]
	if !ok || (want >= 0 && len(a.args) != want) {
		return text.Usagef("%q is not an operation with %d arguments", a.operation, len(a.args))
	}
	s, args := &a.storage, a.args
	switch a.operation {
	case "link":
		return s.Link(args[0])
	case "delete":
		return s.Delete(args)
	case "reset":
		return s.Reset()
	case "show":
		return s.Show(os.Stdout, args[0])
	case "import":
		return s.Import(ctx, args[0], args[1], true)
	}
	replace := a.operation == "convert"
	if args[2] == charliecloud.ChImage {
		return s.Import(ctx, args[1], args[3], replace)
	}
	notes, err := s.Convert(ctx, args[0], args[1], args[2], args[3], replace)
	sayNotes(notes)
	return fullDiskHint(err, args[3])
}

// chRunFlags are the flags of "hpcc run" that package front uses for ch-run.
func chRunFlags(env *envChanges) []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "ch-run", Hidden: true, Usage: "run the program as ch-run does"},
		&cli.GenericFlag{Name: "image-env", Hidden: true, Value: &imageEnvFlag{env}, Usage: "with --ch-run: set the image's variables"},
	}
}

// imageEnvFlag is --image-env, whose position among the changes of the environment matters.
type imageEnvFlag struct{ e *envChanges }

func (f *imageEnvFlag) Set(arg string) error {
	if set, err := strconv.ParseBool(arg); err != nil || !set {
		return err
	}
	f.e.image = append(f.e.image, len(f.e.list))
	return nil
}
func (f *imageEnvFlag) String() string   { return "" }
func (f *imageEnvFlag) IsBoolFlag() bool { return true }

// Exit statuses of ch-run, from its manual.
const (
	chRunFailed    = 31
	chRunNoCommand = 49
)

// setChRunStatus replaces the exit status of a failed run with that of ch-run.
func setChRunStatus(isChRun bool, err *error) {
	var st exitStatus
	if isChRun && *err != nil && !errors.As(*err, &st) {
		*err = chRunError(*err)
	}
}

// chRunError adds the exit status of ch-run to the error of a run.
func chRunError(err error) error {
	out := &text.Error{Err: err, Status: chRunFailed}
	var re *process.Error
	if errors.As(err, &re) && re.Status != process.ExitFailed {
		out.Status = chRunNoCommand
	}
	out.Advice, _ = adviceFor(err)
	return out
}

// replaceWithChRun removes the parts of an image's configuration that ch-run ignores, and adds the
// image's variables to the changes of the environment where --image-env asks for them.
func (a *runArgs) replaceWithChRun(root string, img *runtime.Image) error {
	if len(a.imageEnv) > 0 {
		vars, err := charliecloud.Variables(root, img.Config.Env)
		if err != nil {
			return err
		}
		for _, i := range slices.Backward(a.imageEnv) {
			a.env = slices.Insert(slices.Clone(a.env), i, vars...)
		}
	}
	img.Config = runtime.ImageConfig{}
	return nil
}
