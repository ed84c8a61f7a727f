package front

// readDocker reads a command line of docker.
func readDocker(args []string, env func(string) string) (*Request, error) {
	return nil, refusal("docker", "", "not implemented", "")
}
