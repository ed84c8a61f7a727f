package fakeroot

import (
	"bytes"
	"encoding/binary"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// An Identity is the user that programs believe to be. Changes of it, setuid(2) and its like,
// succeed without effect, but a program with the set-user-ID bit of root, such as sudo, and its
// children see root.
type Identity struct {
	UID, GID uint32
	Groups   []uint32 // all groups, as getgroups(2) returns them
}

// isRoot reports whether the kernel's answer is right, except for the groups.
func (i *Identity) isRoot() bool { return i.UID == 0 && i.GID == 0 }

// idCalls return IDs of the calling process.
var idCalls = []uint32{unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETRESUID, unix.SYS_GETRESGID}

// identity answers a call that returns IDs. ok is false for other calls.
func (n *request) identity(stillWaits func() bool, notes *Notes) (value int, ok bool, err error) {
	if notes.User == nil {
		return 0, false, nil
	}
	list := func(ids []uint32) []byte {
		var b []byte
		for _, id := range ids {
			b = binary.NativeEndian.AppendUint32(b, id)
		}
		return b
	}
	me := notes.User
	if !me.isRoot() && n.raised(notes) {
		me = &Identity{Groups: []uint32{0}}
	}
	switch uint32(n.nr) {
	case unix.SYS_GETUID, unix.SYS_GETEUID:
		return int(me.UID), true, nil
	case unix.SYS_GETGID, unix.SYS_GETEGID:
		return int(me.GID), true, nil
	case unix.SYS_GETRESUID, unix.SYS_GETRESGID:
		id := me.UID
		if uint32(n.nr) == unix.SYS_GETRESGID {
			id = me.GID
		}
		if !stillWaits() {
			return 0, true, nil
		}
		for _, at := range n.args[:3] {
			if _, err := n.writeResult(list([]uint32{id}), at, 4); err != nil {
				return 0, true, err
			}
		}
		return 0, true, nil
	case unix.SYS_GETGROUPS:
		size := int(int32(n.args[0]))
		if size == 0 {
			return len(me.Groups), true, nil
		}
		if size < len(me.Groups) {
			return 0, true, unix.EINVAL
		}
		if !stillWaits() {
			return 0, true, nil
		}
		_, err := n.writeResult(list(me.Groups), n.args[1], uint64(4*size))
		return len(me.Groups), true, err
	}
	return 0, false, nil
}

// maxAncestors limits the number of processes that raised examines.
const maxAncestors = 64

// raised reports whether the process or an ancestor in the run executes a program that has
// root's set-user-ID bit in the image, or did when it last asked for its IDs.
func (n *request) raised(notes *Notes) bool {
	if notes.Stat == nil || n.seen == nil {
		return false
	}
	pid := int(n.pid)
	for range maxAncestors {
		if pid <= 0 || pid == os.Getpid() {
			return false
		}
		dir := "/proc/" + strconv.Itoa(pid)
		parent, id := processOf(dir)
		if n.seen.raised[id] {
			return true
		}
		if n.setsRoot(dir+"/exe", notes) {
			if len(n.seen.raised) >= maxSeen {
				clear(n.seen.raised)
			}
			n.seen.raised[id] = true
			return true
		}
		pid = parent
	}
	return false
}

// setsRoot reports whether a program has root's set-user-ID bit in the image.
func (n *request) setsRoot(exe string, notes *Notes) bool {
	fd, err := unix.Open(exe, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || n.corrected(fd, notes, &st) != nil {
		return false
	}
	return st.Uid == 0 && st.Mode&unix.S_ISUID != 0
}

// processOf returns the parent of a process, given its directory in procfs, and what
// distinguishes it from others that have or had its PID, proc_pid_stat(5).
func processOf(dir string) (parent int, id string) {
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, ""
	}
	const ppid, start = 1, 19 // fields after the name, which is in parentheses
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) <= start {
		return 0, ""
	}
	parent, _ = strconv.Atoi(f[ppid])
	return parent, dir + " " + f[start]
}
