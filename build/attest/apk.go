package attest

import (
	"bufio"
	"io"
	"os"
	"strings"
)

// apk reads apk's database of installed packages (apk-tools, "installed"). Each line has a
// letter, a colon and a value, and an empty line follows each package. It skips the lines
// about files and directories.
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

func (in *inventory) apkPackage(p string, f map[byte]string) software {
	name, version, origin := f['P'], f['V'], f['o']
	if origin == name {
		origin = ""
	}
	return software{
		kind: "apk", name: name, version: version, license: f['L'], supplier: f['m'], home: f['U'], record: p,
		purl: PURL("apk", in.os.vendor("alpine"), strings.ToLower(name), version,
			"arch", f['A'], "distro", in.os.distro(), "upstream", upstream(origin, "")),
	}
}
