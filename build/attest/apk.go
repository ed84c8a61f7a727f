package attest

import (
	"bufio"
	"io"
	"os"
	"strings"
)

// apk reads apk's database: a letter, a colon and a value on each line, and an
// empty line after each package (apk-tools, "installed"). It skips the letters of files
// and directories.
func (in *inventory) apk(p string, f *os.File) error {
	sc := bufio.NewScanner(io.LimitReader(f, maxRecord))
	sc.Buffer(nil, maxField)
	fields := map[byte]string{}
	end := func() {
		if len(fields) > 0 {
			in.add(in.apkPackage(p, fields))
			clear(fields)
		}
	}
	for sc.Scan() {
		l := sc.Text()
		switch {
		case l == "":
			end()
		case len(l) >= 2 && l[1] == ':' && strings.IndexByte("PVALUom", l[0]) >= 0:
			fields[l[0]] = l[2:]
		}
	}
	end()
	return sc.Err()
}

func (in *inventory) apkPackage(p string, c map[byte]string) software {
	name, version, origin := c['P'], c['V'], c['o']
	if origin == name {
		origin = ""
	}
	return software{
		kind: "apk", name: name, version: version, license: c['L'], supplier: c['m'], home: c['U'], record: p,
		purl: PURL("apk", in.os.vendor("alpine"), strings.ToLower(name), version,
			"arch", c['A'], "distro", in.os.distro(), "upstream", upstream(origin, "")),
	}
}
