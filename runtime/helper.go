//go:build !start

package runtime

// pidHelper is a helper of [Init] for the process of a run with its own pid namespace. It
// does nothing in cmd/start: see helper_start.go.
func pidHelper(args []string) (child bool, err error) {
	if args[0] == pidInitName {
		return true, pidInit()
	}
	return false, nil
}
