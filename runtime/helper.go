//go:build !start

package runtime

// helper does the work of a child that [Probe], a container or a run with an
// init has started, and says whether this process is one. The program of
// cmd/start is never one of them: see helper_start.go.
func helper(args []string) (child bool, err error) {
	switch args[0] {
	case trialName:
		runTrial(args)
		return true, nil
	case ociInitName:
		return true, ociInit()
	case pidInitName:
		return true, pidInit()
	}
	return false, nil
}
