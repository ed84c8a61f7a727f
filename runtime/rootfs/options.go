package rootfs

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

// attributes lists the attributes of mounts by their options: for mount_setattr(2), mount(2) and in
// the result of statfs(2). With the prefix r, the options also apply to the mounts below
// (runtime-spec, config.md, "Linux mount options"). The option off clears the attribute.
var attributes = []struct {
	on, off        string
	attr           uint64
	flag, reported uintptr
}{
	{"ro", "rw", unix.MOUNT_ATTR_RDONLY, unix.MS_RDONLY, unix.ST_RDONLY},
	{"nosuid", "suid", unix.MOUNT_ATTR_NOSUID, unix.MS_NOSUID, unix.ST_NOSUID},
	{"nodev", "dev", unix.MOUNT_ATTR_NODEV, unix.MS_NODEV, unix.ST_NODEV},
	{"noexec", "exec", unix.MOUNT_ATTR_NOEXEC, unix.MS_NOEXEC, unix.ST_NOEXEC},
	{"nodiratime", "diratime", unix.MOUNT_ATTR_NODIRATIME, unix.MS_NODIRATIME, unix.ST_NODIRATIME},
	{"nosymfollow", "symfollow", unix.MOUNT_ATTR_NOSYMFOLLOW, unix.MS_NOSYMFOLLOW, 0x2000}, // ST_NOSYMFOLLOW, <linux/statfs.h>
	{"noatime", "atime", unix.MOUNT_ATTR_NOATIME, unix.MS_NOATIME, unix.ST_NOATIME},
	{"strictatime", "nostrictatime", unix.MOUNT_ATTR_STRICTATIME, unix.MS_STRICTATIME, 0},
	{"relatime", "norelatime", unix.MOUNT_ATTR_RELATIME, unix.MS_RELATIME, unix.ST_RELATIME}, // the default
}

// fileSystemFlags are options of a new file system. A bind cannot change them. Options that
// clear them name the default.
var fileSystemFlags = map[string]uintptr{
	"sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC, "iversion": unix.MS_I_VERSION, "lazytime": unix.MS_LAZYTIME,
}

// propagations are the options for the propagation of later mounts.
var propagations = map[string]uintptr{
	"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE | unix.MS_REC, "slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE | unix.MS_REC,
	"shared": unix.MS_SHARED, "rshared": unix.MS_SHARED | unix.MS_REC, "unbindable": unix.MS_UNBINDABLE,
	"runbindable": unix.MS_UNBINDABLE | unix.MS_REC,
}

// defaults are options that change nothing: they name a default, or only messages of the kernel.
var defaults = []string{"defaults", "async", "noiversion", "nolazytime", "nomand", "silent", "loud", "notmpcopyup"}

// Options are the options of a mount.
type Options struct {
	Recursive bool     // a bind includes the mounts below its source
	CopyUp    bool     // a tmpfs begins with the files that it covers
	Flags     uintptr  // of a new file system, for mount(2)
	Data      []string // of a new file system

	own, below  unix.MountAttr // attributes of the mount itself, and with all mounts below
	propagation uintptr
	names       []string
}

// OptionNames returns the options that [ParseOptions] knows, sorted.
func OptionNames() []string {
	names := append([]string{"bind", "rbind", "tmpcopyup"}, defaults...)
	for _, a := range attributes {
		names = append(names, a.on, a.off, "r"+a.on, "r"+a.off)
	}
	for o := range fileSystemFlags {
		names = append(names, o)
	}
	for o := range propagations {
		names = append(names, o)
	}
	slices.Sort(names)
	return names
}

// ParseOptions parses the options of m. It refuses options that m cannot have. Everything below a
// read-only bind is read-only, because [Bind] may have to include mounts.
func ParseOptions(m specs.Mount) (*Options, error) {
	bind := m.Type == "bind"
	o := &Options{Recursive: slices.Contains(m.Options, "rbind"), names: m.Options}
	for _, name := range m.Options {
		flag := fileSystemFlags[name]
		switch {
		case o.setAttribute(name, bind), slices.Contains(defaults, name), name == "bind", name == "rbind":
		case propagations[name] != 0:
			o.propagation = propagations[name]
		case name == "mand":
			return nil, errors.New(`option "mand" is not supported: Linux 5.15 and later have no mandatory locks`)
		case name == "remount":
			return nil, errors.New(`option "remount" is not supported: a container has only new mounts`)
		case bind && flag != 0:
			return nil, fmt.Errorf("option %q belongs to a file system; a bind cannot change it", name)
		case bind:
			return nil, fmt.Errorf("unknown option %q of a bind", name)
		case flag != 0:
			o.Flags |= flag
		case name == "tmpcopyup" && m.Type == "tmpfs":
			o.CopyUp = true
		default:
			o.Data = append(o.Data, name)
		}
	}
	if o.own.Attr_set&unix.MOUNT_ATTR_RDONLY != 0 {
		o.own.Attr_set &^= unix.MOUNT_ATTR_RDONLY
		o.below.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if o.below.Attr_set&unix.MOUNT_ATTR_RDONLY != 0 {
		if bind && o.propagation&unix.MS_SLAVE != 0 {
			return nil, errors.New("a read-only bind cannot have the option slave or rslave: later mounts of the host would be writable")
		}
		o.below.Propagation = unix.MS_PRIVATE
	}
	for _, a := range attributes {
		if (o.own.Attr_set|o.below.Attr_set)&a.attr != 0 {
			o.Flags |= a.flag
		}
	}
	if o.CopyUp {
		o.Flags &^= unix.MS_RDONLY // until Apply
	}
	return o, nil
}

// setAttribute records an option that is in attributes. The option rw of a bind only
// cancels ro: engines add it to every bind, even of a read-only file system.
func (o *Options) setAttribute(name string, bind bool) bool {
	for _, a := range attributes {
		var to *unix.MountAttr
		switch name {
		case a.on, a.off:
			to = &o.own
		case "r" + a.on, "r" + a.off:
			to = &o.below
		default:
			continue
		}
		changed := a.attr
		if a.flag&(unix.MS_NOATIME|unix.MS_STRICTATIME|unix.MS_RELATIME) != 0 { // one of three
			changed = unix.MOUNT_ATTR__ATIME
		}
		to.Attr_set &^= changed
		if name == a.on || name == "r"+a.on {
			to.Attr_set |= a.attr
		}
		if changed != a.attr || (name == a.off && !(name == "rw" && bind)) || name == "r"+a.off {
			to.Attr_clr |= changed
		}
		return true
	}
	return false
}

// Changes reports whether Apply changes anything.
func (o *Options) Changes() bool {
	return o.own != (unix.MountAttr{}) || o.below != (unix.MountAttr{}) || o.propagation != 0
}

// Apply applies attributes and propagation to the mount of fd.
func (o *Options) Apply(fd int) error {
	err := o.apply(fd)
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: a user cannot clear options of the host's mounts, or change their atime options", err)
	}
	if err != nil {
		return fmt.Errorf("applying the options %s: %w", strings.Join(o.names, ","), err)
	}
	return nil
}

func (o *Options) apply(fd int) error {
	if o.below != (unix.MountAttr{}) {
		if err := setAttr(fd, o.below, true); err != nil {
			return err
		}
	}
	if o.own != (unix.MountAttr{}) {
		if err := setAttr(fd, o.own, false); err != nil {
			return err
		}
	}
	if o.propagation == 0 {
		return nil
	}
	return unix.Mount("", rawfile.Path(fd), "", o.propagation, "")
}

// ReadOnly makes the mount of fd and all mounts below it read-only. Mounts that the host adds later
// do not appear there, because they would be writable.
func ReadOnly(fd int) error {
	return setAttr(fd, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}, true)
}

// WantsRecursive reports whether a read-only bind of source needs the option rro in other runtimes:
// they make only the bind itself read-only, and refuse rro without mount_setattr(2), which is in Linux
// 5.12 and later.
func WantsRecursive(source string) bool {
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{})
	return !errors.Is(err, unix.ENOSYS) || hasMountsBelow(source)
}

// setAttr changes the attributes of the mount of fd, and if recursive those of all mounts below it.
func setAttr(fd int, change unix.MountAttr, recursive bool) error {
	flags, rec := uint(unix.AT_EMPTY_PATH), uintptr(0)
	if recursive {
		flags, rec = flags|unix.AT_RECURSIVE, unix.MS_REC
	}
	err := unix.MountSetattr(fd, "", flags, &change)
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err,
		unix.EINVAL) { // EINVAL: an attribute is unknown, such as nosymfollow before Linux 5.14
		return err
	}
	if change.Propagation != 0 {
		if err := unix.Mount("", rawfile.Path(fd), "", uintptr(change.Propagation)|rec, ""); err != nil {
			return err
		}
	}
	if err := remount(fd, change); err != nil || !recursive {
		return err
	}
	return remountBelow(fd, change)
}

// remountBelow changes the attributes of all mounts below fd that a path leads to, before Linux 5.12.
func remountBelow(fd int, change unix.MountAttr) error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlink(rawfile.Path(fd), buf)
	if err != nil {
		return err
	}
	top := string(buf[:n])
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(top))
	if err != nil {
		return fmt.Errorf("listing the mounts below %q: %w", top, err)
	}
	for _, m := range mounts {
		below, err := filepath.Rel(top, m.Mountpoint)
		if err != nil || below == "." {
			continue
		}
		at, err := (&Root{FD: fd}).Lookup(below)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EACCES):
			continue // covered by another mount, or in a directory that the user may not search
		case err != nil:
			return fmt.Errorf("opening mount %q: %w", m.Mountpoint, err)
		}
		// EINVAL: another mount covers this one, and at is a directory of that.
		if err = remount(at, change); errors.Is(err, unix.EINVAL) {
			err = nil
		}
		unix.Close(at)
		if err != nil {
			return err
		}
	}
	return nil
}

// remount changes the attributes of the mount of fd. It repeats the other attributes, which are
// locked in a user namespace (mount_namespaces(7)).
func remount(fd int, change unix.MountAttr) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	have := uint64(unix.MOUNT_ATTR_STRICTATIME) // unless another mode is reported
	for _, a := range attributes {
		if a.reported&uintptr(st.Flags) != 0 {
			if have |= a.attr; a.flag&(unix.MS_NOATIME|unix.MS_RELATIME) != 0 {
				have &^= unix.MOUNT_ATTR_STRICTATIME
			}
		}
	}
	want := have&^change.Attr_clr | change.Attr_set
	if want == have {
		return nil
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT)
	if want&unix.MOUNT_ATTR__ATIME == 0 {
		flags |= unix.MS_RELATIME
	}
	for _, a := range attributes {
		if want&a.attr != 0 {
			flags |= a.flag
		}
	}
	if err := unix.Mount("", rawfile.Path(fd), "", flags, ""); err != nil {
		return err
	}
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	if want&unix.MOUNT_ATTR_NOSYMFOLLOW != 0 && uintptr(st.Flags)&0x2000 == 0 { // before Linux 5.10
		return errors.New("this kernel does not know the option nosymfollow")
	}
	return nil
}
