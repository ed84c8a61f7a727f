package solve

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"hpcc/conda/fetch"
	"hpcc/text"
)

// A Spec is a MatchSpec (CEP 29), a constraint on a package.
//
//	[channel[/subdir]::]name [version [build]]   name=1.8   name[key=value,…]
type Spec struct {
	text        string
	channel     string
	subdir      string
	Name        string // lower case, never a pattern
	version     constraint
	versionText string
	build       func(string) bool // nil: any build
	buildText   string
	buildNumber constraint
	fn          string
	md5, sha256 string
	features    []string // track_features
}

func (s *Spec) String() string { return s.text }

// Channel returns the channel that the spec requires, with its platform if the spec has both, as in
// conda-forge/noarch; "" for any channel.
func (s *Spec) Channel() string {
	if s.channel == "" || s.subdir == "" {
		return s.channel
	}
	return s.channel + "/" + s.subdir
}

// Pin returns the only version and build that the spec accepts, as in a=1.8=b_0. build is "" if the
// spec accepts all builds, as in a==1.8. Both are "" if the spec has any other condition.
func (s *Spec) Pin() (version, build string) {
	version = strings.TrimPrefix(s.versionText, "==")
	other := s.buildNumber != nil || s.fn+s.md5+s.sha256 != "" || len(s.features) > 0 || (s.subdir != "" && s.channel == "")
	if other || !IsVersion(version) || (s.buildText != "" && !IsBuild(s.buildText)) {
		return "", ""
	}
	return version, s.buildText
}

// maxSpec limits the length of a MatchSpec, in bytes.
const maxSpec = 4096

// ParseSpec parses a MatchSpec as conda does: "=" before a version means "starts with", "=="
// means "equal", and "=" with a build means "equal" too.
func ParseSpec(spec string) (*Spec, error) {
	s := &Spec{text: strings.Join(strings.Fields(spec), " ")}
	if err := s.parse(spec); err != nil {
		return nil, fmt.Errorf("%q is not a MatchSpec: %w", text.Short(s.text), err)
	}
	return s, nil
}

func (s *Spec) parse(spec string) error {
	if len(spec) > maxSpec {
		return fmt.Errorf("longer than %d bytes", maxSpec)
	}
	spec, _, _ = strings.Cut(spec, "#")
	spec = strings.TrimSpace(spec)
	if strings.Contains(spec, "://") && !strings.Contains(spec, "::") {
		return errors.New("URLs are not supported")
	}
	spec, keys, err := cutKeys(spec)
	if err != nil {
		return err
	}
	if i := strings.LastIndexByte(spec, ':'); i >= 0 { // channel:namespace:name; namespaces are unused
		ch := spec[:i]
		spec = spec[i+1:]
		j := strings.LastIndexByte(ch, ':')
		if j < 0 || strings.HasPrefix(ch[j:], "://") || ch[j+1:] != "" {
			return errors.New("\"channel::name\" has two colons")
		}
		s.setChannel(strings.TrimSpace(ch[:j]))
	}
	end := strings.IndexAny(spec, " =<>!~")
	if end < 0 {
		end = len(spec)
	}
	if s.Name = strings.ToLower(spec[:end]); !IsName(s.Name) {
		return fmt.Errorf("%q is not a package name", text.Short(s.Name))
	}
	version, build := splitBuild(joinOperators(spec[end:]))
	if strings.Contains(version, " ") {
		return fmt.Errorf("version %q has a blank", text.Short(version))
	}
	if err := s.set("version", version); err != nil {
		return err
	}
	if err := s.set("build", build); err != nil {
		return err
	}
	for _, kv := range keys {
		if err := s.set(kv[0], kv[1]); err != nil {
			return err
		}
	}
	return nil
}

// setChannel parses "channel", "channel/subdir", or "subdir"; the channel "*" is any channel.
func (s *Spec) setChannel(ch string) {
	s.channel = ch
	i := strings.LastIndexByte(ch, '/')
	if last := ch[i+1:]; last == "noarch" || fetch.IsPlatform(last) {
		s.channel, s.subdir = ch[:max(i, 0)], last
	}
	if s.channel == "*" {
		s.channel = ""
	}
}

// joinOperators removes the blanks around operators, commas and parentheses: "= 1.2 = b" becomes "=1.2=b".
func joinOperators(text string) string {
	const operators = "=<>!~,|()"
	var b strings.Builder
	last := byte('=') // removes blanks at the start
	for f := range strings.FieldsSeq(text) {
		if strings.IndexByte(operators, last) < 0 && strings.IndexByte(operators, f[0]) < 0 {
			b.WriteByte(' ')
		}
		b.WriteString(f)
		last = f[len(f)-1]
	}
	return b.String()
}

// splitBuild splits the text after a name into version and build as conda does. The build
// is the last field after a blank or "=" that does not follow an operator or comma. The
// returned version lacks an "=" that means "equal", and has "*" if "=" means "starts with".
func splitBuild(rest string) (version, build string) {
	version = rest
	for i := len(rest) - 1; i > 0; i-- {
		if c := rest[i]; strings.IndexByte(",|<>~()!", c) >= 0 {
			break
		} else if c == ' ' || c == '=' {
			// The name may be followed by several blanks: "name  >=1" has no build.
			before := strings.TrimRight(rest[:i], " ")
			after := strings.TrimSpace(rest[i+1:])
			if after != "" && before != "" && strings.IndexByte("=!|,<>~(", before[len(before)-1]) < 0 {
				version, build = before, after
			}
			break
		}
	}
	bare := strings.TrimPrefix(version, "=")
	switch {
	case bare == version || strings.ContainsAny(bare, ",|("): // no "=", or several versions
	case strings.HasPrefix(bare, "="):
		if !strings.ContainsAny(bare[1:], "=<>!~") {
			version = "==" + bare[1:]
		}
	case build == "" && !strings.HasSuffix(bare, "*"):
		version = bare + ".*"
	default:
		version = bare
	}
	return version, build
}

// cutKeys cuts "[key=value,…]" off the end; values may be quoted.
func cutKeys(spec string) (rest string, keys [][2]string, err error) {
	i := strings.IndexByte(spec, '[')
	if i < 0 {
		return spec, nil, nil
	}
	in, ok := strings.CutSuffix(strings.TrimSpace(spec[i+1:]), "]")
	if !ok {
		return "", nil, errors.New("\"[\" is not closed")
	}
	rest = strings.TrimSpace(spec[:i])
	for in = strings.TrimSpace(in); in != ""; in = strings.TrimSpace(in) {
		key, value, ok := strings.Cut(in, "=")
		if !ok {
			return "", nil, fmt.Errorf("%q is not of the form key=value", text.Short(in))
		}
		value = strings.TrimSpace(value)
		if value != "" && (value[0] == '"' || value[0] == '\'') {
			end := strings.IndexByte(value[1:], value[0])
			if end < 0 {
				return "", nil, fmt.Errorf("unclosed quote in the value of %s", text.Short(key))
			}
			value, in = value[1:end+1], strings.TrimSpace(value[end+2:])
			if in != "" && in[0] != ',' {
				return "", nil, fmt.Errorf("missing comma after the value of %s", text.Short(key))
			}
			in = strings.TrimPrefix(in, ",")
		} else {
			value, in, _ = strings.Cut(value, ",")
		}
		keys = append(keys, [2]string{strings.TrimSpace(key), strings.TrimSpace(value)})
	}
	return rest, keys, nil
}

// set sets one field; an empty value is ignored.
func (s *Spec) set(key, value string) (err error) {
	if value == "" {
		return nil
	}
	switch key {
	case "version":
		s.versionText = value
		s.version, err = parseConstraint(value)
	case "build":
		s.buildText = value
		s.build, err = textMatcher(value)
	case "build_number":
		s.buildNumber, err = parseConstraint(value)
	case "channel":
		s.setChannel(value)
	case "subdir":
		s.subdir = value
	case "fn":
		s.fn = value
	case "md5":
		s.md5 = strings.ToLower(value)
	case "sha256":
		s.sha256 = strings.ToLower(value)
	case "track_features":
		s.features = splitFeatures(value)
	case "license", "license_family", "url", "features", "optional", "target":
		return fmt.Errorf("unsupported key %s", key)
	default:
		return fmt.Errorf("unknown key %q", text.Short(key))
	}
	return err
}

// matches reports whether a record satisfies the spec. v is its parsed version.
func (s *Spec) matches(r *Record, v version) bool {
	switch {
	case s.Name != r.Name, s.version != nil && !s.version(v), s.build != nil && !s.build(r.Build),
		s.channel != "" && !r.From(s.channel), s.subdir != "" && s.subdir != r.Subdir,
		s.fn != "" && s.fn != r.FileName, s.md5 != "" && s.md5 != r.MD5, s.sha256 != "" && s.sha256 != r.SHA256:
		return false
	case s.buildNumber != nil:
		n, err := parseVersion(strconv.Itoa(r.BuildNumber))
		if err != nil || !s.buildNumber(n) {
			return false
		}
	}
	have := strings.Join(r.TrackFeatures, " ")
	for _, f := range s.features {
		if !strings.Contains(" "+have+" ", " "+f+" ") {
			return false
		}
	}
	return true
}

// textMatcher returns a matcher for builds: ^regular expression$, a pattern with "*", or
// the exact text. Case does not matter (CEP 29).
func textMatcher(p string) (func(string) bool, error) {
	if strings.HasPrefix(p, "^") || strings.HasSuffix(p, "$") {
		return regexMatcher(p)
	}
	if !strings.Contains(p, "*") {
		return func(s string) bool { return strings.EqualFold(p, s) }, nil
	}
	return globMatcher(p)
}

func regexMatcher(p string) (func(string) bool, error) {
	if !strings.HasPrefix(p, "^") || !strings.HasSuffix(p, "$") {
		return nil, fmt.Errorf("regular expression %q does not begin with \"^\" and end with \"$\"", text.Short(p))
	}
	re, err := regexp.Compile("(?i)" + p)
	if err != nil {
		return nil, fmt.Errorf("invalid regular expression %q", text.Short(p))
	}
	return re.MatchString, nil
}

// globMatcher returns a matcher for a pattern in which "*" matches any text.
func globMatcher(p string) (func(string) bool, error) {
	parts := strings.Split(strings.ToLower(p), "*")
	first, last := parts[0], parts[len(parts)-1]
	middle := parts[1 : len(parts)-1]
	return func(s string) bool {
		s = strings.ToLower(s)
		if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
			return false
		}
		s = s[len(first) : len(s)-len(last)]
		for _, m := range middle {
			i := strings.Index(s, m)
			if i < 0 {
				return false
			}
			s = s[i+len(m):]
		}
		return true
	}, nil
}

// A constraint reports whether a version is acceptable.
type constraint func(version) bool

// maxNesting limits the parentheses in a constraint.
const maxNesting = 32

// parseConstraint parses constraints joined by "," (and) and "|" (or); "," binds tighter.
func parseConstraint(versions string) (constraint, error) {
	p := constraintParser{rest: strings.ReplaceAll(versions, " ", "")}
	c, err := p.or(0)
	if err == nil && p.rest != "" {
		err = fmt.Errorf("unexpected %q at the end", text.Short(p.rest))
	}
	if err != nil {
		return nil, fmt.Errorf("version %q: %w", text.Short(versions), err)
	}
	return c, nil
}

type constraintParser struct{ rest string }

func (p *constraintParser) take(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *constraintParser) or(depth int) (constraint, error) {
	a, err := p.and(depth)
	for err == nil && p.take('|') {
		var b constraint
		left := a
		b, err = p.and(depth)
		a = func(v version) bool { return left(v) || b(v) }
	}
	return a, err
}

func (p *constraintParser) and(depth int) (constraint, error) {
	a, err := p.one(depth)
	for err == nil && p.take(',') {
		var b constraint
		left := a
		b, err = p.one(depth)
		a = func(v version) bool { return left(v) && b(v) }
	}
	return a, err
}

func (p *constraintParser) one(depth int) (constraint, error) {
	if p.take('(') {
		if depth == maxNesting {
			return nil, errors.New("too many parentheses")
		}
		c, err := p.or(depth + 1)
		if err == nil && !p.take(')') {
			err = errors.New("unclosed parenthesis")
		}
		return c, err
	}
	end := strings.IndexAny(p.rest, ",|()")
	if strings.HasPrefix(p.rest, "^") { // up to "$", since it may contain operators
		if end = strings.IndexByte(p.rest, '$') + 1; end == 0 {
			end = len(p.rest)
		}
	}
	if end < 0 {
		end = len(p.rest)
	}
	text := p.rest[:end]
	p.rest = p.rest[end:]
	return compareTo(text)
}

// compareTo parses one constraint: an operator and a version, a version, or a pattern.
func compareTo(clause string) (constraint, error) {
	op, operand := "", clause
	for _, o := range []string{"==", "!=", "<=", ">=", "~=", "=", "<", ">"} {
		if strings.HasPrefix(clause, o) {
			op, operand = o, clause[len(o):]
			break
		}
	}
	switch {
	case operand == "":
		return nil, errors.New("missing version")
	case op == "" && (clause[0] == '^' || clause[len(clause)-1] == '$'):
		m, err := regexMatcher(clause)
		return func(v version) bool { return m(v.text) }, err
	case op == "" && strings.Trim(clause, "*") == "":
		return func(version) bool { return true }, nil
	case op == "" && strings.Contains(strings.TrimRight(clause, "*"), "*"):
		m, err := globMatcher(clause)
		return func(v version) bool { return m(v.text) }, err
	case op == "" && strings.HasSuffix(clause, "*"):
		op = "="
	}
	line := strings.TrimSuffix(strings.TrimRight(operand, "*"), ".") // of 1.2.* or 1.2*
	starred := line != operand
	if starred && op == "~=" {
		return nil, fmt.Errorf("%q is invalid: remove \"*\"", text.Short(clause))
	}
	w, err := parseVersion(line)
	if err != nil {
		return nil, err
	}
	return operator(op, w, starred)
}

// operator returns a comparison with w; starred: w was followed by "*".
func operator(op string, w version, starred bool) (constraint, error) {
	switch op {
	case "=":
		return func(v version) bool { return v.startsWith(w) }, nil
	case "!=":
		if starred {
			return func(v version) bool { return !v.startsWith(w) }, nil
		}
		return func(v version) bool { return v.compare(w) != 0 }, nil
	case "<":
		return func(v version) bool { return v.compare(w) < 0 }, nil
	case "<=":
		return func(v version) bool { return v.compare(w) <= 0 }, nil
	case ">":
		return func(v version) bool { return v.compare(w) > 0 }, nil
	case ">=":
		return func(v version) bool { return v.compare(w) >= 0 }, nil
	case "~=": // at least w, with the same components except the last
		i := strings.LastIndexByte(w.text, '.')
		if i < 0 {
			return nil, fmt.Errorf("\"~=%s\" needs two parts, as in ~=1.2", w.text)
		}
		line, err := parseVersion(w.text[:i])
		return func(v version) bool { return v.compare(w) >= 0 && v.startsWith(line) }, err
	}
	return func(v version) bool { return v.compare(w) == 0 }, nil
}

func splitFeatures(s string) features {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ',' })
}

// Meets reports whether a package satisfies the spec.
func (s *Spec) Meets(r *Record) bool {
	v, err := parseVersion(r.Version)
	return err == nil && s.matches(r, v)
}
