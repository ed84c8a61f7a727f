package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/build/binder"
	"hpcc/conda"
	"hpcc/text"
)

// condaFlags returns the flags of a build from a conda or pip export.
func (a *buildArgs) condaFlags() []cli.Flag {
	o := &a.env
	return slices.Concat(inSection(condaSection,
		listFlag(&o.Files, &cli.StringSliceFlag{Name: "conda",
			Usage: "install the packages of `EXPORT`, any of conda or pip; repeat to merge"}),
		listFlag(&o.Channels, &cli.StringSliceFlag{Name: "channel", Aliases: []string{"c"},
			Usage: "search `CHANNEL`: a URL, directory or conda.anaconda.org name"}),
		&cli.StringFlag{Name: "from", Usage: "install on top of `IMAGE`, scratch, or conda for a minimal base",
			DefaultText: build.DefaultBase, Destination: &o.From},
		&cli.StringFlag{Name: "lock", Usage: "write the installed packages to `FILE`, a conda-lock.yml", Destination: &a.Lock},
		&cli.BoolFlag{Name: "dry-run", Usage: "print what would be downloaded and exit", Destination: &a.dryRun},
	), inSection(condaSourceSection,
		&cli.StringFlag{Name: repo2dockerFlag, Usage: "build the repository in `DIR` from its files for repo2docker"},
		&cli.StringFlag{Name: "conda-prefix", Usage: "install the packages of the environment in `DIR`", Destination: &o.Live},
		&cli.StringFlag{Name: "environment", Usage: "select environment `NAME` of a pixi file",
			DefaultText: "default", Destination: &o.Environment},
		&cli.StringFlag{Name: "channel-priority", Usage: "use channels in `MODE`: strict or flexible order", Value: "strict"},
		&cli.BoolFlag{Name: "relax", Usage: "accept packages that differ from the export; replace its pins", Destination: &o.Relax},
		&cli.StringFlag{Name: "with-cuda", Usage: "solve for machines with CUDA `VERSION`"},
		listFlag(&o.Virtual, &cli.StringSliceFlag{Name: "virtual-package", Aliases: []string{"virtual-package-spec"},
			Usage: "solve for machines with `NAME=VERSION`, or those in a file"}),
		&cli.StringFlag{Name: "python", Usage: "use python `X.Y` for a file of pip packages", Destination: &o.Python},
		&cli.StringFlag{Name: "index-url", Usage: "search the package index at `URL` (default: pypi.org)", Destination: &o.Indexes.URL},
		listFlag(&o.Indexes.Extra, &cli.StringSliceFlag{Name: "extra-index-url", Usage: "search the package index at `URL` as well"}),
		listFlag(&o.Indexes.FindLinks, &cli.StringSliceFlag{Name: "wheel-dir", Aliases: []string{"find-links"},
			Usage: "search wheels in `DIR` or on the page of a URL as well"}),
		&cli.BoolFlag{Name: "no-index", Usage: "search wheels in --wheel-dir only", Destination: &o.Indexes.NoIndex},
		&cli.BoolFlag{Name: "no-run", Usage: "run no post-link scripts and build no source packages", Destination: &o.NoRun},
		&cli.StringFlag{Name: "prefix", Usage: "install the environment to `DIR` in the image",
			DefaultText: conda.DefaultPrefix, Destination: &o.Prefix},
		&cli.BoolFlag{Name: "package-layers", Usage: "make one layer per package, shared between images", Destination: &o.PackageLayers},
		&cli.BoolFlag{Name: "json", Usage: "with --dry-run: print one JSON object per line", Destination: &a.json},
	))
}

// parseConda decides whether the image has an environment, and refuses flags that contradict each
// other. r is the repository of --repo2docker, or nil.
func (a *buildArgs) parseConda(c *cli.Context, r *binder.Repository) error {
	o := &a.env
	if len(o.Files) == 0 && o.Live == "" && (r == nil || r.Dockerfile != "") {
		for _, name := range []string{"channel", "channel-priority", "relax", "from", "prefix",
			"lock", "dry-run", "environment", "with-cuda",
			"virtual-package", "python", "index-url", "extra-index-url", "wheel-dir", "no-index", "package-layers", "no-run"} {
			if c.IsSet(name) && r != nil {
				return text.Usagef("--%s has no effect: the image is built from %s", name, r.Dockerfile).Hint("leave out --%s", name)
			} else if c.IsSet(name) {
				return text.Usagef("--%s needs an export", name).Hint("name an export with --conda FILE")
			}
		}
		return nil
	}
	a.Conda = o
	switch p := c.String("channel-priority"); {
	case len(o.Files) > 0 && o.Live != "":
		return text.Usagef("--conda and --conda-prefix contradict each other").Hint("leave out one of them")
	case p != "strict" && p != "flexible":
		return text.Usagef("--channel-priority %q is not strict or flexible", p).Hint("leave it out, or write --channel-priority flexible")
	case a.dryRun && a.Lock != "":
		return text.Usagef("--lock cannot be used with --dry-run, which installs nothing").Hint("leave out one of them")
	case o.Indexes.NoIndex && c.IsSet("index-url"):
		return text.Usagef("--no-index and --index-url contradict each other").Hint("leave out one of them")
	}
	for _, f := range o.Files {
		fi, err := os.Stat(f)
		if err == nil && fi.IsDir() {
			return text.Usagef("export %s: is a directory", f).
				Hint("name a file in it, or use --conda-prefix for an installed environment, --repo2docker for a repository")
		}
		if errors.Is(err, fs.ErrNotExist) {
			return text.Hint(fmt.Errorf("export %s: %w", f, syscall.ENOENT),
				"on the machine of the environment, run \"conda list --explicit --md5 > explicit.txt\" or \"conda env export > environment.yml\"")
		}
	}
	if c.IsSet("channel-priority") {
		o.Priority = c.String("channel-priority")
	}
	if v := c.String("with-cuda"); v != "" {
		o.Virtual = append(o.Virtual, "__cuda="+v)
	}
	if a.Lock != "" {
		return checkDirectory(a.Lock)
	}
	return nil
}

// repo2dockerFlag is the flag of a build from repo2docker's configuration files.
const repo2dockerFlag = "repo2docker"

// parseRepository reads the directory of --repo2docker. It returns nil without the flag, and
// refuses flags that contradict it.
func parseRepository(c *cli.Context, args []string) (*binder.Repository, error) {
	if !c.IsSet(repo2dockerFlag) {
		return nil, nil
	}
	dir := c.String(repo2dockerFlag)
	for _, name := range []string{"conda", "conda-prefix", "environment", "file", "check"} {
		if c.IsSet(name) {
			return nil, text.Usagef("--repo2docker and --%s contradict each other", name).Hint("leave out one of them")
		}
	}
	if len(args) > 0 {
		return nil, text.Usagef("--repo2docker %s is the context, so %q cannot be another", dir, args[0]).Hint("leave out %s", args[0])
	}
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return nil, text.Usagef("--repo2docker %s: %w", dir, syscall.ENOENT).Hint("clone the repository, and name its directory")
	}
	r, err := binder.Read(dir, binder.Options{Python: c.String("python")})
	if err != nil || r.Dockerfile != "" {
		return r, err
	}
	from := c.String("from")
	name, _, _ := strings.Cut(from, ":")
	switch hint := "leave out --from, or name an image of Debian or Ubuntu"; {
	case from == "scratch":
		return nil, text.Usagef("--repo2docker needs a base image with a shell").Hint("%s", hint)
	case name == "conda" && r.System(from) != nil:
		return nil, text.Usagef("the packages of apt.txt cannot be installed with --from %s, which has no apt-get", from).Hint("%s", hint)
	}
	return r, nil
}

// checkDirectory refuses the name of a file in a missing directory.
func checkDirectory(file string) error {
	dir := filepath.Dir(file)
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return text.Usagef("writing %q: directory %q does not exist", file, dir).Hint("mkdir -p %s", dir)
	}
	return nil
}
