package build

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda"
	"hpcc/runtime"
)

// installerImage has micromamba for the machines of installerArchs (the tags of
// mamba-org/micromamba-docker).
const installerImage = "mambaorg/micromamba:2.3.0"

var installerArchs = []string{"amd64", "arm64", "ppc64le"}

// CondaDockerfile writes a Dockerfile that makes with docker or podman what Conda
// makes of environments that PlanConda planned, one for each platform of one
// export. Notes are what is to be done before it can be built.
func CondaDockerfile(planned []*Environment) (text []byte, notes []string, err error) {
	o := planned[0].work.CondaOptions
	if _, ok := fromChannel(o.From); ok {
		return nil, nil, errors.New("a Dockerfile cannot say that the base is made of the channel's packages; name an image with --from, such as " + DefaultBase)
	}
	if p := cmp.Or(o.Prefix, conda.DefaultPrefix); strings.Trim(p, plainText) != "" || strings.ContainsAny(o.From, " \t\r\n$") {
		return nil, nil, fmt.Errorf("a Dockerfile for --prefix %q and --from %q: neither may have characters that a shell reads", p, o.From)
	}
	pins := make([]*conda.Pinned, len(planned))
	var archs, hidden []string
	for i, env := range planned {
		p := *env.work.Platform
		if !slices.Contains(installerArchs, p.Architecture) {
			return nil, nil, fmt.Errorf("%s, which installs the packages, is not there for %s: leave it out of --platform", installerImage, p.String())
		}
		if pins[i], err = env.plan.Pin(env.wheels, env.work.options); err != nil {
			return nil, nil, err
		}
		archs, hidden = append(archs, p.Architecture), append(hidden, pins[i].Hidden...)
	}
	f := &condaFile{options: o, archs: archs, pins: pins, variables: planned[0].work.export.Variables}
	if err := f.write(); err != nil {
		return nil, nil, err
	}
	slices.Sort(hidden)
	if hidden = slices.Compact(hidden); len(hidden) > 0 {
		notes = append(notes, fmt.Sprintf("addresses that had credentials are without in the Dockerfile: %s; give them to the build as secrets", strings.Join(hidden, " ")))
	}
	return f.Bytes(), notes, nil
}

// plainText is what no shell and no Dockerfile reads another way.
const plainText = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-"

// A condaFile is a Dockerfile being written.
type condaFile struct {
	bytes.Buffer
	options   CondaOptions
	archs     []string
	pins      []*conda.Pinned // for each of archs
	variables map[string]string
}

func (f *condaFile) line(format string, a ...any) { fmt.Fprintf(f, format+"\n", a...) }

// made is where the installer makes an environment, which is to stand elsewhere.
const made = "/tmp/environment"

// write writes all stages: one for each platform that installs, on whatever machine the
// build is, and the image.
func (f *condaFile) write() error {
	prefix := f.pins[0].Prefix
	f.line("# syntax=docker/dockerfile:1")
	f.line("# The environment of %s, as hpcc installs it: docker build -t NAME - <Dockerfile", oneLine(filepath.Base(cmp.Or(f.options.File, f.options.Live))))
	if all := f.platforms(); len(all) > 1 {
		f.line("# It is for %s, of which --platform chooses.\n", strings.Join(all, ", "))
	} else {
		f.line("# It is for %s alone: on other machines with --platform %[1]s.\n", all[0])
	}
	pip := slices.ContainsFunc(f.pins, func(p *conda.Pinned) bool { return len(p.Requirements) > 0 })
	for i, p := range f.pins {
		f.line("FROM --platform=$BUILDPLATFORM %s AS conda-%s", installerImage, f.archs[i])
		f.file("/tmp/conda.txt", append([]string{"@EXPLICIT"}, p.Explicit...))
		if pip {
			f.file("/tmp/pip.txt", p.Requirements)
		}
		f.line("RUN micromamba create --yes --no-pyc --root-prefix /tmp/micromamba --platform %s --prefix %s --relocate-prefix %s --file /tmp/conda.txt\n", p.Subdir, made, prefix)
	}
	f.line("FROM conda-${TARGETARCH} AS conda\n")
	f.line("FROM %s", f.options.From)
	f.line("COPY --from=conda %s %s", made, prefix)
	if err := f.environment(prefix); err != nil {
		return err
	}
	if pip {
		f.pip(prefix)
	}
	if f.options.From != "scratch" {
		f.activation(prefix)
	}
	return nil
}

func (f *condaFile) platforms() (out []string) {
	for _, a := range f.archs {
		out = append(out, (&v1.Platform{OS: "linux", Architecture: a}).String())
	}
	return out
}

// file writes a small file; nothing in it is expanded.
func (f *condaFile) file(name string, lines []string) {
	f.line("COPY <<'EOF' %s\n%s\nEOF", name, strings.Join(lines, "\n"))
}

// environment writes the variables that withEnvironment sets, but for those of the
// packages' scripts, which nobody has fetched.
func (f *condaFile) environment(prefix string) error {
	all := map[string]string{"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": prefix, "CONDA_SHLVL": "1"}
	maps.Copy(all, f.variables)
	text := "ENV PATH=" + prefix + "/bin:$PATH"
	if f.options.From == "scratch" {
		text = "ENV PATH=" + prefix + "/bin:" + runtime.StandardPath
	}
	if path, ok := all["PATH"]; ok {
		text = "ENV PATH=" + literal(path)
		delete(all, "PATH")
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if strings.ContainsAny(all[k], "\r\n") {
			return fmt.Errorf("the variable %s has several lines, which ENV cannot say; leave it out of %s", k, f.options.File)
		}
		text += " \\\n    " + k + "=" + literal(all[k])
	}
	f.line("%s", text)
	return nil
}

// literal is a value of ENV of which nothing is expanded.
func literal(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(s) + `"`
}

// pip writes how packages of pip are installed, by the environment's own python.
func (f *condaFile) pip(prefix string) {
	python := prefix + "/bin/python"
	hashes := "--require-hashes "
	own := true
	for _, p := range f.pins {
		own = own && p.Pip
		if !p.Hashed {
			hashes = ""
		}
	}
	mount := "RUN --mount=from=conda,source=/tmp/pip.txt,target=/tmp/pip.txt "
	install := python + " -m pip install --no-deps --no-compile --no-cache-dir --only-binary=:all: " + hashes + "--requirement /tmp/pip.txt"
	if own {
		f.line("%s%s", mount, install)
		return
	}
	f.line("%s%s -m ensurepip && %s && %s -m pip uninstall --yes pip setuptools", mount, python, install, python)
}

// activation writes a program that does what "conda activate" does with the
// packages' scripts, before the program that is run.
func (f *condaFile) activation(prefix string) {
	f.line("COPY --chmod=755 <<'EOF' %s\n%s\nEOF", activated, strings.ReplaceAll(activate, "PREFIX", prefix))
	f.line("ENTRYPOINT [%q]\nCMD [\"bash\"]", activated)
}

const activated = "/usr/local/bin/conda-activated"

const activate = `#!/bin/sh
for script in PREFIX/etc/conda/activate.d/*.sh; do
    if [ -r "$script" ]; then . "$script"; fi
done
exec "$@"`
