package exports

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"hpcc/conda/solve"
	"hpcc/text"
)

// urlLine matches a line of an explicit file (CEP 23).
var urlLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(.+[/\\])?([^/\\#]+(?:\.tar\.bz2|\.conda))(?:#(?:([0-9a-f]{32})|(?:sha256:)?([0-9a-f]{64})))?$`)
})

// explicit reads the output of "conda list --explicit", "mamba env export --explicit" and
// "conda-lock render": one URL per line (CEP 23). The format lacks pip packages and,
// without --md5 or --sha256, digests.
func (r *reader) explicit(lines []string) {
	r.e.Format, r.e.Explicit = "@EXPLICIT", true
	for i, line := range lines {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line == "@EXPLICIT":
		case strings.HasPrefix(line, "# pip "): // written by conda-lock for pip
			r.addRequirement(i+1, strings.TrimPrefix(line, "# pip "))
		case strings.HasPrefix(line, "# no URL for:"):
			r.wrong(i+1, "%q: conda did not know the origin of this package; find its URL, or export with \"conda list -e\"", text.Short(line))
		case strings.HasPrefix(line, "#"):
			r.header(line)
		default:
			x, err := parseURL(line)
			if err != nil {
				r.wrong(i+1, "%q: %v", text.Short(line), err)
				continue
			}
			x.Line = i + 1
			r.e.Entries = append(r.e.Entries, x)
		}
	}
	r.settle()
}

// header reads a comment, which may contain the platform of the list.
func (r *reader) header(line string) {
	if p, ok := strings.CutPrefix(line, "# platform:"); ok {
		r.e.Subdir = strings.TrimSpace(p)
	}
}

// parseURL parses URL[#md5|#sha256:…]. The file name contains name, version and build.
func parseURL(line string) (Entry, error) {
	m := urlLine().FindStringSubmatch(line)
	if m == nil {
		return Entry{}, fmt.Errorf("not the URL of a package (.conda or .tar.bz2, with #md5 or #sha256)")
	}
	e := Entry{URL: m[1] + m[2], MD5: m[3], SHA256: m[4]}
	if strings.Contains(e.URL, "<TOKEN>") {
		return e, fmt.Errorf("the token was removed when the file was written; replace <TOKEN> by yours")
	}
	fn, err := url.PathUnescape(m[2]) // "!" and "+" of versions
	if err != nil {
		return e, fmt.Errorf("reading the URL: %w", err)
	}
	var ok bool
	if e.Name, e.Version, e.Build, ok = solve.SplitFile(fn); !ok {
		return e, fmt.Errorf("the file name is not name-version-build")
	}
	return e, nil
}
