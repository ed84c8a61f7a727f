package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/build"
	"hpcc/conda"
	"hpcc/runtime"
	"hpcc/store"
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

CONTEXT is a directory (default .), a git repository (URL.git#REF:DIR), or - for a tar archive or a Dockerfile
on standard input. Every instruction is a step: "[3/7] RUN make (cached)". The digest of the image is printed at the end.`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "tag", Aliases: []string{"t"}, Usage: "call the image `NAME`"},
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "read `DOCKERFILE` (default CONTEXT/Dockerfile; - is standard input)"},
			&cli.StringFlag{Name: "conda", Usage: "install the packages of `EXPORT`: conda list -e, or conda list --explicit"},
			&cli.StringSliceFlag{Name: "channel", Aliases: []string{"c"}, Usage: "find packages in `CHANNEL`: a URL, a directory, or a name on conda.anaconda.org (repeatable, in order)"},
			&cli.StringFlag{Name: "from", Usage: "put the environment on `IMAGE`; scratch is none", DefaultText: build.DefaultBase},
			&cli.StringFlag{Name: "prefix", Usage: "install the environment at `DIR` inside", DefaultText: conda.DefaultPrefix},
			&cli.StringFlag{Name: "platform", Usage: "build for `OS/ARCH[,OS/ARCH...]` (default: this machine's); several make an index"},
			&cli.StringSliceFlag{Name: "build-arg", Usage: "set an ARG: `NAME=VALUE`, or NAME to take it from the environment (repeatable)"},
			&cli.StringSliceFlag{Name: "secret", Usage: "show RUN --mount=type=secret a file or variable: `id=NAME,src=FILE` or id=NAME,env=VARIABLE (repeatable)"},
			&cli.StringSliceFlag{Name: "ssh", Usage: "show RUN --mount=type=ssh an agent: `ID[=SOCKET]` (default $SSH_AUTH_SOCK; repeatable)"},
			&cli.StringSliceFlag{Name: "build-context", Usage: "let FROM and --from=NAME mean `NAME=DIR` or NAME=docker-image://REF (repeatable)"},
			&cli.StringSliceFlag{Name: "label", Usage: "label the image `NAME=VALUE` (repeatable)"},
			&cli.StringFlag{Name: "target", Usage: "stop at `STAGE`"},
			&cli.BoolFlag{Name: "no-cache", Usage: "do every step again"},
			&cli.StringSliceFlag{Name: "cache-from", Usage: "look for steps in the registry's `REF` as well, which --cache-to made (repeatable)"},
			&cli.StringFlag{Name: "cache-to", Usage: "send the steps of this build to the registry as `REF[,mode=min]`; min: only those whose layers are in the image"},
			&cli.StringFlag{Name: "compression", Usage: "pack new layers with `gzip|zstd`", Value: "gzip"},
			&cli.StringFlag{Name: "progress", Usage: "show steps as `auto|plain|tty|json`", Value: "auto"},
			plainHTTPFlag(), storeFlag(),
		}, append(wanted.flags(), outputFlags()...)...),
		Action: func(c *cli.Context) error { return buildImage(c, wanted) },
	}
}

func buildImage(c *cli.Context, wanted *attestations) error {
	a, err := args(c, 0, 1, "[CONTEXT]")
	if err != nil {
		return err
	}
	if c.String("tag") == "" {
		return usagef("the image needs a name").hint("hpcc build -t NAME %s", strings.Join(a, " "))
	}
	if c.String("conda") != "" && (c.String("file") != "" || len(a) > 0) {
		return usagef("--conda and a Dockerfile together are not supported yet").hint("build the environment first (-t env), then begin the Dockerfile with FROM env")
	}
	if err := wanted.read(c); err != nil {
		return err
	}
	if err := runtime.EnterFakeRoot(); err != nil {
		return fmt.Errorf("building %s: %w", c.String("tag"), err)
	}
	s, err := openStore(c)
	if err != nil {
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
	t, err := newSteps(c.String("progress"))
	if err != nil {
		return err
	}
	cacheTo, cache, err := cacheTarget(c.String("cache-to"))
	if err != nil {
		return err
	}
	var imgs []v1.Image
	var inputs []*build.Inputs
	for _, p := range ps {
		in := &build.Inputs{}
		img, err := buildOne(c, s, t, p, a, cache, in)
		t.end()
		if err != nil {
			return explainBuild(err, t)
		}
		imgs, inputs = append(imgs, img), append(inputs, in)
	}
	if err := keepBuilt(c, s, imgs, inputs, wanted, outputs); err != nil || cache == nil {
		return err
	}
	return cache.Push(c.Context, s, cacheTo, store.Remote{PlainHTTP: c.Bool("plain-http")})
}

// buildOne builds for one platform; nil is this machine's.
func buildOne(c *cli.Context, s *store.Store, t *steps, p *v1.Platform, a []string, cache *build.Cache, in *build.Inputs) (v1.Image, error) {
	t.platform = ""
	if strings.Contains(c.String("platform"), ",") {
		t.platform = p.String() + " "
	}
	if c.String("conda") != "" {
		return condaImage(c, s, t, p, in)
	}
	return dockerfile(c, s, t, p, a, cache, in)
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

func dockerfile(c *cli.Context, s *store.Store, t *steps, p *v1.Platform, a []string, cache *build.Cache, in *build.Inputs) (v1.Image, error) {
	vars, err := buildArgs(c.StringSlice("build-arg"))
	if err != nil {
		return nil, err
	}
	secrets, err := secretFlags(c.StringSlice("secret"))
	if err != nil {
		return nil, err
	}
	agents, err := sshFlags(c.StringSlice("ssh"))
	if err != nil {
		return nil, err
	}
	contexts, err := pairs(c, "build-context")
	if err != nil {
		return nil, err
	}
	labels, err := pairs(c, "label")
	if err != nil {
		return nil, err
	}
	o := build.Options{
		CacheFrom: cacheSources(c.StringSlice("cache-from")), CacheTo: cache,
		Contexts: contexts, Labels: labels, Compression: c.String("compression"),
		Secrets: secrets, SSH: agents,
		Dockerfile: c.String("file"), Stdin: os.Stdin, Platform: p, Args: vars, Target: c.String("target"),
		NoCache: c.Bool("no-cache"), PlainHTTP: c.Bool("plain-http"), Progress: t.event, Output: t.output(), Inputs: in,
	}
	if len(a) > 0 {
		o.Context = a[0]
	}
	return build.Dockerfile(c.Context, s, o)
}

func condaImage(c *cli.Context, s *store.Store, t *steps, p *v1.Platform, in *build.Inputs) (v1.Image, error) {
	bar := progress("fetching packages")
	img, notes, err := build.Conda(c.Context, s, build.CondaOptions{
		File: c.String("conda"), Channels: c.StringSlice("channel"), From: c.String("from"), Prefix: c.String("prefix"),
		Platform: p, PlainHTTP: c.Bool("plain-http"), Progress: t.event, Bytes: bar.bytes, Inputs: in,
	})
	bar.end()
	for _, n := range notes {
		say("note: %s", n)
	}
	return img, err
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

// explainBuild shows what a failing RUN printed, unless it was shown already.
func explainBuild(err error, t *steps) error {
	var le *build.LineError
	if errors.As(err, &le) && len(le.Log) > 0 && t.out == nil {
		os.Stderr.Write(le.Log)
		if le.Log[len(le.Log)-1] != '\n' {
			fmt.Fprintln(os.Stderr)
		}
	}
	return err
}

// steps writes a line for each step of a build, as it ends; on a terminal also
// what is being done now.
type steps struct {
	tty   bool
	out   io.Writer
	begun time.Time
	live  bool
	json  *json.Encoder // one object for each event instead
	// platform stands before the numbers where there are several.
	platform string
}

func newSteps(mode string) (*steps, error) {
	t := &steps{}
	switch mode {
	case "auto":
		t.tty = term.IsTerminal(int(os.Stderr.Fd()))
	case "tty":
		t.tty = true
	case "plain":
	case "json":
		t.json = json.NewEncoder(os.Stderr)
		return t, nil
	default:
		return nil, usagef("--progress %q is none of auto, plain, tty and json", mode)
	}
	if !t.tty {
		t.out = os.Stderr
	}
	return t, nil
}

// output is where RUN's own words go: a log keeps them, a terminal shows them
// only when the step fails.
func (t *steps) output() io.Writer { return t.out }

func (t *steps) event(e build.Event) {
	t.end()
	if t.json != nil {
		_ = t.json.Encode(map[string]any{"type": "step", "platform": strings.TrimSpace(t.platform), "step": e.Step, "total": e.Total, "text": e.Text,
			"done": e.Done, "cached": e.Cached, "warning": e.Warning})
		return
	}
	if e.Warning != "" {
		say("warning: %s", e.Warning)
		return
	}
	head := fmt.Sprintf("[%s%d/%d] %s", t.platform, e.Step, e.Total, e.Text)
	switch {
	case !e.Done:
		t.begun = time.Now()
		if t.tty {
			fmt.Fprintf(os.Stderr, "%s", head)
			t.live = true
		}
	case e.Cached:
		fmt.Fprintf(os.Stderr, "%s (cached)\n", head)
	default:
		fmt.Fprintf(os.Stderr, "%s (%.1fs)\n", head, time.Since(t.begun).Seconds())
	}
}

// end clears the live line.
func (t *steps) end() {
	if t.live {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
		t.live = false
	}
}
