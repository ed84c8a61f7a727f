package bare

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime"
	"hpcc/store/ready"
)

// Bounds of the flags of one source. A run with more is declined.
const (
	maxFlags = 64
	maxBinds = 16
)

// The supported flags, as indices of flags.
const (
	env = iota
	env0
	setEnv
	setEnv0
	unsetEnv
	envNoExpand
	gpu
	cleanEnv
	cd
	bind
	writeFake
	privateTmp
	home
	noHome
	entrypoint
	noPasswd
	noConfig
	store
	only
	chRun
	imageEnv
	nflags
)

// A flag has one or two spellings, and an argument always, never or optionally.
type flag struct {
	long, short string
	argument    byte
}

const (
	never = iota
	always
	optional
)

var flags = [nflags]flag{
	env: {"env", "e", always}, env0: {"env0", "", always},
	setEnv: {"set-env", "", always}, setEnv0: {"set-env0", "", always}, unsetEnv: {"unset-env", "", always},
	envNoExpand: {"env-no-expand", "", never}, gpu: {"gpu", "", never}, cleanEnv: {"clean-env", "", never},
	cd: {"cd", "c", always}, bind: {"bind", "b", always}, writeFake: {"write-fake", "W", optional},
	privateTmp: {"private-tmp", "t", never}, home: {"home", "", never}, noHome: {"no-home", "", never},
	entrypoint: {"entrypoint", "", always}, noPasswd: {"no-passwd", "", never}, noConfig: {"no-config", "", never},
	store: {"store", "", always}, only: {"only", "", always}, chRun: {"ch-run", "", never}, imageEnv: {"image-env", "", never},
}

// defaultFake is DefaultFake of package runtime.
const defaultFake = "12%"

// settings are the flags of one source: the command line or the run.conf files.
type settings struct {
	isFile   bool
	used     [nflags]bool
	value    [nflags]string
	binds    [maxBinds]string
	nbinds   int
	changes  [maxFlags]change
	nchanges int
}

// has reports whether a flag was given.
func (s *settings) has(flag int) bool { return s.used[flag] }

// isRun reports whether argv is a command line of "hpcc run" with only supported flags, and
// records them.
func (r *run) isRun() bool {
	if r.argc < 3 || (r.argv[1] != "run\x00" && !r.isChRun()) {
		return false
	}
	// hpcc runs under other names when package runtime starts it and as "hpcc oci".
	name := r.argv[0].text()
	if hasPrefix(name, "hpcc-") || hasPrefix(name, "hpcc+") || hasSuffix(name, "hpcc-oci") ||
		(runtime.IsFront(unsafe.StringData(name)) && !r.isChRun()) {
		return false
	}
	for _, unusual := range [...]string{"HPCC_STAGE", "HPCC_NO_CONFIG", "HPCC_FOREIGN"} {
		if r.vars.value(unusual) != "" {
			return false
		}
	}
	if r.isChRun() {
		return r.readChRun() && !r.namesSquashFS()
	}
	rest, ok := r.parse(&r.line, r.argv[2:r.argc])
	if !ok || len(rest) == 0 || rest[0] == "\x00" {
		return false
	}
	r.image, rest = rest[0], rest[1:]
	if r.namesSquashFS() {
		return false
	}
	if len(rest) > 0 && rest[0] == "--\x00" {
		rest = rest[1:]
	}
	r.first = r.argc - len(rest)
	return true
}

// namesSquashFS reports whether the image is a SquashFS file. The directory for copies must be checked
// before namespaces exist (runtime/entry.go).
func (r *run) namesSquashFS() bool { return ready.IsImageFile(r.image.text()) }

// parse records the flags at the head of args and returns the rest.
func (r *run) parse(s *settings, args []zstring) (rest []zstring, ok bool) {
	for len(args) > 0 && len(args[0]) > len("-\x00") && args[0][0] == '-' {
		arg := args[0].text()
		args = args[1:]
		if arg == "--" {
			return args, !s.isFile
		}
		spelling, value := cut(arg[1:], '=')
		joined := len(spelling) < len(arg)-1
		if hasPrefix(spelling, "-") {
			spelling = spelling[1:]
		}
		i := lookUp(spelling)
		if i < 0 {
			return nil, false
		}
		s.used[i] = true
		switch flags[i].argument {
		case never:
			if joined {
				return nil, false
			}
		case optional:
			if !joined {
				value = defaultFake
			}
		case always:
			if joined {
				break
			}
			if (i == setEnv || i == setEnv0) && r.isChRun() {
				i = imageEnv // its argument is always joined
				break
			}
			// Before "IMAGE --", --set-env has no argument; see joinBareSetEnv of cmd/hpcc.
			if (i == setEnv || i == setEnv0) && len(args) > 1 && args[1] == "--\x00" && !s.isFile {
				continue
			}
			if len(args) == 0 || hasPrefix(args[0].text(), "-") {
				return nil, false
			}
			value, args = args[0].text(), args[1:]
		}
		if !r.set(s, i, value) {
			return nil, false
		}
	}
	return args, true
}

// lookUp returns the index of a flag, or -1 for an unsupported one.
func lookUp(spelling string) int {
	for i := range flags {
		if spelling == flags[i].long || (spelling == flags[i].short && spelling != "") {
			return i
		}
	}
	return -1
}

// set records one flag. It returns false if the flag or its value is not supported.
func (r *run) set(s *settings, flag int, value string) bool {
	s.value[flag] = value
	switch flag {
	case imageEnv:
		if s.isFile || s.nchanges == len(s.changes) {
			return false
		}
		s.changes[s.nchanges] = change{flag: flag}
		s.nchanges++
	case env, env0, setEnv, setEnv0, unsetEnv:
		c, ok := r.change(flag, value)
		if !ok || value == "" || s.nchanges == len(s.changes) {
			return false
		}
		s.changes[s.nchanges] = c
		s.nchanges++
	case bind:
		if s.nbinds == len(s.binds) {
			return false
		}
		s.binds[s.nbinds] = value
		s.nbinds++
		return value != ""
	case cd:
		return value != ""
	case home, noHome:
		if other := home + noHome - flag; s.has(other) {
			s.used[other] = false // the last one counts
			return s.isFile
		}
	case writeFake:
		return isSize(value)
	case entrypoint, noConfig, chRun:
		return !s.isFile
	case store, only:
		return !s.isFile && value != ""
	}
	return true
}

// change returns the change of the environment that a flag makes.
func (r *run) change(flag int, value string) (c change, ok bool) {
	c = change{flag: flag, text: value, literal: true}
	switch {
	case flag == unsetEnv:
		return c, simplePattern(value)
	case contains(value, '=') && flag != env0:
		return c, true
	case flag == env: // the name of a variable of the caller
		i := r.vars.find(value)
		if i >= 0 {
			c.text = r.vars.list[i].text()
		}
		return c, i >= 0
	}
	c.literal = false
	c.text, ok = r.readEnvFile(value)
	return c, ok
}

// isSize reports whether s is a size that package runtime accepts, with less than 10 digits.
func isSize(s string) bool {
	n, digits := 0, 0
	for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
		n = 10*n + int(s[digits]-'0')
		digits++
	}
	unit := s[digits:]
	return digits < 10 && n > 0 && (unit == "" || (unit == "%" && n <= 100) || (len(unit) == 1 && contains("kmgKMG", unit[0])))
}

// given returns the source of a flag: the command line if it has the flag, or else the files of
// defaults.
func (r *run) given(flag int) *settings {
	if r.line.has(flag) {
		return &r.line
	}
	return &r.file
}

// yes reports whether a flag without an argument was given.
func (r *run) yes(flag int) bool { return r.given(flag).has(flag) }

// value returns the argument of a flag, or "".
func (r *run) value(flag int) string { return r.given(flag).value[flag] }

// readDefaults reads the flags of the run.conf files (package runtime/runconf).
func (r *run) readDefaults() bool {
	r.file.isFile = true
	if r.line.has(noConfig) {
		return true
	}
	if !r.readDefaultsOf("/etc/hpcc/run.conf\x00", false) {
		return false
	}
	dir := r.vars.value("XDG_CONFIG_HOME")
	if home := r.vars.value("HOME"); !hasPrefix(dir, "/") {
		if !hasPrefix(home, "/") {
			return true
		}
		dir = r.join(home, "/.config").text()
	}
	return r.readDefaultsOf(r.join(dir, "/hpcc/run.conf"), true)
}

// readDefaultsOf reads one file. The user's own file may be unreadable, because sudo can keep the
// HOME of another user.
func (r *run) readDefaultsOf(name zstring, own bool) bool {
	mode, e := modeOf(unix.AT_FDCWD, name, 0)
	if e == unix.ENOENT || e == unix.ENOTDIR || (e == unix.EACCES && own) {
		return true
	}
	if e != 0 || mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	file, e := r.readFile(name, maxFile)
	if e != 0 {
		return false
	}
	for number := 1; file != ""; number++ {
		var line string
		line, file = cut(file, '\n')
		for line != "" && line[len(line)-1] == '\r' {
			line = line[:len(line)-1]
		}
		first := r.nlineArgs
		if !r.split(line) {
			return false
		}
		args := r.lineArgs[first:r.nlineArgs]
		if len(args) == 0 {
			continue
		}
		if rest, ok := r.parse(&r.file, args); !ok || len(rest) > 0 {
			return false
		}
		r.defaults[r.ndefaults] = defaultLine{name, number, first, r.nlineArgs} // cannot overflow, because a line has at least one argument
		r.ndefaults++
	}
	return true
}

// A defaultLine is a line of a run.conf file, with the range of its arguments in lineArgs.
type defaultLine struct {
	file       zstring
	number     int
	first, end int
}

// split splits a line as splitWords of package runtime/runconf does, and adds the arguments to
// lineArgs. It returns false if the line is not valid.
func (r *run) split(line string) (ok bool) {
	begin, within := r.used, false
	for line != "" {
		c := line[0]
		line = line[1:]
		switch {
		case c == ' ' || c == '\t' || (c == '#' && !within):
			if within && !r.addArg(begin) {
				return false
			}
			begin, within = r.used, false
			if c == '#' {
				line = ""
			}
			continue
		case c == '\'':
			quoted, after := cut(line, '\'')
			if len(quoted) == len(line) {
				return false
			}
			r.put(quoted)
			line = after
		case c == '"':
			if line, ok = r.quoted(line); !ok {
				return false
			}
		case c == '~' && (r.used == begin || r.memory[r.used-1] == '=') && (line == "" || line[0] == '/' || line[0] == ':'):
			if !r.putVariable("HOME") {
				return false
			}
		default:
			if line, ok = r.char(c, line); !ok {
				return false
			}
		}
		within = true
	}
	return (!within || r.addArg(begin)) && !r.full
}

// addArg adds the text that was put since begin to lineArgs.
func (r *run) addArg(begin int) bool {
	if r.nlineArgs == len(r.lineArgs) {
		return false
	}
	r.lineArgs[r.nlineArgs] = r.since(begin)
	r.nlineArgs++
	return true
}

// quoted puts the text up to the closing quote and returns the text after it.
func (r *run) quoted(line string) (rest string, ok bool) {
	for line != "" {
		c := line[0]
		line = line[1:]
		if c == '"' {
			return line, true
		}
		if c == '\\' && line != "" && !contains(`"\$`, line[0]) {
			r.put(`\`)
			continue
		}
		if line, ok = r.char(c, line); !ok {
			break
		}
	}
	return "", false
}

// char puts the character c, or the escape or variable that begins with it, and returns the text
// after it.
func (r *run) char(c byte, rest string) (after string, ok bool) {
	switch {
	case c == '\\' && rest != "":
		r.put(rest[:1])
		return rest[1:], true
	case c == '$' && hasPrefix(rest, "{"):
		name, after := cut(rest[1:], '}')
		ok := name != "" && len(name) < len(rest)-1 && nameLength(name) == len(name)
		return after, ok && r.putVariable(name)
	case c == '$' && nameLength(rest) > 0:
		n := nameLength(rest)
		return rest[n:], r.putVariable(rest[:n])
	}
	if b := r.alloc(1); b != nil {
		b[0] = c
	}
	return rest, true
}

// putVariable puts the value of a variable. It returns false if the variable is not set.
func (r *run) putVariable(name string) bool {
	r.put(r.vars.value(name))
	return r.vars.find(name) >= 0
}

// nameLength returns the length of the shell variable name at the head of s.
func nameLength(s string) int {
	n := 0
	for n < len(s) && (s[n] == '_' || (s[n]|0x20 >= 'a' && s[n]|0x20 <= 'z') || (n > 0 && s[n] >= '0' && s[n] <= '9')) {
		n++
	}
	return n
}
