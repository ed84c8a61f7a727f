package front

import (
	"path"
	"slices"
	"strings"
)

// chConvertTable is the table of ch-convert's options.
var chConvertTable = optionTable(map[Role]string{
	Value: "-i --in-fmt -o --out-fmt -s --storage", Flag: "-n --dry-run --no-clobber -h --help --version", Refused: "--no-xattrs",
}, idleCharliecloud["ch-convert"])

func readChConvert(args, environ []string) (*Request, error) {
	l, err := readCharliecloud("ch-convert", chConvertTable, args, environ)
	if err != nil {
		return nil, err
	}
	operands := slices.Concat(l.before, l.rest)
	switch {
	case l.has("--version"):
		return &Request{Output: charliecloudVersion + "\n"}, nil
	case l.has("-h", "--help"):
		return &Request{Output: "Usage: ch-convert [-i FMT] [-o FMT] [OPTION...] IN OUT\n\nhpcc converts the image. FMT is ch-image, dir, squash or tar.\n"}, nil
	case len(operands) != 2:
		return nil, refusal("ch-convert", strings.Join(args, " "), "it needs IN and OUT", "ch-convert [-i FMT] [-o FMT] IN OUT")
	}
	from, err := l.format(operands[0], "-i", "--in-fmt")
	if err != nil {
		return nil, err
	}
	to, err := l.format(operands[1], "-o", "--out-fmt")
	if err != nil {
		return nil, err
	}
	if from == to {
		return nil, refusal("ch-convert", strings.Join(operands, " "), "both have the format "+from,
			"copy it with cp -a, or rename an image with hpcc tag")
	}
	if l.has("-n", "--dry-run") {
		return &Request{Output: "input:   " + from + "  " + operands[0] + "\noutput:  " + to + "  " + operands[1] + "\n"}, nil
	}
	dir, store := l.storage()
	operation := "convert"
	if l.has("--no-clobber") {
		operation = "convert-new"
	}
	return &Request{Commands: []Command{{Args: slices.Concat([]string{"charliecloud"}, store,
		[]string{operation, dir, from, operands[0], to, operands[1]})}}}, nil
}

// format returns the format of an image: that of the options, or the one that its name suggests.
func (l *chLine) format(image string, names ...string) (string, error) {
	f, ok := l.value(names...)
	if !ok {
		f = inferredFormat(image)
	}
	switch f {
	case "ch-image", "dir", "squash", "tar":
		return f, nil
	case "docker", "podman":
		return "", refusal("ch-convert", f, "hpcc does not use the storage of other builders",
			f+" save NAME -o x.tar; hpcc load x.tar NAME")
	}
	return "", refusal("ch-convert", f, "it is not a format", "use ch-image, dir, squash or tar")
}

// inferredFormat returns the format that the name of an image suggests, by the rules of ch-convert.
func inferredFormat(image string) string {
	base := path.Base(image)
	match := func(patterns ...string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, base); return ok })
	}
	switch {
	case match("*.sqfs", "*.squash", "*.squashfs", "*.squishy"):
		return "squash"
	case match("*.tar", "*.t?z", "*.tar.?", "*.tar.??"):
		return "tar"
	case strings.HasPrefix(image, "/") || strings.HasPrefix(image, "./"):
		return "dir"
	}
	return "ch-image"
}
