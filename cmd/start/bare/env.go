package bare

import "golang.org/x/sys/unix"

// A change of the environment is one --env, --set-env, --set-env0 or --unset-env (package envfile).
type change struct {
	flag    int
	literal bool // text is NAME=VALUE, or a pattern; otherwise the content of a file
	text    string
}

// readEnvFile reads a regular file. It does not open other files, such as pipes, which could not
// be read again if the run is declined.
func (r *run) readEnvFile(name string) (string, bool) {
	file := r.join(name)
	if kind(unix.AT_FDCWD, file, 0) != unix.S_IFREG {
		return "", false
	}
	s, e := r.readFile(file, maxFile)
	return s, e == 0
}

// changeEnv makes the changes of one source. It returns false if a file or an assignment is not
// valid.
func (r *run) changeEnv(s *settings, expand bool) bool {
	for i := range s.nchanges {
		c := &s.changes[i]
		switch {
		case c.flag == imageEnv:
			if r.line.has(chRun) && !r.setImageEnv() {
				return false
			}
		case c.flag == unsetEnv:
			r.vars.keep(c.text, false)
		case c.literal:
			if !r.assign(c, c.text, expand) {
				return false
			}
		case !r.assignAll(c, expand):
			return false
		}
	}
	return true
}

// isExact reports whether values are used unchanged.
func (c *change) isExact() bool { return c.flag == env || c.flag == env0 }

// assignAll makes the assignments of a file that consists of lines, or of records that end with a
// zero byte.
func (r *run) assignAll(c *change, expand bool) bool {
	file, nul := c.text, c.flag != setEnv
	end, extra := byte('\n'), byte('\r')
	if nul {
		end, extra = 0, '\n'
	}
	for file != "" {
		var line string
		line, file = cut(file, end)
		if n := len(line); n > 0 && line[n-1] == extra {
			line = line[:n-1]
		}
		if line == "" || (!nul && line[0] == '#') {
			continue
		}
		if !r.assign(c, line, expand) {
			return false
		}
	}
	return true
}

// assign sets NAME=VALUE for a change.
func (r *run) assign(c *change, assignment string, expand bool) bool {
	name, value := cut(assignment, '=')
	if name == "" || len(name) == len(assignment) || contains(assignment, 0) {
		return false
	}
	if n := len(value); !c.isExact() && n >= 2 && value[0] == '\'' && value[n-1] == '\'' {
		value = value[1 : n-1]
	}
	begin := r.used
	r.put(name)
	r.put("=")
	if expand && !c.isExact() && contains(value, '$') {
		r.putItems(value)
	} else {
		r.put(value)
	}
	return r.vars.set(r.since(begin)) && !r.full
}

// putItems puts a list that is separated by colons. It expands items that begin with "$", and
// removes an item that expands to nothing together with one colon.
func (r *run) putItems(list string) {
	for some := false; ; {
		item, rest := cut(list, ':')
		last := len(item) == len(list)
		head, tail := item, ""
		if len(item) > 1 && item[0] == '$' {
			head, tail = r.expand(item[1:])
		}
		if head != "" || len(item) < 2 || item[0] != '$' {
			if some {
				r.put(":")
			}
			r.put(head)
			r.put(tail)
			some = true
		}
		if last {
			return
		}
		list = rest
	}
}

// expand returns the value of the variable and the tail of an item of the form NAME, "{NAME}tail"
// or "NAME/tail". The value is "" if the variable is unset or empty.
func (r *run) expand(item string) (value, tail string) {
	if v := r.vars.value(item); v != "" {
		return v, ""
	}
	name := ""
	if item[0] == '{' {
		name, tail = cut(item[1:], '}')
		if len(name) == len(item)-1 {
			return "", ""
		}
	} else {
		name, _ = cut(item, '/')
		if len(name) == len(item) {
			return "", ""
		}
		tail = item[len(name):]
	}
	if name == "" || nameLength(name) != len(name) {
		return "", ""
	}
	return r.vars.value(name), tail
}

// simplePattern reports whether matches supports a pattern. Patterns of fnmatch(3) with brackets,
// parentheses or backslashes are not supported.
func simplePattern(s string) bool {
	return !contains(s, '[') && !contains(s, '(') && !contains(s, '\\') && len(s) <= 4096
}
