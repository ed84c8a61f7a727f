package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/build/definition"
	"hpcc/build/git"
	"hpcc/build/progress"
	"hpcc/build/source"
	"hpcc/conda"
	"hpcc/files"
	"hpcc/runtime"
	"hpcc/store"
	"hpcc/text"
)

func buildCommand() *cli.Command {
	a := new(buildArgs)
	return &cli.Command{
		Name: "build", Usage: "build an image from a Dockerfile or a conda export", ArgsUsage: "[CONTEXT]",
		Description: `Builds an image as an ordinary user: without a daemon, root or subordinate IDs. CONTEXT is a
directory (default .), a git repository (URL.git#REF:DIR), the URL of a tar archive or Dockerfile,
or - for one of them on standard input. Prints the image's digest.

   hpcc build -t base .
   hpcc build -f Dockerfile -t base --build-arg VERSION=3 .
   conda list -e > requirements.txt
   hpcc build --conda requirements.txt --channel conda-forge -t sci
   hpcc build --conda environment.yml -f Dockerfile -t app .
   hpcc build --check .

With --conda and a Dockerfile, the environment is the stage "conda": write FROM conda or COPY
--from=conda.

Exit status: 3 if the image is built, but packages are missing, replaced or of another version than
in the export, and --relax is not given; also with --dry-run.`,
		Flags:  a.flags(),
		Action: action(a.parse),
	}
}

// buildArgs is the command line of "hpcc build", and of the build of "hpcc deploy".
type buildArgs struct {
	build.Request
	env          build.CondaOptions // of the flags; Request.Conda if the image has an environment
	store        string
	progress     string
	check        bool   // only check the Dockerfile
	dryRun, json bool   // only list the downloads of an environment
	entry        bool   // "hpcc entry" becomes the entry point
	creds        string // registries file (creds.yaml), which must not get into an image
}

// flags returns the flags of each command that builds an image, bound to the fields of a.
func (a *buildArgs) flags() []cli.Flag {
	return slices.Concat([]cli.Flag{
		listFlag(&a.Tags, &cli.StringSliceFlag{Name: "tag", Aliases: []string{"t"}, Usage: "name the image `NAME`"}),
		&cli.StringFlag{Name: "file", Aliases: []string{"f"},
			Usage: "read `FILE` (default CONTEXT/Dockerfile; - is standard input)", Destination: &a.Dockerfile},
		&cli.StringSliceFlag{Name: "build-arg", Usage: "set an ARG to `NAME=VALUE`; NAME alone copies a variable"},
		&cli.StringFlag{Name: "target", Usage: "stop at stage `STAGE`", Destination: &a.Target},
		&cli.StringFlag{Name: "platform", Usage: "build for `OS/ARCH`; several, with commas, make an index"},
		&cli.BoolFlag{Name: "no-cache", Usage: "run every step again", Destination: &a.NoCache},
		&cli.BoolFlag{Name: "no-test", Usage: "skip %test of an Apptainer definition file", Hidden: true},
		&cli.BoolFlag{Name: "check", Usage: "check the Dockerfile without building it", Destination: &a.check},
		&cli.StringSliceFlag{Name: "secret", Usage: "expose `id=NAME` with src=FILE or env=NAME to RUN --mount"},
		&cli.StringFlag{Name: "progress", Usage: "show progress as `STYLE`: auto, plain, tty or json",
			Value: "auto", Destination: &a.progress},
	}, a.condaFlags(), inSection(dockerfileSection,
		&cli.StringSliceFlag{Name: "ssh", Usage: "expose an SSH agent as `ID` or ID=SOCKET to RUN --mount"},
		&cli.StringSliceFlag{Name: "build-context", Usage: "use `NAME=DIR`, or an image or repository, in FROM and --from"},
		&cli.StringSliceFlag{Name: "label", Usage: "add label `NAME=VALUE`"},
		&cli.BoolFlag{Name: "entry", Usage: "make \"hpcc entry\" the entry point, for OpenShift's random user IDs", Destination: &a.entry},
		&cli.BoolFlag{Name: "pull", Usage: "ask the registries for newer base images", Destination: &a.Pull},
	), inSection(cacheSection,
		&cli.StringSliceFlag{Name: "cache-from", Usage: "import cached steps from registry reference `REF`"},
		listFlag(&a.NoCacheFilter, &cli.StringSliceFlag{Name: "no-cache-filter", Usage: "run the steps of stage `STAGE` again"}),
		&cli.StringFlag{Name: "cache-to", Usage: "export cached steps to registry reference `REF`[,mode=min]"},
	), inSection(outputSection,
		&cli.StringSliceFlag{Name: "output", Aliases: []string{"o"},
			Usage: "also write the image as `type=TYPE,dest=FILE` (oci, docker, tar, dir)"},
		&cli.StringSliceFlag{Name: "annotation", Usage: "add annotation `NAME=VALUE` to the manifest"},
		&cli.StringFlag{Name: "iidfile", Usage: "write the image's digest to `FILE`", Destination: &a.IIDFile},
		&cli.StringFlag{Name: "metadata-file", Usage: "write digests and names as JSON to `FILE`", Destination: &a.Metadata},
	), inSection(attestSection,
		&cli.GenericFlag{Name: "provenance", Value: &provenanceFlag{&a.Provenance}, DefaultText: "none",
			Usage: "attach provenance (SLSA); =mode=min, =mode=max, =false"},
		&cli.StringSliceFlag{Name: "attest", Usage: "attach attestation `type=TYPE`: provenance"},
	), inSection(imageSection,
		&cli.BoolFlag{Name: "reproducible", Usage: "give the same digest everywhere: clamp times of files", Destination: &a.Reproducible},
		&cli.StringFlag{Name: "compression", Usage: "compress new layers with `METHOD`: gzip or zstd",
			Value: "gzip", Destination: &a.Compression},
	), inSection(generalSection, plainHTTPFlag(), storeFlag()))
}

// listFlag returns a repeatable flag that is bound to a list.
func listFlag(to *[]string, f *cli.StringSliceFlag) *cli.StringSliceFlag {
	f.Action = func(_ *cli.Context, values []string) error {
		*to = values
		return nil
	}
	return f
}

// A provenanceFlag is --provenance, whose value is optional and follows "=". As in docker, it is short
// for --attest.
type provenanceFlag struct{ to **build.ProvenanceOptions }

func (f *provenanceFlag) Set(s string) (err error) {
	*f.to, err = build.ParseProvenance(s)
	return err
}
func (f *provenanceFlag) String() string   { return "" }
func (f *provenanceFlag) IsBoolFlag() bool { return true }

// parse checks the command line, and reads the values that are not bound to fields.
func (a *buildArgs) parse(c *cli.Context) (*buildArgs, error) {
	for _, w := range c.Args().Slice() {
		if strings.HasPrefix(w, "mode=") { // docker accepts the value after a space
			return nil, text.Usagef("%q is not a context", w).Hint("write --provenance=%s", w)
		}
	}
	if a.json && !a.dryRun {
		return nil, text.Usagef("--json needs --dry-run").Hint("use --progress json for the steps of a build")
	}
	args, err := parseArguments(c, 0, 1, "[CONTEXT]")
	if err != nil {
		return nil, err
	}
	a.store, a.PlainHTTP = c.String("store"), c.Bool("plain-http")
	if a.check && (c.IsSet("conda") || c.IsSet("conda-prefix")) {
		return nil, text.Usagef("--check only checks a Dockerfile").Hint("leave --conda out")
	}
	repository, err := parseRepository(c, args)
	if err != nil {
		return nil, err
	}
	if err := a.parseConda(c, repository); err != nil {
		return nil, err
	}
	a.OnlyConda = a.Conda != nil && repository == nil && a.Dockerfile == "" && len(args) == 0
	if err := checkContext(args, a.Conda != nil); err != nil {
		return nil, err
	}
	if len(a.Tags) == 0 && !a.dryRun && !a.check {
		if repository != nil {
			args = []string{"--repo2docker", repository.Dir}
		}
		return nil, text.Usagef("the image needs a name").Hint("hpcc %s -t NAME %s", c.Command.Name, strings.Join(args, " "))
	}
	if err := a.parseAttestations(c.StringSlice("attest")); err != nil {
		return nil, err
	}
	if a.Platforms, err = parsePlatforms(c.String("platform")); err != nil {
		return nil, err
	}
	if err := a.parseImage(c, args); err != nil {
		return nil, err
	}
	if repository != nil {
		if err := a.UseRepository(repository); err != nil {
			return nil, err
		}
	}
	if err := a.parseResults(c); err != nil {
		return nil, err
	}
	if err := a.parseDefinition(c); err != nil {
		return nil, err
	}
	if to := c.String("cache-to"); to != "" {
		a.CacheRef, a.CacheTo, err = build.ParseCacheTo(to)
	}
	return a, err
}

// checkContext refuses a context that is not a directory. hasExport means that the build installs an
// export.
func checkContext(args []string, hasExport bool) error {
	if len(args) == 0 || args[0] == "-" || git.IsContext(args[0]) || source.IsRemote(args[0]) {
		return nil
	}
	fi, err := os.Stat(args[0])
	switch {
	case err != nil:
		return text.Usagef("context %s: %w", args[0], syscall.ENOENT).
			Hint("CONTEXT is a directory with the files of the image, a git repository, a URL, or -")
	case fi.IsDir():
		return nil
	case hasExport:
		return text.Usagef("context %s: not a directory", args[0]).
			Hint("name each export with a --conda of its own, and a Dockerfile with -f")
	}
	return text.Usagef("context %s: not a directory", args[0]).Hint("name the Dockerfile with -f %s", args[0])
}

// parseResults reads the flags that name the results of a build. It refuses names that are not
// valid and files in missing directories, which would otherwise fail only after the build.
func (a *buildArgs) parseResults(c *cli.Context) (err error) {
	written := []string{a.IIDFile, a.Metadata}
	for _, arg := range c.StringSlice("output") {
		o, err := build.ParseOutput(arg)
		if err != nil {
			return err
		}
		a.Outputs, written = append(a.Outputs, o), append(written, o.Dest)
	}
	for _, o := range a.Outputs {
		a.Tags = append(a.Tags, o.Names...)
		date, given := a.Args["SOURCE_DATE_EPOCH"]
		if !given {
			date = os.Getenv("SOURCE_DATE_EPOCH")
		}
		switch {
		case o.Rewrite == nil:
		case !*o.Rewrite && (a.Reproducible || date != ""):
			return text.Usagef("--output: rewrite-timestamp=false contradicts --reproducible and SOURCE_DATE_EPOCH").Hint("leave one of them out")
		default:
			a.Reproducible = *o.Rewrite
		}
	}
	for _, tag := range a.Tags {
		if _, err := store.Canonical(tag); err != nil {
			return text.Usagef("--tag: %w", err)
		}
	}
	if a.Annotated, err = parsePairs(c, "annotation"); err != nil {
		return err
	}
	for _, f := range written {
		if f == "" || f == "-" {
			continue
		}
		if err := checkDirectory(f); err != nil {
			return err
		}
	}
	return nil
}

// parseImage reads the flags of a build from a Dockerfile.
func (a *buildArgs) parseImage(c *cli.Context, args []string) (err error) {
	if len(args) > 0 {
		a.Context = args[0]
	}
	if a.Compression != "gzip" && a.Compression != "zstd" {
		return text.Usagef("--compression %q is not gzip or zstd", a.Compression).Hint("leave it out, or write --compression zstd")
	}
	if a.Args, err = parseNamed(c.StringSlice("build-arg"), parseBuildArg); err != nil {
		return err
	}
	if a.Secrets, err = parseNamed(c.StringSlice("secret"), parseSecret); err != nil {
		return err
	}
	if a.SSH, err = parseNamed(c.StringSlice("ssh"), parseAgent); err != nil {
		return err
	}
	if a.Contexts, err = parsePairs(c, "build-context"); err != nil {
		return err
	}
	for name, v := range a.Contexts {
		if fi, err := os.Stat(v); !strings.Contains(v, ":") && (err != nil || !fi.IsDir()) {
			return text.Usagef("--build-context %s=%s: %w", name, v, syscall.ENOENT).
				Hint("write --build-context %s=DIR, %s=docker-image://REF or %s=oci-layout://DIR:TAG", name, name, name)
		}
	}
	if a.Labels, err = parsePairs(c, "label"); err != nil {
		return err
	}
	a.CacheFrom, err = build.ParseCacheFrom(c.StringSlice("cache-from"))
	return err
}

// parseDefinition reads the file of -f if it is a definition file of Apptainer.
func (a *buildArgs) parseDefinition(c *cli.Context) error {
	content, err := definition.ReadFile(a.Dockerfile)
	if err != nil || content == nil {
		return err
	}
	for _, name := range []string{"check", "target", "conda", "conda-prefix", "no-cache-filter"} {
		if c.IsSet(name) {
			return text.Usagef("--%s is for Dockerfiles, and %s is a definition file of Apptainer", name, a.Dockerfile).
				Hint("leave out --%s", name)
		}
	}
	dir, err := filepath.Abs(a.Context)
	if err != nil {
		return fmt.Errorf("finding the directory of %%files: %w", err)
	}
	a.Definition, err = definition.Parse(a.Dockerfile, content, definition.Options{Dir: dir, Args: a.Args, NoTest: c.Bool("no-test")})
	a.Args = map[string]string{}
	return err
}

// parseAttestations reads the values of --attest.
func (a *buildArgs) parseAttestations(list []string) (err error) {
	for _, arg := range list {
		kind, items := "", strings.Split(arg, ",")
		disabled := slices.Contains(items, "disabled=true")
		items = slices.DeleteFunc(items, func(w string) bool {
			t, ok := strings.CutPrefix(w, "type=")
			if ok {
				kind = t
			}
			return ok || w == "disabled=false" || w == "disabled=true"
		})
		value := strings.Join(items, ",")
		switch {
		case disabled:
			value = "false"
		case value == "":
			value = "true"
		}
		switch kind {
		case "provenance":
			a.Provenance, err = build.ParseProvenance(value)
		case "sbom":
			return text.Usagef("--attest %q: hpcc does not list packages", arg).Hint("%s", packagesHabit)
		default:
			err = text.Usagef("the type is not provenance")
		}
		if err != nil {
			return text.Usagef("--attest %q: %w", arg, err).Hint("write --attest type=provenance,mode=max")
		}
	}
	return nil
}

func (a *buildArgs) run(ctx context.Context) error {
	if a.check {
		return a.checkDockerfile(ctx)
	}
	return a.build(ctx, nil)
}

// build builds the image, and deploys it unless to is nil.
func (a *buildArgs) build(ctx context.Context, to *deployment) (err error) {
	if a.entry {
		if a.Entries, err = build.EntryPrograms(a.Platforms, embeddedEntry); err != nil {
			return err
		}
	}
	t, err := progress.New(a.progress)
	if err != nil {
		return err
	}
	if err := runtime.EnterFakeRoot(); err != nil {
		return fmt.Errorf("building %s: %w", strings.Join(a.Tags, ", "), err)
	}
	if a.Repository != nil {
		for _, n := range a.Repository.Notes {
			t.Note(n)
		}
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	a.Hidden = secretFiles(a.creds)
	if to != nil {
		if err := to.prepare(ctx); err != nil {
			return err
		}
	}
	a.Progress = t.Event
	a.Say = sayLine
	a.Deliver = func(ctx context.Context, digest v1.Hash) error {
		t.Built()
		if to != nil {
			return to.send(ctx, s)
		}
		_, err := fmt.Println(digest)
		return err
	}
	a.Stdin = files.Stdin()
	if a.dryRun {
		err = a.Plan(ctx, s, func(platform string, list []conda.Download) error {
			return t.Downloads(os.Stdout, platform, list, a.json)
		})
	} else {
		err = a.Run(ctx, s)
	}
	if err != nil {
		return buildError(t, withSignal(ctx, files.FullDiskHint(err, s.Dir())))
	}
	return nil
}

// buildError ends the progress of a build with an error, and returns what is still to be printed.
func buildError(t *progress.Steps, err error) error {
	if errors.Is(err, context.Canceled) {
		err = &canceledError{errors.New("the build was interrupted; the finished steps are in the cache"), err}
	}
	if advice, status := adviceFor(err); !t.Failed(err, advice, status) {
		return exitStatus(status)
	}
	return err
}

// checkDockerfile writes the warnings about a Dockerfile to standard output. It needs no tag and
// no user namespace.
func (a *buildArgs) checkDockerfile(ctx context.Context) error {
	t, err := progress.New(a.progress)
	if err != nil {
		return err
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	a.Progress, a.Stdin = t.Check, files.Stdin()
	warnings, missing, err := a.Check(ctx, s)
	if err != nil {
		return buildError(t, err)
	}
	for _, image := range missing {
		t.Note(fmt.Sprintf("%s is not in the store, so its variables were not checked; %q fetches it", image, "hpcc pull "+image))
	}
	if warnings == 0 {
		return nil
	}
	return buildError(t, fmt.Errorf("the Dockerfile has %s", text.Count(warnings, "warning", "warnings")))
}

// parsePlatforms reads --platform. Without it, it returns one nil, for this machine.
func parsePlatforms(list string) ([]*v1.Platform, error) {
	if list == "" {
		return []*v1.Platform{nil}, nil
	}
	var out []*v1.Platform
	for _, item := range strings.Split(list, ",") {
		p, err := parsePlatform(item)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(out, func(other *v1.Platform) bool { return other.String() == p.String() }) {
			out = append(out, p)
		}
	}
	return out, nil
}

// parseNamed reads the values of a repeatable flag, by name.
func parseNamed[V any](list []string, parse func(arg string) (name string, value V, err error)) (map[string]V, error) {
	m := map[string]V{}
	for _, arg := range list {
		name, value, err := parse(arg)
		if err != nil {
			return nil, err
		}
		m[name] = value
	}
	return m, nil
}

// parseBuildArg reads --build-arg. A bare NAME takes its value from the environment.
func parseBuildArg(arg string) (name, value string, err error) {
	name, value, ok := strings.Cut(arg, "=")
	if name == "" {
		return "", "", text.Usagef("--build-arg %q has no name", arg).Hint("write --build-arg NAME=VALUE")
	}
	if !ok {
		if value, ok = os.LookupEnv(name); !ok {
			return "", "", text.Usagef("--build-arg %s: no such variable in the environment", name).Hint("write --build-arg %s=VALUE", name)
		}
	}
	return name, value, nil
}

// parsePairs reads a repeatable flag with values of the form NAME=VALUE.
func parsePairs(c *cli.Context, flag string) (map[string]string, error) {
	return parseNamed(c.StringSlice(flag), func(arg string) (name, value string, err error) {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return "", "", text.Usagef("--%s %q is not NAME=VALUE", flag, arg).Hint("write --%s NAME=VALUE", flag)
		}
		return name, value, nil
	})
}

// parseSecret reads --secret.
func parseSecret(arg string) (id string, s build.Secret, err error) {
	if id, s, err = build.ParseSecret(arg); err != nil {
		err = text.Usagef("--secret: %w", err).Hint("write --secret id=NAME,src=FILE")
	}
	return id, s, err
}

// parseAgent reads --ssh and returns the socket of an agent.
func parseAgent(arg string) (id, socket string, err error) {
	id, socket, ok := strings.Cut(arg, "=")
	if !ok {
		socket = os.Getenv("SSH_AUTH_SOCK")
	}
	if fi, err := os.Stat(socket); err != nil || fi.Mode()&os.ModeSocket == 0 {
		return "", "", text.Usagef("--ssh %s: %q is not an SSH agent's socket", arg, socket).
			Hint("start ssh-agent, or write --ssh %s=SOCKET", id)
	}
	return id, socket, nil
}
