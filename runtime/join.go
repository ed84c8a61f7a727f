package runtime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/runtime/process"
)

// Tasks of one node that read each other's memory (process_vm_readv(2), "cross-memory
// attach" in MPI libraries) need a common user namespace.
//
// They find each other by a file in the user's own directory on the node (joinDir), locked
// while a task creates or enters the namespaces, until its program starts. Its first line is the run, each further
// line a task that joined. A new task enters the namespaces of any living task, or creates
// new ones. So no task waits for one that never starts, the kernel releases the lock of a
// dead task, and no process remains. Once the expected number of tasks has joined, the last
// one removes the file. If fewer join, the user's next such run removes it.

// joinTimeout is how long a task waits for the lock. Creating the namespaces takes
// milliseconds unless a file system hangs.
const joinTimeout = 30 * time.Second

func wantsJoin(s *specs.Spec) bool {
	return s.Annotations[joinMark] != "" || joinPID(s) != 0
}

// joinPID returns the process whose namespaces s names, or 0.
func joinPID(s *specs.Spec) (pid int) {
	if s.Linux != nil {
		for _, n := range s.Linux.Namespaces {
			if n.Type == specs.UserNamespace && n.Path != "" {
				_, _ = fmt.Sscanf(n.Path, "/proc/%d/", &pid)
			}
		}
	}
	return pid
}

// join runs s in shared namespaces. It returns only on failure.
func join(s *specs.Spec) error {
	if requested, _ := earlyNamespaces(); requested {
		return errors.New("--join must be a separate argument before the image: it is too late to join")
	}
	if !deferred() {
		return errors.New("this binary cannot join: it was linked without its entry point; build it with make")
	}
	if pid := joinPID(s); pid != 0 {
		user, mnt, err := openNamespaces(pid)
		if err != nil {
			return fmt.Errorf("joining process %d: %w; it must be a run of yours on this node", pid, err)
		}
		return carry(s, markJoin, user, mnt, noFD)
	}
	count, _ := strconv.Atoi(s.Annotations[joinCountMark])
	if count == 1 {
		return carry(s, markEnter, noFD, noFD, noFD)
	}
	dir, err := joinDir()
	if err != nil {
		return fmt.Errorf("joining the tasks of %q: %w", s.Annotations[joinMark], err)
	}
	g, err := openGroup(dir, s.Annotations[joinMark])
	if err != nil {
		return err
	}
	what, err := json.Marshal([]any{s.Root, s.Mounts, s.Linux, s.Annotations[writeFakeMark]})
	if err != nil {
		return err
	}
	running, members, err := g.read()
	if err != nil {
		return err
	}
	for _, m := range members {
		user, mnt, lives := m.open()
		if !lives {
			continue
		}
		if !bytes.Equal(running, what) {
			return fmt.Errorf("joining %q: process %d of it runs another image or has other mounts; all tasks of a node must be given the same, or another --join-tag", s.Annotations[joinMark], m.pid)
		}
		if err := g.add(m.user, m.mnt); err != nil {
			return err
		}
		if count > 0 && len(members)+1 >= count {
			_ = os.Remove(g.file)
		}
		return carry(s, markJoin, user, mnt, g.FD)
	}
	sweep(g.file)
	if err := g.begin(what); err != nil {
		return err
	}
	return carry(s, markEnter, noFD, noFD, g.FD)
}

// openNamespaces opens the shared namespaces of a process.
func openNamespaces(pid int) (user, mnt int, err error) {
	if user, err = unix.Open(fmt.Sprintf("/proc/%d/ns/user", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return -1, -1, err
	}
	if mnt, err = unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		unix.Close(user)
		return -1, -1, err
	}
	return user, mnt, nil
}

// inode returns the inode number that identifies a namespace, namespaces(7).
func inode(fd int) uint64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

// A group is the locked file through which the tasks of a node find each other.
type group struct {
	FD   int
	file string
}

// A member is a task that joined, and its namespaces.
type member struct {
	pid       int
	started   uint64 // see [process.StartTime]
	user, mnt uint64
}

// shownTimeout is how long a living member's namespaces may stay unreadable.
const shownTimeout = 10 * time.Second

// open opens the namespaces of a living member; the pid of a dead one may belong to another
// process. A member's new namespaces become readable only after its program starts:
// execve(2) closes the descriptor with the lock shortly before it makes the process dumpable
// again, proc(5).
func (m *member) open() (user, mnt int, lives bool) {
	user, mnt, err := openNamespaces(m.pid)
	for begun := time.Now(); errors.Is(err, fs.ErrPermission) && m.lives() && time.Since(begun) < shownTimeout; {
		time.Sleep(time.Millisecond)
		user, mnt, err = openNamespaces(m.pid)
	}
	if err != nil {
		return -1, -1, false
	}
	if inode(user) != m.user || inode(mnt) != m.mnt {
		unix.Close(user)
		unix.Close(mnt)
		return -1, -1, false
	}
	return user, mnt, true
}

// lives reports whether the process with the member's pid is the one that joined.
func (m *member) lives() bool {
	started, err := process.StartTime(m.pid)
	return err == nil && started == m.started
}

// joinDir returns the user's directory for groups, in the node's memory if possible. All the
// user's tasks on the node share it, and no other user can access its contents.
func joinDir() (dir string, err error) {
	for _, shared := range []string{"/dev/shm", "/tmp"} {
		var place string
		if place, err = files.Trusted(shared); err != nil {
			continue
		}
		if dir, err = files.PrivateDir(place, "hpcc-join-"+strconv.Itoa(os.Getuid()), true); err == nil {
			return dir, nil
		}
	}
	return "", err
}

// groupFile returns the path of the file through which the tasks with a tag find each other.
func groupFile(dir, tag string) string {
	safe := strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') || (r >= '0' && r <= '9') || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, tag)
	if safe != tag || len(tag) > 80 {
		h := fnv.New64a()
		h.Write([]byte(tag))
		safe = fmt.Sprintf("%s-%x", safe[:min(len(safe), 60)], h.Sum64())
	}
	return filepath.Join(dir, "tag-"+safe) // the prefix makes the tags "." and ".." safe
}

// openGroup opens and locks the file of a tag.
func openGroup(dir, tag string) (*group, error) {
	g := &group{file: groupFile(dir, tag)}
	until := time.Now().Add(joinTimeout)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if g.FD <= 0 {
			var err error
			if g.FD, err = unix.Open(g.file, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600); err != nil {
				return nil, fmt.Errorf("joining the tasks of %q: opening %q: %w; remove it, or choose another --join-tag", tag, g.file, err)
			}
		}
		err := unix.Flock(g.FD, unix.LOCK_EX|unix.LOCK_NB)
		var st unix.Stat_t
		if serr := unix.Fstat(g.FD, &st); serr != nil {
			return nil, fmt.Errorf("joining the tasks of %q: checking %q: %w", tag, g.file, serr)
		}
		if err == nil && st.Nlink > 0 {
			return g, nil
		}
		if st.Nlink == 0 { // the group completed meanwhile and removed this file
			unix.Close(g.FD)
			g.FD = 0
			continue
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return nil, fmt.Errorf("joining the tasks of %q: locking %q: %w", tag, g.file, err)
		}
		if time.Now().After(until) {
			return nil, fmt.Errorf("joining the tasks of %q: another task has been making the namespaces for %v; is a file system stuck? %s names the tasks", tag, joinTimeout, g.file)
		}
		time.Sleep(pause)
	}
}

// maxGroup bounds the size of a group's file, in bytes.
const maxGroup = 4 << 20

// read returns the group's run and its members.
func (g *group) read() (what []byte, members []member, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(g.FD, &st); err != nil || st.Size > maxGroup {
		return nil, nil, fmt.Errorf("reading %q: too large (%d bytes); remove it", g.file, st.Size)
	}
	b := make([]byte, st.Size)
	n, err := unix.Pread(g.FD, b, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %q: %w", g.file, err)
	}
	what, rest, _ := bytes.Cut(b[:n], []byte("\n"))
	for line := range strings.Lines(string(rest)) {
		var m member
		if k, _ := fmt.Sscanf(line, "%d %d %d %d\n", &m.pid, &m.started, &m.user, &m.mnt); k == 4 {
			members = append(members, m)
		}
	}
	return what, members, nil
}

// begin starts the group with this process as the first member, before it has namespaces.
func (g *group) begin(what []byte) error {
	err := unix.Ftruncate(g.FD, 0)
	if err == nil {
		_, err = unix.Pwrite(g.FD, append(bytes.Clone(what), '\n'), 0)
	}
	if err != nil {
		return fmt.Errorf("writing %q: %w", g.file, err)
	}
	return nil
}

// add records this process and its namespaces as a member.
func (g *group) add(user, mnt uint64) error {
	started, err := process.StartTime(os.Getpid())
	if err != nil {
		return fmt.Errorf("joining: %w", err)
	}
	end, err := unix.Seek(g.FD, 0, 2)
	if err == nil {
		_, err = unix.Pwrite(g.FD, fmt.Appendf(nil, "%d %d %d %d\n", os.Getpid(), started, user, mnt), end)
	}
	if err != nil {
		return fmt.Errorf("writing the file of joined tasks: %w", err)
	}
	return nil
}

// enter records the namespaces that this process created, unless the process joined others.
func (g *group) enter() error {
	_, members, err := g.read()
	if err != nil || len(members) > 0 {
		return err
	}
	user, mnt, err := openNamespaces(os.Getpid())
	if err != nil {
		return fmt.Errorf("opening the run's own namespaces: %w", err)
	}
	defer unix.Close(user)
	defer unix.Close(mnt)
	return g.add(inode(user), inode(mnt))
}

// sweep removes the files of groups without living members, except one.
func sweep(except string) {
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(except), "tag-*"))
	for _, f := range files {
		if f == except {
			continue
		}
		fd, err := unix.Open(f, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		g := &group{FD: fd, file: f}
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil && !g.alive() {
			_ = os.Remove(f)
		}
		unix.Close(fd)
	}
}

// alive reports whether a member of the group lives.
func (g *group) alive() bool {
	_, members, err := g.read()
	for _, m := range members {
		if user, mnt, lives := m.open(); lives {
			unix.Close(user)
			unix.Close(mnt)
			return true
		}
	}
	return err != nil
}
