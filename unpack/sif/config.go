package sif

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// Paths in the root file system, where Apptainer keeps what it executes.
const (
	metaDir    = ".singularity.d"
	envDir     = metaDir + "/env"
	runscript  = metaDir + "/runscript"
	labelsFile = metaDir + "/labels.json"
	dockerEnv  = envDir + "/10-docker2singularity.sh" // the variables of an OCI configuration
)

const (
	maxEnvFiles = 100     // scripts in envDir
	maxFile     = 1 << 20 // bytes of a file
)

// Files are the files of a root file system that belong to the configuration, by path.
type Files map[string]string

// Wants reports whether the file of a path and size belongs to the configuration.
func (f Files) Wants(name string, size int64) bool {
	if len(f) > maxEnvFiles || size > maxFile {
		return false
	}
	return name == runscript || name == labelsFile || (path.Dir(name) == envDir && path.Ext(name) == ".sh")
}

// FilesIn reads the files of the configuration from a root file system in a directory. Links
// in it cannot lead out of it.
func FilesIn(dir string) (Files, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	files := Files{}
	names := []string{runscript, labelsFile}
	if d, err := root.Open(envDir); err == nil {
		all, _ := d.Readdirnames(maxEnvFiles)
		d.Close()
		for _, n := range all {
			names = append(names, path.Join(envDir, n))
		}
	}
	for _, n := range names {
		text, err := readIn(root, n, files)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading /%s of the image: %w", n, err)
		}
		files[n] = text
	}
	return files, nil
}

// readIn reads a file that belongs to the configuration. The error is fs.ErrNotExist if the
// file does not.
func readIn(root *os.Root, name string, files Files) (string, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO would block
	if err != nil {
		return "", err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || !files.Wants(name, fi.Size()) {
		return "", errors.Join(err, fs.ErrNotExist)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	return string(b), err
}

// Config returns the configuration that makes a run behave as "apptainer run": the OCI
// configuration of the file, else the one in own, which may be nil, changed by the scripts
// and labels in files. It also returns a note for each line of a script that has no effect.
//
// Apptainer executes /.singularity.d/runscript, which a definition file can set. If the
// script only executes the entry point of the OCI configuration, that one is used directly.
func (img *Image) Config(files Files, own *v1.ConfigFile) (*v1.ConfigFile, []string) {
	if img.full != nil {
		return img.full.DeepCopy(), nil
	}
	out := &v1.ConfigFile{OS: "linux", Created: v1.Time{Time: time.Unix(0, 0).UTC()}}
	if img.Arch != "unknown" {
		out.Architecture = img.Arch
	}
	hasOCI := img.config != nil
	switch {
	case hasOCI:
		out.Config = *img.config.DeepCopy()
	case own != nil:
		out.Config, hasOCI = *own.Config.DeepCopy(), true
	}
	vars := newVariables(out.Config.Env)
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Dir(name) == envDir && !isStandard(path.Base(name), hasOCI) {
			notes = append(notes, vars.source("/"+name, files[name])...)
		}
	}
	out.Config.Env = vars.environment(out.Config.Env)
	script, ok := files[runscript]
	executesOCI := hasOCI && (strings.Contains(script, "\nOCI_ENTRYPOINT=") || strings.Contains(script, ourScript))
	if ok && !executesOCI && !strings.Contains(script, "There is no runscript defined") {
		out.Config.Entrypoint, out.Config.Cmd = []string{"/" + runscript}, nil
	}
	var labels map[string]string
	if json.Unmarshal([]byte(files[labelsFile]), &labels) == nil && len(labels) > 0 {
		if out.Config.Labels == nil {
			out.Config.Labels = map[string]string{}
		}
		maps.Copy(out.Config.Labels, labels)
	}
	return out, notes
}

// isStandard reports whether a script is the same in all images of Apptainer, or contains the
// variables of the OCI configuration.
func isStandard(base string, hasOCI bool) bool {
	switch base {
	case "01-base.sh", "95-apps.sh", "99-base.sh", "99-runtimevars.sh":
		return true
	case path.Base(dockerEnv), "10-docker.sh":
		return hasOCI
	}
	return false
}
