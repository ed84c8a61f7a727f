package runtime

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// loopback brings up the one interface of a new network namespace, which the
// kernel leaves down (netdevice(7)), so that programs can talk to themselves.
func loopback(s *specs.Spec) error {
	own := false
	for _, n := range s.Linux.Namespaces {
		own = own || n.Type == specs.NetworkNamespace && n.Path == ""
	}
	if !own {
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
