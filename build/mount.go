package build

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/build/source"
	"hpcc/envfile"
	"hpcc/unpack"
)

// A Secret is the content of RUN --mount=type=secret: a file or an environment variable of
// the caller. The keys of steps do not depend on it. It is in a layer only if the program
// copies it there.
type Secret struct{ File, Env string }

// A mountSet is the result of the --mount flags of one RUN.
type mountSet struct {
	mounts []specs.Mount
	own    []string // sources of mounts in which mount points may be created
	env    []string
	shown  map[fileID]mountOwner // what programs see of mounted files
	undo   []func()
}

type fileID struct{ dev, ino uint64 }

// A mountOwner is what uid=, gid= and mode= of a mount say.
type mountOwner struct {
	uid, gid, mode uint32
	keep           bool // the mode is the file's own
}

// show makes programs see a mounted file with the owner and mode of its mount. The mount's mode
// defaults to mode. The disk cannot hold the owner, and the file may not be this build's.
func (s *mountSet) show(file string, m *instructions.Mount, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return fmt.Errorf("reading the owner of %q: %w", file, err)
	}
	o := mountOwner{mode: mode, keep: mode == 0 && m.Mode == nil}
	for _, v := range []struct {
		from *uint64
		to   *uint32
	}{{m.UID, &o.uid}, {m.GID, &o.gid}, {m.Mode, &o.mode}} {
		if v.from != nil {
			*v.to = uint32(*v.from)
		}
	}
	if s.shown == nil {
		s.shown = map[fileID]mountOwner{}
	}
	s.shown[fileID{uint64(st.Dev), st.Ino}] = o
	return nil
}

// showTree makes programs see the files of src with the owners and modes in the notes of its
// tree, if those are a table: attributes of the files need no help. Links show root either way.
func (s *mountSet) showTree(notes *unpack.Notes, src string) error {
	if !notes.InMemory() {
		return nil
	}
	if s.shown == nil {
		s.shown = map[fileID]mountOwner{}
	}
	return filepath.WalkDir(src, func(file string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		id, fi, err := identify(file)
		if err != nil || fi.Mode()&fs.ModeSymlink != 0 {
			return err
		}
		var h tar.Header
		notes.Describe(&h, file, fi)
		s.shown[id] = mountOwner{uid: uint32(h.Uid), gid: uint32(h.Gid), mode: uint32(h.Mode)}
		return nil
	})
}

// showCopy makes programs see the files of a copy as those of the original.
func (s *mountSet) showCopy(original, dup string) error {
	if s.shown == nil {
		return nil
	}
	return filepath.WalkDir(dup, func(file string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dup, file)
		if err != nil {
			return err
		}
		from, _, err := identify(filepath.Join(original, rel))
		if err != nil {
			return err
		}
		to, _, err := identify(file)
		if o, ok := s.shown[from]; ok && err == nil {
			s.shown[to] = o
		}
		return err
	})
}

// identify returns the identity and the status of a file. It follows no link.
func identify(file string) (fileID, fs.FileInfo, error) {
	fi, err := os.Lstat(file)
	if err != nil {
		return fileID{}, nil, err
	}
	st := fi.Sys().(*syscall.Stat_t)
	return fileID{uint64(st.Dev), st.Ino}, fi, nil
}

// stat corrects the status of a mounted file.
func (s *mountSet) stat(st *unix.Stat_t) {
	o, ok := s.shown[fileID{uint64(st.Dev), st.Ino}]
	if !ok {
		return
	}
	st.Uid, st.Gid = o.uid, o.gid
	if !o.keep {
		st.Mode = st.Mode&unix.S_IFMT | o.mode&0o7777
	}
}

// close releases the resources of the mounts, last first.
func (s *mountSet) close() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
}

// mountKeyParts returns the part of a RUN's key from its mounts: their targets, and the
// content of bind mounts. Caches, secrets and sockets do not count (Dockerfile reference,
// "RUN --mount").
func (st *stage) mountKeyParts(ctx context.Context, ms []*instructions.Mount) ([]string, error) {
	var parts []string
	for _, m := range ms {
		parts = append(parts, "--mount", string(m.Type), st.mountTarget(m), m.Source, strconv.FormatBool(m.ReadOnly))
		if m.Type == instructions.MountTypeSecret && m.Env != nil {
			parts = append(parts, *m.Env)
		}
		if m.Type != instructions.MountTypeBind && (m.Type != instructions.MountTypeCache || m.From == "") {
			continue
		}
		key, err := st.mountKey(ctx, m)
		if err != nil {
			return nil, err
		}
		parts = append(parts, key)
	}
	return parts, nil
}

// mountKey identifies the content of a mount, by the key of a stage or image or the digest
// of a directory.
func (st *stage) mountKey(ctx context.Context, m *instructions.Mount) (string, error) {
	c, err := st.b.contextOf(ctx, m.From)
	if err != nil {
		return "", err
	}
	if c == nil {
		return st.otherKey(ctx, m)
	}
	set, err := c.Walk(contextPath(m.Source), nil)
	if err != nil {
		return "", err
	}
	return set.Digest()
}

// otherKey identifies what a mount shows of a stage or image. The key of a part is a digest of
// its content, so that changes in the rest of the stage do not invalidate the step.
func (st *stage) otherKey(ctx context.Context, m *instructions.Mount) (string, error) {
	key, open, err := st.otherTree(ctx, m.From)
	if err != nil || contextPath(m.Source) == "." {
		return key, err
	}
	return st.same(ctx, digestOf("--mount", key, m.Source), func() (string, error) {
		dir, done, err := open()
		if err != nil {
			return "", err
		}
		defer done()
		job := &copyJob{keep: true}
		if job.notes, err = unpack.OpenNotes(dir); err != nil {
			return "", err
		}
		src := &source.Dir{Dir: dir, Of: strconv.Quote(m.From)}
		if job.sources, err = src.Find([]string{m.Source}, nil, false); err != nil {
			return "", err
		}
		parts, err := job.keyParts(st.b)
		return digestOf(append([]string{"--mount"}, parts...)...), err
	})
}

// contextPath converts a mount's source to a source of COPY.
func contextPath(source string) string {
	if p := path.Clean("/" + source)[1:]; p != "" {
		return p
	}
	return "."
}

// mountTarget returns the mount point, with the defaults of the Dockerfile reference.
func (st *stage) mountTarget(m *instructions.Mount) string {
	switch {
	case m.Target != "":
		return st.absolute(m.Target)
	case m.Type == instructions.MountTypeSecret:
		return "/run/secrets/" + path.Base(secretID(m))
	}
	return "/"
}

func secretID(m *instructions.Mount) string {
	return cmp.Or(m.Source, m.CacheID, path.Base(m.Target))
}

// nameSockets sets the default targets of agent sockets.
func nameSockets(ms []*instructions.Mount) {
	n := 0
	for _, m := range ms {
		if m.Type != instructions.MountTypeSSH {
			continue
		}
		if m.Target == "" {
			m.Target = "/run/buildkit/ssh_agent." + strconv.Itoa(n)
		}
		n++
	}
}

func sshID(m *instructions.Mount) string {
	if m.CacheID == "" {
		return "default"
	}
	return m.CacheID
}

// openMounts prepares the mounts. The caller must close the set, even after an error.
func (st *stage) openMounts(ctx context.Context, ms []*instructions.Mount) (*mountSet, error) {
	s := &mountSet{}
	for _, m := range ms {
		if t := st.mountTarget(m); t == "/" {
			return s, fmt.Errorf("--mount=type=%s has no target; give target=DIR", m.Type)
		}
		var err error
		switch m.Type {
		case instructions.MountTypeTmpfs:
			o := []string{"nosuid", "nodev"}
			if m.SizeLimit > 0 {
				o = append(o, "size="+strconv.FormatInt(m.SizeLimit, 10))
			}
			s.mounts = append(s.mounts, specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: st.mountTarget(m), Options: o})
		case instructions.MountTypeSecret:
			err = st.openSecret(s, m)
		case instructions.MountTypeSSH:
			err = st.openSSH(s, m)
		case instructions.MountTypeCache:
			err = st.openCache(ctx, s, m)
		default:
			err = st.openBind(ctx, s, m)
		}
		if err != nil {
			return s, fmt.Errorf("--mount=type=%s at %s: %w", m.Type, st.mountTarget(m), err)
		}
	}
	return s, s.nest()
}

// nest sorts the mounts, outer before inner ones, and creates the mount points of mounts
// that lie in a cache or in a private copy.
func (s *mountSet) nest() error {
	slices.SortStableFunc(s.mounts, func(a, b specs.Mount) int {
		return cmp.Compare(strings.Count(a.Destination, "/"), strings.Count(b.Destination, "/"))
	})
	for i, inner := range s.mounts {
		for _, outer := range slices.Backward(s.mounts[:i]) {
			rel, ok := strings.CutPrefix(inner.Destination, outer.Destination+"/")
			if !ok {
				continue
			}
			if slices.Contains(s.own, outer.Source) {
				if err := mountPoint(outer.Source, rel, inner.Source); err != nil {
					return fmt.Errorf("creating the mount point %s in the mount at %s: %w", inner.Destination, outer.Destination, err)
				}
			}
			break
		}
	}
	return nil
}

// mountPoint creates rel in dir, unless it exists: a file if source is one, else a directory.
func mountPoint(dir, rel, source string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := root.Stat(rel); err == nil {
		return nil
	}
	if fi, err := os.Stat(source); err != nil || fi.IsDir() { // a tmpfs has no source
		return root.MkdirAll(rel, 0o755)
	}
	if err := root.MkdirAll(path.Dir(rel), 0o755); err != nil {
		return err
	}
	f, err := root.Create(rel)
	if err != nil {
		return err
	}
	return f.Close()
}

func (s *mountSet) bind(src, dst string, readOnly bool) {
	o := []string{"rbind"}
	if readOnly {
		o = append(o, "ro")
	}
	s.mounts = append(s.mounts, specs.Mount{Type: "bind", Source: src, Destination: dst, Options: o})
}

// mountSource returns the directory to mount: of a context, of a private view of another
// stage's tree, or of an image.
func (st *stage) mountSource(ctx context.Context, s *mountSet, m *instructions.Mount) (string, error) {
	c, err := st.b.contextOf(ctx, m.From)
	if err != nil {
		return "", err
	}
	if c != nil {
		return st.contextMount(c, m.Source)
	}
	_, open, err := st.otherTree(ctx, m.From)
	if err != nil {
		return "", err
	}
	dir, done, err := open()
	s.undo = append(s.undo, done)
	if err != nil {
		return "", err
	}
	notes, err := unpack.OpenNotes(dir)
	if err != nil {
		return "", err
	}
	src, err := securejoin.SecureJoin(dir, m.Source)
	if err != nil {
		return "", err
	}
	if err := s.showTree(notes, src); err != nil && !errors.Is(err, fs.ErrNotExist) { // the caller reports a missing source
		return "", err
	}
	return src, nil
}

// openBind mounts files of the context, a stage or an image. Writes of the program, if
// allowed, are discarded.
func (st *stage) openBind(ctx context.Context, s *mountSet, m *instructions.Mount) error {
	src, err := st.mountSource(ctx, s, m)
	if err != nil {
		return err
	}
	fi, err := os.Stat(src)
	if err != nil {
		return fmt.Errorf("source %q does not exist", m.Source)
	}
	if !m.ReadOnly {
		dir, err := st.scratch()
		if err != nil {
			return err
		}
		private := filepath.Join(dir, "rw")
		if fi.IsDir() {
			_, err = copyTree(src, private)
		} else {
			err = copyFile(src, private, fi.Mode().Perm(), fi.ModTime())
		}
		if err == nil {
			err = s.showCopy(src, private)
		}
		if err != nil {
			return err
		}
		src = private
		s.own = append(s.own, src)
	}
	s.bind(src, st.mountTarget(m), m.ReadOnly)
	return nil
}

// scratch creates a directory that is removed with the build.
func (st *stage) scratch() (string, error) { return os.MkdirTemp(st.b.work, "mount-") }

// contextMount returns a part of a context. It copies the part if .dockerignore excludes some of
// it, or if the times of its files must not reach the program of a reproducible build.
func (st *stage) contextMount(c *source.Dir, from string) (string, error) {
	rel := contextPath(from)
	src, err := securejoin.SecureJoin(c.Dir, rel)
	if err != nil || (c.Ignore == nil && !st.b.Reproducible) {
		return src, err
	}
	set, err := c.Walk(rel, nil)
	if err != nil || (!set.Dir && !st.b.Reproducible) {
		return src, err
	}
	own, err := st.scratch()
	if err != nil {
		return "", err
	}
	dst := filepath.Join(own, "context")
	when := func(it source.Item) time.Time {
		if st.b.Reproducible {
			return st.b.stamp
		}
		return it.Time()
	}
	for _, it := range set.Items {
		to := filepath.Join(dst, it.Rel)
		switch {
		case it.Mode.IsDir():
			err = os.MkdirAll(to, 0o755)
		case it.Mode&fs.ModeSymlink != 0:
			err = os.Symlink(it.Link, to)
		default:
			if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
				err = copyFile(it.Path, to, it.Mode.Perm(), when(it))
			}
		}
		if err != nil {
			return "", err
		}
	}
	for _, it := range slices.Backward(set.Items) { // directories after their files
		if it.Mode.IsRegular() {
			continue
		}
		if err := unpack.SetTime(filepath.Join(dst, it.Rel), when(it)); err != nil {
			return "", err
		}
	}
	return dst, nil
}

// maxSecret limits the size of a secret, in bytes.
const maxSecret = 64 << 20

// openSecret mounts a secret from a file system in memory, to keep it off disks.
func (st *stage) openSecret(s *mountSet, m *instructions.Mount) error {
	id := secretID(m)
	text, ok, err := st.b.secret(id)
	switch {
	case err != nil:
		return err
	case !ok && m.Required:
		return fmt.Errorf("no secret %q; add --secret id=%s,src=FILE", id, id)
	case !ok:
		return nil
	}
	if m.Env != nil {
		name := *m.Env
		if name == "" {
			name = id
		}
		s.env = append(s.env, name+"="+string(text))
		if m.Target == "" {
			return nil
		}
	}
	dir, err := st.scratch()
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		return fmt.Errorf("mounting a tmpfs for secret %q: %w", id, err)
	}
	s.undo = append(s.undo, func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	mode := fs.FileMode(0o400)
	if m.Mode != nil {
		mode = fs.FileMode(*m.Mode & 0o777)
	}
	file := filepath.Join(dir, "secret")
	if err := os.WriteFile(file, text, mode); err != nil {
		return err
	}
	s.bind(file, st.mountTarget(m), true)
	return s.show(file, m, 0o400)
}

// openSSH mounts the socket of the caller's agent.
func (st *stage) openSSH(s *mountSet, m *instructions.Mount) error {
	id := sshID(m)
	socket, ok := st.b.SSH[id]
	if !ok {
		if m.Required {
			return fmt.Errorf("no SSH agent %q; add --ssh %s", id, id)
		}
		return nil
	}
	s.bind(socket, st.mountTarget(m), false)
	if envfile.Lookup(s.env, "SSH_AUTH_SOCK") == "" { // the first agent wins
		s.env = append(s.env, "SSH_AUTH_SOCK="+st.mountTarget(m))
	}
	return s.show(socket, m, 0o600)
}

// openCache mounts a directory that outlives the build. Its name is the ID, or else the
// target; from= sets its initial content.
func (st *stage) openCache(ctx context.Context, s *mountSet, m *instructions.Mount) error {
	id := m.CacheID
	if id == "" {
		id = st.mountTarget(m)
	}
	mode := fs.FileMode(0o755)
	if m.Mode != nil {
		mode = source.FromBits(uint32(*m.Mode & 0o7777))
	}
	rel := filepath.Join("cache", "mount", digestOf(id, st.platform.String()))
	if st.ignoresCache() {
		if err := st.b.emptyCache(rel); err != nil {
			return err
		}
	}
	dir, err := st.b.store.Once(ctx, rel, func(dir string) error {
		if m.From != "" {
			src, err := st.mountSource(ctx, s, m)
			if err != nil {
				return err
			}
			if err := os.Remove(dir); err != nil {
				return err
			}
			if _, err := copyTree(src, dir); err != nil {
				return err
			}
		}
		return os.Chmod(dir, mode)
	})
	if err != nil {
		return err
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // the garbage collection goes by age
	if m.CacheSharing == instructions.MountSharingLocked || m.CacheSharing == instructions.MountSharingPrivate {
		if dir, err = st.exclusive(ctx, s, dir, m.CacheSharing); err != nil {
			return err
		}
	}
	s.own = append(s.own, dir)
	s.bind(dir, st.mountTarget(m), m.ReadOnly)
	if m.UID == nil && m.GID == nil && m.Mode == nil {
		return nil
	}
	return s.show(dir, m, 0)
}

// emptyCache moves a cache out of the way when the build first uses it, so that it begins
// empty. Programs of other builds may still use the old directory; gc deletes it later.
func (b *builder) emptyCache(rel string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.emptied[rel] {
		return nil
	}
	b.emptied[rel] = true
	old, err := b.store.TempDir()
	if err == nil {
		err = os.Rename(filepath.Join(b.store.Dir(), rel), filepath.Join(old, "cache"))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return os.Remove(old)
	}
	return err
}

// exclusive gives this build exclusive access to the cache: "locked" waits for other
// builds, "private" makes a copy. The kernel releases the lock when the process ends. On a
// file system without locks, the cache is shared.
func (st *stage) exclusive(ctx context.Context, s *mountSet, dir string, how instructions.ShareMode) (string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	s.undo = append(s.undo, func() { f.Close() })
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case !errors.Is(err, unix.EWOULDBLOCK):
			return dir, nil
		case how == instructions.MountSharingPrivate:
			own, err := st.scratch()
			if err != nil {
				return "", err
			}
			own = filepath.Join(own, "cache")
			_, err = copyTree(dir, own)
			return own, err
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ParseSecret parses --secret: id=NAME,src=FILE or id=NAME,env=VARIABLE. A file or variable
// alone is also the ID, as in docker build.
func ParseSecret(arg string) (id string, s Secret, err error) {
	kind := ""
	for _, kv := range strings.Split(arg, ",") {
		k, v, ok := strings.Cut(kv, "=")
		switch {
		case ok && k == "id":
			id = v
		case ok && (k == "src" || k == "source"):
			s.File = v
		case ok && k == "env":
			s.Env = v
		case ok && k == "type" && (v == "file" || v == "env"):
			kind = v
		default:
			return "", s, fmt.Errorf("secret %q: %q is not id=NAME, src=FILE or env=VARIABLE", arg, kv)
		}
	}
	if kind == "env" && s.Env == "" { // as in buildx, src then names the variable
		s.File, s.Env = "", s.File
	}
	if id == "" || strings.Contains(id, "/") || (s.File != "" && s.Env != "") {
		return "", s, fmt.Errorf("secret %q: needs id=NAME and either src=FILE or env=VARIABLE", arg)
	}
	if s.File == "" && s.Env == "" {
		if _, ok := os.LookupEnv(id); ok {
			s.Env = id
		} else {
			s.File = id
		}
	}
	if s.Env != "" {
		if _, ok := os.LookupEnv(s.Env); !ok {
			return "", s, fmt.Errorf("secret %q: environment variable %s is not set", id, s.Env)
		}
		return id, s, nil
	}
	if _, err := os.Stat(s.File); err != nil {
		return "", s, fmt.Errorf("secret %q: %w", id, err)
	}
	return id, s, nil
}
