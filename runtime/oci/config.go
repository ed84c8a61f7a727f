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
)

// maxConfig bounds a bundle's configuration, in bytes. Those of engines have
// some ten thousand, most of it system call names.
const maxConfig = 16 << 20

// readBundle reads and checks the configuration of the OCI bundle in dir. Paths
// that it gives relative to the bundle are absolute in the result.
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
		err = fmt.Errorf("it is larger than %d bytes", maxConfig)
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
	for i := range s.Mounts {
		if m := &s.Mounts[i]; m.Type == "bind" {
			if !filepath.IsAbs(m.Source) {
				m.Source = filepath.Join(dir, m.Source)
			}
			// Where a source lies follows from its path (rootfs.CloneSources).
			if physical, err := filepath.EvalSymlinks(m.Source); err == nil {
				m.Source = physical
			}
		}
	}
	return s, nil
}

// parseConfig reads a configuration and holds it to the rules of the runtime
// specification (config.md) that hpcc relies on later.
func parseConfig(b []byte) (*specs.Spec, error) {
	var s specs.Spec
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("it is no configuration of a bundle: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the configuration")
	}
	if bytes.Contains(b, []byte(`\u0000`)) {
		return nil, errors.New("a string holds a zero byte, which no system call takes")
	}
	switch p := s.Process; {
	case !strings.HasPrefix(s.Version, "1."):
		return nil, fmt.Errorf("ociVersion is %q; hpcc knows versions 1.x of the runtime specification", s.Version)
	case s.Root == nil || s.Root.Path == "":
		return nil, errors.New("root.path is missing")
	case p == nil:
		return nil, errors.New("process is missing: there is nothing to run")
	case len(p.Args) == 0 || p.Args[0] == "":
		return nil, errors.New("process.args is empty: there is nothing to run")
	case !filepath.IsAbs(p.Cwd):
		return nil, fmt.Errorf("process.cwd %q is not absolute", p.Cwd)
	case p.User.UID > maxID || p.User.GID > maxID:
		return nil, fmt.Errorf("process.user %d:%d is no user that Linux can have", p.User.UID, p.User.GID)
	case s.VM != nil || s.Windows != nil || s.Solaris != nil || s.ZOS != nil:
		return nil, errors.New("it is for another kind of system; hpcc runs programs on Linux")
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

// maxID is the largest id; the one above stands for "none" in system calls.
const maxID = 1<<32 - 2

// checkMounts refuses mounts that cannot be, and gives binds the type "bind":
// the specification knows them by their options.
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
			return fmt.Errorf("mounts[%d] at %q maps ids, for which an ordinary user has no right", i, m.Destination)
		}
	}
	return nil
}

// namespaceFlags are the namespaces that hpcc can make or join.
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
			return fmt.Errorf("linux.namespaces: hpcc knows no %q namespaces", n.Type)
		case n.Path != "" && !filepath.IsAbs(n.Path):
			return fmt.Errorf("linux.namespaces: path %q is not absolute", n.Path)
		case n.Path != "" && (n.Type == specs.UserNamespace || n.Type == specs.MountNamespace):
			return fmt.Errorf("linux.namespaces: hpcc does not join a %s namespace that is there (%s); leave its path out", n.Type, n.Path)
		}
		seen[n.Type] = true
	}
	for _, m := range slices.Concat(l.UIDMappings, l.GIDMappings) {
		if m.Size == 0 || uint64(m.ContainerID)+uint64(m.Size) > maxID+1 || uint64(m.HostID)+uint64(m.Size) > maxID+1 {
			return fmt.Errorf("linux: mapping of %d ids from %d to %d is no range of ids", m.Size, m.HostID, m.ContainerID)
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

// A plan is how a configuration is carried out with the rights at hand.
type plan struct {
	spec  *specs.Spec
	flags uintptr                // CLONE_NEW… of the namespaces to make
	joins []specs.LinuxNamespace // those to join
	notes []string               // what of the configuration is not done, and why that is harmless
}

// newPlan fits a checked configuration to what this process may do. It changes s.
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
	if (s.Hostname != "" && p.flags&unix.CLONE_NEWUTS == 0) || (s.Domainname != "" && p.flags&unix.CLONE_NEWUTS == 0) {
		return nil, errors.New("a host name is asked for without a uts namespace of the container's own; add one to linux.namespaces or leave hostname out")
	}
	p.leaveOut()
	return p, nil
}

func (p *plan) note(format string, a ...any) { p.notes = append(p.notes, fmt.Sprintf(format, a...)) }

// user decides under which ids the program runs. Who has the right takes what
// is asked for; all others have one id, shown as the one that is asked for.
func (p *plan) user() {
	l, u := p.spec.Linux, p.spec.Process.User
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	asked := p.flags&unix.CLONE_NEWUSER != 0
	if capable() {
		if asked && len(l.UIDMappings) > 0 && len(l.GIDMappings) > 0 {
			return
		}
		if !asked && isMapped("/proc/self/uid_map", u.UID) && isMapped("/proc/self/gid_map", u.GID) {
			l.UIDMappings, l.GIDMappings = nil, nil
			return
		}
	}
	if !asked {
		p.note("the configuration has no user namespace, without which a user has no rights to mount: it gets one")
	}
	one := func(kind string, m []specs.LinuxIDMapping, inside, outside uint32) []specs.LinuxIDMapping {
		want := []specs.LinuxIDMapping{{ContainerID: inside, HostID: outside, Size: 1}}
		if len(m) > 0 && !slices.Equal(m, want) {
			p.note("%sMappings asks for ids that this user does not have: %d inside is %d outside, and there are no others", kind, inside, outside)
		}
		return want
	}
	l.UIDMappings = one("uid", l.UIDMappings, u.UID, uid)
	l.GIDMappings = one("gid", l.GIDMappings, u.GID, gid)
	p.flags |= unix.CLONE_NEWUSER
	if len(u.AdditionalGids) > 0 {
		p.note("additionalGids are left out: this user may not choose groups; those of the caller remain")
		p.spec.Process.User.AdditionalGids = nil
	}
}

// leaveOut notes what a user's runtime cannot do or hpcc does not.
func (p *plan) leaveOut() {
	l, pr := p.spec.Linux, p.spec.Process
	for _, x := range []struct {
		there bool
		note  string
	}{
		{l.Seccomp != nil, "linux.seccomp is not applied: hpcc separates file trees and does not confine programs, which have the user's own rights"},
		{pr.ApparmorProfile != "", "process.apparmorProfile is not applied"},
		{pr.SelinuxLabel != "" || l.MountLabel != "", "SELinux labels are not applied"},
		{l.CgroupsPath != "" || limits(l.Resources), "cgroups and their limits are left to the scheduler: this program stays in the caller's"},
		{l.IntelRdt != nil || l.Personality != nil || len(l.TimeOffsets) > 0 || l.MemoryPolicy != nil || len(l.NetDevices) > 0 || pr.Scheduler != nil || pr.IOPriority != nil || pr.ExecCPUAffinity != nil,
			"intelRdt, personality, timeOffsets, memoryPolicy, netDevices, scheduler, ioPriority and execCPUAffinity are not applied"},
	} {
		if x.there {
			p.notes = append(p.notes, x.note)
		}
	}
}

// limits says whether resources hold more than the rules for devices that
// every configuration has.
func limits(r *specs.LinuxResources) bool {
	return r != nil && (r.Memory != nil || r.CPU != nil || r.Pids != nil || r.BlockIO != nil || len(r.HugepageLimits) > 0 || r.Network != nil || len(r.Rdma) > 0 || len(r.Unified) > 0)
}

// isMapped says whether id exists in this process's user namespace.
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
