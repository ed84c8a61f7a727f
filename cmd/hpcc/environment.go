package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/conda"
	"hpcc/conda/exports"
	"hpcc/conda/pip"
	"hpcc/store"
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
// environment, and refuses flags that contradict each other.
func parseConda(c *cli.Context) (*build.CondaOptions, error) {
	o := &build.CondaOptions{
		Files: c.StringSlice("conda"), Live: c.String("conda-prefix"), Environment: c.String("environment"),
		Channels: c.StringSlice("channel"), Relax: c.Bool("relax"), Virtual: c.StringSlice("virtual-package"), Python: c.String("python"),
		Indexes: pip.Indexes{URL: c.String("index-url"), Extra: c.StringSlice("extra-index-url"), FindLinks: c.StringSlice("wheel-dir"), NoIndex: c.Bool("no-index"), PlainHTTP: c.Bool("plain-http")},
		From:    c.String("from"), Prefix: c.String("prefix"), PackageLayers: c.Bool("package-layers"), NoCache: c.Bool("no-cache"),
		PlainHTTP: c.Bool("plain-http"), NoRun: c.Bool("no-run"),
	}
	if len(o.Files) == 0 && o.Live == "" {
		for _, name := range []string{"channel", "channel-priority", "relax", "from", "prefix", "lock", "dry-run", "environment", "with-cuda", "virtual-package", "python", "index-url", "extra-index-url", "wheel-dir", "no-index", "package-layers", "no-run"} {
			if c.IsSet(name) {
				return nil, usagef("--%s needs an export", name).hint("name an export with --conda FILE")
			}
		}
		return nil, nil
	}
	switch p := c.String("channel-priority"); {
	case len(o.Files) > 0 && o.Live != "":
		return nil, usagef("--conda and --conda-prefix contradict each other").hint("leave out one of them")
	case p != "strict" && p != "flexible":
		return nil, usagef("--channel-priority %q is not strict or flexible", p).hint("leave it out, or write --channel-priority flexible")
	case c.Bool("dry-run") && c.String("lock") != "":
		return nil, usagef("--lock cannot be used with --dry-run, which installs nothing").hint("leave out one of them")
	case o.Indexes.NoIndex && c.IsSet("index-url"):
		return nil, usagef("--no-index and --index-url contradict each other").hint("leave out one of them")
	}
	for _, f := range o.Files {
		if _, err := os.Stat(f); errors.Is(err, fs.ErrNotExist) {
			return nil, (&message{err: fmt.Errorf("export %s: no such file", f)}).hint("on the machine of the environment, run \"conda list --explicit --md5 > explicit.txt\" or \"conda env export > environment.yml\"")
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

// checkDirectory refuses the name of a file in a missing directory.
func checkDirectory(file string) error {
	dir := filepath.Dir(file)
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return usagef("writing %q: directory %q does not exist", file, dir).hint("mkdir -p %s", dir)
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
				rowf(w, "%s\t%s\t%s\t%s\t%s\n", m.Fate, m.Name, dash(m.From), dash(m.To), m.Why)
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
	err := &message{err: fmt.Errorf("%s from the export: %s", image, strings.Join(names, ", ")), status: exitDegraded}
	return err.hint("accept the differences with --relax, or change the export or its channels")
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
		from, bytes := d.URL, size(d.Size)
		if d.Size == 0 {
			unknown++
			bytes = "-"
		}
		if d.Cached {
			inCache, cached, from = inCache+d.Size, cached+1, "(cached)"
		}
		if !asJSON {
			rowf(w, "%s%s\t%s\t%s\t%s\t%s\n", columns(column), d.Name, dash(d.Version), dash(d.Build), bytes, from)
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
	text := fmt.Sprintf("%s%d of %d packages would be fetched: %s of %s", t.platform, len(list)-cached, len(list), size(total-inCache), size(total))
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
		b.steps.note(fmt.Sprintf("%s: the addresses of %d packages had credentials, which are left out: add variables such as $TOKEN: %s", b.lock, len(hidden), strings.Join(hidden, " ")))
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
