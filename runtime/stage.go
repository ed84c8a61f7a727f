package runtime

import (
	"errors"
	"os"
	"strings"

	"hpcc/files"
)

// In the user namespace of a run, directories of root and of any other user look alike,
// because neither owner is mapped. So hpcc checks the directory for image copies before it
// creates the namespaces. It then executes itself again, with the same pid, and passes the
// result in argv[0]. The entry point of that execution creates the namespaces.

// markStage is the prefix of that argv[0]. It is followed by the directory's path, or by an
// exclamation mark and the reason why there is none.
const markStage = "hpcc+stg:"

// passStage checks the directory and executes hpcc again. It returns only on failure.
func passStage() error {
	place, err := files.Trusted(files.NodeLocal())
	if err != nil {
		place = "!" + err.Error()
	}
	return Again(append([]string{markStage + place}, os.Args[1:]...))
}

// StagePlace returns the physical path of [files.NodeLocal], this node's directory for
// image copies. It returns an error if users other than root and the caller can replace the
// directory.
func StagePlace() (string, error) {
	place, passed := strings.CutPrefix(os.Args[0], markStage)
	if !passed {
		return files.Trusted(files.NodeLocal())
	}
	if reason, failed := strings.CutPrefix(place, "!"); failed {
		return "", errors.New(reason)
	}
	return place, nil
}
