package front

// readApptainer reads a command line of apptainer.
func readApptainer(args []string, env func(string) string) (*Request, error) {
	return nil, refusal("apptainer", "", "not implemented", "")
}
