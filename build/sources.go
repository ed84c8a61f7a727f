package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"hpcc/build/attest"
	"hpcc/build/source"
	"hpcc/store/wait"
	"hpcc/unpack"
)

// keepGitArg is the build argument that keeps .git in a context that is a repository.
const keepGitArg = "BUILDKIT_CONTEXT_KEEP_GIT_DIR"

// maxStdin limits the size of a context on standard input, in bytes.
const maxStdin = 64 << 30

// A fetches holds the sources that a build has downloaded, so that it downloads each once.
type fetches struct {
	mu    sync.Mutex
	files map[string]*fetchedFile
	repos map[string]*fetchedRepository
}

type fetchedFile struct {
	once sync.Once
	source.Download
	err error
}

type fetchedRepository struct {
	once sync.Once
	*source.Checkout
	err error
}

// entryOf returns the entry of a key in a map, which it creates if needed.
func entryOf[T any](f *fetches, m *map[string]*T, key string) *T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if *m == nil {
		*m = map[string]*T{}
	}
	e := (*m)[key]
	if e == nil {
		e = new(T)
		(*m)[key] = e
	}
	return e
}

// fetchFile downloads a file, once in a build.
func (b *builder) fetchFile(ctx context.Context, address string, pinned bool, fetched func(done, total int64)) (source.Download, error) {
	f := entryOf(&b.fetches, &b.fetches.files, address)
	f.once.Do(func() {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" {
			f.err = errors.New("not a URL")
			return
		}
		dir, err := os.MkdirTemp(b.work, "add-")
		if err != nil {
			f.err = err
			return
		}
		f.Download, f.err = source.Fetch(ctx, address, filepath.Join(dir, "file"), pinned, fetched)
	})
	return f.Download, f.err
}

// download downloads a file of ADD and compares its checksum ("": none). The file is named
// after the last part of the URL and has mode 600, as in Docker.
func (b *builder) download(ctx context.Context, word, checksum string, fetched func(done, total int64)) (source.Set, string, error) {
	public := attest.PublicURL(word)
	f, err := b.fetchFile(ctx, word, checksum != "", fetched)
	if err != nil {
		return source.Set{}, "", fmt.Errorf("adding %q: %w", public, err)
	}
	if checksum != "" && f.Sum != checksum {
		return source.Set{}, "", fmt.Errorf("adding %q: checksum mismatch: %s, --checksum is %s", public, f.Sum, checksum)
	}
	name := ""
	if u, err := url.Parse(word); err == nil {
		name = strings.Trim(path.Base(u.Path), "./")
	}
	b.Inputs.add(public, "sha256", strings.TrimPrefix(f.Sum, "sha256:"))
	return source.Set{Name: name, Items: []source.Item{{Path: f.Path, Mode: 0o600}}}, f.Sum, nil
}

// gitSecret returns a build secret for git.
func (b *builder) gitSecret(id string) ([]byte, bool, error) {
	secret, ok := b.Secrets[id]
	if !ok {
		return nil, false, nil
	}
	if secret.File == "" {
		return []byte(os.Getenv(secret.Env)), true, nil
	}
	text, err := wait.ReadFile(secret.File, maxSecret)
	if err != nil {
		err = fmt.Errorf("reading secret %q: %w", id, err)
	}
	return text, true, err
}

// clone clones a repository, once in a build.
func (b *builder) clone(ctx context.Context, address, checksum string, keepGit bool) (*source.Checkout, error) {
	r := entryOf(&b.fetches, &b.fetches.repos, fmt.Sprint(keepGit, checksum, " ", address))
	r.once.Do(func() {
		o := source.Repository{Address: address, KeepGit: keepGit, Checksum: checksum, Agent: b.SSH["default"], Secret: b.gitSecret}
		if r.Checkout, r.err = source.Clone(ctx, b.work, o); r.err == nil {
			b.Inputs.repository(address, r.Commit, address == b.given)
		}
	})
	return r.Checkout, r.err
}

// repository returns a clone as a source of ADD. The commit is part of the key of its step.
func (b *builder) repository(ctx context.Context, word, checksum string, keepGit bool) (source.Set, string, error) {
	c, err := b.clone(ctx, word, checksum, keepGit)
	if err != nil {
		return source.Set{}, "", err
	}
	set, err := c.Files()
	return set, c.Key, err
}

// IsRemoteContext reports whether a build downloads its context: a git repository, or the URL
// of an archive or a Dockerfile.
func IsRemoteContext(context string) bool {
	return source.IsGitContext(context) || source.IsRemote(context)
}

// fetchContext creates the context directory of a repository or of standard input: a tar
// archive or, as in docker build, only a Dockerfile.
func (b *builder) fetchContext(ctx context.Context) error {
	switch {
	case source.IsGitContext(b.Context):
		keep, _ := strconv.ParseBool(b.Args[keepGitArg])
		c, err := b.clone(ctx, b.Context, "", keep)
		if err == nil {
			b.Context, b.fetched = c.Dir, true
		}
		return err
	case b.Context != "-":
		return nil
	case b.Options.Dockerfile == "-":
		return errors.New("the Dockerfile and the context cannot both come from standard input")
	}
	dir := filepath.Join(b.work, "context")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	file := filepath.Join(b.work, "stdin")
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(b.Stdin, maxStdin))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && n == 0 {
		err = errors.New("no data; provide a tar archive or a Dockerfile")
	}
	if err != nil {
		return fmt.Errorf("reading the context from standard input: %w", err)
	}
	r, ok, err := source.Archive(file)
	if err != nil {
		return fmt.Errorf("reading the context from standard input: %w", err)
	}
	b.Context, b.fetched = dir, true
	if !ok {
		if n > maxDockerfile {
			return errors.New("standard input is not a tar archive or a Dockerfile")
		}
		return os.Rename(file, filepath.Join(dir, "Dockerfile"))
	}
	defer r.Close()
	return unpack.Archive(ctx, r, dir)
}

// fetchNamed returns the directory of a named context, which it downloads if the value is a
// URL.
func (b *builder) fetchNamed(ctx context.Context, value string) (dir string, err error) {
	if source.IsGit(value) {
		c, err := b.clone(ctx, value, "", false)
		if err != nil {
			return "", err
		}
		return c.Dir, nil
	}
	return value, nil
}
