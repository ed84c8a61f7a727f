package front

func readChRun(args []string, env func(string) string) (*Request, error) {
	return nil, refusal("ch-run", "", "not implemented", "")
}

func readChImage(args []string, env func(string) string) (*Request, error) {
	return nil, refusal("ch-image", "", "not implemented", "")
}

func readChConvert(args []string, env func(string) string) (*Request, error) {
	return nil, refusal("ch-convert", "", "not implemented", "")
}
