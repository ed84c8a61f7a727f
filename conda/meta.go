package conda

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/solve"
	"hpcc/text"
)

// A pathEntry is an entry of info/paths.json (CEP 34), or of its predecessors, which lack
// type, size and digest. no_link is ignored, because images contain no links to packages.
type pathEntry struct {
	Path        string `json:"_path"`
	Type        string `json:"path_type"`
	SHA256      string `json:"sha256,omitempty"`
	Size        *int64 `json:"size_in_bytes,omitempty"`
	Mode        string `json:"file_mode,omitempty"`
	Placeholder string `json:"prefix_placeholder,omitempty"`
}

// meta holds the metadata of a package, below info/.
type meta struct {
	index       solve.Record
	paths       map[string]*pathEntry
	order       []string
	entryPoints []string
}

// complete adds the fields that a record lacks, from its package's info/index.json. As in
// conda, a field of the channel's index takes precedence, because channels correct the
// metadata of packages in their index. Explicit exports have no index.
func complete(r, own *solve.Record) {
	if r.Depends == nil {
		r.Depends = own.Depends
	}
	if r.Constrains == nil {
		r.Constrains = own.Constrains
	}
	if r.TrackFeatures == nil {
		r.TrackFeatures = own.TrackFeatures
	}
	if r.NoarchKind() == "" {
		r.Noarch = own.Noarch
	}
	r.BuildNumber = cmp.Or(r.BuildNumber, own.BuildNumber)
	r.Subdir = cmp.Or(r.Subdir, own.Subdir)
	r.Timestamp = cmp.Or(r.Timestamp, own.Timestamp)
	r.License = cmp.Or(r.License, own.License)
	r.LicenseFamily = cmp.Or(r.LicenseFamily, own.LicenseFamily)
	r.SitePackages = cmp.Or(r.SitePackages, own.SitePackages)
}

// A description is the part of a record in conda-meta that does not depend on the prefix
// (CEP 32). Readers refuse empty digests.
type description struct {
	Name          string   `json:"name"`
	Version       string   `json:"version"`
	Build         string   `json:"build"`
	BuildNumber   int      `json:"build_number"`
	Depends       []string `json:"depends"`
	Constrains    []string `json:"constrains"`
	Subdir        string   `json:"subdir"`
	Noarch        string   `json:"noarch,omitempty"`
	Timestamp     int64    `json:"timestamp,omitempty"`
	License       string   `json:"license,omitempty"`
	LicenseFamily string   `json:"license_family,omitempty"`
	TrackFeatures string   `json:"track_features,omitempty"`
	SitePackages  string   `json:"python_site_packages_path,omitempty"`
	MD5           string   `json:"md5,omitempty"`
	SHA256        string   `json:"sha256,omitempty"`
	Size          int64    `json:"size,omitempty"`
	FileName      string   `json:"fn"`
	URL           string   `json:"url"`
	Channel       string   `json:"channel"`
}

// describe returns the description of a complete record.
func describe(r *solve.Record) description {
	return description{Name: r.Name, Version: r.Version, Build: r.Build, BuildNumber: r.BuildNumber,
		Depends: nonNil(r.Depends), Constrains: nonNil(r.Constrains), Subdir: r.Subdir, Noarch: r.NoarchKind(), Timestamp: r.Timestamp,
		License: r.License, LicenseFamily: r.LicenseFamily, TrackFeatures: strings.Join(r.TrackFeatures, ","), SitePackages: r.SitePackages,
		MD5: r.MD5, SHA256: r.SHA256, Size: r.Size, FileName: r.FileName, URL: fetch.Public(r.URL), Channel: r.Channel()}
}

// mostUnpacked limits the unpacked size of a package whose file has size bytes. A higher
// compression ratio occurs only for constant data.
func mostUnpacked(size int64) int64 {
	return min(maxUnpacked, slack+maxRatio*min(size, maxPackage))
}

// unpacked limits the unpacked size of a package whose file has size bytes, by the listed
// sizes of its files if it has any.
func (m *meta) unpacked(size int64) int64 {
	n, most := int64(slack), mostUnpacked(size)
	for _, e := range m.paths {
		if e.Size == nil || *e.Size < 0 || *e.Size > most-n {
			return most
		}
		n += *e.Size + 4096 // tar header
	}
	return min(n, most)
}

// oldPlaceholder is the placeholder of packages whose has_prefix names none.
const oldPlaceholder = "/opt/anaconda1anaconda2anaconda3"

// infoFiles collects the required files below info/.
type infoFiles map[string][]byte

func (f infoFiles) take(name string, r io.Reader) error {
	switch name {
	case "index.json", "paths.json", "link.json", "files", "has_prefix":
	default:
		return nil
	}
	if _, twice := f[name]; twice {
		return fmt.Errorf("duplicate entry info/%s", name)
	}
	b, err := input.ReadAll(r, maxInfo)
	if err != nil {
		return fmt.Errorf("reading info/%s: %w", name, err)
	}
	f[name] = b
	return nil
}

// parse parses the collected files.
func (f infoFiles) parse() (*meta, error) {
	m := &meta{paths: map[string]*pathEntry{}}
	if err := json.Unmarshal(f["index.json"], &m.index); err != nil {
		return nil, fmt.Errorf("reading info/index.json: %w", err)
	}
	if !solve.IsName(m.index.Name) || !solve.IsVersion(m.index.Version) || !solve.IsBuild(m.index.Build) {
		return nil, fmt.Errorf("info/index.json: invalid name %q, version %q or build %q",
			text.Short(m.index.Name), text.Short(m.index.Version), text.Short(m.index.Build))
	}
	if err := m.readLink(f["link.json"]); err != nil {
		return nil, err
	}
	if b, ok := f["paths.json"]; ok {
		return m, m.readPaths(b)
	}
	return m, m.readLegacy(f)
}

func (m *meta) readPaths(b []byte) error {
	var p struct {
		Paths   []*pathEntry `json:"paths"`
		Version int          `json:"paths_version"`
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return fmt.Errorf("reading info/paths.json: %w", err)
	}
	if p.Version > 1 {
		return fmt.Errorf("info/paths.json: unsupported version %d: want 1", p.Version)
	}
	if p.Paths == nil {
		return errors.New("info/paths.json: missing list of paths")
	}
	for _, e := range p.Paths {
		if err := m.add(e); err != nil {
			return fmt.Errorf("reading info/paths.json: %w", err)
		}
	}
	return nil
}

func (m *meta) add(e *pathEntry) error {
	if e == nil {
		return fmt.Errorf("entry is null")
	}
	clean, err := input.CleanPath(e.Path)
	if err != nil {
		return fmt.Errorf("path %q: %w", text.Short(e.Path), err)
	}
	if clean == "." {
		return fmt.Errorf("path %q is the prefix itself", text.Short(e.Path))
	}
	if m.paths[clean] != nil {
		return fmt.Errorf("duplicate path %q", text.Short(clean))
	}
	if e.Placeholder != "" && e.Mode != "text" && e.Mode != "binary" {
		return fmt.Errorf("path %q: file_mode %q is neither text nor binary", text.Short(clean), e.Mode)
	}
	if strings.ContainsAny(e.Placeholder, "\x00\n") {
		return fmt.Errorf("path %q: placeholder %q is not a path", text.Short(clean), text.Short(e.Placeholder))
	}
	e.Path, e.SHA256 = clean, strings.ToLower(e.SHA256)
	m.paths[clean] = e
	m.order = append(m.order, clean)
	return nil
}

// readLegacy reads info/files and info/has_prefix.
func (m *meta) readLegacy(f infoFiles) error {
	if _, ok := f["files"]; !ok {
		return errors.New("missing info/paths.json and info/files")
	}
	for _, l := range input.Lines(f["files"]) {
		if err := m.add(&pathEntry{Path: l}); err != nil {
			return fmt.Errorf("reading info/files: %w", err)
		}
	}
	for _, l := range input.Lines(f["has_prefix"]) {
		placeholder, mode, file, err := parsePrefix(l)
		if err == nil {
			file, err = input.CleanPath(file)
		}
		if err != nil {
			return fmt.Errorf("reading info/has_prefix: line %q: %w", text.Short(l), err)
		}
		if e := m.paths[file]; e != nil {
			e.Placeholder, e.Mode = placeholder, mode
		}
	}
	return nil
}

// parsePrefix parses "PLACEHOLDER MODE PATH" or "PATH"; each may be quoted.
func parsePrefix(line string) (placeholder, mode, file string, err error) {
	first, rest := field(line)
	if rest == "" && first != "" {
		return oldPlaceholder, "text", first, nil
	}
	mode, rest = field(rest)
	if file = rest; strings.IndexAny(rest, `"'`) == 0 {
		file, rest = field(rest)
		if rest != "" {
			file = ""
		}
	}
	if first == "" || (mode != "text" && mode != "binary") || file == "" || strings.ContainsRune(first, 0) {
		return "", "", "", errors.New("not PLACEHOLDER text|binary PATH")
	}
	return first, mode, file, nil
}

// field returns the first field of a line, and the rest.
func field(line string) (first, rest string) {
	if line != "" && (line[0] == '"' || line[0] == '\'') {
		first, rest, _ = strings.Cut(line[1:], line[:1])
		return first, strings.TrimSpace(rest)
	}
	if i := strings.IndexAny(line, " \t"); i >= 0 {
		return line[:i], strings.TrimSpace(line[i:])
	}
	return line, ""
}

// readLink reads info/link.json: the entry points of noarch python packages.
func (m *meta) readLink(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	var l struct {
		Noarch struct {
			Type        string   `json:"type"`
			EntryPoints []string `json:"entry_points"`
		} `json:"noarch"`
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return fmt.Errorf("reading info/link.json: %w", err)
	}
	m.entryPoints = l.Noarch.EntryPoints
	if l.Noarch.Type != "" && m.index.NoarchKind() == "" {
		m.index.Noarch = json.RawMessage(`"` + l.Noarch.Type + `"`)
	}
	return nil
}
