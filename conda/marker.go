package conda

import (
	"errors"
	"fmt"
	"strings"
)

// A verdict is what a marker says where not all of its variables are known.
type verdict int

const (
	unknown verdict = iota
	yes
	no
)

// markerMachine is platform_machine for conda's platforms.
var markerMachine = map[string]string{"64": "x86_64", "32": "i686", "aarch64": "aarch64", "arm64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}

// markerValues are the variables of markers (PEP 508) that the platform
// decides. python_version and its like depend on the python that is chosen.
func markerValues(subdir string) map[string]string {
	system, machine, _ := strings.Cut(subdir, "-")
	v := map[string]string{"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux", "extra": "",
		"implementation_name": "cpython", "platform_python_implementation": "CPython", "platform_machine": markerMachine[machine]}
	switch system {
	case "osx":
		v["sys_platform"], v["platform_system"] = "darwin", "Darwin"
	case "win":
		v["os_name"], v["sys_platform"], v["platform_system"] = "nt", "win32", "Windows"
	}
	return v
}

// markerVariables are those that PEP 508 knows.
const markerVariables = " os_name sys_platform platform_machine platform_python_implementation platform_release platform_system platform_version python_version python_full_version implementation_name implementation_version extra extras dependency_groups os.name sys.platform platform.machine platform.version platform.python_implementation python_implementation "

// evaluateMarker evaluates an environment marker (PEP 508), for what is known.
func evaluateMarker(text string, values map[string]string) (verdict, error) {
	words, err := markerWords(text)
	if err != nil {
		return unknown, err
	}
	m := &marker{words: words, values: values}
	v, err := m.or(0)
	if err == nil && len(m.words) > 0 {
		err = fmt.Errorf("%q is not expected there", m.words[0])
	}
	return v, err
}

// markerWords takes a marker apart; texts keep their first quote.
func markerWords(s string) ([]string, error) {
	var out []string
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		n := 0
		switch c := s[0]; {
		case c == '"' || c == '\'':
			end := strings.IndexByte(s[1:], c)
			if end < 0 {
				return nil, errors.New("a quote is not closed")
			}
			out, s = append(out, s[:end+1]), s[end+2:]
			continue
		case c == '(' || c == ')':
			n = 1
		case strings.IndexByte("<>=!~", c) >= 0:
			n = len(s) - len(strings.TrimLeft(s, "<>=!~"))
		default:
			n = strings.IndexAny(s, " \t()<>=!~\"'")
			if n < 0 {
				n = len(s)
			}
		}
		out, s = append(out, s[:n]), s[n:]
	}
	return out, nil
}

// A marker is one under evaluation: the words that are left.
type marker struct {
	words  []string
	values map[string]string
}

func (m *marker) next() string {
	if len(m.words) == 0 {
		return ""
	}
	w := m.words[0]
	m.words = m.words[1:]
	return w
}

func (m *marker) is(word string) bool {
	if len(m.words) > 0 && m.words[0] == word {
		m.words = m.words[1:]
		return true
	}
	return false
}

func (m *marker) or(depth int) (verdict, error) {
	v, err := m.and(depth)
	for err == nil && m.is("or") {
		var w verdict
		if w, err = m.and(depth); v == yes || w == yes {
			v = yes
		} else if v == unknown || w == unknown {
			v = unknown
		}
	}
	return v, err
}

func (m *marker) and(depth int) (verdict, error) {
	v, err := m.compare(depth)
	for err == nil && m.is("and") {
		var w verdict
		if w, err = m.compare(depth); v == no || w == no {
			v = no
		} else if v == unknown || w == unknown {
			v = unknown
		}
	}
	return v, err
}

func (m *marker) compare(depth int) (verdict, error) {
	if depth > 32 {
		return unknown, errors.New("nested too deeply")
	}
	if m.is("(") {
		v, err := m.or(depth + 1)
		if err == nil && !m.is(")") {
			err = errors.New("a parenthesis is not closed")
		}
		return v, err
	}
	left, leftKnown, err := m.operand()
	if err != nil {
		return unknown, err
	}
	op := m.next()
	if op == "not" && m.is("in") {
		op = "not in"
	}
	right, rightKnown, err := m.operand()
	if err != nil {
		return unknown, err
	}
	var holds bool
	switch op {
	case "==", "===":
		holds = left == right
	case "!=":
		holds = left != right
	case "in":
		holds = strings.Contains(right, left)
	case "not in":
		holds = !strings.Contains(right, left)
	case "<", "<=", ">", ">=", "~=":
		return unknown, nil // of versions, which the platform does not decide
	default:
		return unknown, fmt.Errorf("%q is no comparison", short(op))
	}
	switch {
	case !leftKnown || !rightKnown:
		return unknown, nil
	case holds:
		return yes, nil
	}
	return no, nil
}

// operand reads a text or a variable.
func (m *marker) operand() (value string, known bool, err error) {
	w := m.next()
	if strings.HasPrefix(w, `"`) || strings.HasPrefix(w, "'") {
		return w[1:], true, nil
	}
	if w == "" || !strings.Contains(markerVariables, " "+w+" ") {
		return "", false, fmt.Errorf("%q is no variable of markers", short(w))
	}
	value, known = m.values[strings.ReplaceAll(w, ".", "_")]
	return value, known, nil
}
