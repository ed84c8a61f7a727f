package argo

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"hpcc/job/message"
)

// A part is an operand, an operator or a parenthesis of a condition.
type part struct {
	text  string
	value bool // an operand
	open  bool // has {{…}}, whose text may have operators too
}

// operators are those of conditions, longer ones first.
var operators = []string{"&&", "||", "==", "!=", ">=", "<=", "=~", "!~", "**", "<<", ">>", "??", ">", "<", "!", "+", "-", "*", "/", "%", "&", "|", "^", "~", "?", ":", ",", "(", ")"}

// verdicts are the operators whose result is true or false.
var verdicts = []string{"&&", "||", "==", "!=", ">=", "<=", "=~", "!~", ">", "<", "!", "in"}

// prefixes are the operators that may precede an operand.
var prefixes = []string{"!", "-", "~"}

// condition checks an expression in "when", or in "depends" if only logic is allowed.
func (c *checker) condition(it *item, logic bool) {
	text := it.text()
	letters := "_."
	if logic { // names of tasks
		letters = "_.-"
	}
	parts, err := split(text, letters)
	if err == nil {
		err = ordered(parts)
	}
	result := func(p part) bool {
		return p.open || p.text == "true" || p.text == "false" || (!p.value && slices.Contains(verdicts, p.text))
	}
	foreign := func(p part) bool { return !p.value && !slices.Contains([]string{"&&", "||", "!", "(", ")"}, p.text) }
	if i := slices.IndexFunc(parts, foreign); err == nil && logic && i >= 0 {
		err = fmt.Errorf("operator %s; only && || ! and parentheses are possible", parts[i].text)
	} else if err == nil && !logic && !slices.ContainsFunc(parts, result) {
		err = fmt.Errorf("it is neither true nor false; compare it, as in A == B")
	}
	if err != nil {
		c.wrong(it, "%q is not a condition: %v", message.Short(text), err)
	}
}

// split returns the parts of a condition. Words consist of letters, digits and the given characters.
func split(text, letters string) (parts []part, err error) {
	for i := 0; i < len(text); {
		rest := text[i:]
		switch ch := rest[0]; {
		case ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r':
			i++
			continue
		case ch == '\'' || ch == '"':
			n := 1
			for n < len(rest) && rest[n] != ch {
				if rest[n] == '\\' {
					n++
				}
				n++
			}
			if n >= len(rest) {
				return nil, fmt.Errorf("quote %c is not closed", ch)
			}
			parts = append(parts, part{text: rest[:n+1], value: true})
			i += n + 1
			continue
		case ch == '[':
			n := strings.IndexByte(rest, ']')
			if n < 0 {
				return nil, fmt.Errorf("[ is not closed")
			}
			parts = append(parts, part{text: rest[:n+1], value: true})
			i += n + 1
			continue
		}
		if n, open := word(rest, letters); n > 0 {
			parts = append(parts, part{rest[:n], rest[:n] != "in" || !follows(parts), open})
			i += n
			continue
		}
		k := slices.IndexFunc(operators, func(o string) bool { return strings.HasPrefix(rest, o) })
		switch {
		case k >= 0:
			parts = append(parts, part{text: operators[k]})
			i += len(operators[k])
		case rest[0] == '=':
			return nil, fmt.Errorf("operator = is not known; use ==")
		default:
			return nil, fmt.Errorf("unexpected %q; put text in quotes", string([]rune(rest)[:1]))
		}
	}
	return parts, nil
}

// follows reports whether the next part follows an operand.
func follows(parts []part) bool {
	return len(parts) > 0 && (parts[len(parts)-1].value || parts[len(parts)-1].text == ")")
}

// word returns the length of the word at the start of text, and whether it has {{…}}.
func word(text, letters string) (n int, open bool) {
	for n < len(text) {
		if strings.HasPrefix(text[n:], "{{") {
			end := strings.Index(text[n:], "}}")
			if end < 0 {
				return n, open
			}
			n, open = n+end+2, true
			continue
		}
		r := []rune(text[n:min(len(text), n+4)])[0]
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(letters, r) {
			break
		}
		n += len(string(r))
	}
	return n, open
}

// ordered checks that operands and operators alternate and that parentheses are in pairs.
func ordered(parts []part) error {
	depth := 0
	for i, p := range parts {
		after := follows(parts[:i])
		switch {
		case p.text == "(":
			depth++
			if after && !parts[i-1].open && (!parts[i-1].value || strings.ContainsAny(parts[i-1].text[:1], `'"`)) {
				return fmt.Errorf("( follows %s", parts[i-1].text)
			}
		case p.text == ")":
			if depth--; depth < 0 {
				return fmt.Errorf(") has no (")
			}
			if !after && (i == 0 || parts[i-1].text != "(") {
				return fmt.Errorf("%s lacks its right side", parts[i-1].text)
			}
		case p.value:
			if after && !p.open && !parts[i-1].open {
				return fmt.Errorf("an operator is missing before %s", message.Short(p.text))
			}
		case !after && !slices.Contains(prefixes, p.text) && (i == 0 || !parts[i-1].open):
			return fmt.Errorf("%s lacks its left side", p.text)
		}
	}
	switch {
	case depth > 0:
		return fmt.Errorf("( is not closed")
	case len(parts) > 0 && !follows(parts):
		return fmt.Errorf("%s lacks its right side", parts[len(parts)-1].text)
	}
	return nil
}

// schedules checks the times of a CronWorkflow.
func (c *checker) schedules(it *item) {
	for _, s := range append(slices.Clone(it.items("schedules")), it.at("schedule")) {
		if s.text() != "" && !isSchedule(s.text()) {
			c.wrong(s, "%q is not a schedule: it has five fields, as in 30 2 * * 1-5, or is a name such as @daily", message.Short(s.text()))
		}
	}
	if s := it.at("startingDeadlineSeconds"); strings.HasPrefix(s.text(), "-") {
		c.wrong(s, "%s is negative", s.text())
	}
}

// cronFields are the limits of the fields of a schedule, and the names of their values.
var cronFields = []struct {
	from, to int
	names    string
}{{0, 59, ""}, {0, 23, ""}, {1, 31, ""}, {1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"}, {0, 6, "sun mon tue wed thu fri sat"}}

// isSchedule reports whether text is a schedule of cron with five fields, perhaps behind a time
// zone.
func isSchedule(text string) bool {
	if zone, rest, ok := strings.Cut(text, " "); ok && (strings.HasPrefix(zone, "TZ=") || strings.HasPrefix(zone, "CRON_TZ=")) {
		text = strings.TrimSpace(rest)
	}
	if every, ok := strings.CutPrefix(text, "@every "); ok {
		_, err := time.ParseDuration(every)
		return err == nil
	}
	if strings.HasPrefix(text, "@") {
		return slices.Contains([]string{"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}, text)
	}
	fields := strings.Fields(text)
	for i, f := range fields {
		for value := range strings.SplitSeq(f, ",") {
			if len(fields) != len(cronFields) || !isCronRange(value, i) {
				return false
			}
		}
	}
	return len(fields) == len(cronFields)
}

// isCronRange reports whether text is *, N, N-M or one of these with /STEP in a field.
func isCronRange(text string, field int) bool {
	f := cronFields[field]
	number := func(text string) int {
		if i := slices.Index(strings.Fields(f.names), strings.ToLower(text)); i >= 0 {
			return f.from + i
		}
		n := 0
		for _, d := range text {
			if n = n*10 + int(d-'0'); d < '0' || d > '9' || n > 1000 {
				return -1
			}
		}
		return n
	}
	span, step, stepped := strings.Cut(text, "/")
	if stepped && (step == "" || number(step) < 1) {
		return false
	}
	if span == "*" || span == "?" {
		return true
	}
	first, last, ranged := strings.Cut(span, "-")
	if !ranged {
		last = first
	}
	a, b := number(first), number(last)
	return first != "" && last != "" && f.from <= a && a <= b && b <= f.to
}
