package pip

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/conda/input"
	"hpcc/text"
)

// A pyVersion is a parsed version (PEP 440). Numbers are digits without leading zeros,
// since dates and commit counts overflow integers.
type pyVersion struct {
	epoch   string
	release []string
	pre     string // "a", "b" or "rc"; "" if absent
	preN    string
	post    string // a number; "" if absent
	dev     string // a number; "" if absent
	local   []string
}

// versionParts is the regular expression of PEP 440's appendix B, for lower-case input.
var versionParts = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^v?(?:([0-9]+)!)?([0-9]+(?:\.[0-9]+)*)` +
		`(?:[-_.]?(alpha|a|beta|b|preview|pre|c|rc)[-_.]?([0-9]*))?` +
		`(?:-([0-9]+)|[-_.]?(post|rev|r)[-_.]?([0-9]*))?` +
		`(?:[-_.]?(dev)[-_.]?([0-9]*))?` +
		`(?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?$`)
})

// maxPipVersion limits the length of a version, in bytes.
const maxPipVersion = 256

var preLetter = map[string]string{"alpha": "a", "a": "a", "beta": "b", "b": "b", "preview": "rc", "pre": "rc", "c": "rc", "rc": "rc"}

func parseVersion(s string) (pyVersion, error) {
	m := versionParts().FindStringSubmatch(strings.ToLower(strings.TrimSpace(s)))
	if m == nil || len(s) > maxPipVersion {
		return pyVersion{}, fmt.Errorf("%q is not a version (PEP 440)", text.Short(s))
	}
	v := pyVersion{epoch: digitsOf(m[1]), pre: preLetter[m[3]]}
	for n := range strings.SplitSeq(m[2], ".") {
		v.release = append(v.release, digitsOf(n))
	}
	if v.pre != "" {
		v.preN = digitsOf(m[4])
	}
	if m[5] != "" || m[6] != "" {
		v.post = digitsOf(m[5] + m[7])
	}
	if m[8] != "" {
		v.dev = digitsOf(m[9])
	}
	if m[10] != "" {
		for _, p := range strings.FieldsFunc(m[10], func(r rune) bool { return strings.ContainsRune("-_.", r) }) {
			if input.Digits(p) == len(p) {
				p = digitsOf(p)
			}
			v.local = append(v.local, p)
		}
	}
	return v, nil
}

// digitsOf strips leading zeros; "" becomes 0.
func digitsOf(s string) string {
	if s = strings.TrimLeft(s, "0"); s == "" {
		return "0"
	}
	return s
}

// String returns the normalized version.
func (v pyVersion) String() string {
	if v.release == nil {
		return "" // the zero version
	}
	s := v.base()
	if v.pre != "" {
		s += v.pre + v.preN
	}
	if v.post != "" {
		s += ".post" + v.post
	}
	if v.dev != "" {
		s += ".dev" + v.dev
	}
	if v.local != nil {
		s += "+" + strings.Join(v.local, ".")
	}
	return s
}

// base returns the version without all but epoch and release.
func (v pyVersion) base() string {
	s := strings.Join(v.release, ".")
	if v.epoch != "0" {
		s = v.epoch + "!" + s
	}
	return s
}

// public returns the version without its local part.
func (v pyVersion) public() pyVersion {
	v.local = nil
	return v
}

func (v pyVersion) isPre() bool { return v.pre != "" || v.dev != "" }

// part returns the n-th number of the release, or 0 beyond its end.
func (v pyVersion) part(n int) string {
	if n < len(v.release) {
		return v.release[n]
	}
	return "0"
}

// sameBase reports whether v and o have the same epoch and the same first n release
// numbers.
func (v pyVersion) sameBase(o pyVersion, n int) bool {
	for i := range n {
		if v.part(i) != o.part(i) {
			return false
		}
	}
	return v.epoch == o.epoch
}

// compare orders versions: epoch, release, then development releases before
// alphas, betas, candidates, the release itself, post-releases; each local
// version after the one without.
func (v pyVersion) compare(o pyVersion) int {
	if c := input.CompareNumbers(v.epoch, o.epoch); c != 0 {
		return c
	}
	for i := range max(len(v.release), len(o.release)) {
		if c := input.CompareNumbers(v.part(i), o.part(i)); c != 0 {
			return c
		}
	}
	return cmp.Or(
		cmp.Compare(v.preRank(), o.preRank()),
		input.CompareNumbers(v.preN, o.preN),
		input.CompareNumbers(v.post, o.post), // an absent part, "", is before 0
		-cmp.Compare(noDev(v), noDev(o)), input.CompareNumbers(v.dev, o.dev),
		slices.CompareFunc(v.local, o.local, compareLocal),
	)
}

func (v pyVersion) preRank() string {
	switch {
	case v.pre != "":
		return v.pre
	case v.dev != "" && v.post == "":
		return "" // 1.0.dev1 is before 1.0a1
	}
	return "z"
}

func noDev(v pyVersion) int {
	if v.dev == "" {
		return 0
	}
	return 1
}

// compareLocal compares parts of local versions: numbers sort after letters.
func compareLocal(a, b string) int {
	x, y := input.Digits(a) == len(a), input.Digits(b) == len(b)
	switch {
	case x && y:
		return input.CompareNumbers(a, b)
	case x != y && x:
		return 1
	case x != y:
		return -1
	}
	return strings.Compare(a, b)
}

// A clause is one clause of a version specifier, such as >=1.2.
type clause struct {
	op   string
	text string
	v    pyVersion
	wild bool // ==1.2.*
}

// A specifier is a list of clauses that must all hold; an empty list matches everything.
type specifier []clause

// parseSpecifier parses a comma-separated version specifier. Like >=1.2.* in old packages,
// .* after an ordering operator is ignored.
func parseSpecifier(s string) (specifier, error) {
	var out specifier
	for clause := range strings.SplitSeq(s, ",") {
		if clause = strings.TrimSpace(clause); clause == "" {
			continue
		}
		c, err := parseClause(clause)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func parseClause(clause string) (c clause, err error) {
	rest := strings.TrimLeft(clause, "=<>!~")
	c.op, c.text = clause[:len(clause)-len(rest)], strings.TrimSpace(rest)
	switch c.op {
	case "===":
		if c.text == "" {
			err = errors.New("missing version after ===")
		}
		return c, err
	case "==", "!=", "~=", "<=", ">=", "<", ">":
	default:
		return c, fmt.Errorf("%q does not begin with one of == != ~= <= >= < > ===", text.Short(clause))
	}
	number, wild := strings.CutSuffix(c.text, ".*")
	if c.v, err = parseVersion(number); err != nil {
		return c, err
	}
	plain := c.v.pre == "" && c.v.post == "" && c.v.dev == "" && c.v.local == nil
	switch c.wild = wild && (c.op == "==" || c.op == "!="); {
	case wild && (!plain || c.op == "~="):
		return c, fmt.Errorf("%q: .* is only allowed after a release, with == or !=", text.Short(clause))
	case c.op == "~=" && len(c.v.release) < 2:
		return c, fmt.Errorf("%q: ~= needs two numbers, such as ~=1.4", text.Short(clause))
	case c.v.local != nil && c.op != "==" && c.op != "!=":
		return c, fmt.Errorf("%q: a local version (+…) is only allowed with == or !=", text.Short(clause))
	}
	return c, nil
}

// match reports whether the version satisfies every clause. The caller decides whether
// pre-releases are allowed.
func (s specifier) match(v pyVersion) bool {
	for _, c := range s {
		if !c.match(v) {
			return false
		}
	}
	return true
}

func (c clause) match(v pyVersion) bool {
	pub := v.public()
	switch c.op {
	case "===":
		return strings.EqualFold(c.text, v.String())
	case "==":
		return c.equal(v)
	case "!=":
		return !c.equal(v)
	case "~=":
		return pub.compare(c.v) >= 0 && v.sameBase(c.v, len(c.v.release)-1)
	case "<=":
		return pub.compare(c.v) <= 0
	case ">=":
		return pub.compare(c.v) >= 0
	}
	same := v.sameBase(c.v, max(len(v.release), len(c.v.release)))
	if c.op == "<" { // <3.1 excludes 3.1rc1
		return v.compare(c.v) < 0 && (c.v.isPre() || !v.isPre() || !same)
	}
	if same && (v.local != nil || (v.post != "" && c.v.post == "")) {
		return false // >1.7 excludes 1.7.post1 and 1.7+local
	}
	return v.compare(c.v) > 0
}

func (c clause) equal(v pyVersion) bool {
	if c.wild {
		return v.sameBase(c.v, len(c.v.release))
	}
	if c.v.local == nil {
		v = v.public()
	}
	return v.compare(c.v) == 0
}

// pre reports whether a clause names a pre-release, which allows pre-releases.
func (s specifier) pre() bool {
	return slices.ContainsFunc(s, func(c clause) bool { return c.op != "!=" && (c.op == "===" || c.v.isPre()) })
}

// exact reports whether the specifier names one version.
func (s specifier) exact() bool {
	return slices.ContainsFunc(s, func(c clause) bool { return c.op == "===" || (c.op == "==" && !c.wild) })
}

func (s specifier) String() string {
	var out []string
	for _, c := range s {
		out = append(out, c.op+c.text)
	}
	return strings.Join(out, ",")
}

// Minor returns X.Y of a Python version, or "" if it has no Y.
func Minor(version string) string {
	f := strings.SplitN(version, ".", 3)
	if len(f) < 2 {
		return ""
	}
	return f[0] + "." + f[1]
}
