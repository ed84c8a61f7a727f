package solve

import (
	"encoding/json"
	"path"
	"regexp"
	"strings"
	"sync"

	"hpcc/conda/fetch"
)

// A Record is the description of a package in a channel's index (CEP 36), with its URL.
type Record struct {
	Name        string   `json:"name"`
	Version     string   `json:"version"`
	Build       string   `json:"build"`
	BuildNumber int      `json:"build_number"`
	Depends     []string `json:"depends"`
	Constrains  []string `json:"constrains,omitempty"`
	fetch.File
	Subdir        string          `json:"subdir"`
	Noarch        json.RawMessage `json:"noarch,omitempty"`
	Timestamp     int64           `json:"timestamp"` // in milliseconds, or in seconds
	License       string          `json:"license,omitempty"`
	LicenseFamily string          `json:"license_family,omitempty"`
	SitePackages  string          `json:"python_site_packages_path,omitempty"`
	TrackFeatures features        `json:"track_features,omitempty"`
	Origin        string          // URL of the channel
}

// NoarchKind returns "", "generic" or "python".
func (r *Record) NoarchKind() string {
	switch s := strings.Trim(string(r.Noarch), `"`); s {
	case "python", "generic":
		return s
	case "true":
		return "generic"
	}
	return ""
}

// Channel returns the channel of a package as images record it. Like conda, it uses
// "<unknown>" for packages without a channel.
func (r *Record) Channel() string {
	if s := fetch.Public(r.Origin); s != "" {
		return s
	}
	return "<unknown>"
}

var (
	// CEP 26: names of packages.
	nameText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_](?:[a-zA-Z0-9_.-]*[a-zA-Z0-9_])?$`) })
	// CEP 33: versions; CEP 26: build strings.
	versionText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_.+!-]{1,64}$`) })
	buildText   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_.+]{1,64}$`) })
)

// SplitFile splits a file name into name, version and build, at the last two "-".
func SplitFile(fn string) (name, version, build string, ok bool) {
	fn = strings.TrimSuffix(strings.TrimSuffix(path.Base(fn), ".conda"), ".tar.bz2")
	i := strings.LastIndexByte(fn, '-')
	if i < 0 {
		return "", "", "", false
	}
	build, fn = fn[i+1:], fn[:i]
	if i = strings.LastIndexByte(fn, '-'); i < 0 {
		return "", "", "", false
	}
	name, version = fn[:i], fn[i+1:]
	return name, version, build, IsName(name) && IsVersion(version) && IsBuild(build)
}

// From reports whether a record is from the channel that an entry names by URL or name,
// with or without a platform.
func (r *Record) From(channel string) bool {
	for _, sub := range []string{r.Subdir, "noarch"} {
		channel = strings.TrimSuffix(channel, "/"+sub)
	}
	return channel == "" || r.Origin == strings.TrimRight(channel, "/") ||
		(!strings.Contains(channel, "://") && strings.HasSuffix(r.Origin, "/"+channel))
}

// pythonTag matches the python version in a build string: py311, py3.11, cp311.
var pythonTag = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:py|cp)(\d)\.?(\d{1,2})(?:\D|$)`) })

// Fits reports whether the build is for python X.Y, or for any python.
func (r *Record) Fits(python string) bool {
	m := pythonTag().FindStringSubmatch(r.Build)
	return m == nil || python == "" || m[1]+"."+m[2] == python
}

// Better reports whether r is preferred to best, a record of the same name and version: by
// first channel, higher build number, later timestamp, and then the .conda archive, which
// is faster to read.
func (r *Record) Better(best *Record) bool {
	switch {
	case best == nil:
		return true
	case r.Origin != best.Origin:
		return false
	case r.BuildNumber != best.BuildNumber:
		return r.BuildNumber > best.BuildNumber
	case r.time() != best.time() && r.Build != best.Build:
		return r.time() > best.time()
	case r.Build != best.Build:
		return r.Build > best.Build
	}
	return strings.HasSuffix(r.FileName, ".conda") && !strings.HasSuffix(best.FileName, ".conda")
}

// AtLeast reports whether the version of a package is the given one or newer. It is false if one of
// them is not a version.
func (r *Record) AtLeast(version string) bool {
	have, err := parseVersion(r.Version)
	if err != nil {
		return false
	}
	want, err := parseVersion(version)
	return err == nil && have.compare(want) >= 0
}

// time returns the timestamp in milliseconds. Old packages have it in seconds.
func (r *Record) time() int64 {
	if r.Timestamp < 1<<37 {
		return r.Timestamp * 1000
	}
	return r.Timestamp
}

// Dependency returns the name in a MatchSpec, or "" for virtual packages.
func Dependency(spec string) string {
	if i := strings.Index(spec, "::"); i >= 0 {
		spec = spec[i+2:]
	}
	n := strings.ToLower(strings.TrimSpace(spec))
	if i := strings.IndexAny(n, " =<>!~[("); i >= 0 {
		n = n[:i]
	}
	if strings.HasPrefix(n, "__") {
		return ""
	}
	return n
}

// features are the names in a record's track_features: a list, or a string separated by
// blanks or commas. Anything else is ignored. They are nil if the record has no such key.
type features []string

func (f *features) UnmarshalJSON(b []byte) error {
	var list []string
	var text string
	if json.Unmarshal(b, &list) == nil {
		*f = list
	} else if json.Unmarshal(b, &text) == nil {
		*f = splitFeatures(text)
	}
	return nil
}

// IsName reports whether s is a valid package name (CEP 26).
func IsName(s string) bool { return nameText().MatchString(s) }

// IsVersion reports whether s has only characters that are valid in versions (CEP 33).
func IsVersion(s string) bool { return versionText().MatchString(s) }

// IsBuild reports whether s is a valid build string (CEP 26).
func IsBuild(s string) bool { return buildText().MatchString(s) }
