package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/build/attest"
	"hpcc/build/binder"
	"hpcc/build/definition"
	"hpcc/build/git"
	"hpcc/build/source"
	"hpcc/conda"
	"hpcc/conda/exports"
	"hpcc/files"
	"hpcc/runtime"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
)

func buildCommand() *cli.Command {
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
		Flags:  buildFlags(),
		Action: action(parseBuild),
	}
}

// buildFlags are the flags of each command that builds an image.
func buildFlags() []cli.Flag {
	return slices.Concat([]cli.Flag{
		&cli.StringSliceFlag{Name: "tag", Aliases: []string{"t"}, Usage: "name the image `NAME`"},
		&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "read `FILE` (default CONTEXT/Dockerfile; - is standard input)"},
		&cli.StringSliceFlag{Name: "build-arg", Usage: "set an ARG to `NAME=VALUE`; NAME alone copies a variable"},
		&cli.StringFlag{Name: "target", Usage: "stop at stage `STAGE`"},
		&cli.StringFlag{Name: "platform", Usage: "build for `OS/ARCH`; several, with commas, make an index"},
		&cli.BoolFlag{Name: "no-cache", Usage: "run every step again"},
		&cli.BoolFlag{Name: "no-test", Usage: "skip %test of an Apptainer definition file", Hidden: true},
		&cli.BoolFlag{Name: "check", Usage: "check the Dockerfile without building it"},
		&cli.StringSliceFlag{Name: "secret", Usage: "expose `id=NAME` with src=FILE or env=NAME to RUN --mount"},
		&cli.StringFlag{Name: "progress", Usage: "show progress as `STYLE`: auto, plain, tty or json", Value: "auto"},
	}, condaFlags(), inSection(dockerfileSection,
		&cli.StringSliceFlag{Name: "ssh", Usage: "expose an SSH agent as `ID` or ID=SOCKET to RUN --mount"},
		&cli.StringSliceFlag{Name: "build-context", Usage: "use `NAME=DIR`, or an image or repository, in FROM and --from"},
		&cli.StringSliceFlag{Name: "label", Usage: "add label `NAME=VALUE`"},
		&cli.BoolFlag{Name: "entry", Usage: "make \"hpcc entry\" the entry point, for OpenShift's random user IDs"},
		&cli.BoolFlag{Name: "pull", Usage: "ask the registries for newer base images"},
	), inSection(cacheSection,
		&cli.StringSliceFlag{Name: "cache-from", Usage: "import cached steps from registry reference `REF`"},
		&cli.StringSliceFlag{Name: "no-cache-filter", Usage: "run the steps of stage `STAGE` again"},
		&cli.StringFlag{Name: "cache-to", Usage: "export cached steps to registry reference `REF`[,mode=min]"},
	), outputFlags(), attestFlags(), inSection(imageSection,
		&cli.BoolFlag{Name: "reproducible", Usage: "give the same digest everywhere: clamp times of files"},
		&cli.StringFlag{Name: "compression", Usage: "compress new layers with `METHOD`: gzip or zstd", Value: "gzip"},
	), inSection(generalSection, plainHTTPFlag(), storeFlag()))
}

// buildArgs is the command line of "hpcc build", and of the build of "hpcc deploy".
type buildArgs struct {
	tags         []string // names of the image; at least one unless check or dryRun is set
	store        string
	platforms    []*v1.Platform // nil is this machine's
	progress     string
	check        bool // only check the Dockerfile
	dryRun, json bool // only list the downloads of an environment
	dockerfile   bool // build a Dockerfile, on the environment if conda is set
	image        build.Options
	conda        *build.CondaOptions      // nil without an environment
	repository   *binder.Repository       // of --repo2docker; nil without it
	definition   *definition.Recipe       // of a definition file of Apptainer; nil for a Dockerfile
	lock         string                   // file to write
	entry        bool                     // "hpcc entry" becomes the entry point
	provenance   *build.ProvenanceOptions // nil: no provenance
	annotations  map[string]string        // of the manifest
	outputs      []output
	iidFile      string
	metadataFile string
	cacheTo      string // reference in a registry; image.CacheTo selects the steps to export
	creds        string // registries file (creds.yaml), which must not get into an image
}

func parseBuild(c *cli.Context) (*buildArgs, error) {
	for _, w := range c.Args().Slice() {
		if strings.HasPrefix(w, "mode=") { // docker accepts the value after a space
			return nil, text.Usagef("%q is not a context", w).Hint("write --provenance=%s", w)
		}
	}
	if c.Bool("json") && !c.Bool("dry-run") && c.Command.Name == "build" {
		return nil, text.Usagef("--json needs --dry-run").Hint("use --progress json for the steps of a build")
	}
	args, err := parseArguments(c, 0, 1, "[CONTEXT]")
	if err != nil {
		return nil, err
	}
	a := &buildArgs{
		tags: c.StringSlice("tag"), store: c.String("store"), progress: c.String("progress"),
		check: c.Bool("check"), dryRun: c.Bool("dry-run"), json: c.Bool("json"), lock: c.String("lock"),
		entry: c.Bool("entry"), iidFile: c.String("iidfile"), metadataFile: c.String("metadata-file"), creds: c.String("creds"),
	}
	if a.check && (c.IsSet("conda") || c.IsSet("conda-prefix")) {
		return nil, text.Usagef("--check only checks a Dockerfile").Hint("leave --conda out")
	}
	if a.repository, err = parseRepository(c, args); err != nil {
		return nil, err
	}
	if a.conda, err = parseConda(c, a.repository); err != nil {
		return nil, err
	}
	a.dockerfile = a.conda == nil || a.repository != nil || c.String("file") != "" || len(args) > 0
	if err := checkContext(args, a.conda != nil); err != nil {
		return nil, err
	}
	if len(a.tags) == 0 && !a.dryRun && !a.check {
		if a.repository != nil {
			args = []string{"--repo2docker", a.repository.Dir}
		}
		return nil, text.Usagef("the image needs a name").Hint("hpcc %s -t NAME %s", c.Command.Name, strings.Join(args, " "))
	}
	if a.provenance, err = parseAttestations(c); err != nil {
		return nil, err
	}
	if a.platforms, err = parsePlatforms(c.String("platform")); err != nil {
		return nil, err
	}
	if a.image, err = parseImage(c, args); err != nil {
		return nil, err
	}
	if a.repository != nil {
		if err := a.useRepository(); err != nil {
			return nil, err
		}
	}
	if err := parseResults(c, a); err != nil {
		return nil, err
	}
	if err := a.parseDefinition(c); err != nil {
		return nil, err
	}
	a.cacheTo, a.image.CacheTo, err = cacheTarget(c.String("cache-to"))
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
		return text.Usagef("context %s: %w", args[0], syscall.ENOENT).Hint("CONTEXT is a directory with the files of the image, a git repository, a URL, or -")
	case fi.IsDir():
		return nil
	case hasExport:
		return text.Usagef("context %s: not a directory", args[0]).Hint("name each export with a --conda of its own, and a Dockerfile with -f")
	}
	return text.Usagef("context %s: not a directory", args[0]).Hint("name the Dockerfile with -f %s", args[0])
}

// parseResults reads the flags that name the results of a build. It refuses names that are not
// valid and files in missing directories, which would otherwise fail only after the build.
func parseResults(c *cli.Context, a *buildArgs) (err error) {
	if a.outputs, err = parseOutputs(c.StringSlice("output")); err != nil {
		return err
	}
	for _, o := range a.outputs {
		a.tags = append(a.tags, o.names...)
		date, given := a.image.Args["SOURCE_DATE_EPOCH"]
		if !given {
			date = os.Getenv("SOURCE_DATE_EPOCH")
		}
		switch {
		case o.rewrite == nil:
		case !*o.rewrite && (a.image.Reproducible || date != ""):
			return text.Usagef("--output: rewrite-timestamp=false contradicts --reproducible and SOURCE_DATE_EPOCH").Hint("leave one of them out")
		default:
			a.image.Reproducible = *o.rewrite
		}
	}
	for _, tag := range a.tags {
		if _, err := store.Canonical(tag); err != nil {
			return text.Usagef("--tag: %w", err)
		}
	}
	if a.annotations, err = parsePairs(c, "annotation"); err != nil {
		return err
	}
	files := []string{a.iidFile, a.metadataFile}
	for _, o := range a.outputs {
		files = append(files, o.dest)
	}
	for _, f := range files {
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
func parseImage(c *cli.Context, args []string) (o build.Options, err error) {
	o = build.Options{
		Compression: c.String("compression"), Dockerfile: c.String("file"), Target: c.String("target"),
		Reproducible: c.Bool("reproducible"), NoCache: c.Bool("no-cache"), NoCacheFilter: c.StringSlice("no-cache-filter"), PlainHTTP: c.Bool("plain-http"), Pull: c.Bool("pull"),
	}
	if len(args) > 0 {
		o.Context = args[0]
	}
	if o.Compression != "gzip" && o.Compression != "zstd" {
		return o, text.Usagef("--compression %q is not gzip or zstd", o.Compression).Hint("leave it out, or write --compression zstd")
	}
	if o.Args, err = parseBuildArgs(c.StringSlice("build-arg")); err != nil {
		return o, err
	}
	if o.Secrets, err = parseSecrets(c.StringSlice("secret")); err != nil {
		return o, err
	}
	if o.SSH, err = parseAgents(c.StringSlice("ssh")); err != nil {
		return o, err
	}
	if o.Contexts, err = parsePairs(c, "build-context"); err != nil {
		return o, err
	}
	for name, v := range o.Contexts {
		if fi, err := os.Stat(v); !strings.Contains(v, ":") && (err != nil || !fi.IsDir()) {
			return o, text.Usagef("--build-context %s=%s: %w", name, v, syscall.ENOENT).
				Hint("write --build-context %s=DIR, %s=docker-image://REF or %s=oci-layout://DIR:TAG", name, name, name)
		}
	}
	if o.Labels, err = parsePairs(c, "label"); err != nil {
		return o, err
	}
	o.CacheFrom, err = cacheSources(c.StringSlice("cache-from"))
	return o, err
}

func (a *buildArgs) run(ctx context.Context) error {
	if a.check {
		return a.checkDockerfile(ctx)
	}
	return a.build(ctx, nil)
}

// build builds the image, and deploys it unless to is nil.
func (a *buildArgs) build(ctx context.Context, to *deployment) error {
	b := builder{buildArgs: a, to: to}
	var err error
	if a.entry {
		if b.entries, err = entryFiles(a.platforms); err != nil {
			return err
		}
	}
	if b.steps, err = newSteps(a.progress); err != nil {
		return err
	}
	if err := runtime.EnterFakeRoot(); err != nil {
		return fmt.Errorf("building %s: %w", strings.Join(a.tags, ", "), err)
	}
	if a.repository != nil {
		for _, n := range a.repository.Notes {
			b.steps.note(n)
		}
	}
	if b.store, err = store.Open(a.store); err != nil {
		return err
	}
	a.image.Hidden = secretFiles(a.creds)
	if to != nil {
		if err := to.prepare(ctx); err != nil {
			return err
		}
	}
	var stdinCopy bytes.Buffer // a Dockerfile on standard input, for a second attempt
	a.image.Stdin = files.Stdin()
	if a.image.Context != "-" {
		a.image.Stdin = io.TeeReader(a.image.Stdin, &stdinCopy)
	}
	err = b.run(ctx)
	// The store has moved a damaged layer away, so building again repeats the step that made it.
	for n := 0; n < maxHealed && healable(err) && a.image.Context != "-"; n++ {
		say("warning: %v", err)
		say("repeating the step that made the layer")
		a.image.Stdin = bytes.NewReader(stdinCopy.Bytes())
		err = b.run(ctx)
	}
	if err != nil {
		return b.steps.failed(withSignal(ctx, fullDiskHint(err, b.store.Dir())))
	}
	return nil
}

// maxHealed limits how often one build is repeated because of damaged layers.
const maxHealed = 20

// healable reports whether repeating a build replaces a damaged layer.
func healable(err error) bool {
	var damaged *store.DamagedError
	return errors.As(err, &damaged) && damaged.Moved != ""
}

// A builder builds an image for each platform of a command line.
type builder struct {
	*buildArgs
	store   *store.Store
	steps   *steps
	entries [][]byte    // programs for --entry, one per platform; nil without the flag
	to      *deployment // nil to keep the image in the store only

	statements []attest.Statement // about images; empty without provenance

	images []v1.Image
	inputs []*build.Inputs // of images
	parts  *unpack.Parts   // unpacked layers
	moves  []conda.Move    // differences of the environments from the export
}

// run builds the image for each platform, stores it and writes or pushes the requested results.
func (b builder) run(ctx context.Context) error {
	cache := b.image.CacheTo
	if cache != nil {
		cache = &build.Cache{Min: cache.Min} // every attempt begins with an empty cache
	}
	b.parts = unpack.NewParts(b.store)
	defer b.parts.Close()
	var locks []exports.Locked
	for i, p := range b.platforms {
		o := b.image
		o.CacheTo, o.Platform, o.Inputs, o.Progress = cache, p, &build.Inputs{}, b.steps.event
		if b.entries != nil {
			o.Entry = b.entries[i]
		}
		img, lock, err := b.platform(ctx, o)
		if err != nil {
			return err
		}
		b.images, b.inputs, locks = append(b.images, img), append(b.inputs, o.Inputs), append(locks, lock)
	}
	if b.dryRun {
		return b.degradedError(b.moves)
	}
	b.steps.end()
	err := b.keep(ctx)
	if err == nil && b.lock != "" {
		err = b.writeLock(locks)
	}
	if err == nil && cache != nil {
		err = cache.Push(ctx, b.store, b.cacheTo, store.Remote{PlainHTTP: b.image.PlainHTTP})
	}
	if err == nil {
		err = b.degradedError(b.moves)
	}
	return err
}

// platform builds the image for one platform. It also returns the lock of an environment. A dry
// run returns neither.
func (b *builder) platform(ctx context.Context, o build.Options) (img v1.Image, lock exports.Locked, err error) {
	b.steps.forPlatform(o.Platform, len(b.platforms))
	if b.dryRun {
		return nil, lock, b.planEnvironment(ctx, o)
	}
	if b.conda != nil {
		if img, lock, err = b.environment(ctx, o); err != nil || !b.dockerfile {
			return img, lock, err
		}
		o.Environment = img
		if b.repository != nil {
			img, err = generated(ctx, b, b.repository.Recipe(), o)
			return img, lock, err
		}
	}
	if b.definition != nil {
		img, err = b.fromDefinition(ctx, o)
		return img, lock, err
	}
	img, err = build.Dockerfile(ctx, b.store, o)
	return img, lock, err
}

// environment builds the image of an environment, and also returns the lock.
func (b *builder) environment(ctx context.Context, o build.Options) (v1.Image, exports.Locked, error) {
	co := b.condaOptions(o)
	// The unpacked layers are useful only for the tree of this machine's platform.
	if len(b.platforms) == 1 || o.Platform.Architecture == goruntime.GOARCH {
		co.Parts = b.parts
	}
	if !b.dockerfile {
		co.Entry = o.Entry
	}
	var err error
	if co.Base, err = b.system(ctx, o); err != nil {
		return nil, exports.Locked{}, err
	}
	env, err := build.Conda(ctx, b.store, co)
	if err != nil {
		return nil, exports.Locked{}, err
	}
	b.steps.environment(env)
	b.noteJupyter(env.Lock)
	b.moves = append(b.moves, env.Moves...)
	return env.Image, env.Lock, nil
}

// planEnvironment prints the downloads for one platform.
func (b *builder) planEnvironment(ctx context.Context, o build.Options) error {
	env, err := build.PlanConda(ctx, b.store, b.condaOptions(o))
	if err != nil {
		return err
	}
	b.steps.environment(env)
	b.moves = append(b.moves, env.Moves...)
	return printDownloads(os.Stdout, b.steps, env.Downloads, b.json)
}

// condaOptions returns the options of the command line for the platform of o.
func (b *builder) condaOptions(o build.Options) build.CondaOptions {
	co := *b.conda
	co.Platform, co.Inputs, co.Progress = o.Platform, o.Inputs, o.Progress
	return co
}

// parsePlatforms reads --platform. Without it, it returns one nil, for this machine.
func parsePlatforms(list string) ([]*v1.Platform, error) {
	if list == "" {
		return []*v1.Platform{nil}, nil
	}
	var out []*v1.Platform
	seen := map[string]bool{}
	for _, item := range strings.Split(list, ",") {
		p, err := parsePlatform(item)
		if err != nil {
			return nil, err
		}
		if !seen[p.String()] {
			out = append(out, p)
		}
		seen[p.String()] = true
	}
	return out, nil
}

// checkDockerfile writes the warnings about a Dockerfile to standard output. It needs no tag and
// no user namespace.
func (a *buildArgs) checkDockerfile(ctx context.Context) error {
	t, err := newSteps(a.progress)
	if err != nil {
		return err
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	warnings := 0
	var missing []string
	for _, p := range a.platforms {
		o := a.image
		o.Platform, o.Progress, o.Stdin = p, t.check, files.Stdin()
		n, unknown, err := build.Check(ctx, s, o)
		if err != nil {
			return t.failed(err)
		}
		warnings, missing = max(warnings, n), append(missing, unknown...)
	}
	slices.Sort(missing)
	for _, image := range slices.Compact(missing) {
		t.note(fmt.Sprintf("%s is not in the store, so its variables were not checked; %q fetches it", image, "hpcc pull "+image))
	}
	switch warnings {
	case 0:
		return nil
	case 1:
		return t.failed(errors.New("the Dockerfile has 1 warning"))
	}
	return t.failed(fmt.Errorf("the Dockerfile has %s", text.Count(warnings, "warning", "warnings")))
}

// parseBuildArgs reads --build-arg. A bare NAME takes its value from the environment.
func parseBuildArgs(list []string) (map[string]string, error) {
	m := map[string]string{}
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if k == "" {
			return nil, text.Usagef("--build-arg %q has no name", kv).Hint("write --build-arg NAME=VALUE")
		}
		if !ok {
			if v, ok = os.LookupEnv(k); !ok {
				return nil, text.Usagef("--build-arg %s: no such variable in the environment", k).Hint("write --build-arg %s=VALUE", k)
			}
		}
		m[k] = v
	}
	return m, nil
}

// parsePairs reads a repeatable flag with values of the form NAME=VALUE.
func parsePairs(c *cli.Context, flag string) (map[string]string, error) {
	m := map[string]string{}
	for _, kv := range c.StringSlice(flag) {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, text.Usagef("--%s %q is not NAME=VALUE", flag, kv).Hint("write --%s NAME=VALUE", flag)
		}
		m[k] = v
	}
	return m, nil
}

// parseSecrets reads --secret, by id.
func parseSecrets(list []string) (map[string]build.Secret, error) {
	m := map[string]build.Secret{}
	for _, arg := range list {
		id, s, err := build.ParseSecret(arg)
		if err != nil {
			return nil, text.Usagef("--secret: %w", err).Hint("write --secret id=NAME,src=FILE")
		}
		m[id] = s
	}
	return m, nil
}

// parseAgents reads --ssh and returns the agent sockets by ID.
func parseAgents(list []string) (map[string]string, error) {
	m := map[string]string{}
	for _, arg := range list {
		id, socket, ok := strings.Cut(arg, "=")
		if !ok {
			socket = os.Getenv("SSH_AUTH_SOCK")
		}
		fi, err := os.Stat(socket)
		if err != nil || fi.Mode()&os.ModeSocket == 0 {
			return nil, text.Usagef("--ssh %s: %q is not an SSH agent's socket", arg, socket).Hint("start ssh-agent, or write --ssh %s=SOCKET", id)
		}
		m[id] = socket
	}
	return m, nil
}

// cacheSources reads --cache-from: REF, or type=registry,ref=REF as in docker build.
func cacheSources(list []string) ([]string, error) {
	var out []string
	for _, arg := range list {
		ref, options := splitCache(arg)
		if err := checkCache("--cache-from", arg, ref); err != nil {
			return nil, err
		}
		for k, v := range options {
			return nil, text.Usagef("--cache-from %q: unknown option %s=%s", arg, k, v).Hint("write --cache-from REF")
		}
		out = append(out, ref)
	}
	return out, nil
}

// checkCache returns an error if ref is not a valid reference.
func checkCache(flag, arg, ref string) error {
	if _, err := store.Canonical(ref); err != nil {
		return text.Usagef("%s %q: %w", flag, arg, err).Hint("write %s registry.example.org/me/app:cache", flag)
	}
	return nil
}

// cacheTarget reads --cache-to. c is nil without the flag.
func cacheTarget(arg string) (ref string, c *build.Cache, err error) {
	if arg == "" {
		return "", nil, nil
	}
	ref, options := splitCache(arg)
	for k, v := range options {
		if k != "mode" || (v != "min" && v != "max") {
			return "", nil, text.Usagef("--cache-to %q: unknown option %s=%s", arg, k, v).Hint("write --cache-to REF or REF,mode=min")
		}
	}
	if err := checkCache("--cache-to", arg, ref); err != nil {
		return "", nil, err
	}
	return ref, &build.Cache{Min: options["mode"] == "min"}, nil
}

// splitCache splits REF,KEY=VALUE,… or type=registry,ref=REF,… into a reference and options.
func splitCache(arg string) (ref string, options map[string]string) {
	options = map[string]string{}
	for _, item := range strings.Split(arg, ",") {
		k, v, ok := strings.Cut(item, "=")
		switch {
		case !ok || k == "ref":
			ref = item[strings.Index(item, "=")+1:]
		case k == "type" && v == "registry":
		default:
			options[k] = v
		}
	}
	return ref, options
}
