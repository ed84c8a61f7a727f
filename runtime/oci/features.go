package oci

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go/features"

	"hpcc/runtime/caps"
	"hpcc/runtime/rootfs"
)

// Features lists the parts of the runtime specification that hpcc implements (features.md).
// Create reports the parts of a configuration that are accepted but not applied.
func Features() *features.Features {
	no := false
	var namespaces []string
	for n := range namespaceFlags {
		namespaces = append(namespaces, string(n))
	}
	slices.Sort(namespaces)
	return &features.Features{
		OCIVersionMin: "1.0.0", OCIVersionMax: "1.3.0",
		Hooks:        []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"},
		MountOptions: rootfs.OptionNames(),
		Linux: &features.Linux{
			Namespaces: namespaces, Capabilities: caps.Names,
			Cgroup:   &features.Cgroup{V1: &no, V2: &no, Systemd: &no, SystemdUser: &no, Rdma: &no},
			Seccomp:  &features.Seccomp{Enabled: &no},
			Apparmor: &features.Apparmor{Enabled: &no}, Selinux: &features.Selinux{Enabled: &no},
			IntelRdt: &features.IntelRdt{Enabled: &no},
		},
	}
}
