//go:build !start

package runtime

// pidHelper becomes the program of a run with an init. It does nothing in cmd/start: see
// helper_start.go.
func pidHelper(args []string) (child bool, err error) {
	if args[0] == pidInitName {
		return true, pidInit()
	}
	return false, nil
}
