package runtime

import (
	"context"
	"os"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A pid namespace needs processes that a run has not otherwise: one stays
// outside, because a process cannot move into a new one, and the first inside
// is an init (first.go). It passes signals on, reaps orphans, and when it ends
// the kernel ends whatever is left. The program is its only child, process 2.

// pidInitName is argv[0] of the init.
const pidInitName = "hpcc-pid-init"

// superviseInit runs s, in the namespaces that this process has, as a child in
// a pid namespace, and ends as it ends.
func superviseInit(s *specs.Spec) error {
	inner, linux := *s, *s.Linux
	linux.Namespaces = slices.DeleteFunc(slices.Clone(linux.Namespaces), func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	inner.Linux = &linux
	cmd, err := Command(context.Background(), &inner, nil)
	if err != nil {
		return err
	}
	cmd.Args = []string{pidInitName, "init"} // begin looks at no program without arguments
	cmd.SysProcAttr.AmbientCaps = setupCaps
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return waitAndExit(cmd)
}
