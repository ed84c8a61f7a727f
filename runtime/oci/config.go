package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime"
	"hpcc/runtime/rootfs"
	"hpcc/store/ready"
	"hpcc/text"
)

// maxConfig bounds a bundle's configuration, in bytes. Engines write about 10 KB,
// mostly names of system calls.
const maxConfig = 16 << 20

// readBundle reads and checks the configuration of the OCI bundle in dir. Paths relative to
// the bundle are absolute in the result.
func readBundle(dir string) (*specs.Spec, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("finding the bundle: %w", err)
	}
	f, err := os.Open(filepath.Join(dir, runtime.ConfigName))
	if err != nil {
		return nil, fmt.Errorf("opening bundle %q: %w", dir, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(b) > maxConfig {
		err = fmt.Errorf("larger than %d bytes", maxConfig)
	}
	var s *specs.Spec
	if err == nil {
		s, err = parseConfig(b)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", f.Name(), err)
	}
	if !filepath.IsAbs(s.Root.Path) {
		s.Root.Path = filepath.Join(dir, s.Root.Path)
	}
	if st, err := os.Stat(s.Root.Path); err != nil {
		return nil, fmt.Errorf("reading %q: opening the root: %w", f.Name(), err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("reading %q: the root %q is not a directory", f.Name(), s.Root.Path)
	}
	if !s.Root.Readonly && ready.InTree(s.Root.Path) {
		return nil, fmt.Errorf("reading %q: the root %q is in a store, where all runs of its image share it; set root.readonly, or use hpcc unpack --bundle", f.Name(), s.Root.Path)
	}
	for i := range s.Mounts {
		if m := &s.Mounts[i]; m.Type == "bind" {
			if !filepath.IsAbs(m.Source) {
				m.Source = filepath.Join(dir, m.Source)
			}
			// rootfs.CloneSources needs physical source paths.
			if physical, err := filepath.EvalSymlinks(m.Source); err == nil {
				m.Source = physical
			}
		}
	}
	return s, nil
}

// WriteBundle writes an OCI bundle of an image to dir: fill writes the image's files, among them its
// configuration with the name config, to the root of the bundle. o is as in [runtime.Bundle]. The bundle's
// own configuration is written last, because a directory without it is not a bundle.
func WriteBundle(dir, config string, o runtime.Options, fill func(root string) error) error {
	if _, err := os.Lstat(filepath.Join(dir, runtime.ConfigName)); err == nil {
		return text.Hint(fmt.Errorf("writing bundle %q: the directory already has one", dir), "name another directory, or remove that one")
	}
	_, missing := os.Lstat(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the bundle's directory: %w", err)
	}
	root := filepath.Join(dir, runtime.BundleRoot)
	if err := fill(root); err != nil {
		if missing != nil {
			os.Remove(dir)
		}
		return err
	}
	spec, err := runtime.Bundle(root, config, o)
	if err != nil {
		return fmt.Errorf("writing bundle %q: %w", dir, err)
	}
	return runtime.WriteBundle(dir, spec)
}

// parseConfig parses a configuration and checks the rules of the runtime specification
// (config.md) that hpcc relies on.
func parseConfig(b []byte) (*specs.Spec, error) {
	var s specs.Spec
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("not a bundle configuration: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected data after the configuration")
	}
	if bytes.Contains(b, []byte(`\u0000`)) {
		return nil, errors.New("a string contains a zero byte, which system calls do not accept")
	}
	switch p := s.Process; {
	case !strings.HasPrefix(s.Version, "1."):
		return nil, fmt.Errorf("ociVersion is %q; hpcc supports versions 1.x of the runtime specification", s.Version)
	case s.Root == nil || s.Root.Path == "":
		return nil, errors.New("root.path is missing")
	case p == nil:
		return nil, errors.New("process is missing: there is nothing to run")
	case len(p.Args) == 0 || p.Args[0] == "":
		return nil, errors.New("process.args is empty: there is nothing to run")
	case !filepath.IsAbs(p.Cwd):
		return nil, fmt.Errorf("process.cwd %q is not absolute", p.Cwd)
	case p.User.UID > maxID || p.User.GID > maxID:
		return nil, fmt.Errorf("process.user %d:%d is not a valid user and group ID on Linux", p.User.UID, p.User.GID)
	case s.VM != nil || s.Windows != nil || s.Solaris != nil || s.ZOS != nil:
		return nil, errors.New("the configuration is for another operating system; hpcc runs Linux programs")
	}
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	if err := checkMounts(s.Mounts); err != nil {
		return nil, err
	}
	if err := checkNamespaces(s.Linux); err != nil {
		return nil, err
	}
	return &s, checkHooks(s.Hooks)
}

// maxID is the largest user or group ID. System calls use the next number for "unchanged".
const maxID = 1<<32 - 2

// checkMounts returns an error for invalid mounts. It gives binds the type "bind", because the
// specification identifies them by their options.
func checkMounts(ms []specs.Mount) error {
	for i := range ms {
		m := &ms[i]
		if m.Destination == "" {
			return fmt.Errorf("mounts[%d] has no destination", i)
		}
		m.Destination = filepath.Clean("/" + m.Destination)
		if m.Destination == "/" {
			return fmt.Errorf("mounts[%d] would cover the root", i)
		}
		if slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind") || m.Type == "bind" {
			if m.Type = "bind"; m.Source == "" {
				return fmt.Errorf("mounts[%d] at %q has no source", i, m.Destination)
			}
		} else if m.Type == "" {
			return fmt.Errorf("mounts[%d] at %q has no type", i, m.Destination)
		}
		if len(m.UIDMappings)+len(m.GIDMappings) > 0 || slices.Contains(m.Options, "idmap") || slices.Contains(m.Options, "ridmap") {
			return fmt.Errorf("mounts[%d] at %q maps ids, which an ordinary user is not permitted to do", i, m.Destination)
		}
		if _, err := rootfs.ParseOptions(*m); err != nil {
			return fmt.Errorf("mounts[%d] at %q: %w", i, m.Destination, err)
		}
	}
	return nil
}

// namespaceFlags lists the namespaces that hpcc can create or join.
var namespaceFlags = map[specs.LinuxNamespaceType]uintptr{
	specs.UserNamespace: unix.CLONE_NEWUSER, specs.MountNamespace: unix.CLONE_NEWNS, specs.PIDNamespace: unix.CLONE_NEWPID,
	specs.IPCNamespace: unix.CLONE_NEWIPC, specs.UTSNamespace: unix.CLONE_NEWUTS, specs.NetworkNamespace: unix.CLONE_NEWNET,
	specs.CgroupNamespace: unix.CLONE_NEWCGROUP,
}

func checkNamespaces(l *specs.Linux) error {
	seen := map[specs.LinuxNamespaceType]bool{}
	for _, n := range l.Namespaces {
		switch {
		case seen[n.Type]:
			return fmt.Errorf("linux.namespaces names %q twice", n.Type)
		case namespaceFlags[n.Type] == 0:
			return fmt.Errorf("linux.namespaces: hpcc does not support %q namespaces", n.Type)
		case n.Path != "" && !filepath.IsAbs(n.Path):
			return fmt.Errorf("linux.namespaces: path %q is not absolute", n.Path)
		case n.Path != "" && (n.Type == specs.UserNamespace || n.Type == specs.MountNamespace):
			return fmt.Errorf("linux.namespaces: hpcc does not join an existing %s namespace (%s); remove its path", n.Type, n.Path)
		}
		seen[n.Type] = true
	}
	for _, m := range slices.Concat(l.UIDMappings, l.GIDMappings) {
		if m.Size == 0 || uint64(m.ContainerID)+uint64(m.Size) > maxID+1 || uint64(m.HostID)+uint64(m.Size) > maxID+1 {
			return fmt.Errorf("linux: mapping of %d ids from %d to %d is not a valid range of ids", m.Size, m.HostID, m.ContainerID)
		}
	}
	return nil
}

func checkHooks(h *specs.Hooks) error {
	if h == nil {
		return nil
	}
	//lint:ignore SA1019 engines still write prestart hooks
	for _, x := range slices.Concat(h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop) {
		if !filepath.IsAbs(x.Path) {
			return fmt.Errorf("hooks: path %q is not absolute", x.Path)
		}
		if x.Timeout != nil && *x.Timeout <= 0 {
			return fmt.Errorf("hooks: %q has a timeout of %d seconds", x.Path, *x.Timeout)
		}
	}
	return nil
}

// A plan is a configuration fitted to the rights of this process.
type plan struct {
	spec  *specs.Spec
	flags uintptr                // CLONE_NEW… flags of the namespaces to create
	joins []specs.LinuxNamespace // existing namespaces to join
	notes []string               // parts of the configuration that are not applied, and why that is harmless
}

// newPlan fits a checked configuration to the rights of this process. It changes s.
func newPlan(s *specs.Spec) (*plan, error) {
	p := &plan{spec: s, flags: unix.CLONE_NEWNS}
	for _, n := range s.Linux.Namespaces {
		if n.Path != "" {
			p.joins = append(p.joins, n)
		} else {
			p.flags |= namespaceFlags[n.Type]
		}
	}
	p.user()
	if (s.Hostname != "" || s.Domainname != "") && p.flags&unix.CLONE_NEWUTS == 0 {
		return nil, errors.New("hostname and domainname need a new uts namespace; add one to linux.namespaces, or remove hostname and domainname")
	}
	p.noteIgnored()
	return p, nil
}

func (p *plan) note(format string, a ...any) { p.notes = append(p.notes, fmt.Sprintf(format, a...)) }

// user decides under which IDs the program runs. A privileged process takes the requested
// IDs. For any other, the caller's one ID is mapped to the requested one.
func (p *plan) user() {
	l, u := p.spec.Linux, p.spec.Process.User
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	hasUserNS := p.flags&unix.CLONE_NEWUSER != 0
	if hasSysAdmin() {
		if hasUserNS && len(l.UIDMappings) > 0 && len(l.GIDMappings) > 0 {
			return
		}
		if !hasUserNS && isMapped("/proc/self/uid_map", u.UID) && isMapped("/proc/self/gid_map", u.GID) {
			l.UIDMappings, l.GIDMappings = nil, nil
			return
		}
	}
	if !hasUserNS {
		p.note("the configuration has no user namespace, which an ordinary user needs to mount: one is added")
	}
	single := func(kind string, m []specs.LinuxIDMapping, inside, outside uint32) []specs.LinuxIDMapping {
		want := []specs.LinuxIDMapping{{ContainerID: inside, HostID: outside, Size: 1}}
		if len(m) > 0 && !slices.Equal(m, want) {
			p.note("%sMappings requests ids that this user does not have: %d inside is mapped to %d outside, and no other id is mapped", kind, inside, outside)
		}
		return want
	}
	l.UIDMappings = single("uid", l.UIDMappings, u.UID, uid)
	l.GIDMappings = single("gid", l.GIDMappings, u.GID, gid)
	p.flags |= unix.CLONE_NEWUSER
	if len(u.AdditionalGids) > 0 {
		p.note("additionalGids are ignored: this user may not change groups, so the caller's groups remain")
		p.spec.Process.User.AdditionalGids = nil
	}
}

// noteIgnored notes the settings that an ordinary user's runtime cannot apply, or that hpcc
// does not apply.
func (p *plan) noteIgnored() {
	l, pr := p.spec.Linux, p.spec.Process
	for _, x := range []struct {
		present bool
		note    string
	}{
		{l.Seccomp != nil, "linux.seccomp is not applied: hpcc separates file trees and does not confine programs, which have the user's own rights"},
		{pr.ApparmorProfile != "", "process.apparmorProfile is not applied"},
		{pr.SelinuxLabel != "" || l.MountLabel != "", "SELinux labels are not applied"},
		{l.CgroupsPath != "" || limits(l.Resources),
			"cgroups and their limits are left to the scheduler: the program stays in the caller's cgroup"},
		{l.IntelRdt != nil || l.Personality != nil || len(l.TimeOffsets) > 0 || l.MemoryPolicy != nil ||
			len(l.NetDevices) > 0 || pr.Scheduler != nil || pr.IOPriority != nil || pr.ExecCPUAffinity != nil,
			"intelRdt, personality, timeOffsets, memoryPolicy, netDevices, scheduler, ioPriority and execCPUAffinity are not applied"},
	} {
		if x.present {
			p.notes = append(p.notes, x.note)
		}
	}
}

// limits reports whether the resources contain more than device rules, which every
// configuration has.
func limits(r *specs.LinuxResources) bool {
	return r != nil && (r.Memory != nil || r.CPU != nil || r.Pids != nil || r.BlockIO != nil ||
		len(r.HugepageLimits) > 0 || r.Network != nil || len(r.Rdma) > 0 || len(r.Unified) > 0)
}

// isMapped reports whether id is mapped in this process's user namespace, according to file,
// its uid_map or gid_map.
func isMapped(file string, id uint32) bool {
	b, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		var in, out, n uint64
		if _, err := fmt.Sscan(line, &in, &out, &n); err == nil && uint64(id) >= in && uint64(id) < in+n {
			return true
		}
	}
	return false
}
