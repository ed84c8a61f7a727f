package runtime

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ownNamespaces gives the calling thread the network and host name of its own
// that s asks for. A child has them from its birth (procAttr).
func ownNamespaces(s *specs.Spec) error {
	net, uts := hasNamespace(s, specs.NetworkNamespace), hasNamespace(s, specs.UTSNamespace)
	if asked, _ := early(); asked && (net || uts) {
		flags := 0
		if net {
			flags |= unix.CLONE_NEWNET
		}
		if uts {
			flags |= unix.CLONE_NEWUTS
		}
		if err := unix.Unshare(flags); err != nil {
			return fmt.Errorf("creating a network or host name of its own: %w", err)
		}
	}
	if uts && s.Hostname != "" {
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return fmt.Errorf("setting the host name %q: %w", s.Hostname, err)
		}
	}
	if net {
		return loopback()
	}
	return nil
}

// loopback brings up the one interface of a new network namespace, which the
// kernel leaves down (netdevice(7)), so that programs can talk to themselves.
func loopback() error {
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
