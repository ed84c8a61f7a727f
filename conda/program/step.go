package program

import (
	"context"
	"regexp"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// A Step is a program that has to run in the image while it is built: a script of a
// package, or the build of Python sources.
type Step struct {
	Text  string     // what it does, for people
	Below []v1.Layer // the environment so far, above the image's own layers
	With  []v1.Layer // what the program needs besides, above those; no part of the image
	Args  []string   // the first is /bin/sh
	Env   []string   // NAME=VALUE, above the image's own
	Path  string     // to put before the image's PATH
	Dir   string     // the working directory
}

// A StepFunc carries out a step as root, without network, and returns what it changed as a
// layer, nil for nothing. The same step gives the same layer; what is below /.hpcc does
// not count. The error of a program that fails is an [Error]; where no program can run,
// as in an image without a shell, it is [ErrCannotRun].
type StepFunc func(ctx context.Context, s Step) (v1.Layer, error)

// An Error is the program of a step that failed.
type Error struct {
	Err error
	Log []byte // the last of what it printed
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// ErrCannotRun is an image in which no step can be carried out.
const ErrCannotRun = cannotRun("the image has no shell")

type cannotRun string

func (e cannotRun) Error() string { return string(e) }

// activateFirst starts a program in the environment as "conda activate" leaves it: the
// variables are the step's; the scripts are sourced where there is the shell that they
// are written for.
const activateFirst = `if command -v bash >/dev/null 2>&1; then
	exec bash -c '
		for script in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do
			if [ -f "$script" ]; then . "$script"; fi
		done
		exec "$@"' hpcc "$@"
fi
exec "$@"`

// Activated returns the argv that runs args in the environment as "conda activate" leaves it.
func Activated(args ...string) []string {
	return append([]string{"/bin/sh", "-c", activateFirst, "hpcc"}, args...)
}

// Env holds variables of all steps: what differs from one run to the next
// would come to be in the image.
var Env = []string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=0", "PYTHONNOUSERSITE=1", "PYTHONPATH=", "PYTHONHOME="}

// Offline is what programs print that look for a network.
var Offline = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(temporary failure in name resolution|network is unreachable|could ?n.t resolve host|could not resolve host|unable to resolve host|bad address)`)
})
