package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime"
	"hpcc/runtime/rawfile"
	"hpcc/runtime/rootfs"
)

// A newRoot is the root of a container during its setup.
type newRoot struct {
	rootfs.Root
	spec *specs.Spec
}

// assemble performs the spec's mounts below base. The mount namespace must be private to
// this process.
func assemble(s *specs.Spec) (*newRoot, error) {
	src, err := rootfs.OpenSources(s.Mounts)
	if err != nil {
		return nil, err
	}
	img, err := unix.Open(s.Root.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening root %q: %w", s.Root.Path, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, fmt.Errorf("detaching from the host's mounts: %w", err)
	}
	if err := rootfs.CloneSources(s.Mounts, src); err != nil {
		return nil, err
	}
	if err := unix.Mount(rawfile.Path(img), rootfs.Base, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return nil, fmt.Errorf("mounting root %q: %w", s.Root.Path, err)
	}
	unix.Close(img)
	r := &newRoot{Root: rootfs.Root{Write: !s.Root.Readonly}, spec: s}
	if r.FD, err = unix.Open(rootfs.Base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("opening the new root: %w", err)
	}
	if s.Root.Readonly {
		if err := rootfs.ReadOnly(r.FD); err != nil {
			return nil, fmt.Errorf("making the root read-only: %w", err)
		}
	}
	for i, m := range s.Mounts {
		if err := r.ociMount(m, src[i]); err != nil {
			return nil, fmt.Errorf("mounting %q (%s) at %q: %w", m.Source, m.Type, m.Destination, err)
		}
	}
	return r, r.devices()
}

// seal applies the spec's masked and read-only paths. It runs after all mounts.
func (r *newRoot) seal() error {
	for _, p := range r.spec.Linux.MaskedPaths {
		if err := r.mask(p); err != nil {
			return fmt.Errorf("hiding %q: %w", p, err)
		}
	}
	for _, p := range r.spec.Linux.ReadonlyPaths {
		if err := r.protect(p); err != nil {
			return fmt.Errorf("making %q read-only: %w", p, err)
		}
	}
	return r.Root.Seal()
}

// ociMount performs one mount. from is the open source of a bind.
func (r *newRoot) ociMount(m specs.Mount, from int) error {
	o, err := rootfs.ParseOptions(m)
	if err != nil {
		return err
	}
	wantDir := true
	if from >= 0 {
		defer unix.Close(from)
		var st unix.Stat_t
		if err := unix.Fstat(from, &st); err != nil {
			return err
		}
		wantDir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	}
	to, _, err := r.OpenMountPoint(m.Destination, wantDir)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	switch {
	case m.Type == "sysfs" && r.hasOwnNetwork():
		err = r.MountSysfs(m.Destination, to, o.Flags)
	case m.Type == "bind":
		rec := uintptr(0)
		if o.Recursive {
			rec = unix.MS_REC
		}
		err = rootfs.BindSource(m, from, to, rec)
	default:
		err = mountType(m, to, o)
	}
	if err != nil || !(o.Changes() || o.CopyUp) {
		return err
	}
	// The fd "to" refers to the covered directory: look up the mount that covers it.
	top, _, err := r.OpenMountPoint(m.Destination, wantDir)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	if o.CopyUp {
		if err := runtime.CopyUp(to, top, o); err != nil {
			return err
		}
	}
	return o.Apply(top)
}

// hasOwnNetwork reports whether the container has a new network namespace.
func (r *newRoot) hasOwnNetwork() bool {
	return slices.ContainsFunc(r.spec.Linux.Namespaces,
		func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace && n.Path == "" })
}

// hostMounts maps types of kernel file systems to the host's mounts that replace them if a
// user may not mount new ones: /proc without a pid namespace, /sys without a network
// namespace, and control groups.
var hostMounts = map[string]string{"proc": "/proc", "sysfs": "/sys", "cgroup": "/sys/fs/cgroup",
	"cgroup2": "/sys/fs/cgroup", "mqueue": "/dev/mqueue"}

// mountType mounts a file system other than a bind. For control groups, and if the kernel
// refuses a type in hostMounts, it binds the host's mount.
func mountType(m specs.Mount, to int, o *rootfs.Options) error {
	err, flags, data := errors.ErrUnsupported, o.Flags, o.Data
	if m.Type != "cgroup" && m.Type != "cgroup2" {
		err = unix.Mount(m.Source, rawfile.Path(to), m.Type, flags, strings.Join(data, ","))
	}
	if errors.Is(err, unix.EINVAL) && slices.ContainsFunc(data, isOwner) {
		// The mount may name an ID that is not mapped, such as gid=5 of devpts.
		err = unix.Mount(m.Source, rawfile.Path(to), m.Type, flags, strings.Join(slices.DeleteFunc(data, isOwner), ","))
	}
	if errors.Is(err, unix.EINVAL) && len(data) > 0 {
		err = fmt.Errorf("%w: one of the options %s is unknown", err, strings.Join(data, ","))
	}
	host := hostMounts[m.Type]
	if err == nil || host == "" {
		return err
	}
	fd, oerr := unix.Open(host, unix.O_PATH|unix.O_CLOEXEC, 0)
	if oerr != nil {
		return nil // the host does not have one either
	}
	defer unix.Close(fd)
	if berr := rootfs.Bind(fd, to, unix.MS_REC); berr != nil {
		return fmt.Errorf("%w; binding the host's instead: %w", err, berr)
	}
	return nil
}

func isOwner(o string) bool { return strings.HasPrefix(o, "gid=") || strings.HasPrefix(o, "uid=") }

// defaultDevices exist in every container, config-linux.md "Default Devices".
var defaultDevices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// devices fills the container's own /dev. A user may not create devices, so the host's are
// bound at their paths.
func (r *newRoot) devices() error {
	ownDev := false
	for _, m := range r.spec.Mounts {
		if m.Destination == "/dev" {
			ownDev = m.Type == "tmpfs"
		}
	}
	paths := slices.Clone(defaultDevices)
	if !ownDev {
		paths = nil
	}
	for _, d := range r.spec.Linux.Devices {
		if p := filepath.Clean("/" + d.Path); !slices.Contains(paths, p) && (ownDev || !r.exists(p)) {
			paths = append(paths, p)
		}
	}
	for _, p := range paths {
		if err := r.bindDevice(p); err != nil {
			return fmt.Errorf("binding device %q: %w", p, err)
		}
	}
	if !ownDev {
		return nil
	}
	dev, err := r.Lookup("/dev")
	if err != nil {
		return err
	}
	defer unix.Close(dev)
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		if err := unix.Symlinkat(target, dev, name); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("creating /dev/%s: %w", name, err)
		}
	}
	return nil
}

// bindDevice binds the host's device at p. It refuses a file that is not a device.
func (r *newRoot) bindDevice(p string) error {
	from, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the host does not have it: %w", err)
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	if k := st.Mode & unix.S_IFMT; k != unix.S_IFCHR && k != unix.S_IFBLK {
		return errors.New("the host's file is not a device, and an ordinary user may not create one")
	}
	to, _, err := r.OpenMountPoint(p, false)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	return rootfs.Bind(from, to, 0)
}

func (r *newRoot) exists(p string) bool {
	fd, err := r.Lookup(p)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// mask hides the content of a file or directory. A missing path is not an error.
func (r *newRoot) mask(p string) error {
	fd, err := r.Lookup(p)
	if err != nil {
		return ignoreMissing(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return nil
	case unix.S_IFDIR:
		return unix.Mount("tmpfs", rawfile.Path(fd), "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "size=0k")
	}
	return unix.Mount("/dev/null", rawfile.Path(fd), "", unix.MS_BIND, "")
}

// protect makes a path read-only.
func (r *newRoot) protect(p string) error {
	fd, err := r.Lookup(p)
	if err != nil {
		return ignoreMissing(err)
	}
	defer unix.Close(fd)
	if _, link, err := rawfile.ReadLink(fd); err != nil || link {
		return err
	}
	if err := rootfs.Bind(fd, fd, unix.MS_REC); err != nil {
		return err
	}
	top, err := r.Lookup(p)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	return rootfs.ReadOnly(top)
}

// ignoreMissing returns nil instead of errors that report a missing or inaccessible path.
func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES) {
		return nil
	}
	return err
}

// setSysctl sets kernel parameters of the container's namespaces.
func setSysctl(params map[string]string) error {
	for name, value := range params {
		p := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
		if !strings.HasPrefix(p, "/proc/sys/") {
			return fmt.Errorf("linux.sysctl: %q is not a kernel parameter", name)
		}
		if err := os.WriteFile(p, []byte(value), 0); err != nil {
			return fmt.Errorf("setting kernel parameter %s: %w; a user may set only parameters of the container's own namespaces", name, err)
		}
	}
	return nil
}
