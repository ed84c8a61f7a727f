//go:build !start

package runtime

// pidHelper becomes the program of a run with an init. The program of cmd/start
// never does: see helper_start.go.
func pidHelper(args []string) (child bool, err error) {
	if args[0] == pidInitName {
		return true, pidInit()
	}
	return false, nil
}
