package solve

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"hpcc/conda/input"
	"hpcc/text"
)

// A version is a parsed version number, in conda's order (CEP 33):
//
//	[epoch!]component{.component}[+local{.component}]
//
// "_" and "-" separate components like ".". A component consists of runs of digits and of
// other characters: 1.0rc1 is 1, 0-rc-1. The order of runs is dev < other letters < numbers
// < post; missing runs count as 0.
type version struct {
	text    string
	release []component // the first is the epoch
	local   []component
}

// A component begins with a number: 0 is inserted before letters, so that numbers are
// compared with numbers and letters with letters.
type component []run

// A run is a sequence of digits or of letters.
type run struct {
	kind runKind
	text string // digits without leading zeros, as text to avoid overflow
}

type runKind int8

const (
	word runKind = iota
	number
	post // above all numbers
)

// maxVersion limits the length of a version, in bytes; CEP 26 allows 64.
const maxVersion = 256

// parseVersion parses a version.
func parseVersion(s string) (version, error) {
	v := version{text: s}
	t := strings.ToLower(strings.TrimSpace(s))
	if !strings.Contains(t, "_") {
		t = strings.ReplaceAll(t, "-", "_")
	}
	if t == "" || len(t) > maxVersion || strings.ContainsFunc(t, notOfVersion) {
		return v, fmt.Errorf("%q is not a version", text.Short(s))
	}
	epoch, rest, ok := strings.Cut(t, "!")
	if !ok {
		epoch, rest = "0", t
	}
	rest, local, hasLocal := strings.Cut(rest, "+")
	err := errors.New("want at most one \"!\", after digits, and at most one \"+\"")
	if input.Digits(epoch) == len(epoch) && epoch != "" && !strings.ContainsAny(rest, "!") && !strings.ContainsAny(local, "!+") {
		v.release, err = components(rest)
		v.release = append([]component{{digitRun(epoch)}}, v.release...)
		if err == nil && hasLocal {
			v.local, err = components(local)
		}
	}
	if err != nil {
		return v, fmt.Errorf("%q is not a version: %w", text.Short(s), err)
	}
	return v, nil
}

// notOfVersion reports whether versions cannot contain a character.
func notOfVersion(r rune) bool {
	return !((r >= '0' && r <= '9') || (r >= 'a' && r <= 'z') || strings.ContainsRune("*.+!_", r))
}

// components splits a version without epoch and local part. A "_" at the end belongs to the
// last component and sorts before letters, as openssl's versions require: 1.0.1_ < 1.0.1a.
func components(s string) ([]component, error) {
	tail := ""
	if strings.HasSuffix(s, "_") {
		s, tail = s[:len(s)-1], "_"
	}
	parts := strings.FieldsFunc(s, func(r rune) bool { return r == '.' || r == '_' })
	if len(parts) != strings.Count(s, ".")+strings.Count(s, "_")+1 {
		return nil, errors.New("empty component")
	}
	parts[len(parts)-1] += tail
	out := make([]component, 0, len(parts)+1)
	for _, p := range parts {
		var c component
		if p[0] < '0' || p[0] > '9' {
			c = append(c, run{number, ""})
		}
		for p != "" {
			n := input.Digits(p)
			switch {
			case n > 0:
				c = append(c, digitRun(p[:n]))
			case p[0] == '*':
				n = len(p) - len(strings.TrimLeft(p, "*"))
				c = append(c, run{word, p[:n]})
			default:
				if n = strings.IndexAny(p, "*0123456789"); n < 0 {
					n = len(p)
				}
				c = append(c, wordRun(p[:n]))
			}
			p = p[n:]
		}
		out = append(out, c)
	}
	return out, nil
}

func digitRun(s string) run { return run{number, strings.TrimLeft(s, "0")} }

// wordRun returns the run of a sequence of letters. "post" sorts after numbers, "dev" before
// other letters.
func wordRun(s string) run {
	switch s {
	case "post":
		return run{kind: post}
	case "dev": // upper case sorts before "_" and lower case
		s = "DEV"
	}
	return run{word, s}
}

// compare returns -1, 0 or 1. Versions with different spellings can be equal, such as 1.0 and
// 1.0.0.
func (v version) compare(w version) int {
	return cmp.Or(compareComponents(v.release, w.release), compareComponents(v.local, w.local))
}

func compareComponents(a, b []component) int {
	for i := range max(len(a), len(b)) {
		var x, y component
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if c := x.compare(y); c != 0 {
			return c
		}
	}
	return 0
}

func (c component) compare(d component) int {
	for i := range max(len(c), len(d)) {
		if o := c.at(i).compare(d.at(i)); o != 0 {
			return o
		}
	}
	return 0
}

// at returns the run at index i, or the number 0 if the component has fewer runs.
func (c component) at(i int) run {
	if i < len(c) {
		return c[i]
	}
	return run{kind: number}
}

func (r run) compare(s run) int {
	if r.kind != s.kind || r.kind == word {
		return cmp.Or(cmp.Compare(r.kind, s.kind), strings.Compare(r.text, s.text))
	}
	return input.CompareNumbers(r.text, s.text)
}

// startsWith reports whether v starts with w: 1.1.1, 1.1.1w and 1.1.1.2 start with 1.1.1,
// but 1.1.10 does not. Letters at the end of w need only be a prefix of v's.
func (v version) startsWith(w version) bool {
	a, b := v.release, w.release
	if len(w.local) > 0 {
		if compareComponents(a, b) != 0 {
			return false
		}
		a, b = v.local, w.local
	}
	last := len(b) - 1
	if compareComponents(a[:min(last, len(a))], b[:last]) != 0 {
		return false
	}
	var x component
	if len(a) > last {
		x = a[last]
	}
	y := b[last]
	end := len(y) - 1
	if x[:min(end, len(x))].compare(y[:end]) != 0 {
		return false
	}
	p, q := x.at(end), y[end]
	if q.kind == word {
		return p.kind == word && strings.HasPrefix(p.text, q.text)
	}
	return p.compare(q) == 0
}

// CheckVersion returns an error if s is not a version.
func CheckVersion(s string) error {
	_, err := parseVersion(s)
	return err
}
