package pip

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hpcc/text"
)

// A marker is the condition of a requirement (PEP 508): a comparison, or two
// markers joined by "and" or "or".
type marker struct {
	op          string // "and", "or", or a comparison operator
	a, b        *marker
	left, right operand
}

// An operand is a variable of the environment, or a quoted string.
type operand struct {
	text     string
	variable bool
}

// markerNames maps setuptools' old names of variables to their current names, and current
// names to "".
var markerNames = map[string]string{
	"os_name": "", "sys_platform": "", "platform_machine": "", "platform_python_implementation": "", "platform_release": "",
	"platform_system": "", "platform_version": "", "python_version": "", "python_full_version": "", "implementation_name": "",
	"implementation_version": "", "extra": "",
	"os.name": "os_name", "sys.platform": "sys_platform", "platform.version": "platform_version", "platform.machine": "platform_machine",
	"platform.python_implementation": "platform_python_implementation", "python_implementation": "platform_python_implementation",
}

// markerLists are the variables of lock files that hold lists of names (PEP 751).
var markerLists = []string{"dependency_groups", "extras"}

// maxMarker limits the nesting of parentheses.
const maxMarker = 64

// parseMarker parses a complete marker.
func parseMarker(s string) (*marker, error) { return (&markerParser{rest: s}).parse() }

func (p *markerParser) parse() (*marker, error) {
	s := p.rest
	m, err := p.or(0)
	if err == nil && p.skip() != "" {
		err = fmt.Errorf("unexpected %q after the condition", text.Short(p.rest))
	}
	if err != nil {
		return nil, fmt.Errorf("condition %q: %w", text.Short(strings.TrimSpace(s)), err)
	}
	return m, nil
}

type markerParser struct {
	rest  string
	lists bool // allow markerLists
}

// condition parses the row's marker.
func (r Requirement) condition() (*marker, error) {
	return (&markerParser{rest: r.Marker, lists: r.Locked}).parse()
}

// environment returns the variables with those of lock files. No extra is installed.
func (r Requirement) environment(env map[string]string) map[string]string {
	if !r.Locked {
		return env
	}
	env = maps.Clone(env)
	env["extras"], env["dependency_groups"] = "", strings.Join(r.Groups, " ")
	return env
}

// skip skips blanks and returns the remaining text.
func (p *markerParser) skip() string {
	p.rest = strings.TrimLeft(p.rest, " \t")
	return p.rest
}

// word consumes the keyword w if it is next.
func (p *markerParser) word(w string) bool {
	rest, ok := strings.CutPrefix(p.skip(), w)
	if !ok || (rest != "" && isWord(rest[0])) {
		return false
	}
	p.rest = rest
	return true
}

func isWord(c byte) bool {
	return c == '_' || c == '.' || ('0' <= c && c <= '9') || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z')
}

func (p *markerParser) or(depth int) (*marker, error)  { return p.chain("or", depth, p.and) }
func (p *markerParser) and(depth int) (*marker, error) { return p.chain("and", depth, p.term) }

// chain parses operands joined by op, which is left-associative.
func (p *markerParser) chain(op string, depth int, operand func(depth int) (*marker, error)) (*marker, error) {
	m, err := operand(depth)
	for err == nil && p.word(op) {
		n := &marker{op: op, a: m}
		n.b, err = operand(depth)
		m = n
	}
	return m, err
}

// term parses a comparison or a marker in parentheses.
func (p *markerParser) term(depth int) (m *marker, err error) {
	if rest, ok := strings.CutPrefix(p.skip(), "("); ok {
		if depth++; depth > maxMarker {
			return nil, errors.New("parentheses are nested too deep")
		}
		p.rest = rest
		if m, err = p.or(depth); err != nil {
			return nil, err
		}
		if rest, ok = strings.CutPrefix(p.skip(), ")"); !ok {
			return nil, errors.New("unclosed parenthesis")
		}
		p.rest = rest
		return m, nil
	}
	m = &marker{}
	if m.left, err = p.operand(); err != nil {
		return nil, err
	}
	if m.op, err = p.comparison(); err != nil {
		return nil, err
	}
	if m.right, err = p.operand(); err != nil {
		return nil, err
	}
	if m.left.isList() || (m.right.isList() && !strings.HasSuffix(m.op, "in")) {
		return nil, errors.New("a list of names allows only \"NAME\" in LIST and \"NAME\" not in LIST")
	}
	if !m.left.variable && !m.right.variable {
		return nil, errors.New("it compares two quoted strings; one side must be a variable")
	}
	return m, nil
}

func (p *markerParser) comparison() (string, error) {
	s := p.skip()
	for _, op := range []string{"===", "==", "!=", "~=", "<=", ">=", "<", ">"} {
		if rest, ok := strings.CutPrefix(s, op); ok {
			p.rest = rest
			return op, nil
		}
	}
	if p.word("in") {
		return "in", nil
	}
	if p.word("not") && p.word("in") {
		return "not in", nil
	}
	return "", fmt.Errorf("expected a comparison operator, found %q", text.Short(s))
}

func (p *markerParser) operand() (operand, error) {
	s := p.skip()
	if s == "" {
		return operand{}, errors.New("unexpected end")
	}
	if s[0] == '"' || s[0] == '\'' {
		text, rest, ok := strings.Cut(s[1:], s[:1])
		if !ok {
			return operand{}, errors.New("unclosed quote")
		}
		p.rest = rest
		return operand{text: text}, nil
	}
	n := 0
	for n < len(s) && isWord(s[n]) {
		n++
	}
	name := s[:n]
	current, ok := markerNames[name]
	if !ok && !(p.lists && slices.Contains(markerLists, name)) {
		return operand{}, fmt.Errorf("unknown variable %q", text.Short(name))
	}
	if current != "" {
		name = current
	}
	p.rest = s[n:]
	return operand{text: name, variable: true}, nil
}

func (o operand) isList() bool { return o.variable && slices.Contains(markerLists, o.text) }

// A verdict is the value of a marker when only some of its variables are known.
type verdict int

const (
	unknown verdict = iota
	yes
	no
)

// decide evaluates the marker without an extra, using only the known variables.
func (m *marker) decide(known map[string]string) verdict {
	if m.op == "and" || m.op == "or" {
		a, b, decisive := m.a.decide(known), m.b.decide(known), no
		if m.op == "or" {
			decisive = yes
		}
		switch {
		case a == decisive || b == decisive:
			return decisive
		case a == unknown || b == unknown:
			return unknown
		}
		return a
	}
	for _, o := range []operand{m.left, m.right} {
		if _, ok := known[o.text]; o.variable && !ok && o.text != "extra" {
			return unknown
		}
	}
	if m.holds(known, "") {
		return yes
	}
	return no
}

// pythonMachine maps conda's processor names to Python's platform_machine.
var pythonMachine = map[string]string{"64": "x86_64", "32": "i686", "aarch64": "aarch64", "arm64": "arm64",
	"ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}

// markerValues returns the variables that the platform determines. The python variables also
// depend on its version, and the kernel's are known only at run time.
func markerValues(subdir string) map[string]string {
	system, machine, _ := strings.Cut(subdir, "-")
	v := map[string]string{"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux",
		"platform_machine":    pythonMachine[machine],
		"implementation_name": "cpython", "platform_python_implementation": "CPython"}
	switch system {
	case "osx":
		v["sys_platform"], v["platform_system"] = "darwin", "Darwin"
	case "win":
		v["os_name"], v["sys_platform"], v["platform_system"] = "nt", "win32", "Windows"
	}
	return v
}

// holds evaluates the marker in an environment, for one extra ("": no extra). A nil marker
// always holds.
func (m *marker) holds(env map[string]string, extra string) bool {
	switch {
	case m == nil:
		return true
	case m.op == "and":
		return m.a.holds(env, extra) && m.b.holds(env, extra)
	case m.op == "or":
		return m.a.holds(env, extra) || m.b.holds(env, extra)
	}
	value := func(o operand) string {
		switch {
		case o.variable && o.text == "extra":
			return extra
		case o.variable:
			return env[o.text]
		}
		return o.text
	}
	l, r := value(m.left), value(m.right)
	if (m.left.variable && m.left.text == "extra") || (m.right.variable && m.right.text == "extra") {
		l, r = NormalName(l), NormalName(r)
	}
	if m.right.isList() {
		return slices.Contains(strings.Fields(r), NormalName(l)) == (m.op == "in")
	}
	return compareMarker(l, m.op, r)
}

// compareMarker compares versions if the right side forms a valid specifier, and
// strings otherwise.
func compareMarker(l, op, r string) bool {
	switch op {
	case "in":
		return strings.Contains(r, l)
	case "not in":
		return !strings.Contains(r, l)
	}
	if spec, err := parseSpecifier(op + r); err == nil && len(spec) == 1 && op != "===" {
		v, err := parseVersion(l)
		return err == nil && spec.match(v)
	}
	switch c := strings.Compare(l, r); op {
	case "==", "===":
		return c == 0
	case "!=":
		return c != 0
	case "<=":
		return c <= 0
	case ">=":
		return c >= 0
	case "<":
		return c < 0
	case ">":
		return c > 0
	}
	return false // ~= needs a version
}
