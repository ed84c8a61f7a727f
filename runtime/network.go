package runtime

import (
	"fmt"
	"os"
	goruntime "runtime"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ownNamespaces gives this process the network, IPC and host name namespaces that s asks for. A
// child process gets them when it is cloned (procAttr).
func ownNamespaces(s *specs.Spec) error {
	flags := 0
	if hasNamespace(s, specs.NetworkNamespace) {
		flags |= unix.CLONE_NEWNET
	}
	if hasNamespace(s, specs.UTSNamespace) {
		flags |= unix.CLONE_NEWUTS
	}
	if hasNamespace(s, specs.IPCNamespace) {
		flags |= unix.CLONE_NEWIPC
	}
	if flags == 0 {
		return nil
	}
	goruntime.LockOSThread() // namespaces belong to a thread; exec keeps them
	if requested, _ := earlyNamespaces(); requested {
		if err := unix.Unshare(flags); err != nil {
			return fmt.Errorf("creating network, IPC and host name namespaces: %w", err)
		}
	}
	if flags&unix.CLONE_NEWUTS != 0 && s.Hostname != "" {
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return fmt.Errorf("setting the host name %q: %w", s.Hostname, err)
		}
	}
	return Loopback(s)
}

// hostFiles returns the files below /etc that name the host, if the run has a name of its own.
func hostFiles(s *specs.Spec) []generatedFile {
	if s.Hostname == "" {
		return nil
	}
	hosts, _ := os.ReadFile("/etc/hosts")
	return []generatedFile{{"hostname", []byte(s.Hostname + "\n")}, {"hosts", fmt.Appendf(hosts, "\n127.0.1.1\t%s\n", s.Hostname)}}
}

// hasNamespace reports whether s asks for a new namespace of this kind.
func hasNamespace(s *specs.Spec, t specs.LinuxNamespaceType) bool {
	return s.Linux != nil && slices.ContainsFunc(s.Linux.Namespaces,
		func(n specs.LinuxNamespace) bool { return n.Type == t && n.Path == "" })
}

// Loopback brings up the loopback interface of a new network namespace (netdevice(7)), so
// that programs can connect to themselves.
func Loopback(s *specs.Spec) error {
	if !hasNamespace(s, specs.NetworkNamespace) {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bringing the loopback interface up: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err == nil {
		req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	}
	if err != nil {
		return fmt.Errorf("bringing the loopback interface up: %w", err)
	}
	return nil
}
