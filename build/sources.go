package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"hpcc/build/attest"
	"hpcc/build/git"
	"hpcc/build/source"
	"hpcc/files"
	"hpcc/unpack"
)

// keepGitArg is the build argument that keeps .git in a context that is a repository.
const keepGitArg = "BUILDKIT_CONTEXT_KEEP_GIT_DIR"

// maxContext limits the size of a context that is not a local directory, in bytes: as an
// archive and unpacked.
const maxContext = 64 << 30

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
	*git.Checkout
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
// after the last part of the URL and has mode 600 and the server's time or 1970, as in Docker.
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
	b.Inputs.fetched(public, "sha256", strings.TrimPrefix(f.Sum, "sha256:"), false)
	it := source.Item{Path: f.Path, Mode: 0o600}
	if !b.Reproducible {
		it.When = f.Modified
	}
	return source.Set{Name: name, Items: []source.Item{it}}, f.Sum, nil
}

// secret returns the content of a build secret.
func (b *builder) secret(id string) ([]byte, bool, error) {
	secret, ok := b.Secrets[id]
	if !ok {
		return nil, false, nil
	}
	if secret.File == "" {
		return []byte(os.Getenv(secret.Env)), true, nil
	}
	text, err := files.ReadFile(secret.File, maxSecret)
	if err != nil {
		err = fmt.Errorf("reading secret %q: %w", id, err)
	}
	return text, true, err
}

// clone clones a repository, once in a build.
func (b *builder) clone(ctx context.Context, address, checksum string, keepGit bool) (*git.Checkout, error) {
	r := entryOf(&b.fetches, &b.fetches.repos, fmt.Sprint(keepGit, checksum, " ", address))
	r.once.Do(func() {
		o := git.Repository{Address: address, KeepGit: keepGit, Checksum: checksum, Agent: b.SSH["default"], Secret: b.secret}
		if r.Checkout, r.err = git.Clone(ctx, b.work, o); r.err == nil {
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
	set, err := (&source.Dir{Dir: c.Dir, Of: "the repository"}).Walk(".", nil)
	when := time.Time{}
	if c.KeepTime {
		when = c.Time
	}
	set.Cloned(when)
	return set, c.Key, err
}

// isRemoteContext reports whether a build downloads its context: a git repository, or the URL
// of an archive or a Dockerfile.
func isRemoteContext(context string) bool {
	return git.IsContext(context) || source.IsRemote(context)
}

// keepsContextGit reports whether a context that is a repository has .git.
func (b *builder) keepsContextGit() bool {
	keep, _ := strconv.ParseBool(b.Args[keepGitArg])
	return keep
}

// fetchContext creates the context directory of a repository, a URL or standard input.
func (b *builder) fetchContext(ctx context.Context) error {
	switch {
	case git.IsContext(b.Context):
		c, err := b.clone(ctx, b.Context, "", b.keepsContextGit())
		if err == nil {
			b.Context, b.fetched = c.Dir, true
		}
		return err
	case source.IsRemote(b.Context):
		public := attest.PublicURL(b.Context)
		f, err := b.fetchFile(ctx, b.Context, false, func(int64, int64) {})
		if err != nil {
			return fmt.Errorf("downloading the context %q: %w", public, err)
		}
		b.Inputs.fetched(public, "sha256", strings.TrimPrefix(f.Sum, "sha256:"), true)
		if err := b.contextOfFile(ctx, f.Path); err != nil {
			return fmt.Errorf("reading the context %q: %w", public, err)
		}
		return nil
	case b.Context != "-":
		return nil
	case b.Options.Dockerfile == "-":
		return errors.New("the Dockerfile and the context cannot both come from standard input")
	}
	file := filepath.Join(b.work, "stdin")
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(b.Stdin, maxContext+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	switch {
	case err != nil:
	case n == 0:
		err = errors.New("no data; provide a tar archive or a Dockerfile")
	case n > maxContext:
		err = fmt.Errorf("larger than %d bytes", int64(maxContext))
	default:
		err = b.contextOfFile(ctx, file)
	}
	if err != nil {
		err = fmt.Errorf("reading the context from standard input: %w", err)
	}
	return err
}

// contextOfFile makes a file the context: a tar archive or, as in docker build, only a
// Dockerfile.
func (b *builder) contextOfFile(ctx context.Context, file string) error {
	dir := filepath.Join(b.work, "context")
	isArchive, err := unpackInto(ctx, file, dir)
	if err != nil {
		return err
	}
	b.Context, b.fetched = dir, true
	if isArchive {
		return nil
	}
	if fi, err := os.Stat(file); err != nil || fi.Size() > maxDockerfile {
		return errors.New("it is not a tar archive or a Dockerfile")
	}
	if !filepath.IsAbs(b.Options.Dockerfile) && b.Options.Dockerfile != "-" { // it is the only one
		b.Options.Dockerfile = ""
	}
	return os.Link(file, filepath.Join(dir, "Dockerfile"))
}

// unpackInto creates a directory with the files of an archive, or returns false.
func unpackInto(ctx context.Context, file, dir string) (isArchive bool, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return false, err
	}
	r, ok, err := source.Archive(file)
	if err != nil || !ok {
		return false, err
	}
	defer r.Close()
	limited := &io.LimitedReader{R: r, N: maxContext}
	err = unpack.Archive(ctx, limited, dir)
	if limited.N <= 0 {
		err = fmt.Errorf("unpacked, the archive is larger than %d bytes", int64(maxContext))
	}
	return true, err
}

// fetchNamed returns the directory of a named context, which it downloads if the value is a
// URL. A file that is not an archive is the only one in the directory, with BuildKit's name.
func (b *builder) fetchNamed(ctx context.Context, value string) (dir string, err error) {
	if git.IsAddress(value) {
		c, err := b.clone(ctx, value, "", false)
		if err != nil {
			return "", err
		}
		return c.Dir, nil
	}
	if !source.IsRemote(value) {
		return value, nil
	}
	public := attest.PublicURL(value)
	f, err := b.fetchFile(ctx, value, false, func(int64, int64) {})
	if err != nil {
		return "", fmt.Errorf("downloading %q: %w", public, err)
	}
	b.Inputs.fetched(public, "sha256", strings.TrimPrefix(f.Sum, "sha256:"), false)
	dir = f.Path + ".files"
	isArchive, err := unpackInto(ctx, f.Path, dir)
	if errors.Is(err, fs.ErrExist) { // another name has the same URL
		return dir, nil
	}
	if err != nil {
		return "", fmt.Errorf("unpacking %q: %w", public, err)
	}
	if !isArchive {
		err = os.Link(f.Path, filepath.Join(dir, "context"))
	}
	return dir, err
}
