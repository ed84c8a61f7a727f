package oci

import (
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// Features lists the parts of the runtime specification that hpcc implements (features.md).
// Create reports the parts of a configuration that are accepted but not applied.
func Features() *features.Features {
	no := false
	options := slices.Concat(slices.Collect(maps.Keys(mountFlags)), slices.Collect(maps.Keys(clearedFlags)), slices.Collect(maps.Keys(propagations)), []string{"bind", "rbind"})
	slices.Sort(options)
	var namespaces []string
	for n := range namespaceFlags {
		namespaces = append(namespaces, string(n))
	}
	slices.Sort(namespaces)
	return &features.Features{
		OCIVersionMin: "1.0.0", OCIVersionMax: "1.3.0",
		Hooks:        []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"},
		MountOptions: options,
		Linux: &features.Linux{
			Namespaces: namespaces, Capabilities: capabilityNames,
			Cgroup:   &features.Cgroup{V1: &no, V2: &no, Systemd: &no, SystemdUser: &no, Rdma: &no},
			Seccomp:  &features.Seccomp{Enabled: &no},
			Apparmor: &features.Apparmor{Enabled: &no}, Selinux: &features.Selinux{Enabled: &no}, IntelRdt: &features.IntelRdt{Enabled: &no},
		},
	}
}
