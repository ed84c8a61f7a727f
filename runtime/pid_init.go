//go:build !start

package runtime

// pidInit is what the init does.
func pidInit() error {
	s, err := readSpec()
	if err != nil {
		return err
	}
	foreign, err := settle(s)
	if err != nil {
		return failed(err)
	}
	return launch(s, foreign, asInit)
}
