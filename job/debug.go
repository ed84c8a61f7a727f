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

// DebugPort is where a program waits for a debugger: the port that debugpy and the
// editors that speak to it take when nothing else is said.
var DebugPort = Port{"debug", 5678}

var (
	pythonProgram = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(.*/)?python[0-9.]*$`) })
	// Options of the interpreter without a value: those with one are rare, and begin with W and X.
	pythonOption = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^-[bBdEhiIOPqRsSuvx]+$`) })
)

var errNoPython = errors.New("it is no Python program, and hpcc knows debugpy alone: listen in the program itself, and name the port with --port")

// DebugWords put debugpy between the interpreter and its program.
func DebugWords(words []string) ([]string, error) {
	if len(words) < 2 || !pythonProgram().MatchString(words[0]) {
		return nil, errNoPython
	}
	n := 1
	for n < len(words) && pythonOption().MatchString(words[n]) {
		n++
	}
	if n == len(words) || words[n] == "-" || words[n] == "-c" || strings.HasPrefix(words[n], "-W") || strings.HasPrefix(words[n], "-X") {
		return nil, fmt.Errorf("python %s: debugpy takes a script or -m MODULE", strings.Join(words[1:], " "))
	}
	return slices.Concat(words[:n], []string{"-m", "debugpy", "--listen", "0.0.0.0:" + strconv.Itoa(DebugPort.Number), "--wait-for-client"}, words[n:]), nil
}

// Debug has the job's program wait until a debugger connects to [DebugPort].
func (j *Job) Debug() error {
	if j.Script != nil || len(j.Steps) > 0 {
		return errors.New("a script starts its programs itself: give the program behind the image")
	}
	words, err := DebugWords(j.Args)
	if err != nil {
		return err
	}
	j.Args = words
	if j.PortOf(DebugPort.Name) == 0 {
		j.Pod.Ports = append(j.Pod.Ports, DebugPort)
	}
	return nil
}
