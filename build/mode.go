package build

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"hpcc/build/source"
)

// A modeChange computes the mode of a file from --chmod, octal or symbolic.
type modeChange func(old fs.FileMode, dir bool) fs.FileMode

// parseMode parses modes such as 755, 1777, u=rwX,go=rX or +x (chmod(1), ignoring the umask).
func parseMode(s string) (modeChange, error) {
	bad := fmt.Errorf("--chmod=%s: not an octal mode such as 755 or a symbolic one such as u=rwX,go=rX", s)
	if n, err := strconv.ParseUint(s, 8, 32); err == nil {
		if n > 0o7777 {
			return nil, bad
		}
		m := source.FromBits(uint32(n))
		return func(fs.FileMode, bool) fs.FileMode { return m }, nil
	}
	var clauses []func(m uint32, x bool) uint32
	for _, c := range strings.Split(s, ",") {
		f, err := parseClause(c)
		if err != nil {
			return nil, bad
		}
		clauses = append(clauses, f)
	}
	return func(old fs.FileMode, dir bool) fs.FileMode {
		m := toBits(old)
		for _, f := range clauses {
			m = f(m, dir || m&0o111 != 0)
		}
		return source.FromBits(m)
	}, nil
}

// isOctal reports whether a mode is a number, which also applies to directories.
func isOctal(s string) bool {
	_, err := strconv.ParseUint(s, 8, 32)
	return err == nil
}

// parseClause parses classes, operator and permissions; x reports whether X means x.
func parseClause(c string) (func(m uint32, x bool) uint32, error) {
	i := strings.IndexAny(c, "+-=")
	if i < 0 || strings.Trim(c[:i], "ugoa") != "" || (strings.Trim(c[i+1:], "rwxXst") != "" && strings.Trim(c[i+1:], "ugo") != "") {
		return nil, fmt.Errorf("clause %q", c)
	}
	who, op, perms := c[:i], c[i], c[i+1:]
	if who == "" || strings.Contains(who, "a") {
		who = "ugo"
	}
	shift := map[rune]uint32{'u': 6, 'g': 3, 'o': 0}
	return func(m uint32, x bool) uint32 {
		var set, all uint32
		for _, w := range who {
			all |= 7 << shift[w]
			for _, p := range perms {
				switch {
				case p == 'r':
					set |= 4 << shift[w]
				case p == 'w':
					set |= 2 << shift[w]
				case p == 'x' || (p == 'X' && x):
					set |= 1 << shift[w]
				case p == 's' && w == 'u':
					set |= 0o4000
				case p == 's' && w == 'g':
					set |= 0o2000
				case p == 't':
					set |= 0o1000
				case strings.ContainsRune("ugo", p): // copy the bits of that class
					set |= m >> shift[p] & 7 << shift[w]
				}
			}
		}
		switch op {
		case '+':
			return m | set
		case '-':
			return m &^ set
		}
		return m&^all | set
	}, nil
}

// toBits converts a mode to the bits of chmod(2).
func toBits(m fs.FileMode) uint32 {
	b := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		b |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		b |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		b |= 0o1000
	}
	return b
}
