package exports

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
	"hpcc/text"
)

// Limits of an installed environment.
const (
	maxRecord    = 64 << 20 // bytes; conda-meta/x.json lists the package's files
	maxInstalled = 20000    // packages
	maxMetadata  = 4 << 20  // bytes; METADATA contains a README
)

// ReadPrefix reads an installed environment: conda-meta/*.json, pip's metadata in
// site-packages, and the variables of "conda env config". It does not see files that no
// package owns, or changes to installed files.
func ReadPrefix(dir string, o ReadOptions) (*Export, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the environment: %w", err)
	}
	defer root.Close()
	l := newPrefixReader(dir, o)
	fsys := root.FS()
	names, err := fs.Glob(fsys, "conda-meta/*")
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", dir, err)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("reading %s: not a conda environment: no conda-meta directory; \"conda env list\" lists your environments", dir)
	}
	for _, pattern := range []string{"*.dist-info/METADATA", "*.dist-info/direct_url.json",
		"*.dist-info/REQUESTED", "*.egg-info/PKG-INFO"} {
		more, err := fs.Glob(fsys, "lib/python[23]*/site-packages/"+pattern)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", dir, err)
		}
		names = append(names, more...)
	}
	for _, name := range names {
		if !isMetadata(name) {
			continue
		}
		if err := l.open(fsys, name); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path.Join(dir, name), err)
		}
	}
	return l.export()
}

// A prefixReader reads an installed environment. It collects conda's records and pip's metadata
// until export can drop the metadata that belongs to conda packages.
type prefixReader struct {
	r        *reader
	count    map[string]int    // number of records by platform
	owned    map[string]bool   // metadata directories of conda packages
	dists    map[string]*dist  // by directory name
	files    int               // files read
	recordOf map[string]string // file name of each package's record, by package name
	explicit bool              // every record has a URL
}

// A dist is a package in site-packages.
type dist struct {
	name, version string
	direct        *directURL
	requested     bool // installed by request (PEP 376's REQUESTED)
}

// directURL is direct_url.json (PEP 610).
type directURL struct {
	URL string `json:"url"`
	VCS *struct {
		VCS    string `json:"vcs"`
		Commit string `json:"commit_id"`
	} `json:"vcs_info"`
	Archive *struct {
		Hash   string            `json:"hash"`
		Hashes map[string]string `json:"hashes"`
	} `json:"archive_info"`
	Dir *struct {
		Editable bool `json:"editable"`
	} `json:"dir_info"`
}

func newPrefixReader(name string, o ReadOptions) *prefixReader {
	return &prefixReader{r: &reader{e: &Export{File: name, Format: "environment"}, target: o.Subdir},
		count: map[string]int{}, owned: map[string]bool{}, recordOf: map[string]string{}, dists: map[string]*dist{}, explicit: true}
}

// isMetadata reports whether ReadPrefix reads the file at a path below the prefix.
func isMetadata(name string) bool {
	if d, f := path.Split(name); d == "conda-meta/" {
		return strings.HasSuffix(f, ".json") || f == "state"
	}
	ok, _ := path.Match("lib/python[23]*/site-packages/*.dist-info/*", name)
	egg, _ := path.Match("lib/python[23]*/site-packages/*.egg-info/PKG-INFO", name)
	return egg || (ok && slices.Contains([]string{"METADATA", "direct_url.json", "REQUESTED"}, path.Base(name)))
}

func (l *prefixReader) open(fsys fs.FS, name string) error {
	f, err := fsys.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("not a regular file"))
	}
	return l.take(name, f)
}

// take parses one file.
func (l *prefixReader) take(name string, r io.Reader) error {
	limit := int64(maxMetadata)
	if strings.HasPrefix(name, "conda-meta/") {
		limit = maxRecord
	}
	if l.files++; l.files > 4*maxInstalled {
		return fmt.Errorf("more than %d packages", maxInstalled)
	}
	b, err := input.ReadAll(r, limit)
	if err != nil {
		return err
	}
	switch {
	case name == "conda-meta/state":
		return l.state(b)
	case strings.HasPrefix(name, "conda-meta/"):
		return l.record(path.Base(name), b)
	}
	dir := path.Base(path.Dir(name))
	d := l.dists[dir]
	if d == nil {
		d = &dist{}
		l.dists[dir] = d
	}
	switch path.Base(name) {
	case "direct_url.json":
		return json.Unmarshal(b, &d.direct)
	case "REQUESTED":
		d.requested = true
	default:
		d.name, d.version = coreMetadata(b)
	}
	return nil
}

// record parses conda-meta/x.json (CEP 32). mamba also uses the key build_string.
func (l *prefixReader) record(file string, b []byte) error {
	var m struct {
		solve.Record
		Channel        string   `json:"channel"`
		URL            string   `json:"url"`
		Files          []string `json:"files"`
		RequestedSpec  string   `json:"requested_spec"`
		RequestedSpecs []string `json:"requested_specs"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	x := Entry{Name: strings.ToLower(m.Name), Version: m.Version, Build: m.Build,
		Channel: fetch.WithoutToken(m.Channel, ""), MD5: m.MD5, SHA256: m.SHA256, Size: max(m.Size, 0)}
	if x.Build == "" {
		return fmt.Errorf("the record has no build string")
	}
	if other := l.recordOf[x.Name]; other != "" {
		return fmt.Errorf("second record of %s, after %s; remove the one that is not installed (\"conda list %s\")", x.Name, other, x.Name)
	}
	l.recordOf[x.Name] = file
	if err := x.check(); err != nil {
		return err
	}
	if (x.MD5 != "" && !isDigest(x.MD5, 32)) || (x.SHA256 != "" && !isDigest(x.SHA256, 64)) {
		return fmt.Errorf("invalid md5 or sha256")
	}
	if x.Channel == "<unknown>" {
		x.Channel = ""
	}
	if _, err := parseURL(m.URL); err == nil {
		x.URL = m.URL
	} else {
		l.explicit = false
	}
	if fetch.IsPlatform(m.Subdir) {
		l.count[m.Subdir]++
	}
	for _, f := range m.Files {
		if d := path.Base(path.Dir(f)); strings.HasSuffix(d, "-info") {
			l.owned[d] = true
		}
	}
	if m.RequestedSpec != "" && m.RequestedSpec != "None" {
		m.RequestedSpecs = append(m.RequestedSpecs, m.RequestedSpec)
	}
	slices.Sort(m.RequestedSpecs)
	for _, s := range slices.Compact(m.RequestedSpecs) {
		l.r.e.Specs = append(l.r.e.Specs, Spec{Text: s, Asked: true})
	}
	l.r.e.Entries = append(l.r.e.Entries, x)
	return nil
}

// state parses the variables of "conda env config vars set". conda marks unset variables
// with a special value.
func (l *prefixReader) state(b []byte) error {
	var m struct {
		Vars map[string]string `json:"env_vars"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	for k, v := range m.Vars {
		if !IsVariable(k, v) || v == "***unset***" {
			l.r.note(0, "variable %q is ignored", text.Short(k))
			delete(m.Vars, k)
		}
	}
	if len(m.Vars) > 0 {
		l.r.e.Variables = m.Vars
	}
	return nil
}

// coreMetadata reads Name and Version from METADATA or PKG-INFO.
func coreMetadata(b []byte) (name, version string) {
	_ = input.Fields(b, func(key, value string) error { // no error: b is smaller than the longest line allowed
		switch key {
		case "name":
			name = cmp.Or(name, value)
		case "version":
			version = cmp.Or(version, value)
		}
		return nil
	})
	return name, version
}

// export assembles the export.
func (l *prefixReader) export() (*Export, error) {
	e := l.r.e
	e.Subdir = most(l.count)
	l.r.settle()
	e.Explicit = l.explicit && len(e.Entries) > 0 && (e.Subdir == "" || e.Subdir == l.r.target)
	if !e.Explicit {
		for i := range e.Entries {
			e.Entries[i].URL = ""
		}
	}
	slices.SortFunc(e.Entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(e.Specs, func(a, b Spec) int { return strings.Compare(a.Text, b.Text) })
	var dirs []string
	for dir := range l.dists {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	for _, dir := range dirs {
		if !l.owned[dir] {
			l.pip(dir, l.dists[dir])
		}
	}
	return l.r.done(nil)
}

// pip adds a package in site-packages that is not part of a conda package.
func (l *prefixReader) pip(dir string, d *dist) {
	if !(pip.Requirement{Name: d.name}).ValidName() || !solve.IsVersion(d.version) {
		l.r.note(0, "site-packages/%q has no valid name and version and is left out", dir)
		return
	}
	p := pip.Requirement{Name: d.name, Specifier: "==" + d.version, Needed: !d.requested}
	if u := d.direct; u != nil && u.URL != "" {
		p.URL = u.URL
		switch {
		case u.VCS != nil:
			p.URL = u.VCS.VCS + "+" + u.URL + "@" + u.VCS.Commit
		case u.Dir != nil:
			p.Editable = u.Dir.Editable
			l.r.note(0, "%s was installed from %s, a directory on the machine of the environment", d.name, fetch.Hide(u.URL))
		case u.Archive != nil:
			if h := cmp.Or(u.Archive.Hashes["sha256"], strings.TrimPrefix(u.Archive.Hash, "sha256=")); h != "" && isDigest(h, 64) {
				p.Hashes = []string{"sha256:" + strings.ToLower(h)}
			}
		}
		p.Specifier = ""
	}
	l.r.e.Pip = append(l.r.e.Pip, p)
}
