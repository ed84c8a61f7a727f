package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/build/binder"
	"hpcc/build/definition"
	"hpcc/conda"
	"hpcc/conda/exports"
	"hpcc/conda/pip"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

// condaFlags are the flags of a build from a conda or pip export.
func condaFlags() []cli.Flag {
	return slices.Concat(inSection(condaSection,
		&cli.StringSliceFlag{Name: "conda", Usage: "install the packages of `EXPORT`, any of conda or pip; repeat to merge"},
		&cli.StringSliceFlag{Name: "channel", Aliases: []string{"c"}, Usage: "search `CHANNEL`: a URL, directory or conda.anaconda.org name"},
		&cli.StringFlag{Name: "from", Usage: "install on top of `IMAGE`, scratch, or conda for a minimal base", DefaultText: build.DefaultBase},
		&cli.StringFlag{Name: "lock", Usage: "write the installed packages to `FILE`, a conda-lock.yml"},
		&cli.BoolFlag{Name: "dry-run", Usage: "print what would be downloaded and exit"},
	), inSection(condaSourceSection,
		&cli.StringFlag{Name: repo2dockerFlag, Usage: "build the repository in `DIR` from its files for repo2docker"},
		&cli.StringFlag{Name: "conda-prefix", Usage: "install the packages of the environment in `DIR`"},
		&cli.StringFlag{Name: "environment", Usage: "select environment `NAME` of a pixi file", DefaultText: "default"},
		&cli.StringFlag{Name: "channel-priority", Usage: "use channels in `MODE`: strict or flexible order", Value: "strict"},
		&cli.BoolFlag{Name: "relax", Usage: "accept packages that differ from the export; replace its pins"},
		&cli.StringFlag{Name: "with-cuda", Usage: "solve for machines with CUDA `VERSION`"},
		&cli.StringSliceFlag{Name: "virtual-package", Aliases: []string{"virtual-package-spec"}, Usage: "solve for machines with `NAME=VERSION`, or those in a file"},
		&cli.StringFlag{Name: "python", Usage: "use python `X.Y` for a file of pip packages"},
		&cli.StringFlag{Name: "index-url", Usage: "search the package index at `URL` (default: pypi.org)"},
		&cli.StringSliceFlag{Name: "extra-index-url", Usage: "search the package index at `URL` as well"},
		&cli.StringSliceFlag{Name: "wheel-dir", Aliases: []string{"find-links"}, Usage: "search wheels in `DIR` or on the page of a URL as well"},
		&cli.BoolFlag{Name: "no-index", Usage: "search wheels in --wheel-dir only"},
		&cli.BoolFlag{Name: "no-run", Usage: "run no post-link scripts and build no source packages"},
		&cli.StringFlag{Name: "prefix", Usage: "install the environment to `DIR` in the image", DefaultText: conda.DefaultPrefix},
		&cli.BoolFlag{Name: "package-layers", Usage: "make one layer per package, shared between images"},
		&cli.BoolFlag{Name: "json", Usage: "with --dry-run: print one JSON object per line"},
	))
}

// parseConda reads the flags of condaFlags. It returns nil if the build has no
// environment, and refuses flags that contradict each other. r is the repository of
// --repo2docker, or nil.
func parseConda(c *cli.Context, r *binder.Repository) (*build.CondaOptions, error) {
	o := &build.CondaOptions{
		Request: conda.Request{
			Channels: c.StringSlice("channel"), Relax: c.Bool("relax"), Python: c.String("python"), Prefix: c.String("prefix"),
			Indexes: pip.Indexes{URL: c.String("index-url"), Extra: c.StringSlice("extra-index-url"), FindLinks: c.StringSlice("wheel-dir"),
				NoIndex: c.Bool("no-index"), PlainHTTP: c.Bool("plain-http")},
			PackageLayers: c.Bool("package-layers"), NoCache: c.Bool("no-cache"),
		},
		Files: c.StringSlice("conda"), Live: c.String("conda-prefix"), Environment: c.String("environment"),
		Virtual: c.StringSlice("virtual-package"), From: c.String("from"), PlainHTTP: c.Bool("plain-http"), NoRun: c.Bool("no-run"),
	}
	if r != nil && r.Dockerfile == "" {
		setRepository(o, r)
	}
	if len(o.Files) == 0 && o.Live == "" {
		for _, name := range []string{"channel", "channel-priority", "relax", "from", "prefix", "lock", "dry-run", "environment", "with-cuda", "virtual-package", "python", "index-url", "extra-index-url", "wheel-dir", "no-index", "package-layers", "no-run"} {
			if c.IsSet(name) && r != nil {
				return nil, text.Usagef("--%s has no effect: the image is built from %s", name, r.Dockerfile).Hint("leave out --%s", name)
			} else if c.IsSet(name) {
				return nil, text.Usagef("--%s needs an export", name).Hint("name an export with --conda FILE")
			}
		}
		return nil, nil
	}
	switch p := c.String("channel-priority"); {
	case len(o.Files) > 0 && o.Live != "":
		return nil, text.Usagef("--conda and --conda-prefix contradict each other").Hint("leave out one of them")
	case p != "strict" && p != "flexible":
		return nil, text.Usagef("--channel-priority %q is not strict or flexible", p).Hint("leave it out, or write --channel-priority flexible")
	case c.Bool("dry-run") && c.String("lock") != "":
		return nil, text.Usagef("--lock cannot be used with --dry-run, which installs nothing").Hint("leave out one of them")
	case o.Indexes.NoIndex && c.IsSet("index-url"):
		return nil, text.Usagef("--no-index and --index-url contradict each other").Hint("leave out one of them")
	}
	for _, f := range c.StringSlice("conda") {
		fi, err := os.Stat(f)
		if err == nil && fi.IsDir() {
			return nil, text.Usagef("export %s: is a directory", f).Hint("name a file in it, or use --conda-prefix for an installed environment, --repo2docker for a repository")
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, text.Hint(fmt.Errorf("export %s: %w", f, syscall.ENOENT), "on the machine of the environment, run \"conda list --explicit --md5 > explicit.txt\" or \"conda env export > environment.yml\"")
		}
	}
	if c.IsSet("channel-priority") {
		o.Priority = c.String("channel-priority")
	}
	if v := c.String("with-cuda"); v != "" {
		o.Virtual = append(o.Virtual, "__cuda="+v)
	}
	if f := c.String("lock"); f != "" {
		return o, checkDirectory(f)
	}
	return o, nil
}

// repo2dockerFlag is the flag of a build from repo2docker's configuration files.
const repo2dockerFlag = "repo2docker"

// repo2dockerBase is repo2docker's base image.
const repo2dockerBase = "buildpack-deps:24.04"

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

// useRepository sets the options of a build from the files of a repository.
func (a *buildArgs) useRepository() error {
	dir, err := filepath.Abs(a.repository.Dir) // no name of a directory is then a URL
	if err != nil {
		return fmt.Errorf("finding the repository: %w", err)
	}
	a.image.Context, a.image.IgnoreFile = dir, a.repository.IgnoreFile
	if a.repository.Dockerfile == "" {
		return nil
	}
	a.image.Dockerfile = a.repository.Dockerfile
	for name, value := range map[string]string{"NB_USER": "jovyan", "NB_UID": "1000"} { // as repo2docker sets them
		if _, ok := a.image.Args[name]; !ok {
			a.image.Args[name] = value
		}
	}
	return nil
}

// setRepository sets the environment of a repository.
func setRepository(o *build.CondaOptions, r *binder.Repository) {
	o.Files, o.Packages, o.DefaultChannels = []string{r.Export}, r.Packages, []string{"conda-forge"}
	o.Python = "" // it is in Packages
}

// system builds the image below the environment of a repository, or returns nil if the
// environment is directly on the base image.
func (b *builder) system(ctx context.Context, o build.Options) (v1.Image, error) {
	if b.repository == nil {
		return nil, nil
	}
	recipe := b.repository.System(cmp.Or(b.conda.From, build.DefaultBase))
	if recipe == nil {
		return nil, nil
	}
	o.Entry, o.Labels, o.Target = nil, nil, ""
	return generated(ctx, b, recipe, o)
}

// generated builds the image of a generated Dockerfile. Its errors name the file of the
// repository that has the mistake.
func generated(ctx context.Context, b *builder, r *binder.Recipe, o build.Options) (v1.Image, error) {
	o.Dockerfile, o.Stdin = "-", bytes.NewReader(r.Text)
	img, err := build.Dockerfile(ctx, b.store, o)
	var le *build.LineError
	if !errors.As(err, &le) {
		return img, err
	}
	at := r.Origin(le.Line)
	le.File, le.Line, le.End, le.Source = cmp.Or(at.File, b.repository.Dir), at.Line, at.End, at.Source
	name := filepath.Base(at.File)
	switch {
	case at.File == "":
		return nil, err
	case at.Line > 0:
		base := cmp.Or(b.conda.From, build.DefaultBase)
		return nil, text.Hint(err, "name packages of %s in %s, or use repo2docker's base image: --from %s", base, name, repo2dockerBase)
	}
	return nil, text.Hint(err, "correct %s; add packages of missing programs to environment.yml or apt.txt, or use repo2docker's base image: --from %s", name, repo2dockerBase)
}

// noteJupyter notes that an environment lacks Jupyter, which repo2docker adds to all.
func (b *builder) noteJupyter(lock exports.Locked) {
	servers := []string{"notebook", "jupyterlab", "jupyter_server", "jupyter-server"}
	if b.repository == nil || slices.ContainsFunc(lock.Packages, func(p exports.LockedPackage) bool { return slices.Contains(servers, p.Name) }) {
		return
	}
	b.steps.note("hpcc does not add Jupyter, as repo2docker would; name jupyterlab in environment.yml or requirements.txt to use it")
}

// checkDirectory refuses the name of a file in a missing directory.
func checkDirectory(file string) error {
	dir := filepath.Dir(file)
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return text.Usagef("writing %q: directory %q does not exist", file, dir).Hint("mkdir -p %s", dir)
	}
	return nil
}

// environment reports how the packages of an export were installed.
func (t *steps) environment(env *build.Environment) {
	for _, n := range env.Notes {
		t.note(n)
	}
	t.moves(env.Moves)
}

// moves prints a row for each package that differs from the export, lost packages first.
func (t *steps) moves(list []conda.Move) {
	t.mu.Lock()
	defer t.mu.Unlock()
	count := map[conda.Fate]int{}
	allExact := true
	for _, m := range list {
		count[m.Fate]++
		allExact = allExact && m.Fate.IsExact()
	}
	if allExact {
		return
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "FATE\tPACKAGE\tEXPORT\tINSTALLED\tWHY")
	var sums []string
	for _, fate := range conda.Fates() {
		if count[fate] > 0 {
			sums = append(sums, fmt.Sprintf("%d %s", count[fate], fate))
		}
		for _, m := range list {
			if m.Fate == fate && !fate.IsExact() {
				t.object("move", nil, "platform", strings.TrimSpace(t.platform), "name", m.Name, "from", m.From, "to", m.To, "fate", m.Fate, "why", m.Why)
				terminal.Rowf(w, "%s\t%s\t%s\t%s\t%s\n", m.Fate, m.Name, dash(m.From), dash(m.To), m.Why)
			}
		}
	}
	w.Flush()
	if t.json == nil {
		rows := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		for i := range rows {
			rows[i] = strings.TrimRight(rows[i], " ")
		}
		t.print(append(rows, "hpcc: "+t.platform+"packages: "+strings.Join(sums, ", "))...)
	}
}

// degradedError returns an error that lists the packages of an image that are worse than the
// exported ones; nil if there are none, or if --relax accepts them.
func (a *buildArgs) degradedError(list []conda.Move) error {
	if a.conda == nil || a.conda.Relax {
		return nil
	}
	var names []string
	for _, m := range list {
		if !m.Degraded {
			continue
		}
		to := m.To
		if to == "" {
			to = string(m.Fate)
		}
		if text := fmt.Sprintf("%s=%s (%s)", m.Name, m.From, to); !slices.Contains(names, text) {
			names = append(names, text)
		}
	}
	const most = 10 // the table of packages has all
	if n := len(names) - most; n > 0 {
		names = append(names[:most], fmt.Sprintf("and %d more", n))
	}
	if len(names) == 0 {
		return nil
	}
	image := "the image is built, but differs"
	if a.dryRun {
		image = "the image would differ"
	}
	err := &text.Error{Err: fmt.Errorf("%s from the export: %s", image, strings.Join(names, ", ")), Status: exitDegraded}
	return err.Hint("accept the differences with --relax, or change the export or its channels")
}

// printDownloads prints the downloads as a table or as JSON objects, and a note with the sums.
func printDownloads(out io.Writer, t *steps, list []conda.Download, asJSON bool) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	head, column := "", ""
	platform := strings.TrimSpace(t.platform) // "" for a single platform
	if platform != "" {
		head, column = "PLATFORM\t", platform+"\t"
	}
	if !asJSON {
		fmt.Fprintln(w, head+"PACKAGE\tVERSION\tBUILD\tSIZE\tFROM")
	}
	var total, inCache int64
	unknown, cached := 0, 0
	for _, d := range list {
		total += d.Size
		from, bytes := d.URL, text.Size(d.Size)
		if d.Size == 0 {
			unknown++
			bytes = "-"
		}
		if d.Cached {
			inCache, cached, from = inCache+d.Size, cached+1, "(cached)"
		}
		if !asJSON {
			terminal.Rowf(w, "%s%s\t%s\t%s\t%s\t%s\n", terminal.Columns(column), d.Name, dash(d.Version), dash(d.Build), bytes, from)
			continue
		}
		if err := enc.Encode(struct {
			Type     string `json:"type"`
			Platform string `json:"platform,omitempty"`
			conda.Download
		}{"download", platform, d}); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("%s%d of %s would be fetched: %s of %s", t.platform, len(list)-cached, text.Count(len(list), "package", "packages"), text.Size(total-inCache), text.Size(total))
	if unknown > 0 {
		text += fmt.Sprintf(", and %d of unknown size", unknown)
	}
	t.note(text)
	return w.Flush()
}

// writeLock writes the lock file of an environment for all platforms.
func (b *builder) writeLock(locks []exports.Locked) error {
	var hidden []string
	for _, l := range locks {
		hidden = append(hidden, l.Hidden...)
	}
	err := store.NewFile(b.lock, func(f *os.File) error { return exports.WriteLock(f, b.conda.Sources(), locks) })
	if err != nil {
		return fmt.Errorf("writing %q: %w", b.lock, err)
	}
	slices.Sort(hidden)
	if hidden = slices.Compact(hidden); len(hidden) > 0 {
		b.steps.note(fmt.Sprintf("%s: the addresses of %s had credentials, which are left out: add variables such as $TOKEN: %s", b.lock, text.Count(len(hidden), "package", "packages"), strings.Join(hidden, " ")))
	}
	return nil
}

// dash returns s, or "-" for an empty cell of a table.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// parseDefinition reads the file of -f if it is a definition file of Apptainer.
func (a *buildArgs) parseDefinition(c *cli.Context) error {
	file := a.image.Dockerfile
	if fi, err := os.Stat(file); file == "" || file == "-" || err != nil || !fi.Mode().IsRegular() {
		return nil
	}
	content, err := readHead(file, definition.MaxSize+1)
	if err != nil || !definition.Is(content) {
		return err // for a Dockerfile, the build reports errors itself
	}
	for _, name := range []string{"check", "target", "conda", "conda-prefix", "no-cache-filter"} {
		if c.IsSet(name) {
			return text.Usagef("--%s is for Dockerfiles, and %s is a definition file of Apptainer", name, file).Hint("leave out --%s", name)
		}
	}
	dir := a.image.Context
	if dir == "" {
		dir = "."
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("finding the directory of %%files: %w", err)
	}
	a.definition, err = definition.Parse(file, content, definition.Options{Dir: dir, Args: a.image.Args, NoTest: c.Bool("no-test")})
	a.image.Args = map[string]string{}
	return err
}

// readHead returns the first bytes of a file.
func readHead(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// fromDefinition builds the image of a definition file. Its errors name lines of that file.
func (b *builder) fromDefinition(ctx context.Context, o build.Options) (v1.Image, error) {
	d := b.definition
	o.Contexts = maps.Clone(o.Contexts)
	if o.Contexts == nil {
		o.Contexts = map[string]string{}
	}
	maps.Copy(o.Contexts, d.Contexts)
	for name, file := range d.Archives {
		image := fmt.Sprintf("hpcc-base-%d/%s", os.Getpid(), name)
		loaded, err := loadAny(ctx, b.store, file, image)
		if err != nil {
			return nil, fmt.Errorf("%s: loading %s: %w", d.File, file, err)
		}
		for _, n := range loaded {
			defer func() { _ = b.store.Remove(n) }() // the layers are those of the new image
		}
		o.Contexts[name] = "docker-image://" + loaded[0]
	}
	o.Dockerfile, o.Stdin, o.Context = "-", bytes.NewReader(d.Text), ""
	img, err := build.Dockerfile(ctx, b.store, o)
	var le *build.LineError
	if errors.As(err, &le) {
		first, last := d.Origin(le.Line)
		le.File, le.Line, le.End, le.Source = d.File, first, last, d.Source
	}
	if err != nil || len(d.Prefix) == 0 {
		return img, err
	}
	return withPrefix(img, d.Prefix)
}

// withPrefix puts arguments in front of an image's entry point.
func withPrefix(img v1.Image, prefix []string) (v1.Image, error) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	c := cfg.Config
	c.Entrypoint = append(append([]string{}, prefix...), c.Entrypoint...)
	return build.EditConfig(img, raw, func(fields map[string]json.RawMessage) (err error) {
		fields["config"], err = json.Marshal(c)
		return err
	})
}
