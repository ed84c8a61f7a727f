package main

import (
	"context"
	"errors"
	"os"
	"strconv"

	"github.com/urfave/cli/v2"

	"hpcc/front/charliecloud"
	"hpcc/text"
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
	return &charliecloudArgs{args[0], args[2:], charliecloud.Storage{Dir: args[1], Loader: loader(c.String("store"))}}, nil
}

func (a *charliecloudArgs) run(ctx context.Context) error {
	return a.storage.Do(ctx, a.operation, a.args, os.Stdout)
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
	f.e.image = append(f.e.image, len(f.e.List))
	return nil
}
func (f *imageEnvFlag) String() string   { return "" }
func (f *imageEnvFlag) IsBoolFlag() bool { return true }

// setChRunStatus replaces the exit status of a failed run with that of ch-run.
func setChRunStatus(isChRun bool, err *error) {
	var st exitStatus
	if isChRun && *err != nil && !errors.As(*err, &st) {
		*err = chRunError(*err)
	}
}

// chRunError adds the exit status of ch-run to the error of a run.
func chRunError(err error) error {
	advice, _ := adviceFor(err)
	return &text.Error{Err: err, Status: charliecloud.Status(err), Advice: advice}
}
