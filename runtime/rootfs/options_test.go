package rootfs

import (
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Each option of the runtime specification (config.md, "Linux mount options") has an effect, names a
// default, or is refused.
func TestParseOptions(t *testing.T) {
	const atime = unix.MOUNT_ATTR__ATIME
	attr := func(set, clear uint64) unix.MountAttr { return unix.MountAttr{Attr_set: set, Attr_clr: clear} }
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}
	for _, c := range []struct {
		options string
		bind    Options // of a bind; an error if refused is set
		refused string
		flags   uintptr // of a new tmpfs; 1 is ro
		data    string
	}{
		{options: "async"}, {options: "defaults"}, {options: "silent"}, {options: "loud"}, {options: "nomand"}, {options: "noiversion"}, {options: "nolazytime"}, {options: "bind"}, {options: "rw"}, {options: "ro rw"},
		{options: "rbind", bind: Options{Recursive: true}},
		{options: "ro", bind: Options{below: readOnly}, flags: unix.MS_RDONLY},
		{options: "rbind ro", bind: Options{Recursive: true, below: readOnly}, flags: unix.MS_RDONLY},
		{options: "rro", bind: Options{below: readOnly}, flags: unix.MS_RDONLY},
		{options: "rrw", bind: Options{below: attr(0, unix.MOUNT_ATTR_RDONLY)}},
		{options: "nosuid nodev noexec", bind: Options{own: attr(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, 0)}, flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{options: "rnosuid rnodev rnoexec rnosymfollow", bind: Options{below: attr(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_NOSYMFOLLOW, 0)}, flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSYMFOLLOW},
		{options: "nosuid suid dev exec symfollow", bind: Options{own: attr(0, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_NOSYMFOLLOW)}},
		{options: "rsuid rdev rexec rsymfollow", bind: Options{below: attr(0, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_NOSYMFOLLOW)}},
		{options: "nosymfollow", bind: Options{own: attr(unix.MOUNT_ATTR_NOSYMFOLLOW, 0)}, flags: unix.MS_NOSYMFOLLOW},
		{options: "noatime", bind: Options{own: attr(unix.MOUNT_ATTR_NOATIME, atime)}, flags: unix.MS_NOATIME},
		{options: "strictatime", bind: Options{own: attr(unix.MOUNT_ATTR_STRICTATIME, atime)}, flags: unix.MS_STRICTATIME},
		{options: "relatime", bind: Options{own: attr(0, atime)}}, {options: "atime", bind: Options{own: attr(0, atime)}}, {options: "norelatime", bind: Options{own: attr(0, atime)}}, {options: "nostrictatime", bind: Options{own: attr(0, atime)}},
		{options: "rnoatime", bind: Options{below: attr(unix.MOUNT_ATTR_NOATIME, atime)}, flags: unix.MS_NOATIME},
		{options: "rstrictatime", bind: Options{below: attr(unix.MOUNT_ATTR_STRICTATIME, atime)}, flags: unix.MS_STRICTATIME},
		{options: "rrelatime", bind: Options{below: attr(0, atime)}}, {options: "ratime", bind: Options{below: attr(0, atime)}}, {options: "rnorelatime", bind: Options{below: attr(0, atime)}}, {options: "rnostrictatime", bind: Options{below: attr(0, atime)}},
		{options: "nodiratime rnodiratime", bind: Options{own: attr(unix.MOUNT_ATTR_NODIRATIME, 0), below: attr(unix.MOUNT_ATTR_NODIRATIME, 0)}, flags: unix.MS_NODIRATIME},
		{options: "diratime rdiratime", bind: Options{own: attr(0, unix.MOUNT_ATTR_NODIRATIME), below: attr(0, unix.MOUNT_ATTR_NODIRATIME)}},
		{options: "private", bind: Options{propagation: unix.MS_PRIVATE}}, {options: "rprivate", bind: Options{propagation: unix.MS_PRIVATE | unix.MS_REC}},
		{options: "slave", bind: Options{propagation: unix.MS_SLAVE}}, {options: "rslave", bind: Options{propagation: unix.MS_SLAVE | unix.MS_REC}},
		{options: "shared", bind: Options{propagation: unix.MS_SHARED}}, {options: "rshared", bind: Options{propagation: unix.MS_SHARED | unix.MS_REC}},
		{options: "unbindable", bind: Options{propagation: unix.MS_UNBINDABLE}}, {options: "runbindable", bind: Options{propagation: unix.MS_UNBINDABLE | unix.MS_REC}},
		{options: "dirsync", refused: "belongs to a file system", flags: unix.MS_DIRSYNC}, {options: "sync", refused: "belongs to a file system", flags: unix.MS_SYNCHRONOUS},
		{options: "iversion", refused: "belongs to a file system", flags: unix.MS_I_VERSION}, {options: "lazytime", refused: "belongs to a file system", flags: unix.MS_LAZYTIME},
		{options: "mode=755 size=1m", refused: `unknown option "mode=755"`, data: "mode=755,size=1m"},
		{options: "tmpcopyup", refused: `unknown option "tmpcopyup"`}, {options: "z", refused: `unknown option "z"`, data: "z"},
		{options: "rslave ro", refused: "read-only bind", flags: unix.MS_RDONLY}, {options: "rro slave", refused: "read-only bind", flags: unix.MS_RDONLY},
		{options: "mand", refused: `option "mand"`}, {options: "remount", refused: `option "remount"`},
	} {
		options := strings.Fields(c.options)
		o, err := ParseOptions(specs.Mount{Type: "bind", Options: options})
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: bind: %+v, %v; want the error %q", c.options, o, err, c.refused)
			}
		} else if err != nil || o.Recursive != c.bind.Recursive || o.own != c.bind.own || o.below != c.bind.below || o.propagation != c.bind.propagation || o.Changes() != c.bind.Changes() {
			t.Errorf("%s: bind: %+v, %v; want %+v", c.options, o, err, c.bind)
		}
		if c.options == "mand" || c.options == "remount" {
			continue
		}
		o, err = ParseOptions(specs.Mount{Type: "tmpfs", Options: options})
		if err != nil || o.Flags != c.flags || strings.Join(o.Data, ",") != c.data || o.CopyUp != (c.options == "tmpcopyup") {
			t.Errorf("%s: tmpfs: %+v, %v; want flags %#x and data %q", c.options, o, err, c.flags, c.data)
		}
		for _, w := range options {
			if !slices.Contains(OptionNames(), w) && c.data == "" {
				t.Errorf("OptionNames lacks %q", w)
			}
		}
	}
}
