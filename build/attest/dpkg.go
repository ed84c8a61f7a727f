package attest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// maxField limits a line of a control file, in bytes.
const maxField = 1 << 20

// stanzas reads a control file (deb822(5)). It returns the first line of each field, with
// the field's name in lower case.
func stanzas(r io.Reader, each func(map[string]string)) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxField)
	fields := map[string]string{}
	end := func() {
		if len(fields) > 0 {
			each(fields)
			fields = map[string]string{}
		}
	}
	for sc.Scan() {
		l := sc.Text()
		switch {
		case strings.TrimSpace(l) == "":
			end()
		case l[0] == ' ' || l[0] == '\t' || l[0] == '#':
		default:
			k, v, ok := strings.Cut(l, ":")
			if k = strings.ToLower(k); ok && fields[k] == "" {
				fields[k] = strings.TrimSpace(v)
			}
		}
	}
	if errors.Is(sc.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("a line is longer than %d bytes", maxField)
	}
	end()
	return sc.Err()
}

// dpkg reads dpkg's status file, or a file of status.d in a distroless image, which holds
// one package and has no field Status.
func (in *inventory) dpkg(p string, f *os.File) error {
	return stanzas(io.LimitReader(f, maxRecord), func(c map[string]string) {
		if state, ok := c["status"]; ok && !dpkgInstalled(state) {
			return
		}
		name, version := c["package"], c["version"]
		source, sourceVersion, _ := strings.Cut(c["source"], " ")
		if sourceVersion = strings.Trim(sourceVersion, "() "); source == name && sourceVersion == "" {
			source = ""
		}
		in.add(software{
			kind: "deb", name: name, version: version, supplier: c["maintainer"], home: c["homepage"], record: p,
			purl: PURL("deb", in.os.vendor("debian"), strings.ToLower(name), version,
				"arch", c["architecture"], "distro", in.os.distro(), "upstream", upstream(source, sourceVersion)),
		})
	})
}

// dpkgInstalled reports whether the files of a package in this state are installed
// (dpkg(1), "Package states").
func dpkgInstalled(status string) bool {
	states := strings.Fields(status)
	return len(states) == 3 && slices.Contains([]string{"installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending"}, states[2])
}
