package attest

import (
	_ "embed"
	"strings"
	"sync"
)

// licenseIDs holds the identifiers of the SPDX License List, an empty line,
// and those of its exceptions, as of spdx-license-ids 3.0.24 and
// spdx-exceptions 2.5.0 of npm.
//
//go:embed spdx_licenses.txt
var licenseIDs string

// licenseLists are the identifiers of licenses and exceptions as the list
// spells them, by their lower-case form: case does not count (SPDX 2.3, annex D).
var licenseLists = sync.OnceValue(func() (lists [2]map[string]string) {
	licenses, exceptions, _ := strings.Cut(licenseIDs, "\n\n")
	for i, text := range []string{licenses, exceptions} {
		lists[i] = map[string]string{}
		for id := range strings.FieldsSeq(text) {
			lists[i][strings.ToLower(id)] = id
		}
	}
	return lists
})

// maxExpression limits the number of tokens of a license expression.
const maxExpression = 200

// licenseExpression parses an SPDX license expression and returns it in the spelling of
// the list. It returns false for other texts and for unknown licenses.
func licenseExpression(s string) (string, bool) {
	s = strings.NewReplacer("(", " ( ", ")", " ) ").Replace(s)
	p := &licenseParser{tokens: strings.Fields(s)}
	if len(p.tokens) > maxExpression || !p.expression(0) || len(p.tokens) > 0 {
		return "", false
	}
	return strings.NewReplacer("( ", "(", " )", ")").Replace(strings.Join(p.out, " ")), true
}

type licenseParser struct{ tokens, out []string }

// take moves the next token to the output if it is token.
func (p *licenseParser) take(token string) bool {
	if len(p.tokens) == 0 || p.tokens[0] != token {
		return false
	}
	p.tokens, p.out = p.tokens[1:], append(p.out, token)
	return true
}

// expression parses terms joined by AND and OR. Their precedence does not change the
// output.
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

// known moves an identifier of a list to the output; a license may end in "+".
func (p *licenseParser) known(list int) bool {
	if len(p.tokens) == 0 {
		return false
	}
	word, plus := strings.ToLower(p.tokens[0]), ""
	id, ok := licenseLists()[list][word]
	if !ok && list == 0 {
		word, ok = strings.CutSuffix(word, "+")
		id, plus = licenseLists()[0][word], "+"
		ok = ok && id != ""
	}
	if ok {
		p.tokens, p.out = p.tokens[1:], append(p.out, id+plus)
	}
	return ok
}
