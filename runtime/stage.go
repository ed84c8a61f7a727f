package runtime

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"hpcc/store/owndir"
)

// In the user namespace of a run, the directories of root and those of any other
// user look the same: neither owner is mapped. Whether the directory for copies
// of images can be trusted is therefore found out before the namespaces are made.
// Then the process executes itself again, with the same pid, and carries the
// result in argv[0]. There the entry point makes the namespaces.

// markStage is the head of that argv[0]. The path of the directory follows, or
// an exclamation mark and the reason why there is none.
const markStage = "hpcc+stg:"

// passStage checks the directory and executes hpcc again. It returns only on failure.
func passStage() error {
	place, err := owndir.Place(owndir.NodeLocal())
	if err != nil {
		place = "!" + err.Error()
	}
	args := append([]string{markStage + place}, os.Args[1:]...)
	return fmt.Errorf("executing hpcc again: %w", execute("/proc/self/exe", args, os.Environ()))
}

// StagePlace returns the physical path of the directory for copies of images on
// this node, [owndir.NodeLocal]. Nobody but root and the user can exchange it
// for another one; a directory that others can exchange is an error.
func StagePlace() (string, error) {
	place, passed := strings.CutPrefix(os.Args[0], markStage)
	if !passed {
		return owndir.Place(owndir.NodeLocal())
	}
	if reason, failed := strings.CutPrefix(place, "!"); failed {
		return "", errors.New(reason)
	}
	return place, nil
}
