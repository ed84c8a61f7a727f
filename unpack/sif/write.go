package sif

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	format "github.com/apptainer/sif/v2/pkg/sif"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"mvdan.cc/sh/v3/syntax"
)

// Content is the content of a SIF file.
type Content struct {
	Digest string // of the image
	Config *v1.ConfigFile
	Root   func(w io.WriteSeeker) error // writes the root file system as SquashFS
}

// Write writes a SIF file to f, which must be empty. The same content gives the same bytes:
// the file has no ID and no time, like those of Apptainer with SOURCE_DATE_EPOCH.
func Write(f *os.File, c Content) error {
	config, err := json.Marshal(c.Config.Config)
	if err != nil {
		return err
	}
	labels, err := json.Marshal(c.Config.Config.Labels)
	if err != nil {
		return err
	}
	definition := fmt.Sprintf("# Written by hpcc save from the image %s. There is no definition file.\nBootstrap: scratch\n", c.Digest)
	var objects []format.DescriptorInput
	add := func(kind format.DataType, r io.Reader, options ...format.DescriptorInputOpt) {
		d, derr := format.NewDescriptorInput(kind, r, options...)
		err = errors.Join(err, derr)
		objects = append(objects, d)
	}
	add(format.DataDeffile, strings.NewReader(definition))
	add(format.DataGenericJSON, bytes.NewReader(config), format.OptObjectName(ociConfig))
	if len(c.Config.Config.Labels) > 0 {
		add(format.DataLabels, bytes.NewReader(labels), format.OptObjectName("labels.json"))
	}
	add(format.DataPartition, &rootWriter{f: f, write: c.Root},
		format.OptPartitionMetadata(format.FsSquash, format.PartPrimSys, c.Config.Architecture))
	if err != nil {
		return fmt.Errorf("architecture %q: %w", c.Config.Architecture, err)
	}
	_, err = format.CreateContainer(f, format.OptCreateDeterministic(),
		format.OptCreateWithLaunchScript("#!/usr/bin/env run-singularity\n"),
		format.OptCreateWithDescriptors(objects...), format.OptCreateWithCloseOnUnload(false))
	return err
}

// A rootWriter writes the root file system where the library copies an object to, without a
// temporary file. io.Copy calls WriteTo.
type rootWriter struct {
	f     *os.File
	write func(io.WriteSeeker) error
}

func (*rootWriter) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

func (r *rootWriter) WriteTo(w io.Writer) (int64, error) {
	if w != io.Writer(r.f) {
		return 0, errors.New("the library does not write to the file itself")
	}
	at, err := r.f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	if err := r.write(io.NewOffsetWriter(r.f, at)); err != nil {
		return 0, err
	}
	end, err := r.f.Seek(0, io.SeekEnd)
	return end - at, err
}

// A RootFile is a file or directory that Apptainer needs in the root file system.
type RootFile struct {
	Name       string
	Mode       int64
	Data       string // "" in a directory
	Dir        bool
	MountPoint bool // a directory that an image with another file of this name can do without
	Replace    bool // the file replaces one of the image
}

// ourScript marks the runscripts that hpcc writes.
const ourScript = "\n# hpcc save: ENTRYPOINT and CMD of the image\n"

// variablesOf returns the script for the variables of the configuration. It keeps an older script
// whose variables the configuration lacks.
func variablesOf(env []string, older string) string {
	if isEvaluated(env, dockerEnv, older) {
		return exports(env)
	}
	return older + "\n" + exports(env)
}

// isEvaluated reports whether the configuration has the variables of a script, as it does for an
// image that came from a SIF file. An image of a definition file has them only in the script.
func isEvaluated(env []string, name, text string) bool {
	v := newVariables(env)
	known := len(v.environment(env))
	return len(v.source(name, text)) == 0 && len(v.environment(env)) == known
}

// RootFiles returns the files that make Apptainer run an image, each after its directory.
// files are those that the image has. An image that came from a SIF file keeps its runscript,
// and the scripts that set more variables than its configuration has.
func RootFiles(config *v1.ConfigFile, files Files) ([]RootFile, error) {
	c := config.Config
	labels, err := json.MarshalIndent(c.Labels, "", "\t")
	if err != nil {
		return nil, err
	}
	if c.Labels == nil {
		labels = []byte("{}")
	}
	out := []RootFile{{Name: metaDir, Mode: 0o755, Dir: true}}
	for _, d := range []string{envDir, metaDir + "/actions", metaDir + "/libs"} {
		out = append(out, RootFile{Name: d, Mode: 0o755, Dir: true})
	}
	// Without overlays, Apptainer can mount only on what exists.
	for _, d := range []string{"dev", "etc", "home", "proc", "root", "sys", "var"} {
		out = append(out, RootFile{Name: d, Mode: 0o755, Dir: true, MountPoint: true})
	}
	for _, d := range []string{"tmp", "var/tmp"} {
		out = append(out, RootFile{Name: d, Mode: 0o1777, Dir: true, MountPoint: true})
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Dir(name) == envDir && !isStandard(path.Base(name), true) &&
			isEvaluated(c.Env, name, files[name]) { // or "export A=$A:b" would have its effect twice
			out = append(out, RootFile{Name: name, Mode: 0o755, Data: "#!/bin/sh\n", Replace: true})
		}
	}
	own := slices.Contains(c.Entrypoint, "/"+runscript) || len(c.Entrypoint)+len(c.Cmd) == 0
	return append(out,
		RootFile{Name: dockerEnv, Mode: 0o755, Data: variablesOf(c.Env, files[dockerEnv]), Replace: true},
		RootFile{Name: runscript, Mode: 0o755, Data: commandScript(c), Replace: !own},
		RootFile{Name: labelsFile, Mode: 0o644, Data: string(labels), Replace: true},
		RootFile{Name: metaDir + "/actions/exec", Mode: 0o755, Data: action(`exec "$@"`)},
		RootFile{Name: metaDir + "/actions/run", Mode: 0o755, Data: action(`exec /` + runscript + ` "$@"`)},
		RootFile{Name: metaDir + "/actions/shell", Mode: 0o755,
			Data: action(`[ -x /bin/bash ] && exec /bin/bash --norc "$@"`, `exec /bin/sh "$@"`)},
	), nil
}

// action returns a script for versions of Singularity without an own shell.
func action(last ...string) string {
	return "#!/bin/sh\nfor f in /" + envDir + "/*.sh; do [ ! -f \"$f\" ] || . \"$f\"; done\n" + strings.Join(last, "\n") + "\n"
}

// exports returns a script that sets the variables of an image.
func exports(env []string) string {
	out := "#!/bin/sh\n"
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok && syntax.ValidName(name) {
			out += "export " + name + "=" + quote(value) + "\n"
		}
	}
	return out
}

// commandScript returns a script that executes the entry point or the command of an image.
func commandScript(c v1.Config) string {
	command := c.Cmd
	if len(c.Entrypoint) == 0 && len(command) == 0 {
		command = []string{"/bin/sh"}
	}
	out := "#!/bin/sh" + ourScript
	if len(command) > 0 {
		out += "[ $# -gt 0 ] || set --" + quoted(command) + "\n"
	}
	return out + "exec" + quoted(c.Entrypoint) + " \"$@\"\n"
}

func quoted(argv []string) (out string) {
	for _, a := range argv {
		out += " " + quote(a)
	}
	return out
}

// quote quotes text for the shell. Apptainer's own shell keeps backslashes outside of quotes
// (mvdan.cc/sh, expand.Literal).
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'" }
