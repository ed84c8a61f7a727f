package oci

import (
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// Features lists the parts of the runtime specification that hpcc implements (features.md).
// Parts that it accepts without applying are noted when a container is created.
func Features() *features.Features {
	no := false
	options := slices.Concat(slices.Collect(maps.Keys(mountFlags)), slices.Collect(maps.Keys(clearedFlags)), slices.Collect(maps.Keys(propagations)), []string{"bind", "rbind"})
	slices.Sort(options)
	var spaces []string
	for n := range namespaceFlags {
		spaces = append(spaces, string(n))
	}
	slices.Sort(spaces)
	return &features.Features{
		OCIVersionMin: "1.0.0", OCIVersionMax: "1.3.0",
		Hooks:        []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"},
		MountOptions: options,
		Linux: &features.Linux{
			Namespaces: spaces, Capabilities: capabilityNames,
			Cgroup:   &features.Cgroup{V1: &no, V2: &no, Systemd: &no, SystemdUser: &no, Rdma: &no},
			Seccomp:  &features.Seccomp{Enabled: &no},
			Apparmor: &features.Apparmor{Enabled: &no}, Selinux: &features.Selinux{Enabled: &no}, IntelRdt: &features.IntelRdt{Enabled: &no},
		},
	}
}
