package runtime

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/envfile"
	"hpcc/runtime/accounts"
	"hpcc/runtime/rawfile"
	"hpcc/runtime/rootfs"
)

// lowestRootMark is the annotation of a Spec that marks the host's root as the lowest mount.
// Exec and Command set it while they still see the host's root.
const lowestRootMark = "hpcc.lowestroot"

// noteLowestRoot returns s, with the annotation lowestRootMark if it applies.
func noteLowestRoot(s *specs.Spec) *specs.Spec {
	if s.Annotations[lowestRootMark] != "" || !rootfs.IsLowest() {
		return s
	}
	noted := *s
	noted.Annotations = map[string]string{lowestRootMark: "1"}
	for k, v := range s.Annotations {
		noted.Annotations[k] = v
	}
	return &noted
}

// enterRoot makes the spec's root, with all its mounts, the root of this process's mount
// namespace, which must be private to this process.
func enterRoot(s *specs.Spec) error {
	if s.Annotations[onlyMark] != "" {
		return mountOverHost(s)
	}
	src, err := rootfs.OpenSources(s.Mounts)
	if err != nil {
		return err
	}
	img, err := unix.Open(s.Root.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening image directory %q: %w", s.Root.Path, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detaching from the host's mounts: %w", err)
	}
	if err := rootfs.CloneSources(s.Mounts, src); err != nil {
		return err
	}
	files, err := accountMounts(s)
	if err != nil {
		return err
	}
	fake := s.Annotations[writeFakeMark]
	if fake != "" {
		err = mountWriteFake(img, fake)
	} else {
		err = unix.Mount(rawfile.Path(img), rootfs.Base, "", unix.MS_BIND|unix.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("mounting image directory %q: %w", s.Root.Path, err)
	}
	r := &rootfs.Root{Write: !s.Root.Readonly || fake != "", Scratch: files.scratch, Lowest: s.Annotations[lowestRootMark] != ""}
	if r.FD, err = unix.Open(rootfs.Base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("opening the new root: %w", err)
	}
	if !r.Write {
		if err := rootfs.ReadOnly(r.FD); err != nil {
			return fmt.Errorf("making the image read-only: %w", err)
		}
	}
	all := append(s.Mounts[:len(s.Mounts):len(s.Mounts)], files.mounts...)
	src = append(src, files.fds...)
	if err := r.Plan(all, src); err != nil {
		return fmt.Errorf("creating a writable layer for mount points in /: %w", err)
	}
	hostProc := s.Annotations[hostProcMark] != ""
	for i, m := range all {
		from := src[i]
		if err := mountInside(r, m, from, hostProc); err != nil {
			return fmt.Errorf("mounting %q at %q: %w", m.Source, m.Destination, err)
		}
		if from >= 0 {
			unix.Close(from) // ulimit -n may be small
		}
	}
	if !s.Root.Readonly && s.Annotations[fakeRootMark] == "" { // a build removes them
		r.RecordAdded()
	}
	if err := r.Seal(); err != nil {
		return err
	}
	if err := r.Pivot(); err != nil {
		return err
	}
	makeCwd(s)
	return nil
}

// extraFiles holds generated files and the mounts that bind them. The files are in scratch,
// a tmpfs without a path; scratch is -1 if there are no files.
type extraFiles struct {
	mounts  []specs.Mount
	fds     []int
	scratch int
}

// A generatedFile is a file below /etc that a run makes; there is none without data.
type generatedFile struct {
	name string
	data []byte
}

// accountMounts writes generated files, if needed, to a tmpfs below the new root: passwd, group,
// and those with the run's host name. The root is mounted over it, so the files keep no path.
func accountMounts(s *specs.Spec) (extraFiles, error) {
	x := extraFiles{scratch: -1}
	files := hostFiles(s)
	if s.Annotations[noPasswdMark] == "" {
		uid, gid := visibleIDs(s)
		passwd, group := accounts.Files(s.Root.Path, uid, gid, envfile.Lookup(s.Process.Env, "HOME"))
		files = append(files, generatedFile{"passwd", passwd}, generatedFile{"group", group})
	}
	files = slices.DeleteFunc(files, func(f generatedFile) bool { // files that the user mounts stay
		path := "/etc/" + f.name
		return slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return rootfs.Inside(path, m.Destination) })
	})
	if !slices.ContainsFunc(files, func(f generatedFile) bool { return f.data != nil }) {
		return x, nil
	}
	if err := unix.Mount("tmpfs", rootfs.Base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4m,mode=755"); err != nil {
		return x, fmt.Errorf("mounting a tmpfs for the passwd entry: %w", err)
	}
	var err error
	if x.scratch, err = unix.Open(rootfs.Base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return x, fmt.Errorf("opening a tmpfs for the passwd entry: %w", err)
	}
	for _, f := range files {
		if f.data == nil {
			continue
		}
		p := rootfs.Base + "/" + f.name
		if err := rawfile.Write(p, f.data, unix.O_CREAT); err != nil {
			return x, fmt.Errorf("writing the user's %s entry: %w", f.name, err)
		}
		fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return x, fmt.Errorf("opening the user's %s entry: %w", f.name, err)
		}
		x.mounts = append(x.mounts, specs.Mount{Destination: "/etc/" + f.name, Type: "bind", Source: f.name})
		x.fds = append(x.fds, fd)
	}
	return x, nil
}

// mountInside performs one mount of the spec inside r. from is the open source of a bind
// mount. With hostProc, it binds the host's /proc if the kernel refuses to mount a new one.
func mountInside(r *rootfs.Root, m specs.Mount, from int, hostProc bool) error {
	o, err := rootfs.ParseOptions(m)
	if err != nil {
		return err
	}
	wantDir := true
	if from >= 0 {
		var st unix.Stat_t
		if err := unix.Fstat(from, &st); err != nil {
			return err
		}
		wantDir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	}
	to, where, err := r.OpenMountPoint(m.Destination, wantDir)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	r.NoteMount(where, m.Type == "bind")
	if m.Type == "sysfs" {
		if err := r.MountSysfs(m.Destination, to, o.Flags); err != nil {
			return err
		}
	} else if m.Type != "bind" {
		err := unix.Mount(m.Source, rawfile.Path(to), m.Type, o.Flags, strings.Join(o.Data, ","))
		if errors.Is(err, unix.EPERM) && m.Type == "proc" && hostProc {
			return showHostProc(to)
		}
		if err != nil && m.Type == "proc" {
			return fmt.Errorf("mounting a new /proc: %w; the host's /proc is partly covered, as in a container: run without --pid", err)
		}
		if err != nil || !o.CopyUp {
			return err
		}
	} else if err := rootfs.BindSource(m, from, to, unix.MS_REC); err != nil || !o.Changes() {
		return err
	}
	// The fd "to" refers to the covered directory: look up the mount that covers it.
	top, _, err := r.OpenMountPoint(m.Destination, wantDir)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	if o.CopyUp {
		if err := CopyUp(to, top, o); err != nil {
			return err
		}
	}
	return o.Apply(top)
}

// showHostProc binds the host's /proc at to.
func showHostProc(to int) error {
	from, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	return rootfs.Bind(from, to, unix.MS_REC)
}
