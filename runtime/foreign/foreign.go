// Package foreign prepares a container's program for a user without an account in the image,
// such as OpenShift's and Kubernetes' users: hpcc entry.
//
//	NewUser: a name, a home, directories for caches ─► Become or Child
//
// Settings of the image or the pod are kept if they work. getpwuid(3) finds the name only if
// /etc/passwd is writable or the image has libnss_wrapper.
package foreign

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/runtime/accounts"
	"hpcc/runtime/inherit"
	"hpcc/runtime/process"
	"hpcc/runtime/rawfile"
)

// A User is the user of this process, whose IDs have no account in the image, as OpenShift and
// Kubernetes assign them: there is no passwd line, HOME is "/", and root owns the files.
type User struct {
	Env  []string // for the program
	Note string   // one line about what could not be set up; empty if nothing is missing

	uid, gid int
	newHome  bool // HOME is a private directory that NewUser created
}

// NewUser gives this process a user name that getpwuid(3) finds, a home, and writable
// directories for caches. It keeps settings of the image or the pod that work.
//
// The name comes from the first of these that works: an existing line in /etc/passwd (CRI-O
// adds one); a line added to it; libnss_wrapper; only the variables USER and LOGNAME.
// NewUser fails with a [process.Error] if a name or a home would span more than one field of
// a line, because that could impersonate another user.
func NewUser() (*User, error) {
	n := &User{Env: os.Environ(), uid: os.Getuid(), gid: os.Getgid()}
	passwd := accounts.ReadInside("/", n.passwdFile())
	line := accounts.Entry(passwd, 2, strconv.Itoa(n.uid))
	n.setHome(line)
	if line != nil {
		n.setDefault("USER", line[0])
		n.setDefault("LOGNAME", line[0])
	} else if err := n.register(passwd); err != nil {
		return nil, &process.Error{Status: process.ExitFailed, Err: fmt.Errorf("entering as user %d: %w", n.uid, err)}
	}
	n.setCacheDirs()
	if n.gid == 0 && n.uid != 0 {
		// A later pod may run with another uid, but in the same group.
		unix.Umask(0o002)
	}
	return n, nil
}

// Become turns this process into a program of the image. The first process of a namespace
// remains as its init (runtime/first.go). It returns only on failure, with a [process.Error].
func (n *User) Become(args []string) error {
	exe, err := n.find(args[0])
	if err != nil {
		return err
	}
	exec := inherit.Exec
	if os.Getpid() == 1 { // linked without the entry point of runtime/entry.go
		exec = process.AsInit
	}
	return process.ExecError(exe, args[0], exec(exe, args, n.Env))
}

// Child returns a program of the image as a command, for a caller that remains its parent.
// The error is a [process.Error].
func (n *User) Child(args []string) (*exec.Cmd, error) {
	exe, err := n.find(args[0])
	if err != nil {
		return nil, err
	}
	return &exec.Cmd{Path: exe, Args: args, Env: n.Env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}, nil
}

// StartError explains, as a [process.Error], why the kernel did not start the child.
func (n *User) StartError(child *exec.Cmd, err error) error {
	if e := syscall.Errno(0); errors.As(err, &e) {
		err = e
	}
	return process.ExecError(child.Path, child.Args[0], err)
}

// find finds a program of the image.
func (n *User) find(name string) (string, error) {
	path := envfile.Lookup(n.Env, "PATH")
	if path == "" {
		path = runtime.StandardPath
	}
	return process.LookPath(name, path)
}

// passwdFile returns the file with the user names: libnss_wrapper's, if it is in use, else
// /etc/passwd.
func (n *User) passwdFile() string {
	if f := envfile.Lookup(n.Env, "NSS_WRAPPER_PASSWD"); f != "" && strings.Contains(envfile.Lookup(n.Env, "LD_PRELOAD"), "nss_wrapper") {
		return f
	}
	return etcPasswd
}

// etcPasswd is the default passwd file, relative to the root.
const etcPasswd = "etc/passwd"

// setHome keeps HOME if it is writable. Otherwise it uses the home of the passwd line, or
// creates a directory.
func (n *User) setHome(line []string) {
	homes := []string{envfile.Lookup(n.Env, "HOME")}
	if len(line) > 5 {
		homes = append(homes, line[5])
	}
	for _, h := range homes {
		if filepath.IsAbs(h) && filepath.Clean(h) != "/" && (writable(h) || (os.MkdirAll(h, 0o770) == nil && writable(h))) {
			n.set("HOME", h)
			return
		}
	}
	h, err := n.privateDir("hpcc-home")
	if err != nil {
		n.setDefault("HOME", "/")
		n.Note = fmt.Sprintf("no directory for HOME (%s) or caches is writable; mount one at /tmp", envfile.Lookup(n.Env, "HOME"))
		return
	}
	n.newHome = true
	n.set("HOME", h)
}

// register finds a name for a uid without one and makes it known by the best available
// method. passwd is the file's content.
func (n *User) register(passwd []byte) error {
	home := envfile.Lookup(n.Env, "HOME")
	name, err := newName(passwd, n.uid, envfile.Lookup(n.Env, "USER"), envfile.Lookup(n.Env, "LOGNAME"))
	if err != nil {
		return err
	}
	if strings.ContainsFunc(home, breaksField) {
		return fmt.Errorf("HOME %q contains a colon or a line break, which /etc/passwd does not allow", home)
	}
	n.set("USER", name)
	n.set("LOGNAME", name)
	group := accounts.ReadInside("/", "etc/group")
	line := passwdLine(name, n.uid, n.gid, home)
	groups := n.groupLines(group)
	if n.passwdFile() == etcPasswd && appendTo("/"+etcPasswd, passwd, line) == nil {
		for _, g := range groups {
			if appendTo("/etc/group", group, g) != nil {
				break
			}
			group = accounts.AppendLine(group, g)
		}
		return nil
	}
	n.useNSSWrapper(passwd, group, line, groups)
	return nil
}

// passwdLine formats a line of passwd(5).
func passwdLine(name string, uid, gid int, home string) string {
	return fmt.Sprintf("%s:x:%d:%d:%s:%s:/bin/sh", name, uid, gid, name, home)
}

// groupLines returns lines for those of this process's groups that group lacks.
func (n *User) groupLines(group []byte) []string {
	ids, err := os.Getgroups()
	if err != nil {
		ids = nil
	}
	var out []string
	for _, gid := range append([]int{n.gid}, ids...) {
		g := strconv.Itoa(gid)
		line := "group" + g + ":x:" + g + ":"
		if accounts.Entry(group, 2, g) == nil && accounts.Entry(group, 0, "group"+g) == nil && !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	return out
}

// useNSSWrapper adds the lines to copies of the passwd and group files and makes programs use
// these through libnss_wrapper. It does nothing if the image does not have the library, or if
// no directory is writable.
func (n *User) useNSSWrapper(passwd, group []byte, line string, groups []string) {
	library := nssWrapper(envfile.Lookup(n.Env, "LD_PRELOAD"))
	if library == "" {
		return
	}
	dir, err := n.privateDir("hpcc-names")
	if err != nil {
		return
	}
	if len(passwd) == 0 {
		passwd = []byte(accounts.DefaultPasswd)
	}
	if len(group) == 0 {
		group = []byte(accounts.DefaultGroup)
	}
	for _, g := range groups {
		group = accounts.AppendLine(group, g)
	}
	for name, data := range map[string][]byte{"passwd": accounts.AppendLine(passwd, line), "group": group} {
		if rawfile.Write(filepath.Join(dir, name), data, unix.O_CREAT|unix.O_TRUNC) != nil {
			return
		}
	}
	n.set("NSS_WRAPPER_PASSWD", filepath.Join(dir, "passwd"))
	n.set("NSS_WRAPPER_GROUP", filepath.Join(dir, "group"))
	if old := envfile.Lookup(n.Env, "LD_PRELOAD"); !strings.Contains(old, library) {
		if old != "" {
			old = ":" + old
		}
		n.set("LD_PRELOAD", library+old)
	}
}

// nssWrapper returns the path of https://cwrap.org/nss_wrapper.html, or "". preload is the
// current value of LD_PRELOAD.
func nssWrapper(preload string) string {
	for _, f := range strings.FieldsFunc(preload, func(r rune) bool { return r == ':' || r == ' ' }) {
		if strings.Contains(f, "nss_wrapper") {
			return f
		}
	}
	for _, pattern := range []string{"/usr/lib/*-linux-gnu*/", "/lib/*-linux-gnu*/", "/usr/lib64/",
		"/usr/lib/", "/lib64/", "/lib/", "/usr/local/lib/", "/opt/conda/lib/"} {
		found, _ := filepath.Glob(pattern + "libnss_wrapper.so") // the pattern is valid
		if len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// cacheDirs lists variables for directories to which programs write, with their paths below
// the home. With always, a new home sets the variable even if it was unset, because it takes
// precedence over HOME or because programs would otherwise need the user's name.
var cacheDirs = []struct {
	name, below string
	always      bool
}{
	{"XDG_CACHE_HOME", ".cache", true},
	{"XDG_CONFIG_HOME", ".config", false},
	{"XDG_DATA_HOME", ".local/share", false},
	{"XDG_STATE_HOME", ".local/state", false},
	{"MPLCONFIGDIR", ".cache/matplotlib", true},
	{"TORCHINDUCTOR_CACHE_DIR", ".cache/torchinductor", true},
	{"TRITON_CACHE_DIR", ".cache/triton", false},
	{"TORCH_HOME", ".cache/torch", false},
	{"HF_HOME", ".cache/huggingface", false},
	{"NUMBA_CACHE_DIR", ".cache/numba", false},
	{"PIP_CACHE_DIR", ".cache/pip", false},
	{"CUDA_CACHE_PATH", ".nv/ComputeCache", false},
	{"JUPYTER_CONFIG_DIR", ".jupyter", false},
	{"JUPYTER_DATA_DIR", ".local/share/jupyter", false},
	{"JUPYTER_RUNTIME_DIR", ".local/share/jupyter/runtime", false},
}

// Variables returns the variables that [NewUser] sets to usable directories if needed.
func Variables() []string {
	names := []string{"TMPDIR"}
	for _, p := range cacheDirs {
		names = append(names, p.name)
	}
	return names
}

// setCacheDirs sets variables that name unusable directories to directories below the home. It
// keeps a directory that contains files, because programs read them.
func (n *User) setCacheDirs() {
	home := envfile.Lookup(n.Env, "HOME")
	if writable(home) && filepath.Clean(home) != "/" {
		for _, p := range cacheDirs {
			value := envfile.Lookup(n.Env, p.name)
			if (value == "" && n.newHome && p.always) || (value != "" && !usable(value)) {
				n.set(p.name, filepath.Join(home, p.below))
			}
		}
	}
	if tmp := envfile.Lookup(n.Env, "TMPDIR"); (tmp != "" && !writable(tmp)) || (tmp == "" && !writable("/tmp")) {
		if dirs := n.scratch(); len(dirs) > 0 {
			n.set("TMPDIR", dirs[0])
		}
	}
}

// usable reports whether a directory is writable, can be created, or contains files.
func usable(dir string) bool {
	for p := filepath.Clean(dir); ; p = filepath.Dir(p) {
		st, err := os.Stat(p)
		if errors.Is(err, fs.ErrNotExist) && p != "/" {
			continue
		}
		if err != nil || !st.IsDir() {
			return false
		}
		if writable(p) {
			return true
		}
		if p != filepath.Clean(dir) {
			return false
		}
		f, err := os.Open(p)
		if err != nil {
			return false
		}
		defer f.Close()
		names, _ := f.Readdirnames(1)
		return len(names) > 0
	}
}

// scratch returns the writable temporary directories, best first.
func (n *User) scratch() []string {
	dirs := []string{envfile.Lookup(n.Env, "TMPDIR"), "/tmp", "/var/tmp"}
	if cwd, err := os.Getwd(); err == nil {
		dirs = append(dirs, cwd)
	}
	dirs = append(dirs, "/dev/shm") // small, and uses the container's memory
	return slices.DeleteFunc(dirs, func(d string) bool {
		return !filepath.IsAbs(d) || filepath.Clean(d) == "/" || strings.ContainsFunc(d, breaksField) || !writable(d)
	})
}

// privateDir creates a directory for this user alone in a scratch directory. A restarted
// container finds its previous one.
func (n *User) privateDir(name string) (string, error) {
	err := fs.ErrNotExist
	for _, in := range n.scratch() {
		dir := filepath.Join(in, name+"-"+strconv.Itoa(n.uid))
		if err = os.Mkdir(dir, 0o700); err == nil || (errors.Is(err, fs.ErrExist) && n.isPrivate(dir)) {
			return dir, nil
		}
		if dir, err = os.MkdirTemp(in, name+"-"); err == nil {
			return dir, nil
		}
	}
	return "", err
}

// isPrivate reports whether a directory belongs to this user and only this user may write to
// it.
func (n *User) isPrivate(dir string) bool {
	var st unix.Stat_t
	return unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == n.uid && st.Mode&0o022 == 0
}

// newName returns a name for a uid without a passwd line: the first of wanted that is valid
// and not in use, else a generated one.
func newName(passwd []byte, uid int, wanted ...string) (string, error) {
	for _, w := range wanted {
		if strings.ContainsFunc(w, breaksField) {
			return "", fmt.Errorf("the user name %q contains a colon or a line break, which /etc/passwd does not allow", w)
		}
	}
	u := strconv.Itoa(uid)
	names := append(wanted, "user", "user"+u)
	if uid == 0 {
		names = []string{"root", "root0"}
	}
	for _, name := range names {
		if isName(name) && accounts.Entry(passwd, 0, name) == nil {
			return name, nil
		}
	}
	for i := 2; ; i++ {
		if name := fmt.Sprintf("user%s-%d", u, i); accounts.Entry(passwd, 0, name) == nil {
			return name, nil
		}
	}
}

// breaksField reports whether a character is invalid in a field of passwd(5).
func breaksField(r rune) bool { return r == ':' || r < ' ' || r == 0x7f }

// isName reports whether s is a valid user name (useradd(8)).
func isName(s string) bool {
	if s == "" || len(s) > 32 {
		return false
	}
	for i, r := range s {
		letter := (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') || r == '_'
		if !letter && (i == 0 || ((r < '0' || r > '9') && r != '-' && r != '.')) {
			return false
		}
	}
	return true
}

// appendTo adds a line to an existing file with the given content.
func appendTo(name string, content []byte, line string) error {
	if len(content) > 0 && content[len(content)-1] != '\n' {
		line = "\n" + line
	}
	return rawfile.Write(name, []byte(line+"\n"), unix.O_APPEND)
}

// writable reports whether a directory exists and files can be created in it.
func writable(dir string) bool {
	st, err := os.Stat(dir)
	return err == nil && st.IsDir() && unix.Access(dir, unix.W_OK|unix.X_OK) == nil
}

// set sets a variable, replacing all earlier values.
func (n *User) set(name, value string) {
	n.Env = slices.DeleteFunc(n.Env, func(v string) bool { return strings.HasPrefix(v, name+"=") })
	n.Env = append(n.Env, name+"="+value)
}

// setDefault sets a variable unless it has a value.
func (n *User) setDefault(name, value string) {
	if envfile.Lookup(n.Env, name) == "" {
		n.set(name, value)
	}
}
