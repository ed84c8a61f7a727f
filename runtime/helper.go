//go:build !start

package runtime

// helper does the work of a child that [Probe], a container or a run with an
// init has started, and of a run that was carried here, and says whether this
// process is one. cmd/start starts none and holds none: see helper_start.go.
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
	c, err := pickUp()
	if err != nil {
		return true, &Error{ExitFailed, err}
	}
	if c != nil {
		return true, c.resume()
	}
	return false, nil
}
