package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/build/source"
	"hpcc/envfile"
	"hpcc/store/wait"
)

// A Secret is what RUN --mount=type=secret shows: the content of a file or of a
// variable of the caller. Neither it nor anything made from it is in the key of
// a step; it never gets into a layer unless the program puts it there.
type Secret struct{ File, Env string }

// A mountSet is what the --mount flags of one RUN come to.
type mountSet struct {
	mounts []specs.Mount
	env    []string
	undo   []func()
}

// close ends what the mounts need, last first.
func (s *mountSet) close() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
}

// mountWords are what the mounts contribute to the key of a RUN: where they
// are, and the content of those that are content. Caches, secrets and sockets
// are not (Dockerfile reference, "RUN --mount").
func (st *stage) mountWords(ctx context.Context, ms []*instructions.Mount) ([]string, error) {
	var words []string
	for _, m := range ms {
		words = append(words, "--mount", string(m.Type), st.mountTarget(m), m.Source, strconv.FormatBool(m.ReadOnly))
		if m.Type == instructions.MountTypeSecret && m.Env != nil {
			words = append(words, *m.Env)
		}
		if m.Type != instructions.MountTypeBind && (m.Type != instructions.MountTypeCache || m.From == "") {
			continue
		}
		key, err := st.mountKey(ctx, m)
		if err != nil {
			return nil, err
		}
		words = append(words, key)
	}
	return words, nil
}

// mountKey stands for the content of a mount: of a stage or image its key, of a
// directory the digest of what is bound.
func (st *stage) mountKey(ctx context.Context, m *instructions.Mount) (string, error) {
	c, err := st.b.contextOf(m.From)
	if err != nil {
		return "", err
	}
	if c == nil {
		key, _, err := st.otherTree(ctx, m.From)
		return key, err
	}
	set, err := c.Walk(contextPath(m.Source), nil)
	if err != nil {
		return "", err
	}
	return set.Digest()
}

// contextPath is a mount's source as COPY would name it.
func contextPath(source string) string {
	if p := path.Clean("/" + source)[1:]; p != "" {
		return p
	}
	return "."
}

// mountTarget is where a mount appears: the defaults are those of the
// Dockerfile reference.
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

// nameSockets gives the sockets of agents that have no target their usual one.
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

// openMounts makes the mounts ready. The caller closes the set, also on error.
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
	return s, nil
}

func (s *mountSet) bind(src, dst string, readOnly bool) {
	o := []string{"rbind"}
	if readOnly {
		o = append(o, "ro")
	}
	s.mounts = append(s.mounts, specs.Mount{Type: "bind", Source: src, Destination: dst, Options: o})
}

// mountSource is what a mount shows: of a context, of a view of its own of
// another stage's tree, or of an image.
func (st *stage) mountSource(ctx context.Context, s *mountSet, m *instructions.Mount) (string, error) {
	c, err := st.b.contextOf(m.From)
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
	return securejoin.SecureJoin(dir, m.Source)
}

// openBind shows files of the context, a stage or an image. What the program
// writes there, when it may, is thrown away.
func (st *stage) openBind(ctx context.Context, s *mountSet, m *instructions.Mount) error {
	src, err := st.mountSource(ctx, s, m)
	if err != nil {
		return err
	}
	fi, err := os.Stat(src)
	if err != nil {
		return fmt.Errorf("its source %q is not there", m.Source)
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
		if err != nil {
			return err
		}
		src = private
	}
	s.bind(src, st.mountTarget(m), m.ReadOnly)
	return nil
}

// scratch is a new directory in the build's own; it goes with the build.
func (st *stage) scratch() (string, error) { return os.MkdirTemp(st.b.work, "mount-") }

// contextMount is a part of a context, without what .dockerignore leaves out:
// that needs a copy.
func (st *stage) contextMount(c *source.Dir, source string) (string, error) {
	rel := contextPath(source)
	src, err := securejoin.SecureJoin(c.Dir, rel)
	if err != nil || c.Ignore == nil {
		return src, err
	}
	set, err := c.Walk(rel, nil)
	if err != nil || !set.Dir {
		return src, err
	}
	own, err := st.scratch()
	if err != nil {
		return "", err
	}
	dst := filepath.Join(own, "context")
	for _, it := range set.Items {
		to := filepath.Join(dst, it.Rel)
		switch {
		case it.Mode.IsDir():
			err = os.MkdirAll(to, 0o755)
		case it.Mode&fs.ModeSymlink != 0:
			err = os.Symlink(it.Link, to)
		default:
			if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
				err = copyFile(it.Path, to, it.Mode.Perm(), st.b.stamp)
			}
		}
		if err != nil {
			return "", err
		}
	}
	return dst, nil
}

// maxSecret bounds the file of a secret, in bytes.
const maxSecret = 64 << 20

// openSecret shows a secret from a file system in memory: it is on no disk.
func (st *stage) openSecret(s *mountSet, m *instructions.Mount) error {
	id := secretID(m)
	secret, ok := st.b.Secrets[id]
	if !ok {
		if m.Required {
			return fmt.Errorf("there is no secret %q; give --secret id=%s,src=FILE", id, id)
		}
		return nil
	}
	text := []byte(os.Getenv(secret.Env))
	if secret.File != "" {
		var err error
		if text, err = wait.ReadFile(secret.File, maxSecret); err != nil {
			return fmt.Errorf("reading secret %q: %w", id, err)
		}
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
		return fmt.Errorf("mounting memory for secret %q: %w", id, err)
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
	return nil
}

// openSSH shows the caller's agent.
func (st *stage) openSSH(s *mountSet, m *instructions.Mount) error {
	id := sshID(m)
	socket, ok := st.b.SSH[id]
	if !ok {
		if m.Required {
			return fmt.Errorf("there is no agent %q; give --ssh %s", id, id)
		}
		return nil
	}
	s.bind(socket, st.mountTarget(m), false)
	if envfile.Lookup(s.env, "SSH_AUTH_SOCK") == "" { // of several the first
		s.env = append(s.env, "SSH_AUTH_SOCK="+st.mountTarget(m))
	}
	return nil
}

// openCache shows a directory that outlives the build. Its name is the id, or
// the target; from= gives what is in it at first.
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
	_ = os.Chtimes(dir, now, now) // gc goes by it
	if m.CacheSharing == instructions.MountSharingLocked || m.CacheSharing == instructions.MountSharingPrivate {
		if dir, err = st.exclusive(ctx, s, dir, m.CacheSharing); err != nil {
			return err
		}
	}
	s.bind(dir, st.mountTarget(m), m.ReadOnly)
	return nil
}

// exclusive gives this build alone the cache: it waits ("locked"), or takes a
// copy while another build has it ("private"). The lock is the kernel's and
// ends with the process; a file system without locks shares.
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

// ParseSecret reads --secret: id=NAME,src=FILE or id=NAME,env=VARIABLE; a bare
// file or variable goes by its name, as in docker build.
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
	if kind == "env" && s.Env == "" { // as buildx has it: src names the variable then
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
			return "", s, fmt.Errorf("secret %q: there is no variable %s in the environment", id, s.Env)
		}
		return id, s, nil
	}
	if _, err := os.Stat(s.File); err != nil {
		return "", s, fmt.Errorf("secret %q: %w", id, err)
	}
	return id, s, nil
}
