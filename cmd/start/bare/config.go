package bare

// A config holds the parts of an image's configuration that a run needs (ImageConfig of package
// runtime).
type config struct {
	architecture, dir, user  string
	env, entrypoint, command list
}

// maxList is the maximum length of a list of the configuration.
const maxList = 128

type list struct {
	of [maxList]string
	n  int
}

// A reader parses JSON. It fails on all input that encoding/json might read differently. Such
// input has names that differ from known ones only in case, or repeated names. Strings that a
// config holds may not contain control characters or escaped characters beyond ASCII.
type reader struct {
	run   *run // provides memory
	rest  string
	wrong bool
}

// maxDepth is the maximum depth of nested values.
const maxDepth = 32

// read parses a configuration file, with the memory of a run.
func (c *config) read(memory *run, file string) bool {
	r := reader{run: memory, rest: file}
	var seen [2]bool
	r.want('{')
	for more := !r.have('}'); more; more = r.more('}') {
		switch r.name("architecture", "config") {
		case 0:
			c.architecture = r.once(&seen[0]).stringValue()
		case 1:
			r.once(&seen[1])
			if !r.null() {
				c.readConfig(&r)
			}
		default:
			r.skip(0)
		}
	}
	r.space()
	return !r.wrong && r.rest == ""
}

func (c *config) readConfig(r *reader) {
	var seen [5]bool
	r.want('{')
	for more := !r.have('}'); more; more = r.more('}') {
		n := r.name("User", "WorkingDir", "Env", "Entrypoint", "Cmd")
		if n >= 0 {
			r.once(&seen[n])
		}
		switch n {
		case 0:
			c.user = r.stringValue()
		case 1:
			c.dir = r.stringValue()
		case 2:
			r.list(&c.env)
		case 3:
			r.list(&c.entrypoint)
		case 4:
			r.list(&c.command)
		default:
			r.skip(1)
		}
	}
}

func (r *reader) space() {
	for r.rest != "" && (r.rest[0] == ' ' || r.rest[0] == '\t' || r.rest[0] == '\n' || r.rest[0] == '\r') {
		r.rest = r.rest[1:]
	}
}

// have consumes c if it is the next character.
func (r *reader) have(c byte) bool {
	r.space()
	if r.wrong || r.rest == "" || r.rest[0] != c {
		return false
	}
	r.rest = r.rest[1:]
	return true
}

func (r *reader) want(c byte) {
	if !r.have(c) {
		r.wrong = true
	}
}

// more reports whether another member follows in the object or list that end closes.
func (r *reader) more(end byte) bool {
	if r.have(end) {
		return false
	}
	r.want(',')
	return !r.wrong
}

// once marks a member as seen. It fails the second time.
func (r *reader) once(seen *bool) *reader {
	r.wrong = r.wrong || *seen
	*seen = true
	return r
}

// name consumes the name of a member. It returns the index of a known name, or -1.
func (r *reader) name(known ...string) int {
	s := r.plainString()
	for i := range len(s) {
		r.wrong = r.wrong || s[i] > '~' // encoding/json folds some of these to ASCII
	}
	r.want(':')
	for i, k := range known {
		if s == k {
			return i
		}
		if len(s) == len(k) && foldEqual(s, k) {
			r.wrong = true
		}
	}
	return -1
}

// foldEqual reports whether two ASCII strings of equal length are equal except for case.
func foldEqual(a, b string) bool {
	for i := range len(a) {
		x, y := a[i], b[i]
		if x != y && (x|0x20 != y|0x20 || x|0x20 < 'a' || x|0x20 > 'z') {
			return false
		}
	}
	return true
}

// null consumes a null, which leaves a member unchanged.
func (r *reader) null() bool {
	r.space()
	if !hasPrefix(r.rest, "null") {
		return false
	}
	r.rest = r.rest[len("null"):]
	return true
}

// stringValue consumes a string or null and returns the string.
func (r *reader) stringValue() string {
	if r.null() {
		return ""
	}
	return r.plainString()
}

func (r *reader) plainString() string {
	s := r.str()
	if !plain(s) {
		r.wrong = true
	}
	if !contains(s, '\\') || r.wrong {
		return s
	}
	begin := r.run.used
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '\\' {
			n := escape(s[i:])
			c = escaped(s[i+1 : i+n])
			r.wrong = r.wrong || c == 0
			i += n - 1
		}
		if b := r.run.alloc(1); b != nil {
			b[0] = c
		}
	}
	return r.run.since(begin).text()
}

// escaped returns the ASCII character of an escape sequence without its backslash, or 0 for other
// characters.
func escaped(s string) byte {
	switch s[0] {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'u':
		var c byte
		for i := 1; i < len(s); i++ {
			digit := s[i] - '0'
			if digit > 9 {
				digit = (s[i] | 0x20) - 'a' + 10
			}
			if c > 7 { // two digits are enough for ASCII
				return 0
			}
			c = c<<4 | digit
		}
		return c
	}
	return s[0]
}

// list consumes a list of strings or null.
func (r *reader) list(l *list) {
	if r.null() {
		return
	}
	r.want('[')
	for more := !r.have(']'); more; more = r.more(']') {
		if l.n == len(l.of) {
			r.wrong = true
			return
		}
		l.of[l.n] = r.plainString()
		l.n++
	}
}

// str consumes a string and returns the text between its quotes.
func (r *reader) str() string {
	r.want('"')
	if r.wrong {
		return ""
	}
	for i := 0; i < len(r.rest); i++ {
		switch c := r.rest[i]; {
		case c == '"':
			s := r.rest[:i]
			r.rest = r.rest[i+1:]
			return s
		case c < ' ':
			r.wrong = true
			return ""
		case c == '\\':
			n := escape(r.rest[i:])
			if n == 0 {
				r.wrong = true
				return ""
			}
			i += n - 1
		}
	}
	r.wrong = true
	return ""
}

// escape returns the length of the escape sequence at the head of s, or 0 if it is not valid.
func escape(s string) int {
	if len(s) < 2 {
		return 0
	}
	if s[1] != 'u' {
		if contains(`"\/bfnrt`, s[1]) {
			return 2
		}
		return 0
	}
	if len(s) < 6 {
		return 0
	}
	for i := 2; i < 6; i++ {
		if !contains("0123456789abcdefABCDEF", s[i]) {
			return 0
		}
	}
	return 6
}

// skip consumes any value at the given depth.
func (r *reader) skip(depth int) {
	r.space()
	if r.wrong || r.rest == "" || depth > maxDepth {
		r.wrong = true
		return
	}
	switch c := r.rest[0]; c {
	case '"':
		r.str()
	case '{', '[':
		r.rest = r.rest[1:]
		end := c + 2 // ASCII
		for more := !r.have(end); more; more = r.more(end) {
			if c == '{' {
				r.space()
				r.str()
				r.want(':')
			}
			r.skip(depth + 1)
		}
	default:
		r.literal()
	}
}

// literal consumes true, false, null, or a number without fraction and exponent.
func (r *reader) literal() {
	for _, word := range [...]string{"true", "false", "null"} {
		if hasPrefix(r.rest, word) {
			r.rest = r.rest[len(word):]
			return
		}
	}
	n := 0
	if r.rest[0] == '-' {
		n++
	}
	first := n
	for n < len(r.rest) && r.rest[n] >= '0' && r.rest[n] <= '9' {
		n++
	}
	if n == first || (r.rest[first] == '0' && n > first+1) {
		r.wrong = true
		return
	}
	r.rest = r.rest[n:]
}
