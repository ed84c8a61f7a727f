package job

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// DebugPort is the port on which a program waits for a debugger: the default of debugpy and of
// the editors that support it.
var DebugPort = Port{"debug", 5678}

var (
	pythonProgram = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(.*/)?python[0-9.]*$`) })
	// Interpreter options without a value. Those with one are rare, and start with W and X.
	pythonOption = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^-[bBdEhiIOPqRsSuvx]+$`) })
)

var errNoPython = errors.New("not a Python program: hpcc supports only debugpy; start a debug server in the program and name its port with --port")

// DebugArgv returns the argv with debugpy between the interpreter and its program.
func DebugArgv(argv []string) ([]string, error) {
	if len(argv) < 2 || !pythonProgram().MatchString(argv[0]) {
		return nil, errNoPython
	}
	n := 1
	for n < len(argv) && pythonOption().MatchString(argv[n]) {
		n++
	}
	if n == len(argv) || argv[n] == "-" || argv[n] == "-c" || strings.HasPrefix(argv[n], "-W") || strings.HasPrefix(argv[n], "-X") {
		return nil, fmt.Errorf("python %s: debugpy takes a script or -m MODULE", strings.Join(argv[1:], " "))
	}
	return slices.Concat(argv[:n], []string{"-m", "debugpy", "--listen", "0.0.0.0:" + strconv.Itoa(DebugPort.Number),
		"--wait-for-client"}, argv[n:]), nil
}

// Debug makes the job's program wait for a debugger on [DebugPort].
func (j *Job) Debug() error {
	if j.Script != nil || len(j.Steps) > 0 {
		return errors.New("a script starts its programs itself; give the program after the image")
	}
	argv, err := DebugArgv(j.Args)
	if err != nil {
		return err
	}
	j.Args = argv
	if j.PortOf(DebugPort.Name) == 0 {
		j.Pod.Ports = append(j.Pod.Ports, DebugPort)
	}
	return nil
}
