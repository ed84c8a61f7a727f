// Package runtime runs a program in a root directory with the user's own rights: no root, no
// daemon, no setuid helper, no subordinate IDs.
//
// A run is a [specs.Spec] of the OCI runtime specification. [Spec] creates one from a
// directory tree and the image's configuration. [Exec] turns the calling process into the
// program, so that pid, signals, descriptors and resource limits are the program's own and
// nothing of hpcc remains. [Command] runs the program in a child process. The supported
// parts of the specification are: root, process (args, env, cwd, capabilities, noNewPrivileges), bind,
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
	CleanEnv  bool   // pass only variables of the caller's environment that staysClean keeps
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
	// Apptainer passes the caller's variables as "apptainer exec" does.
	Apptainer bool
	// Docker selects the mounts, the environment, the working directory and the user of "docker
	// run": root, or the image's user.
	Docker bool
	Limits []specs.POSIXRlimit // of the program's resources
	// Capabilities of the program in its user namespace. Nil: all if it is root, else none.
	Capabilities *specs.LinuxCapabilities
	User         string // with Docker, instead of the image's user: NAME or UID, with :GROUP or :GID
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

// StandardPath is the PATH of a program when the image sets none.
const StandardPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Spec returns the specification of a run in the directory tree root, which holds an
// unpacked image with configuration c. The environment is the caller's with the image's on
// top. Callers may still change Process.Env.
func Spec(root string, c ImageConfig, o Options) (*specs.Spec, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
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
		Process: &specs.Process{NoNewPrivileges: true, Rlimits: o.Limits, Capabilities: o.Capabilities},
		Linux:   newNamespaces(unix.Geteuid(), unix.Getegid()),
	}
	addRareOptions(s, o)
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
		s.Process.Env = chRunEnvironment(callerEnv(o, false), root)
		return s, nil
	}
	if o.Docker {
		umask := uint32(0o022)
		s.Process.User.Umask = &umask
		s.Process.Env = dockerEnvironment(c, root, o.Hostname)
		return s, nil
	}
	s.Process.Env = environment(callerEnv(o, home != ""), c, root, home, s.Mounts)
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

// callerEnv returns the part of the caller's environment that the program may see. If the program
// sees the caller's home, it must not use the packages there.
func callerEnv(o Options, hasHome bool) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case o.CleanEnv && !staysClean(name):
			return true
		case o.ChRun:
			return false
		case o.Apptainer:
			return name == "LD_LIBRARY_PATH"
		}
		return isHostSoftware(name, o.Only != "")
	})
	if hasHome && !o.ChRun && !o.Apptainer {
		for _, kv := range noUserPackages {
			env = setVariable(env, kv)
		}
	}
	return env
}

// staysClean reports whether [Options.CleanEnv] keeps a variable of the caller: one of the user and
// the terminal, or one from which a program learns which task or process of a job it is.
func staysClean(name string) bool {
	for _, kept := range [...]string{"USER", "LOGNAME", "TERM", "HPCC_JOB_DIR", "HPCC_TASK_COUNT",
		"HPCC_TASK_DIR", "HPCC_TASK_ID", "LSB_JOBINDEX", "PBS_ARRAY_INDEX",
		"SGE_TASK_ID", "SLURM_ARRAY_TASK_ID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_PROCID"} {
		if name == kept {
			return true
		}
	}
	for _, prefix := range [...]string{"OMPI_COMM_WORLD_", "PMI_", "PMIX_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
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
		m[0] = kernelMount("proc", "/proc")
	}
	if o.NoNetwork {
		m = slices.Replace(m, 1, 2, ownSysfs()...)
	}
	if o.OwnIPC && isDir("/dev/mqueue") {
		m = append(m, kernelMount("mqueue", "/dev/mqueue"))
	}
	if o.Docker { // it has the image's own /tmp
		return addUserMounts(append(m, resolverFiles(o.Hostname)...), o, bindOf)
	}
	if o.PrivateTmp {
		m = append(m, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}})
	} else if tmp := os.Getenv("TMPDIR"); o.ChRun && tmp != "" {
		m = append(m, bind(tmp, "/tmp"))
	} else {
		m = append(m, bind("/tmp", "/tmp"))
	}
	m = append(m, resolverFiles(o.Hostname)...)
	if o.ChRun {
		m = append(m, chRunMounts(root)...)
	}
	if home != "" && !rootfs.Visible(m, home) {
		m = append(m, bind(home, home))
		// If the home is a link, the current directory uses its physical path.
		if p, err := filepath.EvalSymlinks(home); err == nil && !rootfs.Visible(m, p) && vacant(filepath.Join(root, p)) {
			m = append(m, bind(p, p))
		}
	}
	// The image's content wins over a host directory of the same name: only a missing or
	// empty directory is covered.
	if cwd != "/" && !rootfs.Visible(m, cwd) && (!o.NoHome || !isHome(cwd)) && vacant(filepath.Join(root, cwd)) {
		m = append(m, bind(cwd, cwd))
	}
	// A task writes its results to this directory: see "hpcc task".
	if d := filepath.Clean(os.Getenv("HPCC_TASK_DIR")); filepath.IsAbs(d) && !rootfs.Visible(m, d) &&
		isDir(d) && vacant(filepath.Join(root, d)) {
		m = append(m, bind(d, d))
	}
	return addUserMounts(m, o, bindOf)
}

// kernelMount returns the mount of a file system that shows the kernel's data of the namespaces of the
// program.
func kernelMount(kind, at string) specs.Mount {
	return specs.Mount{Destination: at, Type: kind, Source: kind, Options: []string{"nosuid", "nodev", "noexec"}}
}

// ownSysfs returns the mounts at /sys of a program with a network namespace of its own: the host's
// /sys would show the host's devices.
func ownSysfs() []specs.Mount {
	m := []specs.Mount{kernelMount("sysfs", "/sys")}
	if isDir("/sys/fs/cgroup") {
		m = append(m, bind("/sys/fs/cgroup", "/sys/fs/cgroup"))
	}
	return m
}

// addUserMounts appends the user's binds and mounts to m, with the binds that of returns.
func addUserMounts(m []specs.Mount, o Options, of bindFunc) ([]specs.Mount, error) {
	for _, b := range o.Binds {
		x, err := parseBind(b, of)
		if err != nil {
			return nil, err
		}
		m = append(m, x)
	}
	for _, text := range o.Mounts {
		x, err := parseMount(text, of)
		if err != nil {
			return nil, err
		}
		m = append(m, x)
	}
	return m, nil
}

// resolverFiles returns mounts of the host's resolver files that exist. A run with a host name of its
// own has another /etc/hosts ([hostFiles]).
func resolverFiles(name string) []specs.Mount {
	var m []specs.Mount
	host, _ := os.Hostname()
	for _, f := range []string{"/etc/hosts", "/etc/resolv.conf"} {
		if exists(f) && (f != "/etc/hosts" || name == "" || name == host) {
			m = append(m, bind(f, f))
		}
	}
	return m
}

func bind(src, dst string) specs.Mount {
	return specs.Mount{Destination: dst, Type: "bind", Source: src, Options: []string{"rbind"}}
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
	case rootfs.Visible(m, cwd):
		base = cwd
	case image != "":
		base = filepath.Join("/", image)
	}
	if filepath.IsAbs(dir) {
		return filepath.Clean(dir)
	}
	return filepath.Join(base, dir)
}

// environment returns the variables of [callerEnv] with the image's on top. HOME and TMPDIR are
// adjusted to exist inside, and HPCC_RUNNING is set. PATH is the standard one if the image sets none.
func environment(host []string, c ImageConfig, root, home string, m []specs.Mount) []string {
	var env []string
	set := func(kv string) { env = setVariable(env, kv) }
	for _, kv := range host {
		name, v, _ := strings.Cut(kv, "=")
		if name == "PATH" || name == "HOME" || name == "HPCC_RUNNING" || name == ladderVar {
			continue
		}
		if name == "TMPDIR" && !rootfs.Visible(m, filepath.Clean(v)) {
			continue
		}
		env = append(env, kv)
	}
	set("PATH=" + StandardPath)
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

// ChangeEnv applies the user's changes to the environment of a spec of [Spec]. The variable that marks a
// container cannot be changed. A program with [Options.Only] has none, because it may pass its variables
// to programs of the host.
func ChangeEnv(s *specs.Spec, o Options, changes []envfile.Change, expand bool) error {
	vars, err := envfile.Apply(withoutVariable(s.Process.Env, "HPCC_RUNNING"), changes, expand)
	if err != nil {
		return err
	}
	switch {
	case o.ChRun:
		vars = append(withoutVariable(vars, "CH_RUNNING"), "CH_RUNNING=Weird Al Yankovic")
	case o.Only != "":
		vars = withoutVariable(vars, "HPCC_RUNNING")
	default:
		vars = append(withoutVariable(vars, "HPCC_RUNNING"), "HPCC_RUNNING=1")
	}
	s.Process.Env = vars
	return nil
}

func withoutVariable(env []string, name string) []string {
	return slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
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
