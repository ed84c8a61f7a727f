package program

import (
	"context"
	"regexp"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// A Step is a program that runs in the image during the build: a package's script, or the
// build of Python sources.
type Step struct {
	Text  string     // description for messages
	Below []v1.Layer // layers of the environment so far, above the image's
	With  []v1.Layer // further layers for the program, above those; not part of the image
	Args  []string   // argv; the first is /bin/sh
	Env   []string   // NAME=VALUE, added to the image's
	Path  string     // prepended to the image's PATH
	Dir   string     // working directory
}

// A StepFunc runs a step as root, without network, and returns the layer of its changes, or
// nil if there are none. The same step gives the same layer; files below /.hpcc are ignored.
// If the program fails, the error is an [Error]. If no program can run, as in an image without
// a shell, the error is [ErrCannotRun].
type StepFunc func(ctx context.Context, s Step) (v1.Layer, error)

// An Error is the failure of a step's program.
type Error struct {
	Err error
	Log []byte // end of its output
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// ErrCannotRun means that no step can run in the image.
const ErrCannotRun = cannotRun("the image has no shell")

type cannotRun string

func (e cannotRun) Error() string { return string(e) }

// activateFirst runs a program after sourcing the activation scripts, if the image has
// bash. The variables come from the step.
const activateFirst = `if command -v bash >/dev/null 2>&1; then
	exec bash -c '
		for script in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do
			if [ -f "$script" ]; then . "$script"; fi
		done
		exec "$@"' hpcc "$@"
fi
exec "$@"`

// Activated returns the argv that runs args in the activated environment.
func Activated(args ...string) []string {
	return append([]string{"/bin/sh", "-c", activateFirst, "hpcc"}, args...)
}

// Env holds variables of all steps, to keep run-dependent data out of the image.
var Env = []string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=0", "PYTHONNOUSERSITE=1", "PYTHONPATH=", "PYTHONHOME="}

// Offline matches messages of programs that failed because the network is unavailable.
var Offline = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(temporary failure in name resolution|network is unreachable|could ?n.t resolve host|could not resolve host|unable to resolve host|bad address)`)
})
