package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A checked directory is safe to use by path only if nobody can replace it afterwards. Every
// user who can rename entries of a directory on the path can replace it. [Trusted] therefore
// walks the path from the root by descriptors. It refuses a directory that belongs to a third
// user (neither root nor the caller), or that its group or everybody can write to without a
// sticky bit. A path that passes leads to the same directory until root or the user changes
// it. This process can use the path, also after it executes itself again, and so can its
// child processes.

// ExposedError reports a directory or symbolic link on a path that users other than root and
// the caller can replace, or whose entries they can replace.
type ExposedError struct {
	Path  string
	Owner int         // the third user who owns it; -1 if it is root or the caller
	Mode  fs.FileMode // permission bits of a directory that others can write to; 0 for others
}

// World reports whether every user of the node can replace the entries.
func (e *ExposedError) World() bool { return e.Mode&0o002 != 0 }

func (e *ExposedError) Error() string {
	switch {
	case e.Owner >= 0:
		return fmt.Sprintf("%q belongs to user %d, who can replace its entries", e.Path, e.Owner)
	case e.World():
		return fmt.Sprintf("every user can replace the entries of %q (mode %o, no sticky bit)", e.Path, e.Mode)
	}
	return fmt.Sprintf("its group can replace the entries of %q (mode %o, no sticky bit)", e.Path, e.Mode)
}

// maxLinks is the maximum number of symbolic links in a walk, as in the kernel.
const maxLinks = 40

// A walker holds an open descriptor for each directory on the path so far.
type walker struct {
	fds     []int    // the root directory first
	names   []string // of fds[1:]
	exposed []*ExposedError
}

// Resolve follows path component by component. It returns the physical path and every exposed
// directory and link on it. If a component does not exist, the error is [fs.ErrNotExist] and
// exposed holds the directories and links before it.
func Resolve(path string) (physical string, exposed []*ExposedError, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", nil, fmt.Errorf("finding %q: %w", path, err)
	}
	w := &walker{}
	defer w.close(0)
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &fs.PathError{Op: "opening", Path: "/", Err: err}
	}
	if err := w.enter(root, ""); err != nil {
		return "", nil, err
	}
	links, todo := 0, strings.Split(abs, "/")
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			w.close(max(1, len(w.fds)-1))
			continue
		}
		target, err := w.down(name)
		if target != "" {
			links++
			todo = append(strings.Split(target, "/"), todo...)
		}
		if links > maxLinks {
			err = unix.ELOOP
		}
		if err != nil {
			return "", w.exposed, &fs.PathError{Op: "opening", Path: w.path(name), Err: err}
		}
		if filepath.IsAbs(target) {
			w.close(1)
		}
	}
	return w.path(""), w.exposed, nil
}

// down enters the directory name, or returns the target of the symbolic link name.
//
// The entry cannot change between the two calls unless the directory is already recorded as
// exposed, so opening by name is safe. The "/." makes the kernel mount automounted file
// systems.
func (w *walker) down(name string) (target string, err error) {
	dir := w.fds[len(w.fds)-1]
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if !trusted(st.Uid) {
			w.exposed = append(w.exposed, &ExposedError{Path: w.path(name), Owner: int(st.Uid)})
		}
		b := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, name, b)
		return string(b[:max(n, 0)]), err
	}
	fd, err := unix.Openat(dir, name+"/.", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	return "", w.enter(fd, name)
}

// enter makes the open directory fd the current one and checks it.
func (w *walker) enter(fd int, name string) error {
	if len(w.fds) > 0 {
		w.names = append(w.names, name)
	}
	w.fds = append(w.fds, fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if !trusted(st.Uid) {
		w.exposed = append(w.exposed, &ExposedError{Path: w.path(""), Owner: int(st.Uid)})
	} else if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		w.exposed = append(w.exposed, &ExposedError{Path: w.path(""), Owner: -1, Mode: fs.FileMode(st.Mode & 0o777)})
	}
	return nil
}

// path returns the physical path of the current directory, or of an entry in it.
func (w *walker) path(entry string) string {
	return filepath.Join("/", filepath.Join(w.names...), entry)
}

// close closes all directories except the first keep.
func (w *walker) close(keep int) {
	for _, fd := range w.fds[keep:] {
		unix.Close(fd)
	}
	w.fds, w.names = w.fds[:keep], w.names[:max(0, keep-1)]
}

// trusted reports whether the owner of a directory is root or this user. In a user
// namespace, all unmapped owners look alike, so root cannot be distinguished from a third
// user; they count as root.
func trusted(uid uint32) bool {
	if uid == 0 || int(uid) == os.Geteuid() {
		return true
	}
	overflow, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil || fmt.Sprintf("%d\n", uid) != string(overflow) {
		return false
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && !slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"})
}

// Trusted returns the physical path of a directory that nobody except root and this user can
// replace. Other users may be able to create entries in it (sticky bit); [PrivateDir] handles this.
// The error is an [ExposedError], or the reason why the directory cannot be opened.
func Trusted(dir string) (string, error) {
	physical, exposed, err := Resolve(dir)
	if len(exposed) > 0 {
		return "", exposed[0]
	}
	return physical, err
}

// NodeLocal returns this node's directory for copies of images: $HPCC_STAGE if that is a
// path, else the job's own ($SLURM_TMPDIR, $TMPDIR), else /tmp. Memory (/dev/shm) counts
// against the job, so only $HPCC_STAGE can choose it. The caller must check the result with
// [Trusted].
func NodeLocal() string {
	for _, name := range []string{"HPCC_STAGE", "SLURM_TMPDIR", "TMPDIR"} {
		if d := os.Getenv(name); filepath.IsAbs(d) {
			return filepath.Clean(d)
		}
	}
	return "/tmp"
}

// PrivateDir returns the path of this user's directory name in a directory returned by [Trusted]. It
// belongs to the user and is closed to all others. If it does not exist, Open creates it if
// create is set, else returns [fs.ErrNotExist].
//
// Another user can create an entry with this name first. The directory is then called
// name.RANDOM, which nobody can predict, and later calls find it by its owner.
func PrivateDir(place, name string, create bool) (string, error) {
	n := names{place: place, name: name}
	dir, err := n.find()
	if dir != "" {
		return dir, nil
	}
	path := filepath.Join(place, name)
	if !create {
		return "", &fs.PathError{Op: "opening", Path: path, Err: fs.ErrNotExist}
	}
	mkdirErr := os.Mkdir(path, 0o700)
	if mkdirErr == nil || isPrivate(path) { // another process of this user may have created it first
		return path, nil
	}
	if !errors.Is(mkdirErr, fs.ErrExist) {
		return "", mkdirErr
	}
	if err != nil { // later calls would not find the other name
		return "", fmt.Errorf("%q is not your private directory, and searching for another one failed: %w", path, err)
	}
	return n.agree()
}

// names finds and creates the directory for a name that another user may hold.
//
// All processes of the user must get the same directory, although nobody can predict its
// name. Each process therefore creates a candidate and locks all candidates that it finds. A
// process that has locked all of them, and then finds no others, renames its own candidate to
// the user's directory.
//
// Two processes never lock all candidates at the same time: each creates its candidate before
// it lists them, so the process that lists them later finds both.
type names struct {
	place, name string
}

// candidateInfix separates the name and the random part of a candidate.
const candidateInfix = ".new-"

// agreeTimeout is how long other processes may hold their locks; they need microseconds.
var agreeTimeout = 10 * time.Second

// find returns the user's directory, which has the name or an unpredictable one, or "" if
// it does not exist.
func (n names) find() (string, error) {
	if dir := filepath.Join(n.place, n.name); isPrivate(dir) {
		return dir, nil
	}
	chosen, _, err := n.list()
	return chosen, err
}

// list returns the user's directory with an unpredictable name, or "", and all candidates,
// sorted.
func (n names) list() (chosen string, candidates []string, err error) {
	entries, err := os.ReadDir(n.place)
	if err != nil {
		return "", nil, err
	}
	for _, e := range entries {
		dir := filepath.Join(n.place, e.Name())
		switch {
		case !strings.HasPrefix(e.Name(), n.name+".") || !isPrivate(dir):
		case strings.HasPrefix(e.Name(), n.name+candidateInfix):
			candidates = append(candidates, dir)
		case chosen == "":
			chosen = dir
		}
	}
	return chosen, candidates, nil
}

// agree returns the directory that all processes of the user agree on.
func (n names) agree() (string, error) {
	mine, err := os.MkdirTemp(n.place, n.name+candidateInfix)
	if err != nil {
		return "", err
	}
	defer os.Remove(mine)
	until := time.Now().Add(agreeTimeout)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		dir, err := n.choose(mine)
		if dir != "" || err != nil {
			return dir, err
		}
		if time.Now().After(until) {
			return "", fmt.Errorf("creating a directory for %q: another process of yours has held a lock for %v; continue or end it if it is stopped, and remove the empty directories %q", filepath.Join(n.place, n.name), agreeTimeout, n.name+candidateInfix+"*")
		}
		time.Sleep(pause)
	}
}

// choose renames mine to the user's directory and returns its path, or returns the path of
// the existing directory. It returns "" if another process is choosing.
func (n names) choose(mine string) (string, error) {
	_, candidates, err := n.list()
	if err != nil {
		return "", err
	}
	for _, c := range candidates {
		fd, err := unix.Open(c, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) { // its process is done
			continue
		}
		if err != nil {
			return "", &fs.PathError{Op: "opening", Path: c, Err: err}
		}
		defer unix.Close(fd)
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK || err == unix.EINTR {
			return "", nil
		} else if err != nil {
			return "", &fs.PathError{Op: "locking", Path: c, Err: err}
		}
	}
	if dir := filepath.Join(n.place, n.name); isPrivate(dir) {
		return dir, nil
	}
	chosen, now, err := n.list()
	if chosen != "" || err != nil || !slices.Equal(candidates, now) {
		return chosen, err
	}
	chosen = filepath.Join(n.place, n.name+"."+strings.TrimPrefix(filepath.Base(mine), n.name+candidateInfix))
	return chosen, os.Rename(mine, chosen)
}

// isPrivate reports whether dir is a directory of this user that other users cannot access.
func isPrivate(dir string) bool {
	var st unix.Stat_t
	return unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == os.Geteuid() && st.Mode&0o077 == 0
}
