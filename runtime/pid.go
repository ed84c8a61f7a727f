package runtime

import (
	"context"
	"os"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/runtime/inherit"
)

// A pid namespace needs two more processes. One stays outside, because a process cannot move
// into a new pid namespace. The first inside is an init (first.go), which forwards signals
// and reaps orphans; when it ends, the kernel ends the rest. The program is its only child,
// process 2.

// pidInitName is argv[0] of the init. Its argument is for [inherit.SetSignals].
const pidInitName = "hpcc-pid-init"

// superviseInit runs s as a child in a pid namespace, within this process's namespaces, and
// ends this process with the child's status.
func superviseInit(s *specs.Spec) error {
	inner, linux := *s, *s.Linux
	linux.Namespaces = slices.DeleteFunc(slices.Clone(linux.Namespaces),
		func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	inner.Linux = &linux
	cmd, err := Command(context.Background(), &inner, nil)
	if err != nil {
		return err
	}
	cmd.Args = []string{pidInitName, inherit.Signals()}
	cmd.SysProcAttr.AmbientCaps = keptCaps(s)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return waitAndExit(cmd)
}
