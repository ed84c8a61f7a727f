package main

import (
	"context"
	"fmt"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/runtime/check"
	"hpcc/text"
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name: "check", Usage: "check an image against the restrictions of a cluster", ArgsUsage: "IMAGE",
		Description: `Checks the configuration, file owners and file modes of an image against the restrictions of a
cluster. Names every reason why the image would not run, with the Dockerfile lines that correct
it. Runs nothing, unpacks nothing, and does not read shell scripts. IMAGE may be a file that
"hpcc load" reads.

   hpcc check --openshift train     for any user ID, in group 0
   hpcc check --restricted train    for the image's own numeric user ID

Exit status: 0 if the image runs, also with warnings; 1 if it does not.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "openshift", Usage: "check for OpenShift: any user ID, group 0"},
			&cli.BoolFlag{Name: "restricted", Usage: "check for Kubernetes' Pod Security level \"restricted\""},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per line"},
			platformFlag(), storeFlag(),
		},
		Action: action(parseCheck),
	}
}

// checkArgs is the command line of "hpcc check".
type checkArgs struct {
	image     string
	store     string
	platform  *v1.Platform
	openshift bool // check for OpenShift instead of Kubernetes' "restricted"
	json      bool
}

func parseCheck(c *cli.Context) (*checkArgs, error) {
	args, err := parseArguments(c, 1, 1, "--openshift|--restricted IMAGE")
	if err != nil {
		return nil, err
	}
	if c.Bool("openshift") == c.Bool("restricted") {
		return nil, text.Usagef("check needs either --openshift or --restricted").Hint("hpcc check --openshift IMAGE")
	}
	p, err := parsePlatformFlag(c)
	return &checkArgs{image: args[0], store: c.String("store"), platform: p, openshift: c.Bool("openshift"), json: c.Bool("json")}, err
}

func (a *checkArgs) run(ctx context.Context) error {
	img, err := loader(a.store).Source(ctx, a.image, a.platform)
	if err != nil {
		return err
	}
	found, err := check.Image(ctx, img, a.openshift)
	if err != nil {
		return fmt.Errorf("checking %s: %w", a.image, err)
	}
	errs, err := check.Write(os.Stdout, found, a.json)
	if err != nil || errs == 0 {
		return err
	}
	where := `in a namespace that enforces "restricted"`
	if a.openshift {
		where = "under OpenShift's restricted-v2"
	}
	return text.Hint(fmt.Errorf("%s would not run %s: %s", a.image, where, text.Count(errs, "error", "errors")),
		"add the lines at the end of the Dockerfile as root: before the last USER, or between USER 0 and USER 1001")
}
