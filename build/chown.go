package build

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"

	"hpcc/runtime/fakeroot"
	"hpcc/unpack"
)

// An ownership is the resolved value of --chown.
type ownership struct{ uid, gid int }

// parseOwner parses USER[:GROUP], with names or numbers. Names are looked up in the image in
// dir, except "root". Without GROUP, a user name implies its primary group, and a number
// the same number (Dockerfile reference, "COPY --chown").
func parseOwner(dir, word string) (*ownership, error) {
	user, group, _ := strings.Cut(word, ":")
	var o ownership
	var err error
	if o.uid, err = accountNumber(user); err == nil {
		o.gid = o.uid
	} else {
		f, err := account(dir, "/etc/passwd", user)
		if err != nil {
			return nil, err
		}
		o.uid, o.gid = f[0], f[1]
	}
	if group != "" {
		if o.gid, err = accountNumber(group); err != nil {
			f, err := account(dir, "/etc/group", group)
			if err != nil {
				return nil, err
			}
			o.gid = f[0]
		}
	}
	if o.uid < 0 || o.gid < 0 {
		return nil, errors.New("a negative number")
	}
	return &o, nil
}

// accountNumber returns the ID of a number or of "root", without a lookup.
func accountNumber(word string) (int, error) {
	if word == "root" {
		return 0, nil
	}
	n, err := strconv.ParseInt(word, 10, 32)
	return int(n), err
}

// numeric reports whether an owner needs no lookup in an image.
func numeric(word string) bool {
	user, group, _ := strings.Cut(word, ":")
	_, uerr := accountNumber(user)
	_, gerr := accountNumber(group)
	return uerr == nil && (group == "" || gerr == nil)
}

// userOf resolves USER in the image in dir. Like the program at run time, it falls back to
// root for unknown names.
func userOf(dir, word string) *unpack.User {
	user, group, grouped := strings.Cut(word, ":")
	o, err := parseOwner(dir, word)
	if user == "" || err != nil {
		return &unpack.User{}
	}
	u := &unpack.User{UID: o.uid, GID: o.gid}
	if _, err := strconv.Atoi(user); err == nil && (!grouped || group == "") {
		u.GID = 0 // as in docker; unlike --chown
		users, _ := accounts(dir, "/etc/passwd")
		for _, l := range users {
			if l[2] == user {
				u.GID, _ = strconv.Atoi(l[3])
				break
			}
		}
	}
	return u
}

// identity returns what programs of USER see of themselves: the IDs, and the groups in which the
// image's files have the user, unless USER names a group.
func identity(dir, word string, u *unpack.User) *fakeroot.Identity {
	id := &fakeroot.Identity{UID: uint32(u.UID), GID: uint32(u.GID), Groups: []uint32{uint32(u.GID)}}
	if _, group, _ := strings.Cut(word, ":"); group != "" {
		return id
	}
	name := ""
	users, _ := accounts(dir, "/etc/passwd")
	for _, l := range users {
		if l[2] == strconv.Itoa(u.UID) {
			name = l[0]
			break
		}
	}
	groups, _ := accounts(dir, "/etc/group")
	for _, l := range groups {
		gid, err := strconv.ParseUint(l[2], 10, 32)
		if err == nil && name != "" && slices.Contains(strings.Split(l[3], ","), name) &&
			!slices.Contains(id.Groups, uint32(gid)) && len(id.Groups) < maxGroups {
			id.Groups = append(id.Groups, uint32(gid))
		}
	}
	return id
}

// maxGroups is the largest number of a process's groups, NGROUPS_MAX.
const maxGroups = 65536

// accounts returns the lines of the image's passwd or group file, split at colons. It leaves
// out lines of fewer than four fields. The error is [fs.ErrNotExist] if the file cannot be opened.
func accounts(dir, file string) (out [][]string, err error) {
	p, err := securejoin.SecureJoin(dir, file)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would block
	if err != nil {
		return nil, fs.ErrNotExist
	}
	defer f.Close()
	for sc := bufio.NewScanner(io.LimitReader(f, maxAccounts)); sc.Scan(); {
		if l := strings.Split(sc.Text(), ":"); len(l) >= 4 {
			out = append(out, l)
		}
	}
	return out, nil
}

// maxAccounts limits the size of an image's passwd or group file, in bytes.
const maxAccounts = 1 << 20

// account looks up a name in the image's passwd or group file. It returns user and group ID,
// or only the group ID.
func account(dir, file, name string) (n [2]int, err error) {
	lines, err := accounts(dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("the image has no %s to look up %q; give a number", file, name)
	}
	if err != nil {
		return n, err
	}
	i := slices.IndexFunc(lines, func(l []string) bool { return l[0] == name })
	if i < 0 {
		return n, fmt.Errorf("%s of the image does not have %q", file, name)
	}
	n[0], err = strconv.Atoi(lines[i][2])
	if g, gerr := strconv.Atoi(lines[i][3]); gerr == nil {
		n[1] = g
	}
	return n, err
}
