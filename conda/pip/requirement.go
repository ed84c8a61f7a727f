package pip

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"hpcc/conda/fetch"
	"hpcc/text"
)

// A Requirement is a row of a requirements file or environment: a package with a version
// specifier, or the URL or path of a wheel or source archive.
type Requirement struct {
	Line      int      // in the list; 0 if unknown
	Within    string   // FILE:LINE of a row in a file that the list includes at Line; else ""
	Name      string   // "" if the row has only a URL or path
	Extras    []string // normal names (PEP 685)
	Specifier string   // such as ">=1.2,<2"; "" for any version
	URL       string   // or path; "" for a package of an index
	Marker    string   // the condition (PEP 508); "" for always
	Hashes    []string // "sha256:…", of which the archive must match one; empty: any archive
	Editable  bool     // -e: a directory of sources
	Needed    bool     // a dependency: only other packages need it
	Locked    bool     // the URL comes from a lock file, not from the user
	BuildWith []string // URLs of the wheels to build sources with; empty: the sources' build requirements
	Index     string   // URL of the index that has the package; "": those of Options
	Size      int64    // of the file at URL, in bytes; 0 if unknown
	Python    string   // specifier of the pythons that the package supports; "" if unknown

	// Files are the archives of a locked version, of which the target's best is installed. Their
	// Names are file names, or "" for those in the URLs. If they have no URLs, an index lists them.
	Files []Requirement
	// Requires are the rows of the list that the row needs, by name and, unless empty, Specifier,
	// Index and URL. In a list with such rows, a Needed row is installed only if an installed
	// row requires it.
	Requires []Requirement
	Virtual  bool     // a directory of sources: only the packages that it Requires are installed
	Groups   []string // dependency groups to install, for the markers of a lock file
}

func (r Requirement) String() string {
	s := r.Name
	if len(r.Extras) > 0 {
		s += "[" + strings.Join(r.Extras, ",") + "]"
	}
	switch {
	case r.Editable:
		s = "-e " + display(r.URL)
	case r.URL != "" && s != "":
		s += " @ " + display(r.URL)
	case r.URL != "":
		s = display(r.URL)
	default:
		s += r.Specifier
	}
	return s
}

// origin returns the file or line of the row, for messages.
func (r Requirement) origin() string {
	switch {
	case r.Within != "":
		return r.Within
	case r.Line > 0:
		return fmt.Sprintf("line %d", r.Line)
	}
	return "the list"
}

// display returns a URL or path without credentials, for messages. It keeps the user of an
// SSH URL, which is not a secret.
func display(u string) string {
	if !strings.Contains(u, "://") {
		return u
	}
	p, err := url.Parse(u)
	if err != nil || !strings.HasSuffix(p.Scheme, "ssh") || p.User == nil {
		return fetch.Hide(u)
	}
	return strings.Replace(fetch.Hide(u), "://", "://"+url.User(p.User.Username()).String()+"@", 1)
}

var (
	// editable matches the start of a row for a directory or repository of sources.
	editable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:-e\s*|--editable[\s=]\s*)`) })
	// PEP 508: names of distributions and extras.
	nameText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$`) })
	nameHead = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`) })
	nameRuns = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[-_.]+`) })
)

// NormalName returns the normalized name of a distribution or extra (PEP 503, PEP 685).
func NormalName(s string) string { return nameRuns().ReplaceAllString(strings.ToLower(s), "-") }

// ParseRequirement parses a row of a requirements file or of "pip:" in an
// environment.yml: a requirement (PEP 508), a URL or a path, optionally followed by
// --hash options and a comment. Options on a line of their own, such as --index-url, are
// not rows.
func ParseRequirement(row string) (Requirement, error) {
	row = strings.TrimSpace(row)
	if strings.HasPrefix(row, "#") {
		row = ""
	}
	for _, mark := range []string{" #", "\t#"} {
		row, _, _ = strings.Cut(row, mark)
	}
	row, options := rowOptions(row)
	r, err := parseRow(strings.TrimSpace(row))
	if err != nil {
		return r, err
	}
	for _, o := range options {
		h, ok := strings.CutPrefix(o, "--hash=")
		if !ok {
			return r, fmt.Errorf("unsupported option %s; remove it", text.Short(o))
		}
		alg, sum, _ := strings.Cut(h, ":")
		if n := hashSizes[alg]; n < 32 || len(sum) != 2*n || strings.Trim(sum, "0123456789abcdefABCDEF") != "" {
			return r, fmt.Errorf("%q: not sha256, sha384 or sha512, a colon and hex digits", text.Short(o))
		}
		r.Hashes = append(r.Hashes, alg+":"+strings.ToLower(sum))
	}
	return r, nil
}

// hashSizes maps the digests that indexes use to their sizes in bytes.
var hashSizes = map[string]int{"md5": 16, "sha1": 20, "sha224": 28, "sha256": 32, "sha384": 48, "sha512": 64}

// rowOptions cuts "--option" and "--option value" off the end of a row.
func rowOptions(row string) (string, []string) {
	var options []string
	i := strings.Index(row, " --")
	if i < 0 {
		return row, nil
	}
	for _, f := range strings.Fields(row[i:]) {
		if n := len(options) - 1; n >= 0 && !strings.HasPrefix(f, "--") && f != "\\" {
			options[n] += "=" + f
		} else if f != "\\" {
			options = append(options, f)
		}
	}
	return row[:i], options
}

func parseRow(row string) (r Requirement, err error) {
	if len(row) > maxRow {
		return r, fmt.Errorf("the row has more than %d bytes", maxRow)
	}
	if at := editable().FindString(row); at != "" {
		r.Editable = true
		row = strings.TrimSpace(row[len(at):])
	}
	switch {
	case row == "":
		return r, errors.New("the row is empty")
	case strings.HasPrefix(row, "-"):
		return r, errors.New("it is an option, not a package")
	}
	row, r.Marker = cutMarker(row)
	if r.Editable || isLocation(row) {
		r.URL = row
		base := strings.TrimSuffix(path.Base(locationPath(row)), "/")
		if i := strings.LastIndexByte(base, '['); i > 0 && strings.HasSuffix(base, "]") { // ./x.whl[extra]
			at := strings.LastIndexByte(row, '[')
			if r.Extras, err = parseExtras(row[at+1 : len(row)-1]); err != nil {
				return r, err
			}
			r.URL = row[:at]
		}
		r.Name = nameInURL(r.URL)
	} else if err = r.named(row); err != nil {
		return r, err
	}
	if r.Marker != "" {
		_, err = parseMarker(r.Marker)
	}
	return r, err
}

// cutMarker cuts the condition off a row. After a URL the semicolon needs a blank
// before it.
func cutMarker(row string) (string, string) {
	mark := ";"
	if isLocation(row) || strings.Contains(row, "@") {
		mark = " ;"
	}
	row, m, _ := strings.Cut(row, mark)
	return strings.TrimSpace(row), strings.TrimSpace(m)
}

// named reads NAME[EXTRAS] SPECIFIER, with or without parentheses, or
// NAME[EXTRAS] @ URL.
func (r *Requirement) named(row string) (err error) {
	r.Name = nameHead().FindString(row)
	if r.Name == "" {
		return errors.New("it does not begin with a package name")
	}
	rest := strings.TrimSpace(row[len(r.Name):])
	if strings.HasPrefix(rest, "[") {
		list, behind, ok := strings.Cut(rest[1:], "]")
		if !ok {
			return errors.New("missing ] after the extras")
		}
		if r.Extras, err = parseExtras(list); err != nil {
			return err
		}
		rest = strings.TrimSpace(behind)
	}
	if u, ok := strings.CutPrefix(rest, "@"); ok {
		if r.URL = strings.TrimSpace(u); r.URL == "" || strings.ContainsAny(r.URL, " \t") {
			return errors.New("missing URL after @")
		}
		return nil
	}
	if strings.HasPrefix(rest, "(") && strings.HasSuffix(rest, ")") {
		rest = rest[1 : len(rest)-1]
	}
	rest = strings.TrimSpace(rest)
	if strings.HasPrefix(rest, "=") && !strings.HasPrefix(rest, "==") {
		return errors.New("pip writes ==, not = as conda does")
	}
	spec, err := parseSpecifier(rest)
	r.Specifier = spec.String()
	return err
}

func parseExtras(list string) (out []string, err error) {
	for x := range strings.SplitSeq(list, ",") {
		if x = strings.TrimSpace(x); x == "" {
			continue
		}
		if !nameText().MatchString(x) {
			return nil, fmt.Errorf("invalid extra %q", text.Short(x))
		}
		out = append(out, NormalName(x))
	}
	return out, nil
}

// isLocation reports whether a row is a URL or path rather than a name.
func isLocation(row string) bool {
	head, _, _ := strings.Cut(row, " ")
	switch name := nameHead().FindString(row); {
	case strings.HasPrefix(row, ".") || strings.HasPrefix(row, "/") || strings.HasPrefix(row, "~"):
		return true
	case strings.Contains(head, "://") || strings.HasPrefix(row, "file:"):
		i := strings.IndexAny(head, "@[")
		return i < 0 || i > strings.Index(head, ":") // name@https://… is a name
	case strings.HasPrefix(strings.TrimSpace(row[len(name):]), "@"):
		return false
	}
	head, _, _ = strings.Cut(head, "[")
	return strings.HasSuffix(head, ".whl") || strings.ContainsRune(head, '/')
}

// locationPath returns the decoded path of a URL, or the path itself.
func locationPath(s string) string {
	if strings.Contains(s, "://") || strings.HasPrefix(s, "file:") {
		if u, err := url.Parse(s); err == nil {
			return u.Path
		}
		return ""
	}
	s, _, _ = strings.Cut(s, "#")
	return filepath.ToSlash(s)
}

// nameInURL returns the package that a URL or path names, by the name of the wheel or by
// "#egg=NAME"; "" if it does not name one.
func nameInURL(s string) string {
	if w, err := parseWheelName(path.Base(locationPath(s))); err == nil {
		return w.dist
	}
	_, frag, _ := strings.Cut(s, "#")
	for f := range strings.SplitSeq(frag, "&") {
		if n, ok := strings.CutPrefix(f, "egg="); ok {
			return nameHead().FindString(n)
		}
	}
	return ""
}

// fragmentHash returns the digest in a URL's fragment, "#sha256=…", as "sha256:…".
func fragmentHash(frag string) (string, error) {
	for f := range strings.SplitSeq(frag, "&") {
		alg, sum, ok := strings.Cut(f, "=")
		n := hashSizes[alg]
		if !ok || n == 0 {
			continue
		}
		if _, err := hex.DecodeString(sum); err != nil || len(sum) != 2*n {
			return "", fmt.Errorf("%q is not a %s digest", text.Short(sum), alg)
		}
		return alg + ":" + strings.ToLower(sum), nil
	}
	return "", nil
}

// ValidName reports whether the requirement's name is valid for a distribution.
func (r Requirement) ValidName() bool { return nameText().MatchString(r.Name) }

// NameInURL returns the distribution that the requirement's URL names, or "".
func (r Requirement) NameInURL() string { return nameInURL(r.URL) }

// Exactly returns the specifier of the version in the wheel's name. Another platform needs
// the same version as a different wheel.
func (r Requirement) Exactly() string {
	if w, err := parseWheelName(path.Base(locationPath(r.URL))); err == nil {
		return "==" + w.version.String()
	}
	return r.Specifier
}

// Newest returns the newest of the versions that the specifier allows, or "" if there is none.
func (r Requirement) Newest(versions []string) (newest string) {
	spec, err := parseSpecifier(r.Specifier)
	if err != nil {
		return ""
	}
	var best pyVersion
	for _, text := range versions {
		v, err := parseVersion(text)
		if err == nil && spec.match(v) && (newest == "" || v.compare(best) > 0) {
			newest, best = text, v
		}
	}
	return newest
}

// Decide evaluates the marker for a platform, without extras. known is false if the value
// depends on more than the platform, such as the version of python.
func (r Requirement) Decide(subdir string) (holds, known bool, err error) {
	if r.Marker == "" {
		return true, true, nil
	}
	m, err := r.condition()
	if err != nil {
		return false, false, err
	}
	v := m.decide(r.environment(markerValues(subdir)))
	return v == yes, v != unknown, nil
}

// maxRow limits the length of a requirement, in bytes.
const maxRow = 64 << 10
