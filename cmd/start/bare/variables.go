package bare

import (
	"unsafe"
)

// maxVariables is the maximum number of variables.
const maxVariables = 2048

// variables are an environment with the first variable of each name, as in package os.
type variables struct {
	list [maxVariables]zstring
	n    int
}

// find returns the index of a variable that has a value, or -1.
func (v *variables) find(name string) int {
	for i := range v.n {
		if s := v.list[i].text(); len(s) > len(name) && s[len(name)] == '=' && s[:len(name)] == name {
			return i
		}
	}
	return -1
}

// value returns the value of a variable, or "".
func (v *variables) value(name string) string {
	i := v.find(name)
	if i < 0 {
		return ""
	}
	return v.list[i].text()[len(name)+1:]
}

// set replaces or adds a variable. It returns false if there are too many.
func (v *variables) set(variable zstring) bool {
	name, _ := cut(variable.text(), '=')
	if i := v.find(name); i >= 0 {
		v.list[i] = variable
		return true
	}
	return v.add(variable)
}

func (v *variables) add(variable zstring) bool {
	if v.n == len(v.list)-1 {
		return false
	}
	v.list[v.n] = variable
	v.n++
	return true
}

// remove removes a variable.
func (v *variables) remove(name string) { v.keep(name, false) }

// keep removes all variables except those whose names match pattern, or those whose names do not
// match it if matching is false. "*" matches any characters, and "?" one character.
func (v *variables) keep(pattern string, matching bool) {
	n := 0
	for i := range v.n {
		if name, _ := cut(v.list[i].text(), '='); matches(pattern, name) == matching {
			v.list[n] = v.list[i]
			n++
		}
	}
	v.n = n
}

// matches reports whether s matches a pattern of literal characters, "*" and "?".
func matches(pattern, s string) bool {
	star, again := -1, 0 // the last "*", and the end of its current match
	i, j := 0, 0
	for j < len(s) {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			star, again = i, j
			i++
		case i < len(pattern) && (pattern[i] == '?' || pattern[i] == s[j]):
			i++
			j++
		case star >= 0:
			again++
			i, j = star+1, again
		default:
			return false
		}
	}
	for i < len(pattern) && pattern[i] == '*' {
		i++
	}
	return i == len(pattern)
}

// read reads argv, variables and IDs from the initial stack (System V ABI, "Initial Process
// Stack"). It returns false if there are too many, or if the file is setuid, which package runtime
// refuses.
func (r *run) read(sp unsafe.Pointer) bool {
	next := func() uintptr {
		v := *(*uintptr)(sp)
		sp = unsafe.Add(sp, unsafe.Sizeof(v))
		return v
	}
	n := int(next())
	if n > maxArgs {
		return false
	}
	for ; r.argc < n; r.argc++ {
		r.argv[r.argc] = cString(*(**byte)(sp))
		next()
	}
	next()
	r.environ = sp
	for *(**byte)(sp) != nil {
		if !r.variable(cString(*(**byte)(sp))) {
			return false
		}
		next()
	}
	next()
	const uid, euid, gid, egid = 11, 12, 13, 14 // getauxval(3)
	var ids [egid + 1]uintptr
	for {
		key := next()
		if key == 0 {
			break
		}
		if value := next(); key < uintptr(len(ids)) {
			ids[key] = value
		}
	}
	r.uid, r.gid = ids[euid], ids[egid]
	return ids[uid] == r.uid && ids[gid] == r.gid
}

// variable records a variable of the environment, unless an earlier one has that name.
func (r *run) variable(v zstring) bool {
	name, _ := cut(v.text(), '=')
	if v == "\x00" {
		return true
	}
	if len(name) < len(v.text()) {
		hash := uint32(2166136261)
		for i := range len(name) {
			hash = (hash ^ uint32(name[i])) * 16777619
		}
		for ; ; hash++ {
			slot := &r.table[hash%uint32(len(r.table))]
			if *slot == 0 {
				*slot = uint16(r.vars.n + 1)
				break
			}
			if earlier, _ := cut(r.vars.list[*slot-1].text(), '='); earlier == name {
				return true
			}
		}
	}
	return r.vars.add(v)
}
