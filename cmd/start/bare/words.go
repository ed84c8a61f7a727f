package bare

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxVariables bounds the environment.
const maxVariables = 2048

// variables are an environment: the first of each name, as package os has it.
type variables struct {
	list [maxVariables]zstring
	n    int
}

// value returns that of a variable, "" without one.
func (v *variables) value(name string) string {
	for i := range v.n {
		if s := v.list[i].text(); len(s) > len(name) && s[len(name)] == '=' && s[:len(name)] == name {
			return s[len(name)+1:]
		}
	}
	return ""
}

// set replaces a variable where it stands, or adds it; not ok when that are too many.
func (v *variables) set(variable zstring) bool {
	name, _ := cut(variable.text(), '=')
	for i := range v.n {
		if s := v.list[i].text(); len(s) > len(name) && s[len(name)] == '=' && s[:len(name)] == name {
			v.list[i] = variable
			return true
		}
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

// remove takes a variable away.
func (v *variables) remove(name string) {
	n := 0
	for i := range v.n {
		if had, _ := cut(v.list[i].text(), '='); had != name {
			v.list[n] = v.list[i]
			n++
		}
	}
	v.n = n
}

// read takes words, variables and ids from where the kernel put them (System V
// ABI, "Initial Process Stack"); not ok when they are too many, or when the file
// is setuid, which package runtime refuses.
func (r *run) read(sp unsafe.Pointer) bool {
	next := func() uintptr {
		v := *(*uintptr)(sp)
		sp = unsafe.Add(sp, unsafe.Sizeof(v))
		return v
	}
	n := int(next())
	if n > maxWords {
		return false
	}
	for ; r.argc < n; r.argc++ {
		r.words[r.argc] = pointed(*(**byte)(sp))
		next()
	}
	next()
	for *(**byte)(sp) != nil {
		if !r.variable(pointed(*(**byte)(sp))) {
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

// variable notes one of the environment, unless one of that name came before.
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
			if had, _ := cut(r.vars.list[*slot-1].text(), '='); had == name {
				return true
			}
		}
	}
	return r.vars.add(v)
}

// usual says whether the words are of the usual run, by themselves.
func (r *run) usual() bool {
	if r.argc < 3 || r.words[1] != "run\x00" {
		return false
	}
	// Under its other names, hpcc is called by itself (package runtime) and as "hpcc oci".
	name := r.words[0].text()
	if hasPrefix(name, "hpcc-") || hasPrefix(name, "hpcc+") || hasSuffix(name, "hpcc-oci") {
		return false
	}
	r.image = r.words[2]
	if r.image == "\x00" || r.image[0] == '-' {
		return false
	}
	// The directory for copies is checked before there are namespaces: entry.go of package runtime.
	if image := r.image.text(); hasSuffix(image, ".sqfs") || hasSuffix(image, ".squashfs") || hasSuffix(image, ".sfs") {
		return false
	}
	for _, unusual := range [...]string{"HPCC_STAGE", "HPCC_NO_CONFIG", "HPCC_FOREIGN"} {
		if r.vars.value(unusual) != "" {
			return false
		}
	}
	// Words may ask to share namespaces, wherever they stand: entry.go of package runtime.
	for i := 3; i < r.argc && r.words[i] != "--\x00"; i++ {
		if r.words[i] == "-j\x00" || hasPrefix(r.words[i].text(), "--join") {
			return false
		}
	}
	home := r.vars.value("HOME")
	if !clean(home) || home == "/" {
		return false
	}
	r.home = r.join(home)
	return !r.full
}

// defaults says whether there is no file of defaults (Defaults of package runtime).
func (r *run) defaults() bool {
	if mode, e := modeOf(unix.AT_FDCWD, "/etc/hpcc/run.conf\x00", 0); mode != 0 || e != unix.ENOENT && e != unix.ENOTDIR {
		return false
	}
	dir := r.vars.value("XDG_CONFIG_HOME")
	if !hasPrefix(dir, "/") {
		dir = r.join(r.home.text(), "/.config").text()
	}
	mode, e := modeOf(unix.AT_FDCWD, r.join(dir, "/hpcc/run.conf"), 0)
	return mode == 0 && (e == unix.ENOENT || e == unix.ENOTDIR || e == unix.EACCES)
}
