package source

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
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	securejoin "github.com/cyphar/filepath-securejoin"

	"hpcc/build/attest"
	"hpcc/store/wait"
)

// maxDownload limits a download of ADD, in bytes.
const maxDownload = 64 << 30

// IsRemote reports whether ADD downloads a source.
func IsRemote(word string) bool {
	return strings.HasPrefix(word, "http://") || strings.HasPrefix(word, "https://") || IsGit(word)
}

var gitPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(git://|ssh://|git@[^/]+:|https?://.*\.git(#|$))`) })

// IsGit reports whether a source of ADD, or a context, is a git repository.
func IsGit(word string) bool { return gitPattern().MatchString(word) }

// Fetch downloads a URL to a file and returns its checksum, "sha256:HEX". pinned means that
// the caller verifies the checksum, as in [wait.Get]. Fetch calls fetched with the number of
// bytes received and the total number, which is 0 if it is unknown.
func Fetch(ctx context.Context, from, to string, pinned bool, fetched func(done, total int64)) (sum string, err error) {
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
		return "", fmt.Errorf("the server returned %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	f, err := os.Create(to)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h, &counter{total: resp.ContentLength, report: fetched}), io.LimitReader(resp.Body, maxDownload+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if n > maxDownload {
		return "", fmt.Errorf("the file is larger than %d bytes", int64(maxDownload))
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), err
}

// Clone clones a repository, REPOSITORY[#REF[:DIRECTORY]], into a new directory in work,
// using git from PATH. It returns the path of DIRECTORY in the clone, the commit, and
// DIRECTORY. If keepGit is false, it removes .git.
func Clone(ctx context.Context, work, word string, keepGit bool) (dir, commit, sub string, err error) {
	fail := func(err error) (string, string, string, error) {
		return "", "", "", fmt.Errorf("fetching repository %q: %w", attest.PublicURL(word), err)
	}
	if _, err := exec.LookPath("git"); err != nil {
		return fail(errors.New("git is not on PATH; install it"))
	}
	repository, fragment, _ := strings.Cut(word, "#")
	ref, sub, _ := strings.Cut(fragment, ":")
	if ref == "" {
		ref = "HEAD"
	}
	if strings.HasPrefix(ref, "-") || strings.HasPrefix(repository, "-") {
		return fail(errors.New("a repository or reference must not begin with a hyphen"))
	}
	if dir, err = os.MkdirTemp(work, "git-"); err != nil {
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
			err = fmt.Errorf("%q is not a directory in the repository", sub)
		}
	}
	if err != nil {
		return fail(err)
	}
	return top, strings.TrimSpace(string(out)), sub, nil
}

// A counter reports the number of bytes written to it, and the expected total (-1: unknown).
type counter struct {
	done, total int64
	report      func(done, total int64)
}

func (c *counter) Write(p []byte) (int, error) {
	c.done += int64(len(p))
	c.report(c.done, max(0, c.total))
	return len(p), nil
}
