package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	securejoin "github.com/cyphar/filepath-securejoin"

	"hpcc/build/sbom"
	"hpcc/store/wait"
	"hpcc/unpack"
)

// maxDownload bounds what ADD fetches, in bytes.
const maxDownload = 64 << 30

// isRemote says whether a word of ADD names something to fetch.
func isRemote(word string) bool {
	return strings.HasPrefix(word, "http://") || strings.HasPrefix(word, "https://") || isGit(word)
}

var gitText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(git://|ssh://|git@[^/]+:|https?://.*\.git(#|$))`) })

func isGit(word string) bool { return gitText().MatchString(word) }

// download fetches a file of ADD and holds it to its checksum, "" for none. Its
// name is the last part of the address. Docker gives it mode 600. Bytes are told.
func (b *builder) download(ctx context.Context, word, checksum string, fetched func(done, total int64)) (sourceSet, string, error) {
	u, err := url.Parse(word)
	if err != nil || u.Host == "" {
		return sourceSet{}, "", fmt.Errorf("adding %q: not an address", word)
	}
	name := path.Base(u.Path)
	dir, err := os.MkdirTemp(b.work, "add-")
	if err != nil {
		return sourceSet{}, "", err
	}
	file := filepath.Join(dir, "file")
	sum, err := fetchFile(ctx, word, file, checksum != "", fetched)
	if err != nil {
		return sourceSet{}, "", fmt.Errorf("adding %q: %w", u.Redacted(), err)
	}
	if checksum != "" && sum != checksum {
		return sourceSet{}, "", fmt.Errorf("adding %q: its checksum is %s, --checksum says %s", u.Redacted(), sum, checksum)
	}
	if name == "/" || name == "." {
		name = ""
	}
	b.Inputs.add(sbom.PublicURL(word), "sha256", strings.TrimPrefix(sum, "sha256:"))
	return sourceSet{name: name, items: []item{{path: file, mode: 0o600}}}, sum, nil
}

// fetchFile gets an address into a file and returns its checksum. pinned says that
// the caller compares it.
func fetchFile(ctx context.Context, from, to string, pinned bool, fetched func(done, total int64)) (sum string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("User-Agent", "hpcc")
	resp, err := wait.Get(nil, req, pinned)
	if err != nil {
		if ue := (*url.Error)(nil); errors.As(err, &ue) {
			err = ue.Err // the caller names the address without its password
		}
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the server answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	f, err := os.Create(to)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h, &counter{total: resp.ContentLength, tell: fetched}), io.LimitReader(resp.Body, maxDownload+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if n > maxDownload {
		return "", fmt.Errorf("it has more than %d bytes", int64(maxDownload))
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), err
}

// clone gets a repository, REPOSITORY[#REF[:DIRECTORY]], with the git
// that is on PATH. The commit stands for its content.
func (b *builder) clone(ctx context.Context, word string, keepGit bool) (dir, commit string, err error) {
	fail := func(err error) (string, string, error) {
		return "", "", fmt.Errorf("fetching repository %q: %w", sbom.PublicURL(word), err)
	}
	if _, err := exec.LookPath("git"); err != nil {
		return fail(errors.New("git is not on PATH"))
	}
	repository, fragment, _ := strings.Cut(word, "#")
	ref, sub, _ := strings.Cut(fragment, ":")
	if ref == "" {
		ref = "HEAD"
	}
	if strings.HasPrefix(ref, "-") || strings.HasPrefix(repository, "-") {
		return fail(errors.New("its name begins with a hyphen"))
	}
	if dir, err = os.MkdirTemp(b.work, "git-"); err != nil {
		return fail(err)
	}
	if _, err := git(ctx, dir, "init", "-q"); err != nil {
		return fail(err)
	}
	if err := gitFetch(ctx, dir, repository, ref); err != nil {
		return fail(err)
	}
	if _, err := git(ctx, dir, "checkout", "-q", "FETCH_HEAD"); err != nil {
		return fail(err)
	}
	out, err := git(ctx, dir, "rev-parse", "HEAD")
	if err != nil {
		return fail(err)
	}
	if !keepGit {
		if err := os.RemoveAll(filepath.Join(dir, ".git")); err != nil {
			return fail(err)
		}
	}
	top, err := securejoin.SecureJoin(dir, sub)
	if err == nil {
		var fi os.FileInfo
		if fi, err = os.Stat(top); err == nil && !fi.IsDir() {
			err = fmt.Errorf("%q in it is no directory", sub)
		}
	}
	if err != nil {
		return fail(err)
	}
	b.Inputs.repository(word, strings.TrimSpace(string(out)), word == b.Context)
	return top, strings.TrimSpace(string(out)) + ":" + sub, nil
}

// repository is a clone as a source of ADD.
func (b *builder) repository(ctx context.Context, word string, keepGit bool) (sourceSet, string, error) {
	top, commit, err := b.clone(ctx, word, keepGit)
	if err != nil {
		return sourceSet{}, "", err
	}
	set, err := (&contextDir{dir: top, of: "the repository"}).walk(".", nil)
	return set, commit, err
}

// fetchContext makes a directory of a context that is none: a repository, or
// what is on standard input, a tar archive or, as docker build has it, a
// Dockerfile alone.
func (b *builder) fetchContext(ctx context.Context) error {
	switch {
	case isGit(b.Context):
		dir, _, err := b.clone(ctx, b.Context, false)
		b.Context = dir
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
	n, err := io.Copy(f, io.LimitReader(b.Stdin, maxDownload))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && n == 0 {
		err = errors.New("it is empty; give a tar archive or a Dockerfile")
	}
	if err != nil {
		return fmt.Errorf("reading the context from standard input: %w", err)
	}
	r, ok, err := archive(file)
	if err != nil {
		return fmt.Errorf("reading the context from standard input: %w", err)
	}
	b.Context = dir
	if !ok {
		if n > maxDockerfile {
			return errors.New("standard input is neither a tar archive nor a Dockerfile")
		}
		return os.Rename(file, filepath.Join(dir, "Dockerfile"))
	}
	if b.Options.Dockerfile != "" && !filepath.IsAbs(b.Options.Dockerfile) {
		b.Options.Dockerfile = filepath.Join(dir, b.Options.Dockerfile)
	}
	defer r.Close()
	return unpack.Archive(ctx, r, dir)
}
