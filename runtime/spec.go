// Package runtime runs a program in a root directory with the user's own rights: no root, no
// daemon, no setuid helper, no subordinate IDs.
//
// A run is a [specs.Spec] of the OCI runtime specification. [Spec] creates one from a
// directory tree and the image's configuration. [Exec] turns the calling process into the
// program, so that pid, signals, descriptors and resource limits are the program's own and
// nothing of hpcc remains. [Command] runs the program in a child process. The supported
// parts of the specification are: root, process (args, env, cwd, noNewPrivileges), bind,
// tmpfs and proc mounts, user and mount namespaces with one mapped ID, pid, network and host
// name namespaces, and a seccomp filter that fakes ownership.
//
// The package isolates file trees, not hostile programs: a program runs with exactly the
// rights of the user who started it.
package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/envfile"
	"hpcc/runtime/accounts"
	"hpcc/runtime/rootfs"
)

// Options describe how a program runs. The zero value is the usual "hpcc run": the caller's
// own IDs, home and current directory, and a read-only image.
type Options struct {
	Args       []string // program and arguments; empty: the image's own
	Dir        string   // working directory inside; relative to the default one
	Binds      []string // SRC[:DST[:ro]]
	Write      bool     // leave the root writable
	NoHome     bool     // do not show the user's home directory
	PrivateTmp bool     // an empty /tmp of its own instead of the host's
	Mounts     []string // type=bind|tmpfs,source=,target=,…
	// WriteFake, if set, lets the program change the root but discards the changes. They are
	// kept in memory; the value is the limit ("12%", "500m").
	WriteFake string
	UID, GID  *int   // IDs that the program sees itself under; nil: the caller's
	FakeRoot  bool   // changes of ownership and identity appear to succeed
	NoPasswd  bool   // no entry for the user in the program's /etc/passwd
	CleanEnv  bool   // pass only USER, LOGNAME and TERM from the caller's environment
	NoNetwork bool   // only a loopback interface
	Hostname  string // host name inside; empty: the host's
	OwnPIDs   bool   // new pid namespace with an init
	OwnIPC    bool   // System V IPC objects and POSIX message queues of its own
	JoinTag   string // share namespaces with the other tasks of this tag
	JoinCount int    // expected number of these tasks; 0: unknown
	JoinPID   int    // run in the namespaces of this process
	Argv0     string // argv[0] of the program; empty: its name in Args
	// Only, if set, is a directory of the image. The root is the host's, and the image's
	// directory is mounted in it.
	Only  string
	ChRun bool // mounts, environment and working directory of Charliecloud's ch-run
	// Docker selects the mounts, the environment, the working directory and the user of "docker
	// run": root, or the image's user.
	Docker bool
	Limits []specs.POSIXRlimit // of the program's resources
	User   string              // with Docker, instead of the image's user: NAME or UID, with :GROUP or :GID
	// Architecture is the image's (GOARCH); "" is this machine's.
	Architecture string
}

// fakeRootMark is the annotation of a Spec that makes calls succeed without effect if they
// change ownership, identity or devices. [Command] can record their arguments.
const fakeRootMark = "hpcc.fakeroot"

// BuildAnnotations returns the annotations for the Spec of a RUN instruction. The program
// believes that it is root and sees the image's own passwd file. It sees the host's /proc if
// the kernel refuses a new one. arch is the image's GOARCH.
func BuildAnnotations(arch string) map[string]string {
	return map[string]string{fakeRootMark: "1", noPasswdMark: "1", hostProcMark: "1", Architecture: arch}
}

// StandardPath is the PATH of a program when neither the image nor the caller sets one.
const StandardPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Spec returns the specification of a run in the directory tree root, which holds an
// unpacked image with configuration c. The environment is the caller's with the image's on
// top. Callers may still change Process.Env.
func Spec(root string, c ImageConfig, o Options) (*specs.Spec, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("finding the image's directory: %w", err)
	}
	if st, err := os.Stat(root); err != nil {
		return nil, fmt.Errorf("opening image directory %q: %w", root, errors.Unwrap(err))
	} else if !st.IsDir() {
		return nil, fmt.Errorf("opening image directory %q: not a directory", root)
	}
	if o.Docker {
		if err := o.likeDocker(root, &c); err != nil {
			return nil, err
		}
	}
	s := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: root, Readonly: !o.Write},
		Process: &specs.Process{NoNewPrivileges: true, Rlimits: o.Limits},
		Linux:   newNamespaces(unix.Geteuid(), unix.Getegid()),
	}
	if err := addRareOptions(s, o); err != nil {
		return nil, err
	}
	if o.Only != "" {
		return s, overHost(s, root, c, o)
	}
	home, cwd := "", callerDir()
	if o.ChRun || o.Docker {
		cwd = "/"
	}
	if h := userHome(); !o.NoHome && h != "" && isDir(h) {
		home = h
	}
	s.Mounts, err = mounts(root, home, cwd, o)
	if err != nil {
		return nil, err
	}
	s.Process.Cwd = workingDir(s.Mounts, cwd, c.WorkingDir, o.Dir)
	if s.Process.Args, err = programArgs(c, o.Args); err != nil {
		return nil, err
	}
	if o.ChRun {
		s.Process.Env = chRunEnvironment(callerEnv(o), root)
		return s, nil
	}
	if o.Docker {
		umask := uint32(0o022)
		s.Process.User.Umask = &umask
		s.Process.Env = dockerEnvironment(c, root, o.Hostname)
		return s, nil
	}
	s.Process.Env = environment(callerEnv(o), c, root, home, s.Mounts)
	return s, nil
}

// programArgs returns the argv of the program: the image's entry point, followed by the caller's
// arguments or the image's.
func programArgs(c ImageConfig, args []string) ([]string, error) {
	if len(args) == 0 {
		args = c.Cmd
	}
	if args = slices.Concat(c.Entrypoint, args); len(args) == 0 {
		return nil, errors.New("no command was given and the image does not define one; write it after the image: IMAGE -- CMD")
	}
	return args, nil
}

// callerEnv returns the part of the caller's environment that the program may see.
func callerEnv(o Options) []string {
	if o.CleanEnv {
		return only(os.Environ(), "USER", "LOGNAME", "TERM")
	}
	return os.Environ()
}

// newNamespaces returns a new user and a new mount namespace in which only these IDs are
// mapped.
func newNamespaces(uid, gid int) *specs.Linux {
	return &specs.Linux{
		Namespaces:  []specs.LinuxNamespace{{Type: specs.UserNamespace}, {Type: specs.MountNamespace}},
		UIDMappings: []specs.LinuxIDMapping{{ContainerID: uint32(uid), HostID: uint32(unix.Geteuid()), Size: 1}},
		GIDMappings: []specs.LinuxIDMapping{{ContainerID: uint32(gid), HostID: uint32(unix.Getegid()), Size: 1}},
	}
}

// callerDir returns the physical path of the current directory. It ignores $PWD, which
// launchers leave stale and which may pass through links that do not exist inside. The
// result is "/" if the directory was removed or the user may not search it, because no
// program can start there.
func callerDir() string {
	d, err := unix.Getwd()
	if err != nil || unix.Access(d, unix.X_OK) != nil {
		return "/"
	}
	return d
}

// userHome returns the caller's home directory, or "".
func userHome() string {
	h := os.Getenv("HOME")
	if h == "" {
		if f := accounts.Entry(accounts.HostFile("passwd"), 2, strconv.Itoa(unix.Geteuid())); len(f) > 5 {
			h = f[5]
		}
	}
	if h = filepath.Clean(h); !filepath.IsAbs(h) || h == "/" {
		return ""
	}
	return h
}

// mounts returns the default mounts followed by the user's binds.
func mounts(root, home, cwd string, o Options) ([]specs.Mount, error) {
	m := []specs.Mount{bind("/proc", "/proc"), bind("/sys", "/sys"), bind("/dev", "/dev")}
	if o.OwnPIDs {
		m[0] = specs.Mount{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "nodev", "noexec"}}
	}
	if o.Docker { // it has the image's own /tmp
		return addUserMounts(append(m, resolverFiles()...), o)
	}
	if o.PrivateTmp {
		m = append(m, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}})
	} else if tmp := os.Getenv("TMPDIR"); o.ChRun && tmp != "" {
		m = append(m, bind(tmp, "/tmp"))
	} else {
		m = append(m, bind("/tmp", "/tmp"))
	}
	m = append(m, resolverFiles()...)
	if o.ChRun {
		m = append(m, chRunMounts(root)...)
	}
	if home != "" && !under(m, home) {
		m = append(m, bind(home, home))
		// If the home is a link, the current directory uses its physical path.
		if p, err := filepath.EvalSymlinks(home); err == nil && !under(m, p) && vacant(filepath.Join(root, p)) {
			m = append(m, bind(p, p))
		}
	}
	// The image's content wins over a host directory of the same name: only a missing or
	// empty directory is covered.
	if cwd != "/" && !under(m, cwd) && (!o.NoHome || !isHome(cwd)) && vacant(filepath.Join(root, cwd)) {
		m = append(m, bind(cwd, cwd))
	}
	// A task writes its results to this directory: see "hpcc task".
	if d := filepath.Clean(os.Getenv("HPCC_TASK_DIR")); filepath.IsAbs(d) && !under(m, d) && isDir(d) && vacant(filepath.Join(root, d)) {
		m = append(m, bind(d, d))
	}
	return addUserMounts(m, o)
}

// addUserMounts appends the user's binds and mounts to m.
func addUserMounts(m []specs.Mount, o Options) ([]specs.Mount, error) {
	for _, b := range o.Binds {
		x, err := parseBind(b)
		if err != nil {
			return nil, err
		}
		m = append(m, x)
	}
	for _, text := range o.Mounts {
		x, err := parseMount(text)
		if err != nil {
			return nil, err
		}
		m = append(m, x)
	}
	return m, nil
}

// resolverFiles returns mounts of the host's resolver files that exist.
func resolverFiles() []specs.Mount {
	var m []specs.Mount
	for _, f := range []string{"/etc/hosts", "/etc/resolv.conf"} {
		if exists(f) {
			m = append(m, bind(f, f))
		}
	}
	return m
}

func bind(src, dst string) specs.Mount {
	return specs.Mount{Destination: dst, Type: "bind", Source: src, Options: []string{"rbind"}}
}

// under reports whether path is at or below the destination of a mount that binds the host's
// directory of the same name.
func under(m []specs.Mount, path string) bool {
	for _, x := range m {
		if x.Type == "bind" && x.Source == x.Destination && rootfs.Inside(path, x.Destination) {
			return true
		}
	}
	return false
}

func isDir(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.IsDir()
}

func isHome(p string) bool {
	h := userHome()
	if h == "" {
		return false
	}
	physical, err := filepath.EvalSymlinks(h)
	return rootfs.Inside(p, h) || (err == nil && rootfs.Inside(p, physical))
}

// vacant reports whether a mount at p would hide nothing of the image.
func vacant(p string) bool {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO would block
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	n, _ := f.Readdirnames(1)
	return len(n) == 0
}

// workingDir returns the directory in which the program starts: the caller's if it is
// visible inside, else the image's, else the root. dir is relative to that.
func workingDir(m []specs.Mount, cwd, image, dir string) string {
	base := "/"
	switch {
	case under(m, cwd):
		base = cwd
	case image != "":
		base = filepath.Join("/", image)
	}
	if filepath.IsAbs(dir) {
		return filepath.Clean(dir)
	}
	return filepath.Join(base, dir)
}

// hostOnly are the caller's variables that name files of the host and break programs of the
// image. An env file can still set them.
var hostOnly = []string{"LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT"}

// environment returns the caller's variables with the image's on top. HOME and TMPDIR are
// adjusted to exist inside, and HPCC_RUNNING is set. PATH is the caller's if the image sets
// none.
func environment(host []string, c ImageConfig, root, home string, m []specs.Mount) []string {
	var env []string
	set := func(kv string) { env = setVariable(env, kv) }
	for _, kv := range host {
		name, v, _ := strings.Cut(kv, "=")
		if name == "PATH" || name == "HOME" || name == "HPCC_RUNNING" || name == ladderVar || contains(hostOnly, name) {
			continue
		}
		if name == "TMPDIR" && !under(m, filepath.Clean(v)) {
			continue
		}
		env = append(env, kv)
	}
	set("PATH=" + callerPath(host))
	if home == "" {
		home = accounts.ImageHome(root, c.User)
	}
	set("HOME=" + home)
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); ok && name != "" {
			set(kv)
		}
	}
	set("HPCC_RUNNING=1")
	return env
}

// setVariable replaces or adds a variable, NAME=VALUE.
func setVariable(env []string, kv string) []string {
	name, _, _ := strings.Cut(kv, "=")
	for i, e := range env {
		if strings.HasPrefix(e, name+"=") {
			env[i] = kv
			return env
		}
	}
	return append(env, kv)
}

// callerPath returns the caller's PATH, with /bin appended unless it is listed, as ch-run
// does, or [StandardPath] if it is unset.
func callerPath(host []string) string {
	p := envfile.Lookup(host, "PATH")
	switch {
	case p == "":
		return StandardPath
	case contains(strings.Split(p, ":"), "/bin"):
		return p
	}
	return p + ":/bin"
}

// only returns the variables with these names.
func only(env []string, names ...string) []string {
	var out []string
	for _, e := range env {
		if name, _, _ := strings.Cut(e, "="); contains(names, name) {
			out = append(out, e)
		}
	}
	return out
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// visibleIDs returns the IDs that a process of the spec sees itself under.
func visibleIDs(s *specs.Spec) (uid, gid int) {
	if s.Linux == nil || len(s.Linux.UIDMappings) == 0 || len(s.Linux.GIDMappings) == 0 {
		return unix.Getuid(), unix.Getgid()
	}
	return int(s.Linux.UIDMappings[0].ContainerID), int(s.Linux.GIDMappings[0].ContainerID)
}

func exists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}
