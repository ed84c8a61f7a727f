package runconf

import (
	"fmt"
	"slices"
)

// Wrappers are files that the kernel starts as "hpcc wrapped FILE ARG..." because of their first line.
// The other lines have the syntax of run.conf. Their arguments are:
//
//   - a path that exists only inside the wrapper's container, where the program starts directly;
//   - argv[0] of the program, or OwnName or WrapperName;
//   - the arguments of "hpcc run": flags, image, "--", program, arguments.
const (
	WrappedCommand = "wrapped"
	OwnName        = "-"     // the program is started under its own name
	WrapperName    = "."     // the program is started under the path of the wrapper
	NoArguments    = "exec " // begins the line of a wrapper that is also a shell script
)

// ReadWrapper reads the arguments of a wrapper.
func ReadWrapper(file string) (argv []string, err error) {
	text, err := readText(file)
	if err != nil {
		return nil, fmt.Errorf("reading the wrapper: %w", err)
	}
	lines, err := splitLines(file, text)
	if err != nil {
		return nil, err
	}
	for _, l := range lines {
		if l.Argv[0]+" " != NoArguments {
			argv = append(argv, l.Argv...)
		}
	}
	if !slices.Contains(argv, "--") || len(argv) < 5 {
		return nil, fmt.Errorf("%s is not a wrapper that hpcc wrap wrote", file)
	}
	return argv, nil
}
