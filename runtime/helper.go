//go:build !start

package runtime

// helper does the work of a child that [Probe] or a container has started, and
// says whether this process is one. cmd/start starts none and holds neither:
// see helper_start.go.
func helper(args []string) (child bool, err error) {
	switch args[0] {
	case trialName:
		runTrial(args)
		return true, nil
	case ociInitName:
		return true, ociInit()
	}
	return false, nil
}
