package attest

import (
	_ "embed"
	"strings"
	"sync"
)

// licenseWords holds the identifiers of the SPDX License List, an empty line,
// and those of its exceptions, as of spdx-license-ids 3.0.24 and
// spdx-exceptions 2.5.0 of npm.
//
//go:embed spdx_licenses.txt
var licenseWords string

// licenseLists are the identifiers of licenses and exceptions as the list
// spells them, by their lower-case form: case does not count (SPDX 2.3, annex D).
var licenseLists = sync.OnceValue(func() (lists [2]map[string]string) {
	licenses, exceptions, _ := strings.Cut(licenseWords, "\n\n")
	for i, text := range []string{licenses, exceptions} {
		lists[i] = map[string]string{}
		for id := range strings.FieldsSeq(text) {
			lists[i][strings.ToLower(id)] = id
		}
	}
	return lists
})

// maxExpression bounds the words of a license expression.
const maxExpression = 200

// licenseExpression reads an SPDX license expression of known licenses and
// writes it as the list spells it; false for what is none.
func licenseExpression(s string) (string, bool) {
	s = strings.NewReplacer("(", " ( ", ")", " ) ").Replace(s)
	p := &licenseParser{words: strings.Fields(s)}
	if len(p.words) > maxExpression || !p.expression(0) || len(p.words) > 0 {
		return "", false
	}
	return strings.NewReplacer("( ", "(", " )", ")").Replace(strings.Join(p.out, " ")), true
}

type licenseParser struct{ words, out []string }

// take moves the next word to the result when it is the one.
func (p *licenseParser) take(word string) bool {
	if len(p.words) == 0 || p.words[0] != word {
		return false
	}
	p.words, p.out = p.words[1:], append(p.out, word)
	return true
}

// expression reads terms joined by AND and OR; which binds closer does not
// change what is written.
func (p *licenseParser) expression(depth int) bool {
	for p.term(depth) {
		if !p.take("AND") && !p.take("OR") {
			return true
		}
	}
	return false
}

func (p *licenseParser) term(depth int) bool {
	if p.take("(") {
		return depth < maxExpression && p.expression(depth+1) && p.take(")")
	}
	if !p.known(0) {
		return false
	}
	return !p.take("WITH") || p.known(1)
}

// known moves an identifier of a list; a license may have a "+" behind it.
func (p *licenseParser) known(list int) bool {
	if len(p.words) == 0 {
		return false
	}
	word, plus := strings.ToLower(p.words[0]), ""
	id, ok := licenseLists()[list][word]
	if !ok && list == 0 {
		word, ok = strings.CutSuffix(word, "+")
		id, plus = licenseLists()[0][word], "+"
		ok = ok && id != ""
	}
	if ok {
		p.words, p.out = p.words[1:], append(p.out, id+plus)
	}
	return ok
}
