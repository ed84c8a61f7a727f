//go:build !start

package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/umoci/oci/config/convert"
	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/runtime/rawfile"
	"hpcc/runtime/rootfs"
)

// ConfigName is the name of a bundle's configuration file.
const ConfigName = "config.json"

// BundleRoot is the directory of a bundle that holds the image's files.
const BundleRoot = "rootfs"

// reservedAnnotations are prefixes of annotations that control an OCI runtime: hpcc's own
// marks, crun's handlers, hooks and modules, properties of systemd units, the configuration
// of CRIU. An image's labels cannot set them.
var reservedAnnotations = []string{"hpcc.", "run.oci.", "krun.", "module.wasm.", "org.systemd.property.", "org.criu."}

// Bundle returns the OCI specification that runs the image in the tree root, whose
// configuration is in file below root. Every OCI runtime that works without root and
// subordinate IDs can run it. The image specification's conversion (conversion.md) applies,
// with labels, author, stop signal and exposed ports as annotations, except that:
//
//   - the user is root inside, because runc supports nothing else;
//   - the host's /proc, /sys and /dev are bound: replacing them needs pid and network
//     namespaces, which break MPI and signals from schedulers;
//   - /tmp is private, because Slurm creates files there;
//   - volumes are directories of the image: a tmpfs would hide their files;
//   - labels cannot set annotations that control a runtime.
//
// The bundle ignores the caller's environment and every field of o except Binds, Dir and
// Write.
func Bundle(root, file string, o Options) (*specs.Spec, error) {
	img, c, err := readFullImage(root, file)
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{
		Version: "1.0.2", // the oldest version with these features, because runtimes refuse versions newer than their own
		Process: &specs.Process{NoNewPrivileges: true},
		Linux:   newNamespaces(0, 0),
		Mounts: []specs.Mount{
			bind("/proc", "/proc"), bind("/sys", "/sys"), bind("/dev", "/dev"),
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
		},
	}
	if err := convertConfig(s, img); err != nil {
		return nil, fmt.Errorf("converting the image's configuration: %w", err)
	}
	s.Root = &specs.Root{Path: BundleRoot, Readonly: !o.Write}
	s.Process.Cwd = workingDir(nil, "", c.WorkingDir, o.Dir)
	if len(s.Process.Args) == 0 {
		s.Process.Args = []string{"/bin/sh"} // a bundle must name a program; Slurm and users replace it
	}
	s.Mounts = append(s.Mounts, resolverFiles("")...)
	for _, b := range o.Binds {
		m, err := parseBind(b, bindOf)
		if err != nil {
			return nil, err
		}
		if slices.Contains(m.Options, "ro") && rootfs.WantsRecursive(m.Source) {
			m.Options = append(m.Options, "rro")
		}
		s.Mounts = append(s.Mounts, m)
	}
	s.Process.Env = environment(nil, c, root, "", s.Mounts)
	return s, nil
}

// convertConfig sets the program and the annotations of s to those of an image. Bundle sets
// the other fields.
func convertConfig(s *specs.Spec, img ispec.Image) error {
	if img.OS == "" {
		img.OS = "linux"
	}
	// Bundle looks up the user below the tree, and keeps variables without "=" out.
	img.Config.User, img.Config.Env, img.Config.Volumes = "", nil, nil
	labels := img.Config.Labels
	img.Config.Labels = map[string]string{}
	for name, value := range labels {
		if !slices.ContainsFunc(reservedAnnotations, func(p string) bool { return strings.HasPrefix(name, p) }) {
			img.Config.Labels[name] = value
		}
	}
	if err := convert.MutateRuntimeSpec(s, "", img); err != nil {
		return err
	}
	if img.Created == nil { // umoci writes year 1
		delete(s.Annotations, "org.opencontainers.image.created")
	}
	s.Process.Terminal, s.Process.User = false, specs.User{}
	return nil
}

// readFullImage returns an image's configuration as [ReadImage] does, with all its fields.
func readFullImage(root, file string) (ispec.Image, ImageConfig, error) {
	var full ispec.Image
	img, err := ReadImage(root, file)
	if err != nil {
		return full, img.Config, err
	}
	b, err := rawfile.Read(filepath.Join(root, file))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return full, img.Config, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &full)
	}
	if err != nil {
		return full, img.Config, fmt.Errorf("reading the image's configuration %q: %w", filepath.Join(root, file), err)
	}
	return full, img.Config, nil
}

// WriteBundle writes the configuration of a bundle into its directory.
func WriteBundle(dir string, s *specs.Spec) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the bundle's configuration: %w", err)
	}
	return files.Replace(filepath.Join(dir, ConfigName), append(b, '\n'), 0o644)
}
