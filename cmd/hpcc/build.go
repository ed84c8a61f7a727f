package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/conda/exports"
	"hpcc/runtime"
	"hpcc/store"
	"hpcc/store/wait"
	"hpcc/unpack"
)

func buildCommand() *cli.Command {
	wanted := &attestations{}
	return &cli.Command{
		Name: "build", Usage: "make an image from a Dockerfile or a conda export", ArgsUsage: "[CONTEXT]",
		Description: `Builds an image as an ordinary user: no daemon, no root, no subordinate ids.

   hpcc build -t base .
   hpcc build -f Dockerfile -t base --build-arg VERSION=3 .
   conda list -e > requirements.txt
   hpcc build --conda requirements.txt --channel conda-forge -t sci
   hpcc build --conda environment.yml -f Dockerfile -t app .
   hpcc build --check .

With --conda and a Dockerfile, or a CONTEXT, the environment is what the Dockerfile calls conda: FROM conda, COPY --from=conda.
CONTEXT is a directory (default .), a git repository (URL.git#REF:DIR), or - for a tar archive or a Dockerfile
on standard input. Every instruction is a step: "[3/7] RUN make (cached)". The digest of the image is printed at the end.`,
		Flags: buildFlags(wanted),
		Action: func(c *cli.Context) error {
			if c.Bool("json") && !c.Bool("dry-run") {
				return usagef("--json goes with --dry-run").hint("write --progress json for the steps of a build")
			}
			return buildImage(c, wanted, nil)
		},
	}
}

// buildFlags are those of what builds an image.
func buildFlags(wanted *attestations) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "tag", Aliases: []string{"t"}, Usage: "call the image `NAME`"},
		&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "read `DOCKERFILE` (default CONTEXT/Dockerfile; - is standard input)"},
		&cli.StringFlag{Name: "platform", Usage: "build for `OS/ARCH[,OS/ARCH...]` (default: this machine's); several make an index"},
		&cli.StringSliceFlag{Name: "build-arg", Usage: "set an ARG: `NAME=VALUE`, or NAME to take it from the environment (repeatable)"},
		&cli.StringSliceFlag{Name: "secret", Usage: "show RUN --mount=type=secret a file or variable: `id=NAME,src=FILE` or id=NAME,env=VARIABLE (repeatable)"},
		&cli.StringSliceFlag{Name: "ssh", Usage: "show RUN --mount=type=ssh an agent: `ID[=SOCKET]` (default $SSH_AUTH_SOCK; repeatable)"},
		&cli.StringSliceFlag{Name: "build-context", Usage: "let FROM and --from=NAME mean `NAME=DIR` or NAME=docker-image://REF (repeatable)"},
		&cli.StringSliceFlag{Name: "label", Usage: "label the image `NAME=VALUE` (repeatable)"},
		&cli.StringFlag{Name: "target", Usage: "stop at `STAGE`"},
		&cli.BoolFlag{Name: "entry", Usage: "make \"hpcc entry\" the entry point, for clusters that choose the uid: OpenShift, Kubernetes"},
		&cli.BoolFlag{Name: "check", Usage: "look the Dockerfile over without building; exit status 1 when there are warnings"},
		&cli.BoolFlag{Name: "no-cache", Usage: "do every step again"},
		&cli.StringSliceFlag{Name: "cache-from", Usage: "look for steps in the registry's `REF` as well, which --cache-to made (repeatable)"},
		&cli.StringFlag{Name: "cache-to", Usage: "send the steps of this build to the registry as `REF[,mode=min]`; min: only those whose layers are in the image"},
		&cli.StringFlag{Name: "compression", Usage: "pack new layers with `gzip|zstd`", Value: "gzip"},
		&cli.StringFlag{Name: "progress", Usage: "show steps as `auto|plain|tty|json`", Value: "auto"},
		plainHTTPFlag(), storeFlag(),
	}, slices.Concat(condaFlags(), wanted.flags(), outputFlags())...)
}

// buildImage builds what the command line says, and deploys it unless to is nil.
func buildImage(c *cli.Context, wanted *attestations, to *deployment) error {
	for _, w := range c.Args().Slice() {
		if strings.HasPrefix(w, "mode=") { // docker's flag must have a value, ours may
			return usagef("%q stands alone", w).hint("write --provenance=%s", w)
		}
	}
	a, err := parseArguments(c, 0, 1, "[CONTEXT]")
	if err != nil {
		return err
	}
	if c.Bool("check") {
		return checkDockerfile(c, a)
	}
	if err := checkConda(c); err != nil {
		return err
	}
	if c.String("tag") == "" && !c.Bool("dry-run") {
		return usagef("the image needs a name").hint("hpcc %s -t NAME %s", c.Command.Name, strings.Join(a, " "))
	}
	if err := wanted.read(c); err != nil {
		return err
	}
	ps, err := platforms(c)
	if err != nil {
		return err
	}
	outputs, err := readOutputs(c)
	if err != nil {
		return err
	}
	if err := checkWords(c, outputs); err != nil {
		return err
	}
	o, err := buildOptions(c, a)
	if err != nil {
		return err
	}
	cacheTo, cache, err := cacheTarget(c.String("cache-to"))
	if err != nil {
		return err
	}
	o.CacheTo = cache
	entries, err := entryFiles(c, ps)
	if err != nil {
		return err
	}
	t, err := newSteps(c.String("progress"))
	if err != nil {
		return err
	}
	if err := runtime.EnterFakeRoot(); err != nil {
		return fmt.Errorf("building %s: %w", c.String("tag"), err)
	}
	s, err := openStore(c)
	if err != nil {
		return err
	}
	o.Hidden = secretFiles(c)
	if to != nil {
		if err := to.prepare(c); err != nil {
			return err
		}
	}
	var again bytes.Buffer // what was read of a Dockerfile on standard input
	if o.Context != "-" {
		o.Stdin = io.TeeReader(wait.Stdin(), &again)
	}
	j := buildJob{c: c, s: s, t: t, o: o, platforms: ps, entries: entries, wanted: wanted, outputs: outputs, to: to, cacheTo: cacheTo}
	err = j.run()
	// A damaged layer was moved away: the step that made it is not in the cache any
	// more. A build reads a finite number of layers.
	for n := 0; n < maxHealed && healable(err) && o.Context != "-"; n++ {
		say("warning: %v", err)
		say("building again: the step that made it is repeated")
		j.o.Stdin = bytes.NewReader(again.Bytes())
		err = j.run()
	}
	if err != nil {
		return t.failed(withSignal(c.Context, onDisk(err, s.Dir())))
	}
	return nil
}

// maxHealed bounds how often one build is repeated for damaged layers.
const maxHealed = 20

// healable reports whether repeating a build replaces what it found damaged.
func healable(err error) bool {
	var damaged *store.DamagedError
	return errors.As(err, &damaged) && damaged.Moved != ""
}

// A buildJob is a build with all that the command line asks for, ready to run.
type buildJob struct {
	c         *cli.Context
	s         *store.Store
	t         *steps
	o         build.Options
	platforms []*v1.Platform
	entries   [][]byte
	wanted    *attestations
	outputs   []output
	to        *deployment
	cacheTo   string
}

// run builds for each platform, keeps the result and sends it where it shall go.
func (j buildJob) run() error {
	c, o := j.c, j.o
	if o.CacheTo != nil {
		o.CacheTo = &build.Cache{Min: o.CacheTo.Min}
	}
	made := built{parts: unpack.NewParts(j.s)}
	defer made.parts.Close()
	var locks []exports.Locked
	for i, p := range j.platforms {
		o.Platform, o.Inputs, o.Entry = p, &build.Inputs{}, j.entries[i]
		parts := made.parts
		if len(j.platforms) > 1 && p.Architecture != goruntime.GOARCH {
			parts = nil // see keepBuilt
		}
		img, lock, err := buildOne(c, j.s, j.t, o, parts)
		if err != nil {
			return err
		}
		made.imgs, made.inputs, locks = append(made.imgs, img), append(made.inputs, o.Inputs), append(locks, lock)
	}
	if c.Bool("dry-run") {
		return nil
	}
	j.t.built()
	err := keepBuilt(c, j.s, made, j.wanted, j.outputs, j.to)
	if err == nil && c.String("lock") != "" {
		err = writeLock(c, j.t, locks)
	}
	if err == nil && o.CacheTo != nil {
		err = o.CacheTo.Push(c.Context, j.s, j.cacheTo, store.Remote{PlainHTTP: c.Bool("plain-http")})
	}
	return err
}

// checkWords refuses what would fail only when the image is built: names that
// are none, and files in directories that are not there.
func checkWords(c *cli.Context, outputs []output) error {
	if v := c.String("tag"); v != "" {
		if _, err := store.Canonical(v); err != nil {
			return usagef("--tag: %w", err)
		}
	}
	if _, err := pairs(c, "annotation"); err != nil {
		return err
	}
	if v := c.String("compression"); v != "gzip" && v != "zstd" {
		return usagef("--compression %q: known are gzip and zstd", v).hint("leave it out, or write --compression zstd")
	}
	files := []string{c.String("iidfile"), c.String("metadata-file")}
	for _, o := range outputs {
		files = append(files, o.dest)
	}
	for _, f := range files {
		if f == "" || f == "-" {
			continue
		}
		if err := directoryOf(f); err != nil {
			return err
		}
	}
	contexts, err := pairs(c, "build-context")
	for name, v := range contexts {
		if fi, serr := os.Stat(v); !strings.Contains(v, "://") && (serr != nil || !fi.IsDir()) {
			return usagef("--build-context %s=%s: there is no such directory", name, v).hint("write --build-context %s=DIR, or %s=docker-image://REF", name, name)
		}
	}
	return err
}

// buildOne builds for one platform; nil is this machine's. Of an environment
// there is a lock as well, and its layers become parts; of a dry run there is nothing.
func buildOne(c *cli.Context, s *store.Store, t *steps, o build.Options, parts *unpack.Parts) (img v1.Image, lock exports.Locked, err error) {
	t.forPlatform(o.Platform, strings.Count(c.String("platform"), ",")+1)
	switch {
	case c.Bool("dry-run"):
		return nil, lock, planConda(c, s, t, o)
	case isConda(c):
		img, lock, err = condaImage(c, s, t, o, parts)
		if err != nil || !hasDockerfile(c) {
			return img, lock, err
		}
		o.Environment = img
	}
	o.Progress = t.event
	img, err = build.Dockerfile(c.Context, s, o)
	return img, lock, err
}

// platforms reads --platform; one nil stands for this machine.
func platforms(c *cli.Context) ([]*v1.Platform, error) {
	if c.String("platform") == "" {
		return []*v1.Platform{nil}, nil
	}
	var out []*v1.Platform
	seen := map[string]bool{}
	for _, word := range strings.Split(c.String("platform"), ",") {
		p, err := parsePlatform(word)
		if err != nil {
			return nil, err
		}
		if seen[p.String()] {
			return nil, usagef("--platform names %s twice", p.String())
		}
		seen[p.String()] = true
		out = append(out, p)
	}
	return out, nil
}

// checkDockerfile looks a Dockerfile over: its warnings go to standard output.
// It needs neither a name nor namespaces.
func checkDockerfile(c *cli.Context, a []string) error {
	if isConda(c) {
		return usagef("--check looks at a Dockerfile alone").hint("leave --conda out")
	}
	t, err := newSteps(c.String("progress"))
	if err != nil {
		return err
	}
	s, err := openStore(c)
	if err != nil {
		return err
	}
	ps, err := platforms(c)
	if err != nil {
		return err
	}
	o, err := buildOptions(c, a)
	if err != nil {
		return err
	}
	o.Progress = t.check
	warnings := 0
	var missing []string
	for _, p := range ps {
		o.Platform = p
		n, unknown, err := build.Check(c.Context, s, o)
		if err != nil {
			return t.failed(err)
		}
		warnings, missing = max(warnings, n), append(missing, unknown...)
	}
	slices.Sort(missing)
	for _, image := range slices.Compact(missing) {
		t.note(fmt.Sprintf("%s is not in the store: variables that it may set were not checked; %q fetches it", image, "hpcc pull "+image))
	}
	switch warnings {
	case 0:
		return nil
	case 1:
		return t.failed(errors.New("the Dockerfile has 1 warning"))
	}
	return t.failed(fmt.Errorf("the Dockerfile has %d warnings", warnings))
}

// buildOptions reads the flags of a build from a Dockerfile.
func buildOptions(c *cli.Context, a []string) (build.Options, error) {
	var none build.Options
	vars, err := buildArgs(c.StringSlice("build-arg"))
	if err != nil {
		return none, err
	}
	secrets, err := secretFlags(c.StringSlice("secret"))
	if err != nil {
		return none, err
	}
	agents, err := sshFlags(c.StringSlice("ssh"))
	if err != nil {
		return none, err
	}
	contexts, err := pairs(c, "build-context")
	if err != nil {
		return none, err
	}
	labels, err := pairs(c, "label")
	if err != nil {
		return none, err
	}
	sources, err := cacheSources(c.StringSlice("cache-from"))
	if err != nil {
		return none, err
	}
	o := build.Options{
		CacheFrom: sources,
		Contexts:  contexts, Labels: labels, Compression: c.String("compression"),
		Secrets: secrets, SSH: agents,
		Dockerfile: c.String("file"), Stdin: wait.Stdin(), Args: vars, Target: c.String("target"),
		NoCache: c.Bool("no-cache"), PlainHTTP: c.Bool("plain-http"),
	}
	if len(a) > 0 {
		o.Context = a[0]
	}
	return o, nil
}

// buildArgs reads --build-arg; a bare NAME takes its value from the environment.
func buildArgs(list []string) (map[string]string, error) {
	m := map[string]string{}
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if k == "" {
			return nil, usagef("--build-arg %q has no name", kv).hint("write --build-arg NAME=VALUE")
		}
		if !ok {
			if v, ok = os.LookupEnv(k); !ok {
				return nil, usagef("--build-arg %s: no such variable in the environment", k).hint("write --build-arg %s=VALUE", k)
			}
		}
		m[k] = v
	}
	return m, nil
}

// pairs reads a repeatable flag of NAME=VALUE.
func pairs(c *cli.Context, flag string) (map[string]string, error) {
	m := map[string]string{}
	for _, kv := range c.StringSlice(flag) {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, usagef("--%s %q is not NAME=VALUE", flag, kv).hint("write --%s NAME=VALUE", flag)
		}
		m[k] = v
	}
	return m, nil
}

func secretFlags(list []string) (map[string]build.Secret, error) {
	m := map[string]build.Secret{}
	for _, arg := range list {
		id, s, err := build.ParseSecret(arg)
		if err != nil {
			return nil, usagef("--secret: %w", err).hint("write --secret id=NAME,src=FILE")
		}
		m[id] = s
	}
	return m, nil
}

// sshFlags reads --ssh: an id, and the socket of its agent.
func sshFlags(list []string) (map[string]string, error) {
	m := map[string]string{}
	for _, arg := range list {
		id, socket, ok := strings.Cut(arg, "=")
		if !ok {
			socket = os.Getenv("SSH_AUTH_SOCK")
		}
		fi, err := os.Stat(socket)
		if err != nil || fi.Mode()&os.ModeSocket == 0 {
			return nil, usagef("--ssh %s: %q is no socket of an agent", arg, socket).hint("start ssh-agent, or write --ssh %s=SOCKET", id)
		}
		m[id] = socket
	}
	return m, nil
}
