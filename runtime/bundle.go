//go:build !start

package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/process"
	"hpcc/runtime/rawfile"
	"hpcc/runtime/rootfs"
)

// ConfigName is the name of a bundle's configuration file.
const ConfigName = "config.json"

// BundleRoot is the directory of a bundle that holds the image's files.
const BundleRoot = "rootfs"

// Bundle returns the OCI specification that runs an image with configuration c and the files
// in root. Every OCI runtime that works without root and subordinate IDs can run it.
// The user is root inside because runc supports nothing else. The host's /proc, /sys and
// /dev are bound: replacing them needs pid and network namespaces, which break MPI and
// signals from schedulers. /tmp is private because Slurm creates files there. The bundle
// ignores the caller's environment and every field of o except Binds, Dir and Write.
func Bundle(root string, c ImageConfig, o Options) (*specs.Spec, error) {
	s := &specs.Spec{
		Version: "1.0.2", // the oldest version with these features, because runtimes refuse versions newer than their own
		Root:    &specs.Root{Path: BundleRoot, Readonly: !o.Write},
		Process: &specs.Process{NoNewPrivileges: true, Cwd: workingDir(nil, "", c.WorkingDir, o.Dir), Args: append(append([]string{}, c.Entrypoint...), c.Cmd...)},
		Linux:   newNamespaces(0, 0),
		Mounts: []specs.Mount{
			bind("/proc", "/proc"), bind("/sys", "/sys"), bind("/dev", "/dev"),
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
		},
	}
	if len(s.Process.Args) == 0 {
		s.Process.Args = []string{"/bin/sh"} // a bundle must name a program; Slurm and users replace it
	}
	s.Mounts = append(s.Mounts, resolverFiles()...)
	for _, b := range o.Binds {
		m, err := parseBind(b)
		if err != nil {
			return nil, err
		}
		s.Mounts = append(s.Mounts, m)
	}
	s.Process.Env = environment(nil, c, root, "", s.Mounts)
	return s, nil
}

// WriteBundle writes the configuration of a bundle into its directory.
func WriteBundle(dir string, s *specs.Spec) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the bundle's configuration: %w", err)
	}
	return rawfile.Replace(filepath.Join(dir, ConfigName), append(b, '\n'))
}

// HandOver replaces this process with another OCI runtime, found on PATH, which runs s. The
// runtime needs the bundle after hpcc is gone, so the bundle stays in dir, which must be the
// user's own. A later HandOver removes it when the program has ended.
func HandOver(name, dir string, s *specs.Spec) error {
	exe, err := process.LookPath(name, os.Getenv("PATH"))
	if err != nil {
		return &process.Error{Status: process.ExitFailed, Err: fmt.Errorf("starting runtime %q: not found on PATH", name)}
	}
	started, err := process.StartTime(os.Getpid())
	if err != nil {
		return fmt.Errorf("starting runtime %q: %w", name, err)
	}
	removeEndedBundles(dir)
	id := fmt.Sprintf("hpcc-%d-%d", os.Getpid(), started)
	bundle := filepath.Join(dir, id)
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		return fmt.Errorf("creating a bundle for runtime %q: %w", name, err)
	}
	t := *s
	t.Version = "1.0.2"
	t.Linux = newNamespaces(0, 0) // root inside: see Bundle
	t.Process.Terminal = isTerminal(0)
	if err := WriteBundle(bundle, &t); err != nil {
		return err
	}
	argv := []string{name, "run", "--bundle", bundle, id}
	if rootfs.IsLowest() {
		argv = slices.Insert(argv, 2, "--no-pivot") // for runc and crun
	}
	if filepath.Base(exe) == "crun" {
		argv = slices.Insert(argv, 1, "--cgroup-manager=disabled") // runc needs no option for this
		hideCgroupV1()
	}
	err = unix.Exec(exe, argv, os.Environ())
	return fmt.Errorf("executing runtime %q: %w", exe, errors.Join(err, os.RemoveAll(bundle)))
}

// hideCgroupV1 hides the version 1 control groups on a host that mounts both versions, because
// crun refuses such a host even when it uses no control groups. It works in the mount
// namespace that the entry point created. In other processes it does nothing, and crun
// reports the problem.
func hideCgroupV1() {
	const groups = "/sys/fs/cgroup"
	if requested, err := earlyNamespaces(); requested && err == nil && isDir(groups+"/unified") {
		if makeMountsPrivate() == nil {
			_ = unix.Mount(groups+"/unified", groups, "", unix.MS_BIND|unix.MS_REC, "")
		}
	}
}

// isTerminal reports whether fd is a terminal.
func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// removeEndedBundles removes the bundles of earlier HandOver calls whose processes have ended.
func removeEndedBundles(dir string) {
	bundles, _ := filepath.Glob(filepath.Join(dir, "hpcc-*-*"))
	for _, b := range bundles {
		var pid int
		var started uint64
		if n, _ := fmt.Sscanf(filepath.Base(b), "hpcc-%d-%d", &pid, &started); n != 2 {
			continue
		}
		if now, err := process.StartTime(pid); err != nil || now != started {
			os.RemoveAll(b)
		}
	}
}
