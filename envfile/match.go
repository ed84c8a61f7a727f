package envfile

// maxPattern limits the length of a pattern in bytes, because a matcher needs memory for
// every combination of a part of the pattern and a part of the name.
const maxPattern = 4096

// match reports whether name matches the pattern, like fnmatch(3) with FNM_EXTMATCH.
func match(pattern, name string) bool {
	m := matcher{p: pattern, s: name, seen: map[[4]int]bool{}}
	return m.seq(0, len(pattern), 0, len(name))
}

// A matcher compares parts of a pattern with parts of a name. It stores the results, so
// that it compares each pair of parts only once and no pattern takes exponential time.
type matcher struct {
	p, s string          // the pattern and the name
	seen map[[4]int]bool // results of seq, by its arguments
}

// seq reports whether p[i:j] matches the entire string s[a:b].
func (m *matcher) seq(i, j, a, b int) bool {
	key := [4]int{i, j, a, b}
	if r, ok := m.seen[key]; ok {
		return r
	}
	m.seen[key] = false
	r := m.try(i, j, a, b)
	m.seen[key] = r
	return r
}

// try is seq without stored results.
func (m *matcher) try(i, j, a, b int) bool {
	if i == j {
		return a == b
	}
	c := m.p[i]
	if i+1 < j && m.p[i+1] == '(' {
		if end := m.closing(i+1, j); end > 0 && (c == '@' || c == '?' || c == '*' || c == '+' || c == '!') {
			return m.group(c, i+2, end, j, a, b)
		}
	}
	switch c {
	case '*':
		return m.seq(i+1, j, a, b) || (a < b && m.seq(i, j, a+1, b))
	case '?':
		return a < b && m.seq(i+1, j, a+1, b)
	case '[':
		if end, ok := m.class(i, j); end > 0 {
			return a < b && ok(m.s[a]) && m.seq(end, j, a+1, b)
		}
	case '\\':
		if i+1 < j {
			return a < b && m.p[i+1] == m.s[a] && m.seq(i+2, j, a+1, b)
		}
	}
	return a < b && c == m.s[a] && m.seq(i+1, j, a+1, b)
}

// group reports whether the group KIND(ALTERNATIVES) followed by the pattern p[end+1:j]
// matches the entire string s[a:b]. The alternatives are p[i:end], and p[end] is ")".
func (m *matcher) group(kind byte, i, end, j, a, b int) bool {
	if (kind == '?' || kind == '*') && m.seq(end+1, j, a, b) {
		return true
	}
	for mid := a; mid <= b; mid++ {
		hit := m.any(i, end, a, mid)
		if kind == '!' {
			if !hit && m.seq(end+1, j, mid, b) {
				return true
			}
			continue
		}
		if !hit {
			continue
		}
		if m.seq(end+1, j, mid, b) {
			return true
		}
		// Repeat the group, if it matched at least one byte.
		if (kind == '*' || kind == '+') && mid > a && m.seq(i-2, j, mid, b) {
			return true
		}
	}
	return false
}

// any reports whether one of the alternatives p[i:end] matches the entire string s[a:b].
func (m *matcher) any(i, end, a, b int) bool {
	start, depth := i, 0
	for k := i; k <= end; k++ {
		switch {
		case k < end && m.p[k] == '\\':
			k++
		case k < end && m.p[k] == '(':
			depth++
		case k < end && m.p[k] == ')':
			depth--
		case k == end || (m.p[k] == '|' && depth == 0):
			if m.seq(start, k, a, b) {
				return true
			}
			start = k + 1
		}
	}
	return false
}

// closing returns the index in p[:j] of the ")" that closes the "(" at i, or 0 if there is
// none.
func (m *matcher) closing(i, j int) int {
	depth := 0
	for k := i; k < j; k++ {
		switch m.p[k] {
		case '\\':
			k++
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return k
			}
		}
	}
	return 0
}

// class parses a bracket expression "[…]" at i. It returns the index after it, and a
// function that reports whether the expression matches a byte. If no bracket expression
// begins at i, end is 0.
func (m *matcher) class(i, j int) (end int, ok func(byte) bool) {
	k := i + 1
	not := k < j && (m.p[k] == '!' || m.p[k] == '^')
	if not {
		k++
	}
	first := k
	for k < j && (m.p[k] != ']' || k == first) {
		k++
	}
	if k >= j {
		return 0, nil
	}
	set := m.p[first:k]
	return k + 1, func(c byte) bool {
		in := false
		for n := 0; n < len(set); n++ {
			if n+2 < len(set) && set[n+1] == '-' {
				in = in || (set[n] <= c && c <= set[n+2])
				n += 2
				continue
			}
			in = in || set[n] == c
		}
		return in != not
	}
}
