package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
	"hpcc/runtime/rootfs"
)

// Annotations of a Spec. noPasswdMark keeps the image's own passwd and group files.
// writeFakeMark holds Options.WriteFake. hostProcMark binds the host's /proc if the kernel
// refuses a new one, as it does in a container whose /proc is partly covered
// (mount_too_revealing, Linux 4.2 and later).
const (
	noPasswdMark  = "hpcc.nopasswd"
	hostProcMark  = "hpcc.hostproc"
	writeFakeMark = "hpcc.writefake"
)

// joinMark is the annotation that holds the tag of the tasks that share namespaces.
// joinCountMark holds the expected number of these tasks, if known.
const (
	joinMark      = "hpcc.join"
	joinCountMark = "hpcc.join.count"
)

// argv0Mark is the annotation that holds Options.Argv0.
const argv0Mark = "hpcc.argv0"

// DefaultFake is the default limit for the changes of [WriteFake], as a share of the
// machine's memory; ch-run uses the same.
const DefaultFake = "12%"

// addRareOptions applies to s the options of o that most runs do not use.
func addRareOptions(s *specs.Spec, o Options) {
	annotate := func(name, value string) {
		if value != "" {
			if s.Annotations == nil {
				s.Annotations = map[string]string{}
			}
			s.Annotations[name] = value
		}
	}
	if o.FakeRoot {
		annotate(fakeRootMark, "1")
	}
	if o.NoPasswd {
		annotate(noPasswdMark, "1")
	}
	if o.Docker {
		annotate(makeCwdMark, "1")
	}
	annotate(writeFakeMark, o.WriteFake)
	annotate(Architecture, o.Architecture)
	annotate(argv0Mark, o.Argv0)
	annotate(joinMark, o.JoinTag)
	if o.JoinCount != 0 {
		annotate(joinCountMark, strconv.Itoa(o.JoinCount))
	}
	if o.JoinPID != 0 {
		for i, file := range []string{"user", "mnt"} { // in the order of newNamespaces
			s.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", o.JoinPID, file)
		}
	}
	if o.UID != nil {
		s.Linux.UIDMappings[0].ContainerID = uint32(*o.UID)
	}
	if o.GID != nil {
		s.Linux.GIDMappings[0].ContainerID = uint32(*o.GID)
	}
	addNamespace := func(wanted bool, t specs.LinuxNamespaceType) {
		if wanted {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: t})
		}
	}
	addNamespace(o.NoNetwork, specs.NetworkNamespace)
	addNamespace(o.Hostname != "", specs.UTSNamespace)
	addNamespace(o.OwnPIDs, specs.PIDNamespace)
	addNamespace(o.OwnIPC, specs.IPCNamespace)
	s.Hostname = o.Hostname
}

// Check returns an error for options that no machine could fulfil.
func (o *Options) Check() error {
	if _, err := addUserMounts(nil, *o, unseenBind); err != nil {
		return err
	}
	if o.WriteFake != "" && !isSize(o.WriteFake) {
		return fmt.Errorf("reading the size limit %q for changes: not a number followed by k, m, g or %%", o.WriteFake)
	}
	return nil
}

// isSize reports whether s is a size in the syntax of tmpfs(5).
func isSize(s string) bool {
	digits := strings.TrimRight(strings.ToLower(s), "kmg%")
	n, err := strconv.ParseUint(digits, 10, 63)
	return err == nil && n > 0 && len(s)-len(digits) <= 1 && !(strings.HasSuffix(s, "%") && n > 100)
}

// mountWriteFake mounts the image directory img at Base, for [Options.WriteFake]. Changes go
// to a tmpfs of at most size. If overlays do not work, it copies the image to that tmpfs.
func mountWriteFake(img int, size string) error {
	if err := unix.Mount("tmpfs", rootfs.Base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size="+size); err != nil {
		return fmt.Errorf("mounting a tmpfs for changes: %w", err)
	}
	for _, d := range []string{"/upper", "/work"} {
		if err := os.Mkdir(rootfs.Base+d, 0o755); err != nil {
			return fmt.Errorf("creating directories for changes: %w", err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(img, &st); err == nil {
		_ = os.Chmod(rootfs.Base+"/upper", os.FileMode(st.Mode&0o777)) // the root takes its mode from the upper directory
	}
	// Without extended attributes on its directories (tmpfs before Linux 6.6), an overlay can
	// neither remove nor rename a directory of the image.
	attrErr := unix.Setxattr(rootfs.Base+"/upper", "user.hpcc.trial", []byte("1"), 0)
	if attrErr != nil {
		why := fmt.Errorf("the tmpfs for changes does not support extended attributes: %w", attrErr)
		if copied, err := copyWriteFake(img, why, smallCopy); copied || err != nil {
			return err
		}
	}
	data := "lowerdir=" + rawfile.Path(img) + ",upperdir=" + rootfs.Base + "/upper,workdir=" + rootfs.Base + "/work"
	err := unix.Mount("overlay", rootfs.Base, "overlay", 0, data+",userxattr")
	if err != nil {
		_, err = copyWriteFake(img, err, math.MaxInt64)
		return err
	}
	if attrErr != nil {
		fmt.Fprintf(os.Stderr, "hpcc: -W: directories of the image cannot be removed or renamed: the tmpfs for changes does not support extended attributes (Linux 6.6 does), and the image is larger than %d MB, so it was not copied\n", smallCopy>>20)
	}
	return nil
}

// A bindFunc returns a bind of a source at dst; see [bindOf].
type bindFunc func(source, dst string) (specs.Mount, error)

// unseenBind is a bindFunc that does not look at the source, which another machine may have.
func unseenBind(source, dst string) (specs.Mount, error) { return bind(source, dst), nil }

// parseBind parses the argument of "-b", SRC[:DST[:ro|rw]].
func parseBind(arg string, of bindFunc) (specs.Mount, error) {
	f := strings.Split(arg, ":")
	bad := func(why string) (specs.Mount, error) {
		return specs.Mount{}, fmt.Errorf("bind %q: %s; write SRC[:DST[:ro]]", arg, why)
	}
	switch {
	case len(f) > 3:
		return bad("too many colons (for a path that contains one, use --mount type=bind,source=SRC,target=DST)")
	case f[0] == "":
		return bad("the source is empty")
	case len(f) == 3 && f[2] != "ro" && f[2] != "rw":
		return bad("unknown option " + f[2])
	}
	m, err := of(f[0], f[0])
	if err == nil && len(f) > 1 {
		m.Destination, err = cleanDestination(f[1])
	}
	switch {
	case err != nil:
		return bad(err.Error())
	case m.Destination == "/":
		return bad("the destination is the root directory")
	case len(f) == 3 && f[2] == "ro":
		m.Options = append(m.Options, "ro")
	}
	return m, nil
}

// bindOf returns a bind mount of an existing source at dst. If dst is the source's own name,
// the destination is the source's absolute path.
func bindOf(source, dst string) (specs.Mount, error) {
	src := filepath.Clean(source)
	if !filepath.IsAbs(src) { // by the physical path, because $PWD may be stale
		dir, err := unix.Getwd()
		if err != nil {
			return specs.Mount{}, fmt.Errorf("finding the current directory: %w", err)
		}
		src = filepath.Join(dir, src)
	}
	physical, err := filepath.EvalSymlinks(src)
	if err == nil {
		_, err = os.Stat(physical)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return specs.Mount{}, errors.New("SRC does not exist")
	}
	if err != nil {
		return specs.Mount{}, fmt.Errorf("SRC: %w", errors.Unwrap(err))
	}
	if dst == source {
		dst = src
	}
	return bind(physical, dst), nil
}

// cleanDestination checks and cleans the destination path of a mount.
func cleanDestination(dst string) (string, error) {
	switch {
	case dst == "":
		return "", errors.New("the destination is empty")
	case !filepath.IsAbs(dst):
		return "", errors.New("the destination is not absolute")
	case strings.Contains("/"+dst+"/", "/../"):
		return "", errors.New(`the destination contains ".."`)
	case filepath.Clean(dst) == "/":
		return "", errors.New("the destination is the root directory")
	}
	return filepath.Clean(dst), nil
}

// parseMount parses type=bind|tmpfs,source=…,target=…, as for docker's --mount. It refuses
// options that hpcc does not support.
func parseMount(arg string, of bindFunc) (specs.Mount, error) {
	bad := func(format string, a ...any) (specs.Mount, error) {
		return specs.Mount{}, fmt.Errorf("reading mount %q: %s; write type=bind,source=SRC,target=DST[,readonly] or type=tmpfs,target=DST[,tmpfs-size=SIZE][,noexec][,noatime]", arg, fmt.Sprintf(format, a...))
	}
	kind, src, dst, size, mode := "", "", "", "", "1777"
	ro := false
	var flags []string // options of a tmpfs without a value
	var tmpfsOnly string
	for _, item := range strings.Split(arg, ",") {
		k, v, hasValue := strings.Cut(item, "=")
		switch k {
		case "type":
			kind = v
		case "source", "src":
			src = v
		case "target", "destination", "dst":
			dst = v
		case "readonly", "ro":
			if hasValue && v != "true" && v != "1" && v != "false" && v != "0" {
				return bad("%s must be true or false", k)
			}
			ro = !hasValue || v == "true" || v == "1"
		case "noexec", "noatime":
			if hasValue {
				return bad("%s has no value", k)
			}
			flags, tmpfsOnly = append(flags, k), k
		case "tmpfs-size", "size":
			size, tmpfsOnly = v, k
		case "tmpfs-mode", "mode":
			mode, tmpfsOnly = v, k
		default:
			return bad("unknown option %q", k)
		}
	}
	target, err := cleanDestination(dst)
	if err != nil {
		return bad("%v", err)
	}
	switch kind {
	case "bind":
		if src == "" {
			return bad("the source is empty")
		}
		if tmpfsOnly != "" {
			return bad("%s is for type=tmpfs", tmpfsOnly)
		}
		m, err := of(src, target)
		if err != nil {
			return bad("%v", err)
		}
		if m.Destination = target; ro {
			m.Options = append(m.Options, "ro")
		}
		return m, nil
	case "tmpfs":
		if src != "" {
			return bad("a source is for type=bind")
		}
		if _, err := strconv.ParseUint(mode, 8, 12); err != nil {
			return bad("tmpfs-mode %q is not an octal mode", mode)
		}
		m := specs.Mount{Destination: target, Type: "tmpfs", Source: "tmpfs",
			Options: append([]string{"nosuid", "nodev", "mode=" + mode}, flags...)}
		if size != "" {
			if !isSize(size) {
				return bad("tmpfs-size %q is not a size", size)
			}
			m.Options = append(m.Options, "size="+size)
		}
		if ro {
			m.Options = append(m.Options, "ro")
		}
		return m, nil
	}
	return bad("type %q is not bind or tmpfs", kind)
}
